# hook: score
# want: Builtin
# says: builtin_error.rego:6: to_number
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if to_number(input.nodePool.name) > 3
