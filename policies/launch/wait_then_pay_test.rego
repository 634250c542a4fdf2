package dovetail.launch.wait_then_pay_test

import data.dovetail.launch.wait_then_pay

claim(pending, priorities, extra) := object.union(
	{
		"name": "web/1", "offering": {"capacityType": "on-demand"},
		"fallbackFrom": {"capacityType": "spot", "reason": "capacity"},
		"pods": {"maxPendingSeconds": pending, "priorities": priorities},
	},
	extra,
)

asked(c, parameters) := {"claims": [c], "parameters": parameters}

seconds(given) := [d.seconds | some d in got] if got := wait_then_pay.defer with input as given

test_waits if seconds(asked(claim(100, [0], {}), {})) == [200]

test_then_pays if seconds(asked(claim(300, [0], {}), {})) == []

test_important_pods_do_not_wait if {
	seconds(asked(claim(1, [0, 1000], {}), {})) == []
	seconds(asked(claim(1, [0, 999], {}), {})) == [299]
}

test_no_fallback if {
	seconds(asked(object.remove(claim(1, [0], {}), ["fallbackFrom"]), {})) == []
	seconds(asked(claim(1, [0], {"offering": {"capacityType": "spot"}}), {})) == []
}

test_bad_parameter_means_the_default if seconds(asked(claim(100, [0], {}), {"seconds": "5m", "priority": "high"})) == [200]
