package dovetail.disrupt.drift_canary_test

import data.dovetail.disrupt.drift_canary

asked(reason, gone, since, flight, parameters) := {
	"command": {"reason": reason, "candidates": [
		{"node": "n1", "pool": "web", "zone": "a"},
		{"node": "n2", "pool": "web", "zone": "a"},
		{"node": "n3", "pool": "web", "zone": "b"},
	]},
	"history": {"disruptions": {"byPool": {"web": {"1h": 0, "24h": gone}}}, "secondsSinceLastDisruption": since},
	"inFlight": {"byPool": {}, "byZone": flight}, "parameters": parameters,
}

kept(given) := {n | some k in got; some n in k.nodes} if got := drift_canary.keep with input as given

waits(given) := [d.seconds | some d in got] if got := drift_canary.defer with input as given

test_the_first_goes_alone if {
	kept(asked("Drifted", 0, {}, {}, {})) == {"n2", "n3"}
	waits(asked("Drifted", 0, {}, {}, {})) == []
}

test_it_soaks if waits(asked("Drifted", 1, {"web": 600}, {}, {})) == [1200]

test_then_zone_by_zone if {
	waits(asked("Drifted", 1, {"web": 1800}, {}, {})) == []
	kept(asked("Drifted", 1, {"web": 1800}, {}, {})) == {"n3"}
	kept(asked("Drifted", 5, {"web": 1}, {"b": 2, "a": 0}, {})) == {"n1", "n2"}
}

test_other_reasons if {
	kept(asked("Underutilized", 0, {}, {}, {})) == set()
	waits(asked("Underutilized", 1, {"web": 1}, {}, {})) == []
}

test_bad_parameter_means_the_default if waits(asked("Drifted", 1, {"web": 600}, {}, {"soakSeconds": -1})) == [1200]
