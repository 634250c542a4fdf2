# hook: score
# want: Load
# says: recursive
package dovetail.score.hostile

a if b

b if a

deny contains {"i": 0, "msg": "m"} if a
