package dovetail.disrupt.back_to_spot_test

import data.dovetail.disrupt.back_to_spot

node(name, age, fallback) := {"node": name, "pool": "web", "ageSeconds": age, "fallback": fallback}

asked(reason, nodes, gone, parameters) := {
	"command": {"reason": reason, "candidates": nodes},
	"history": {"disruptions": {"byPool": {"web": {"1h": gone, "24h": gone}}}}, "parameters": parameters,
}

kept(given) := {n | some k in got; some n in k.nodes} if got := back_to_spot.keep with input as given

old := [node("n1", 3600, true), node("n2", 9000, true), node("n3", 9000, true), node("n4", 5, false)]

test_two_an_hour if kept(asked("Underutilized", old, 0, {})) == {"n3"}

test_the_hour_is_full if {
	kept(asked("Underutilized", old, 1, {})) == {"n2", "n3"}
	kept(asked("Underutilized", old, 7, {})) == {"n1", "n2", "n3"}
}

test_young_nodes_stay if kept(asked("Underutilized", [node("n1", 3599, true)], 0, {})) == {"n1"}

test_no_fallback_no_opinion if kept(asked("Underutilized", [node("n1", 1, false)], 9, {})) == set()

test_other_reasons if kept(asked("Drifted", old, 9, {})) == set()

test_bad_parameter_means_the_default if kept(asked("Underutilized", old, 0, {"perHour": 0, "seconds": "1h"})) == {"n3"}
