# hook: score
# want: Load
# says: hostile/denied_cidr_expand.rego:6: undefined function net.cidr_expand
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if net.cidr_expand("0.0.0.0/0")
