# hook: score
# want: Builtin
# says: depends on the host
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if time.clock([0, "Local"])[0] >= 0
