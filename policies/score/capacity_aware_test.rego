package dovetail.score.capacity_aware_test

import data.dovetail.score.capacity_aware

row(errors, quota) := {
	"instanceType": {"name": "m7i.xlarge", "cpu": 4000},
	"offering": object.union(quota, {"zone": "a", "capacityType": "spot", "listPrice": 100000, "iceHistory": {"1h": errors, "24h": 9}}),
}

asked(rows, parameters) := {"candidates": rows, "parameters": parameters}

test_errors_step_back if {
	got := capacity_aware.bias with input as asked([row(0, {}), row(1, {}), row(2, {}), row(3, {})], {})
	got == {{"i": 2, "microUSD": 20000}, {"i": 3, "microUSD": 30000}}
}

test_quota_without_room if {
	got := capacity_aware.deny with input as asked([row(0, {"quotaRemaining": 3}), row(0, {"quotaRemaining": 4})], {})
	got == {{"i": 0, "code": "quota", "msg": "needs 4 cores and the quota has 3 left"}}
}

test_nothing_known if {
	count(capacity_aware.bias) == 0 with input as asked([row(0, {})], {})
	count(capacity_aware.deny) == 0 with input as asked([row(0, {})], {})
}

test_parameters if {
	got := capacity_aware.bias with input as asked([row(1, {})], {"errors": 1, "permillePerError": 10})
	got == {{"i": 0, "microUSD": 1000}}
}

test_bad_parameter_means_the_default if {
	count(capacity_aware.bias) == 0 with input as asked([row(1, {})], {"errors": 0})
}
