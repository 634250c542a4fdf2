# hook: score
# want: Load
# says: recursive
package dovetail.score.hostile

f(x) := f(x + 1)

deny contains {"i": 0, "msg": "m"} if f(1)
