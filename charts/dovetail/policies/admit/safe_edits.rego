# METADATA
# title: Safe edits
# description: |
#   An update that would replace a large part of the pool's nodes is denied outside the
#   change window, unless the user is in the release group.
# custom:
#   hook: admit
#   parameters:
#     permille:
#       description: Share of the pool's nodes that an update may drift at any time.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 200
#     window:
#       description: Change window.
#       type: string
#       default: Tue-Thu 09:00-16:00
#     zone:
#       description: Time zone of the change window.
#       type: string
#       default: UTC
#     group:
#       description: Group whose members may always change pools.
#       type: string
#       default: release
package dovetail.admit.safe_edits

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

large if {
	input.operation == "UPDATE"
	input.impact.nodesDrifted * 1000 > input.impact.nodes * settings.permille
}

released if settings.group in input.user.groups

open if lib.in_windows(settings.window, input.now.unix, settings.zone)

text := sprintf("%d of %d nodes would drift", [input.impact.nodesDrifted, input.impact.nodes])

deny contains {"code": "drift", "msg": sprintf("%s; that many only in the change window (%s %s) or by group %s", [text, settings.window, settings.zone, settings.group])} if {
	large
	not released
	not open
}

warn contains {"code": "drift", "msg": text} if large

warn contains {"code": "pods", "msg": sprintf("%d pods would not fit any more", [input.impact.podsUnschedulable])} if {
	input.impact.podsUnschedulable > 0
}
