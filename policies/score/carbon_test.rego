package dovetail.score.carbon_test

import data.dovetail.score.carbon

row(name, arch, zone) := {
	"instanceType": {"name": name, "arch": arch, "cpu": 4000},
	"offering": {"zone": zone, "capacityType": "on-demand", "listPrice": 100000},
}

rows := [row("m7i.xlarge", "amd64", "a"), row("m7g.xlarge", "arm64", "a"), row("m7i.xlarge", "amd64", "b")]

asked(signals, parameters) := {"candidates": rows, "signals": {"carbon": signals}, "parameters": parameters}

fresh := {"value": 400, "ageSeconds": 60, "stale": false}

# 20 W × 400 g/kWh × $100/t = 20/1000 kWh × 0.4 kg × 100000 = 800 micro-USD.
test_power_by_core if {
	got := carbon.adjust with input as asked({"a": fresh}, {})
	got == {{"i": 0, "addMicroUSD": 800}, {"i": 1, "addMicroUSD": 480}}
}

test_power_of_a_document if {
	got := carbon.adjust with input as asked({"b": fresh}, {}) with data.watts as {"m7i.xlarge": 100}
	got == {{"i": 2, "addMicroUSD": 4000}}
}

test_a_stale_figure_is_ignored if {
	stale := object.union(fresh, {"stale": true})
	count(carbon.adjust) == 0 with input as asked({"a": stale}, {})
}

test_no_figures if count(carbon.adjust) == 0 with input as asked({}, {})

test_bad_parameter_means_the_default if {
	got := carbon.adjust with input as asked({"a": fresh}, {"microUSDPerKg": "100", "milliwattsPerCore": {"amd64": "many"}})
	got == {{"i": 0, "addMicroUSD": 800}, {"i": 1, "addMicroUSD": 480}}
}
