# hook: disrupt
# want: BadResult
# says: 0 seconds
package dovetail.disrupt.hostile

defer contains {"msg": "m"}
