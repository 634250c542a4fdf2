# METADATA
# title: Wait, then pay
# description: |
#   Spot capacity that cannot be had is waited for before on-demand capacity is bought in its
#   place, unless a pod is important.
# custom:
#   hook: launch
#   parameters:
#     seconds:
#       description: How long the oldest pod waits.
#       type: integer
#       minimum: 1
#       maximum: 86400
#       default: 300
#     priority:
#       description: Priority from which nobody waits.
#       type: integer
#       default: 1000
package dovetail.launch.wait_then_pay

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

important(c) if {
	some p in c.pods.priorities
	p >= settings.priority
}

defer contains {"code": "wait", "claims": [c.name], "seconds": left, "msg": sprintf("claim %s waits %d seconds more for spot capacity", [c.name, left])} if {
	some c in input.claims
	c.offering.capacityType == "on-demand"
	c.fallbackFrom.capacityType == "spot"
	not important(c)
	left := settings.seconds - c.pods.maxPendingSeconds
	left > 0
}
