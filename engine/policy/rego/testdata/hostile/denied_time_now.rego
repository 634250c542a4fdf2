# hook: score
# want: Load
# says: hostile/denied_time_now.rego:6: undefined function time.now_ns
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if time.now_ns() > 0
