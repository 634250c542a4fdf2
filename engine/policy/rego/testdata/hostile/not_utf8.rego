# hook: score
# want: Load
# says: 
package dovetail.score.hostile

deny contains {"i": 0, "msg": "\xff"}
