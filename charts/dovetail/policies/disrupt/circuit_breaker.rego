# METADATA
# title: Circuit breaker
# description: |
#   Nothing is disrupted by choice while a freeze or incident is signalled, or when launches
#   fail. Drift stays closed for another hour after that. A signal counts even when it is
#   stale: nobody has taken it back.
# custom:
#   hook: disrupt
#   parameters:
#     launchFailures:
#       description: Failed launches within 30 minutes from which nothing is disrupted.
#       type: integer
#       minimum: 1
#       default: 3
#     signals:
#       description: Signals that stop disruptions.
#       type: array
#       items: {type: string, enum: [freeze, incident, deployFreeze]}
#       default: [freeze, incident]
package dovetail.disrupt.circuit_breaker

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

voluntary if not input.command.reason in {"Expired", "Repair", "Interruption"}

raised contains "freeze" if input.signals.freeze.value == true

raised contains "incident" if input.signals.incident.value == true

raised contains "deployFreeze" if input.signals.deployFreeze.value == true

deny contains {"code": "signal", "msg": sprintf("signal %s is set", [name])} if {
	voluntary
	some name in raised
	name in settings.signals
}

deny contains {"code": "launches", "msg": sprintf("%d launches failed within 30 minutes; from %d on nothing is disrupted", [failed, settings.launchFailures])} if {
	voluntary
	failed := input.history.launchFailures30m
	failed >= settings.launchFailures
}

deny contains {"code": "drift", "msg": sprintf("%d launches failed within 90 minutes; drift waits", [failed])} if {
	input.command.reason == "Drifted"
	input.history.launchFailures30m < settings.launchFailures
	failed := input.history.launchFailures90m
	failed >= settings.launchFailures
}
