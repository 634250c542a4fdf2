package dovetail.disrupt.circuit_breaker_test

import data.dovetail.disrupt.circuit_breaker

asked(reason, signals, failed30, failed90, parameters) := {
	"command": {"reason": reason}, "signals": signals,
	"history": {"launchFailures30m": failed30, "launchFailures90m": failed90}, "parameters": parameters,
}

codes(given) := {d.code | some d in got} if got := circuit_breaker.deny with input as given

on := {"value": true, "ageSeconds": 1, "stale": false}

off := {"value": false, "ageSeconds": 1, "stale": false}

test_allows_when_all_is_well if codes(asked("Underutilized", {"freeze": off}, 2, 2, {})) == set()

test_signals if {
	codes(asked("Underutilized", {"freeze": on}, 0, 0, {})) == {"signal"}
	codes(asked("Empty", {"incident": object.union(on, {"stale": true})}, 0, 0, {})) == {"signal"}
	codes(asked("Empty", {"deployFreeze": on}, 0, 0, {})) == set()
	codes(asked("Empty", {"deployFreeze": on}, 0, 0, {"signals": ["deployFreeze"]})) == {"signal"}
}

test_failed_launches if {
	codes(asked("Underutilized", {}, 3, 3, {})) == {"launches"}
	codes(asked("Drifted", {}, 3, 3, {})) == {"launches"}
}

test_drift_waits_longer if {
	codes(asked("Drifted", {}, 0, 3, {})) == {"drift"}
	codes(asked("Underutilized", {}, 0, 3, {})) == set()
}

test_nodes_that_go_anyway if codes(asked("Interruption", {"freeze": on}, 9, 9, {})) == set()

test_bad_parameter_means_the_default if codes(asked("Underutilized", {"freeze": on}, 3, 3, {"launchFailures": 0, "signals": ["moon"]})) == {"signal", "launches"}
