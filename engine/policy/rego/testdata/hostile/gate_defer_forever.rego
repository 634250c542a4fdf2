# hook: disrupt
# want: BadResult
# says: 99999999 seconds
package dovetail.disrupt.hostile

defer contains {"msg": "m", "seconds": 99999999}
