package dovetail.disrupt.cool_down_test

import data.dovetail.disrupt.cool_down

asked(reason, since, parameters) := {
	"command": {"reason": reason, "candidates": [{"node": "n1", "pool": "web"}, {"node": "n2", "pool": "web"}]},
	"history": {"secondsSinceLastDisruption": since}, "parameters": parameters,
}

seconds(given) := [d.seconds | some d in got] if got := cool_down.defer with input as given

test_waits_for_the_rest if seconds(asked("Underutilized", {"web": 600}, {})) == [300]

test_allows_afterwards if seconds(asked("Underutilized", {"web": 900}, {})) == []

test_first_disruption if seconds(asked("Drifted", {}, {})) == []

test_empty_nodes_do_not_wait if seconds(asked("Empty", {"web": 1}, {})) == []

test_parameter if seconds(asked("Drifted", {"web": 600}, {"seconds": 601})) == [1]

test_bad_parameter_means_the_default if seconds(asked("Drifted", {"web": 600}, {"seconds": 0})) == [300]
