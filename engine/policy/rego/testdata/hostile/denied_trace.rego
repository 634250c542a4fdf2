# hook: score
# want: Load
# says: hostile/denied_trace.rego:6: undefined function trace
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if trace("x")
