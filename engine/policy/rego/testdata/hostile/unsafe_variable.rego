# hook: score
# want: Load
# says: unsafe
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if x > 4
