package dovetail.score.commitment_first_test

import data.dovetail.score.commitment_first

row(name, family, zone, kind) := {
	"instanceType": {"name": name, "family": family},
	"offering": {"zone": zone, "capacityType": kind, "listPrice": 100000},
}

rows := [
	row("m7i.large", "m7i", "a", "on-demand"),
	row("m7i.large", "m7i", "b", "on-demand"),
	row("m7i.large", "m7i", "a", "spot"),
	row("c7i.large", "c7i", "a", "on-demand"),
]

reserved(id, units) := {
	"id": id, "kind": "reserved-instance", "unitsTotal": units,
	"matches": {"instanceTypes": ["m7i.large"], "families": [], "zones": ["a"], "capacityTypes": ["on-demand"]},
}

asked(commitments, parameters) := {"candidates": rows, "commitments": commitments, "parameters": parameters}

test_matching_rows_are_covered if {
	commitment_first.cover == {{"i": 0, "commitment": "ri-1", "units": 1, "microUSD": 0}} with input as asked([reserved("ri-1", 3)], {})
	commitment_first.commitments == {{"id": "ri-1", "units": 3}} with input as asked([reserved("ri-1", 3)], {})
}

test_an_empty_list_matches_all if {
	all := {"id": "x", "kind": "capacity-block", "unitsTotal": 1, "matches": {"instanceTypes": [], "families": ["m7i"], "zones": [], "capacityTypes": []}}
	{c.i | some c in commitment_first.cover} == {0, 1, 2} with input as asked([all], {})
}

test_the_first_by_name_of_two if {
	got := commitment_first.cover with input as asked([reserved("ri-2", 1), reserved("ri-1", 1)], {})
	got == {{"i": 0, "commitment": "ri-1", "units": 1, "microUSD": 0}}
}

test_nothing_without_units_or_of_another_kind if {
	plan := object.union(reserved("sp", 5), {"kind": "savings-plan"})
	count(commitment_first.cover) == 0 with input as asked([reserved("ri-1", 0), plan], {})
	count(commitment_first.commitments) == 0 with input as asked([reserved("ri-1", 0), plan], {})
}

test_cost_of_a_covered_node if {
	got := commitment_first.cover with input as asked([reserved("ri-1", 1)], {"coveredMicroUSD": 7})
	{c.microUSD | some c in got} == {7}
}

test_bad_parameter_means_the_default if {
	got := commitment_first.cover with input as asked([reserved("ri-1", 1)], {"coveredMicroUSD": -1, "kinds": "reserved-instance"})
	{c.microUSD | some c in got} == {0}
}
