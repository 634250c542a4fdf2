# hook: score
# want: Load
# says: hostile/denied_render_template.rego:6: undefined function strings.render_template
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if strings.render_template("{{.x}}", {"x": 1})
