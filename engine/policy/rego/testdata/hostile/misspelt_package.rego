# hook: score
# want: Load
# says: no package dovetail.score.<name>
package dovetail.scroe.hostile

deny contains {"i": 0, "msg": "m"}
