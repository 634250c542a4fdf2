# hook: score
# want: Builtin
# says: time.clock
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if time.clock([0, "Mars/Olympus"])
