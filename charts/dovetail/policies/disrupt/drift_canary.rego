# METADATA
# title: Drift as canary
# description: |
#   The first drifted node of a pool goes alone and soaks; after that one zone at a time.
# custom:
#   hook: disrupt
#   parameters:
#     soakSeconds:
#       description: Time after the first node.
#       type: integer
#       minimum: 0
#       maximum: 86400
#       default: 1800
package dovetail.disrupt.drift_canary

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

drifted if input.command.reason == "Drifted"

nodes[c.pool] contains c.node if {
	drifted
	some c in input.command.candidates
}

gone(pool) := object.get(input.history.disruptions.byPool, [pool, "24h"], 0)

# Pools without a disruption today and none under way begin with one node.
fresh contains pool if {
	some pool, _ in nodes
	gone(pool) == 0
	object.get(input.inFlight.byPool, pool, 0) == 0
}

keep contains {"code": "canary", "nodes": [node], "msg": sprintf("the first drifted node of NodePool %s goes alone", [pool])} if {
	some pool in fresh
	some node in nodes[pool]
	node != min(nodes[pool])
}

defer contains {"code": "soak", "seconds": left, "msg": sprintf("the first drifted node of NodePool %s soaks for %d seconds more", [pool, left])} if {
	some pool, _ in nodes
	not pool in fresh
	gone(pool) <= 1
	left := settings.soakSeconds - object.get(input.history.secondsSinceLastDisruption, pool, 0)
	left > 0
}

# The zone under way, or else the first of the command.
busy := {zone |
	some zone, n in input.inFlight.byZone
	n > 0
}

zone := min(busy) if {
	count(busy) > 0
} else := min({c.zone | some c in input.command.candidates})

keep contains {"code": "zone", "nodes": [c.node], "msg": sprintf("zone %s waits for zone %s", [c.zone, zone])} if {
	drifted
	some c in input.command.candidates
	not c.pool in fresh
	c.zone != zone
}
