package dovetail.score.burstable_baseline_test

import data.dovetail.score.burstable_baseline

row(family, size, arch, burstable) := {
	"instanceType": {"name": sprintf("%s.%s", [family, size]), "family": family, "size": size, "arch": arch, "cpu": 2000, "burstable": burstable},
	"offering": {"zone": "a", "capacityType": "on-demand", "listPrice": 83200},
}

rows := [row("t3", "large", "amd64", true), row("t4g", "large", "arm64", true), row("m7i", "large", "amd64", false)]

asked(rows, parameters) := {"candidates": rows, "parameters": parameters}

# 2 cores × (50 % − 30 %) × $0.05.
test_work_above_the_baseline_is_added if {
	got := burstable_baseline.adjust with input as asked(rows, {})
	got == {{"i": 0, "addMicroUSD": 20000}, {"i": 1, "addMicroUSD": 16000}}
}

test_at_the_baseline_nothing_is_added if {
	count(burstable_baseline.adjust) == 0 with input as asked(rows, {"expectedPermille": 300})
}

test_unknown_size_is_left_alone if {
	count(burstable_baseline.adjust) == 0 with input as asked([row("t9", "huge", "amd64", true)], {})
}

test_bad_parameter_means_the_default if {
	got := burstable_baseline.adjust with input as asked(rows, {"expectedPermille": "half"})
	got == {{"i": 0, "addMicroUSD": 20000}, {"i": 1, "addMicroUSD": 16000}}
}
