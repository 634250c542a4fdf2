# METADATA
# title: No consolidation in working hours
# description: |
#   A namespace says in labels when its pods may move: disruption-window, such as
#   Mon-Fri_2000-0600.Sat-Sun_0000-2400, in the time zone of label tz, such as
#   Europe.Berlin (the same keys work as annotations, with the usual signs). Nodes with pods
#   whose window is closed are kept. Dates of data.calendar.holidays are open all day. A
#   window or zone that cannot be read counts as closed, with a warning.
# custom:
#   hook: disrupt
#   parameters:
#     reasons:
#       description: Reasons that wait for the window.
#       type: array
#       items: {type: string}
#       default: [Underutilized]
#     window:
#       description: Window of namespaces without one; empty means always open.
#       type: string
#       default: ""
#     zone:
#       description: Time zone of namespaces without one.
#       type: string
#       default: UTC
package dovetail.disrupt.working_hours

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

default holidays := []

holidays := data.calendar.holidays

concerned if input.command.reason in settings.reasons

said(pod, key, otherwise) := object.get(object.get(pod, "namespaceAnnotations", {}), key, object.get(object.get(pod, "namespaceLabels", {}), key, otherwise))

# The window of each namespace that has one.
hours[pod.namespace] := {"window": window, "zone": said(pod, "tz", settings.zone)} if {
	concerned
	some pod in input.pods
	window := said(pod, "disruption-window", settings.window)
	window != ""
}

unreadable[namespace] := problem if {
	some namespace, h in hours
	not lib.windows_valid(h.window)
	problem := sprintf("disruption-window %q", [h.window])
}

unreadable[namespace] := problem if {
	some namespace, h in hours
	lib.windows_valid(h.window)
	not zone_known(h.zone)
	problem := sprintf("tz %q", [h.zone])
}

# The builtin functions fail on an unknown zone, and a failing function ends the whole
# evaluation; so what is no zone at all is told by its form first.
zone_known(zone) if {
	regex.match(`^(UTC|[A-Z][A-Za-z]+([./][A-Z][A-Za-z_+-]*)+)$`, zone)
}

open contains namespace if {
	some namespace, h in hours
	not unreadable[namespace]
	lib.in_windows(h.window, input.now.unix, h.zone)
}

open contains namespace if {
	some namespace, h in hours
	not unreadable[namespace]
	lib.holiday(input.now.unix, h.zone, holidays)
}

closed contains namespace if {
	some namespace, _ in hours
	not namespace in open
}

keep contains {"code": "window", "nodes": [pod.node], "msg": sprintf("pods of namespace %s move only in its window, %s", [pod.namespace, hours[pod.namespace].window])} if {
	count(closed) > 0
	some pod in input.pods
	pod.namespace in closed
}

warn contains {"code": "window", "msg": sprintf("namespace %s: %s cannot be read, so its pods do not move", [namespace, problem])} if {
	some namespace, problem in unreadable
}
