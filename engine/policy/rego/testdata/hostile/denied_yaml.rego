# hook: score
# want: Load
# says: hostile/denied_yaml.rego:6: undefined function yaml.unmarshal
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if yaml.unmarshal("a: 1")
