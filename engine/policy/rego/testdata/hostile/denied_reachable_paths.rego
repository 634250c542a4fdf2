# hook: score
# want: Load
# says: hostile/denied_reachable_paths.rego:6: undefined function graph.reachable_paths
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if graph.reachable_paths({}, {1})
