package dovetail.admit.budget_sanity_test

import data.dovetail.admit.budget_sanity

asked(errors, open, unlimited, parameters) := {
	"budgetWeek": {"errors": errors, "openMinutes": open, "unlimitedMinutes": unlimited}, "parameters": parameters,
}

warned(given) := {d.code | some d in got} if got := budget_sanity.warn with input as given

test_allows_sound_budgets if {
	given := asked([], {"Drifted": 10080}, {"Drifted": 0}, {})
	warned(given) == set()
	got := budget_sanity.deny with input as given
	count(got) == 0
}

test_denies_unreadable_ones if {
	got := budget_sanity.deny with input as asked(["budgets[0].schedule: 5 fields are required"], {}, {}, {})
	got == {{"code": "unreadable", "msg": "budgets[0].schedule: 5 fields are required"}}
}

test_warnings if {
	warned(asked([], {"Drifted": 0}, {}, {})) == {"closed"}
	warned(asked([], {"Drifted": 1}, {"Drifted": 1}, {})) == {"unlimited"}
}

test_parameter if warned(asked([], {"Drifted": 59}, {}, {"minOpenMinutes": 60})) == {"closed"}

test_bad_parameter_means_the_default if warned(asked([], {"Drifted": 1}, {}, {"minOpenMinutes": 0})) == set()
