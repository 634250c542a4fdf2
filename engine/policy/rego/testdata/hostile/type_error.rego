# hook: score
# want: Load
# says: type
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if startswith(5, "x")
