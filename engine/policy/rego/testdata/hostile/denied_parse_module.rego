# hook: score
# want: Load
# says: hostile/denied_parse_module.rego:6: undefined function rego.parse_module
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if rego.parse_module("x", "package x")
