# hook: disrupt
# want: BadResult
# says: "n9" is not one of the nodes asked about
package dovetail.disrupt.hostile

keep contains {"msg": "m", "nodes": ["n9"]}
