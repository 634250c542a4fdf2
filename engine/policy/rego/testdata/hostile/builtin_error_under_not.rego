# hook: score
# want: Builtin
# says: to_number
package dovetail.score.hostile

bad if to_number(input.nodePool.name) > 3

deny contains {"i": 0, "msg": "m"} if not bad
