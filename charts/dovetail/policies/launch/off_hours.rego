# METADATA
# title: Off-hours limits
# description: |
#   Outside working hours pools with a label buy only what a commitment pays for; the rest
#   waits for the morning.
# custom:
#   hook: launch
#   parameters:
#     window:
#       description: Working hours.
#       type: string
#       default: Mon-Fri 07:00-19:00
#     zone:
#       description: Time zone of the working hours.
#       type: string
#       default: UTC
#     label:
#       description: Label of the NodePools concerned.
#       type: string
#       default: tier
#     value:
#       description: Its value.
#       type: string
#       default: batch
package dovetail.launch.off_hours

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

# Working hours that cannot be read never begin; the message says so.
working if lib.in_windows(settings.window, input.now.unix, settings.zone)

deny contains {"code": "off-hours", "claims": [c.name], "msg": sprintf("claim %s waits for working hours (%s %s): no commitment pays for it", [c.name, settings.window, settings.zone])} if {
	not working
	some c in input.claims
	input.nodePools[c.pool].labels[settings.label] == settings.value
	object.get(c, "commitment", "") == ""
}
