package dovetail.launch.team_budget_test

import data.dovetail.launch.team_budget

claim(name, team, cost) := {"name": name, "labels": {"team": team}, "hourlyCost": cost}

asked(running, parameters) := {
	"claims": [claim("a/1", "data", 100000), claim("a/2", "data", 200000), claim("b/1", "web", 9000000)],
	"totals": {"byLabel": {"team": {"data": {"hourlyCost": running}}}}, "parameters": parameters,
}

denied(given) := {d.claims | some d in got} if {
	got := team_budget.deny with input as given with data.budgets as {"data": 1000000}
}

warned(given) := {d.claims | some d in got} if {
	got := team_budget.warn with input as given with data.budgets as {"data": 1000000}
}

both := {"a/1", "a/2"}

test_allows_within_the_budget if {
	denied(asked(400000, {})) == set()
	warned(asked(400000, {})) == set()
}

test_denies_above if denied(asked(700001, {})) == {both}

test_warns_near_the_end if {
	warned(asked(500000, {})) == {both}
	warned(asked(700000, {})) == {both}
	denied(asked(700000, {})) == set()
}

test_team_without_nodes if {
	given := object.remove(asked(0, {}), ["totals"])
	denied(object.union(given, {"totals": {"byLabel": {}}})) == set()
}

test_no_budgets if {
	got := team_budget.deny with input as asked(9000000, {})
	count(got) == 0
}

test_other_label if denied(asked(9000000, {"label": "owner"})) == set()

test_bad_parameter_means_the_default if {
	denied(asked(700001, {"label": 7})) == {both}
	warned(asked(500000, {"warnPermille": 1001})) == {both}
}
