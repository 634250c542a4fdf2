# hook: score
# want: Load
# says: hostile/denied_match_schema.rego:6: undefined function json.match_schema
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if json.match_schema({}, {})
