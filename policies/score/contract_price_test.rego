package dovetail.score.contract_price_test

import data.dovetail.score.contract_price

row(family, cpu, kind) := {
	"instanceType": {"name": sprintf("%s.large", [family]), "family": family, "cpu": cpu},
	"offering": {"zone": "a", "capacityType": kind, "listPrice": 100000},
}

rows := [row("m7i", 4000, "on-demand"), row("m7i", 4000, "spot"), row("c7i", 1500, "on-demand")]

asked(parameters) := {"candidates": rows, "parameters": parameters}

test_discount_on_on_demand_only if {
	contract_price.adjust == {{"i": 0, "permille": 850}, {"i": 2, "permille": 850}} with input as asked({"discountPermille": 150})
}

test_rates_by_family if {
	got := contract_price.adjust with input as asked({"discountPermille": 100}) with data.rates as {"m7i": 300}
	got == {{"i": 0, "permille": 700}, {"i": 2, "permille": 900}}
}

test_licence_per_core_and_host if {
	got := contract_price.adjust with input as asked({"perCoreMicroUSD": 10, "perHostMicroUSD": 5})
	got == {{"i": 0, "addMicroUSD": 45}, {"i": 1, "addMicroUSD": 45}, {"i": 2, "addMicroUSD": 25}}
}

test_licences_of_a_document if {
	got := contract_price.adjust with input as asked({}) with data.licences as {"perCoreMicroUSD": 1}
	got == {{"i": 0, "addMicroUSD": 4}, {"i": 1, "addMicroUSD": 4}, {"i": 2, "addMicroUSD": 2}}
}

test_nothing_to_do if count(contract_price.adjust) == 0 with input as asked({})

test_bad_parameter_means_the_default if {
	count(contract_price.adjust) == 0 with input as asked({"discountPermille": 1001, "perCoreMicroUSD": "10"})
}
