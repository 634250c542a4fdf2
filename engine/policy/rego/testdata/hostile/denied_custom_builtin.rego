# hook: score
# want: Load
# says: hostile/denied_custom_builtin.rego:6: undefined function my.company.lookup
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if my.company.lookup("x")
