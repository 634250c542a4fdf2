# hook: disrupt
# want: BadResult
# says: a node to keep must be named
package dovetail.disrupt.hostile

keep contains {"msg": "m"}
