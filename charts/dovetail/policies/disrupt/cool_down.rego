# METADATA
# title: Cool-down
# description: |
#   Waits after each disruption in a pool before the next one. Empty nodes, and nodes that
#   go anyway, do not wait.
# custom:
#   hook: disrupt
#   parameters:
#     seconds:
#       description: Time between two disruptions in a pool.
#       type: integer
#       minimum: 1
#       maximum: 86400
#       default: 900
package dovetail.disrupt.cool_down

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

defer contains {"code": "cool-down", "seconds": left, "msg": sprintf("NodePool %s was disrupted %d seconds ago; %d must pass", [pool, since, settings.seconds])} if {
	not input.command.reason in {"Empty", "Expired", "Repair", "Interruption"}
	some pool in {c.pool | some c in input.command.candidates}
	since := input.history.secondsSinceLastDisruption[pool]
	left := settings.seconds - since
	left > 0
}
