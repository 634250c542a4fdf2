package dovetail.disrupt.working_hours_test

import data.dovetail.disrupt.working_hours

# 2026-06-03 is a Wednesday; 12:00 UTC is 14:00 in Berlin and 21:00 in Tokyo.
noon := 1780488000

pod(namespace, node, labels, annotations) := {
	"namespace": namespace, "name": "p", "node": node,
	"namespaceLabels": labels, "namespaceAnnotations": annotations,
}

asked(reason, pods, parameters) := {
	"command": {"reason": reason, "candidates": []},
	"now": {"unix": noon}, "pods": pods, "parameters": parameters,
}

kept(given) := {n | some k in got; some n in k.nodes} if got := working_hours.keep with input as given

shop := {"tz": "Europe.Berlin", "disruption-window": "Mon-Fri_2000-0600"}

test_keeps_nodes_in_working_hours if kept(asked("Underutilized", [pod("shop", "n1", shop, {}), pod("other", "n2", {}, {})], {})) == {"n1"}

test_allows_in_the_window if {
	tokyo := object.union(shop, {"tz": "Asia.Tokyo"})
	kept(asked("Underutilized", [pod("shop", "n1", tokyo, {})], {})) == set()
}

test_annotations_win if {
	kept(asked("Underutilized", [pod("shop", "n1", shop, {"disruption-window": "Wed 13:00-15:00"})], {})) == set()
}

test_holidays_are_open if {
	got := working_hours.keep with input as asked("Underutilized", [pod("shop", "n1", shop, {})], {})
		with data.calendar.holidays as ["2026-06-03"]
	count(got) == 0
}

test_other_reasons if kept(asked("Empty", [pod("shop", "n1", shop, {})], {})) == set()

test_default_window if {
	kept(asked("Underutilized", [pod("x", "n1", {}, {})], {"window": "Sat 00:00-24:00"})) == {"n1"}
	kept(asked("Underutilized", [pod("x", "n1", {}, {})], {"window": "Wed 00:00-24:00"})) == set()
}

test_unreadable_windows_are_closed if {
	given := asked("Underutilized", [pod("a", "n1", {"disruption-window": "nightly"}, {}), pod("b", "n2", {"disruption-window": "* 00:00-24:00", "tz": "nowhere"}, {})], {})
	kept(given) == {"n1", "n2"}
	warned := working_hours.warn with input as given
	{w.msg | some w in warned} == {"namespace a: disruption-window \"nightly\" cannot be read, so its pods do not move", "namespace b: tz \"nowhere\" cannot be read, so its pods do not move"}
}

test_bad_parameter_means_the_default if {
	kept(asked("Underutilized", [pod("x", "n1", {}, {})], {"window": 5, "reasons": [1], "zone": false})) == set()
}
