# hook: score
# want: Load
# says: hostile/denied_graphql.rego:6: undefined function graphql.is_valid
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if graphql.is_valid("", "")
