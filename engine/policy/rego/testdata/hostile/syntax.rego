# hook: score
# want: Load
# says: syntax.rego:
package dovetail.score.hostile

deny contains { if
