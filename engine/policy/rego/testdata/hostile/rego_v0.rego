# hook: score
# want: Load
# says: rego_v0.rego:
package dovetail.score.hostile

deny[x] { x := {"i": 0, "msg": "m"} }
