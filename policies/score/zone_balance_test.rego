package dovetail.score.zone_balance_test

import data.dovetail.score.zone_balance

row(zone, offering) := {
	"instanceType": {"name": "m7i.large"},
	"offering": object.union(offering, {"zone": zone, "capacityType": "spot", "listPrice": 100000}),
}

asked(rows, nodes, parameters) := {"candidates": rows, "totals": {"nodesByZone": nodes}, "parameters": parameters}

rows := [row("a", {}), row("b", {})]

test_full_zone_steps_back if {
	zone_balance.bias == {{"i": 0, "microUSD": 5000}} with input as asked(rows, {"a": 3, "b": 1}, {})
}

test_balanced if count(zone_balance.bias) == 0 with input as asked(rows, {"a": 2, "b": 2}, {})

test_empty_cluster if count(zone_balance.bias) == 0 with input as asked(rows, {}, {})

test_fixed_shares if {
	got := zone_balance.bias with input as asked(rows, {"a": 3, "b": 1}, {"targets": {"a": 800, "b": 200}})
	got == {{"i": 1, "microUSD": 1000}}
}

test_addresses if {
	got := zone_balance.bias with input as asked([row("a", {"zoneFreeIPs": 63}), row("a", {"zoneFreeIPs": 64})], {}, {})
	got == {{"i": 0, "microUSD": 10000, "code": "addresses"}}
	none := zone_balance.deny with input as asked([row("a", {"zoneFreeIPs": 0})], {}, {})
	{d.code | some d in none} == {"addresses"}
}

test_bad_parameter_means_the_default if {
	got := zone_balance.bias with input as asked(rows, {"a": 3, "b": 1}, {"targets": {"a": 2000}, "microUSDPerPermille": "20"})
	got == {{"i": 0, "microUSD": 5000}}
}
