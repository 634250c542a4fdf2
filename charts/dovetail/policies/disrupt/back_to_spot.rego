# METADATA
# title: Back to spot
# description: |
#   Nodes that were bought as a fallback go back to the first choice, but not at once and
#   not all together: only after a time, and only a few per hour and pool.
# custom:
#   hook: disrupt
#   parameters:
#     seconds:
#       description: Age from which a fallback node may go.
#       type: integer
#       minimum: 0
#       default: 3600
#     perHour:
#       description: Nodes of a pool that may go in an hour.
#       type: integer
#       minimum: 1
#       default: 2
package dovetail.disrupt.back_to_spot

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

fallbacks[c.pool] contains c.node if {
	input.command.reason == "Underutilized"
	some c in input.command.candidates
	c.fallback
}

keep contains {"code": "young", "nodes": [c.node], "msg": sprintf("fallback node %s stays for %d seconds more", [c.node, settings.seconds - c.ageSeconds])} if {
	some c in input.command.candidates
	c.node in fallbacks[c.pool]
	c.ageSeconds < settings.seconds
}

# Of the nodes that are old enough, the first by name may go, as far as the hour has room.
keep contains {"code": "rate", "nodes": [node], "msg": sprintf("NodePool %s gives back %d fallback nodes an hour", [pool, settings.perHour])} if {
	some pool, _ in fallbacks
	ready := sort([c.node |
		some c in input.command.candidates
		c.node in fallbacks[pool]
		c.ageSeconds >= settings.seconds
	])
	room := max([0, settings.perHour - object.get(input.history.disruptions.byPool, [pool, "1h"], 0)])
	some i, node in ready
	i >= room
}
