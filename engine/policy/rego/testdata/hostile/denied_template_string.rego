# hook: score
# want: Load
# says: denied_template_string.rego:
package dovetail.score.hostile

deny contains {"i": 0, "msg": $"row {1 + 1}"}
