package dovetail.score.host_fee_test

import data.dovetail.score.host_fee

row := {"instanceType": {"name": "m7i.large"}, "offering": {"zone": "a", "capacityType": "spot", "listPrice": 100000}}

asked(parameters) := {"candidates": [row, row], "parameters": parameters}

test_each_host_pays if {
	host_fee.adjust == {{"i": 0, "addMicroUSD": 9}, {"i": 1, "addMicroUSD": 9}} with input as asked({"microUSD": 9})
}

test_fee_of_a_document if {
	got := host_fee.adjust with input as asked({"microUSD": 9}) with data.hostFee as 3
	{a.addMicroUSD | some a in got} == {3}
}

test_no_fee if count(host_fee.adjust) == 0 with input as asked({"microUSD": 0})

test_bad_parameter_means_the_default if {
	got := host_fee.adjust with input as asked({"microUSD": -5})
	{a.addMicroUSD | some a in got} == {20548}
}
