# METADATA
# title: Churn cap
# description: |
#   Waits when a pool has lost more than a share of its nodes within an hour, or when a pod
#   that would move has been evicted often enough today. Empty nodes, and nodes that go
#   anyway, do not count.
# custom:
#   hook: disrupt
#   default: true
#   parameters:
#     permillePerHour:
#       description: Share of a pool's nodes that may go in an hour.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 30
#     evictionsPerDay:
#       description: Evictions of a pod's owner within 24 hours from which its pods stay.
#       type: integer
#       minimum: 1
#       default: 2
#     waitSeconds:
#       description: When to ask again.
#       type: integer
#       minimum: 1
#       maximum: 86400
#       default: 600
package dovetail.disrupt.churn_cap

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

voluntary if input.command.reason in {"Underutilized", "Drifted"}

pools := {c.pool | some c in input.command.candidates}

defer contains {"code": "pool", "seconds": settings.waitSeconds, "msg": sprintf("NodePool %s lost %d of its %d nodes within the hour; %d permille may go", [pool, gone, nodes, settings.permillePerHour])} if {
	voluntary
	some pool in pools
	gone := input.history.disruptions.byPool[pool]["1h"]
	nodes := input.nodePools[pool].nodes
	gone * 1000 > settings.permillePerHour * nodes
}

defer contains {"code": "pod", "seconds": settings.waitSeconds, "nodes": [pod.node], "msg": sprintf("pod %s/%s was evicted %d times within 24 hours", [pod.namespace, pod.name, pod.evictionsLast24h])} if {
	voluntary
	some pod in input.pods
	pod.evictionsLast24h >= settings.evictionsPerDay
}
