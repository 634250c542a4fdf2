package dovetail.score.newer_generation_test

import data.dovetail.score.newer_generation

row(family, generation) := {
	"instanceType": {"name": sprintf("%s.large", [family]), "family": family, "generation": generation},
	"offering": {"zone": "a", "capacityType": "on-demand", "listPrice": 100000},
}

asked(rows, parameters) := {"candidates": rows, "parameters": parameters}

test_older_ones_step_back if {
	rows := [row("m6i", 6), row("m7i", 7), row("c6i", 6), row("m5", 5)]
	got := newer_generation.bias with input as asked(rows, {})
	got == {{"i": 0, "microUSD": 7000}, {"i": 3, "microUSD": 7000}}
}

test_one_generation_only if count(newer_generation.bias) == 0 with input as asked([row("m7i", 7), row("m7g", 7)], {})

test_families_without_generation if count(newer_generation.bias) == 0 with input as asked([row("custom", 0), row("m7g", 7)], {})

test_switched_off if {
	count(newer_generation.bias) == 0 with input as asked([row("m6i", 6), row("m7i", 7)], {"withinPermille": 0})
}

test_bad_parameter_means_the_default if {
	got := newer_generation.bias with input as asked([row("m6i", 6), row("m7i", 7)], {"withinPermille": 5000})
	got == {{"i": 0, "microUSD": 7000}}
}
