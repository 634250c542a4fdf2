# METADATA
# title: On-demand after a while
# custom:
#   hook: launch
#   parameters:
#     seconds:
#       type: integer
#       minimum: 0
#       default: 300
package dovetail.launch.wait_for_spot

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

defer contains {"code": "wait", "claims": [c.name], "seconds": left, "msg": sprintf("%d seconds more for spot", [left])} if {
	some c in input.claims
	c.offering.capacityType == "on-demand"
	left := settings.seconds - c.pods.maxPendingSeconds
	left > 0
}
