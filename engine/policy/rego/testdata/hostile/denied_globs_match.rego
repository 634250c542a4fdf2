# hook: score
# want: Load
# says: hostile/denied_globs_match.rego:6: undefined function regex.globs_match
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if regex.globs_match("a*", "b*")
