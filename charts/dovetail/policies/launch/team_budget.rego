# METADATA
# title: Team budget
# description: |
#   A team's nodes may cost what the document data.budgets says (micro-USD per hour by
#   team); what the plan adds counts. Near the end there is a warning. The team is a label of
#   the node.
# custom:
#   hook: launch
#   parameters:
#     label:
#       description: Label that names the team.
#       type: string
#       default: team
#     warnPermille:
#       description: Share of the budget from which there is a warning.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 800
package dovetail.launch.team_budget

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

default budgets := {}

budgets := data.budgets

# Claims of each team that has a budget.
claims[team] contains c.name if {
	some c in input.claims
	team := c.labels[settings.label]
	is_number(budgets[team])
}

spent[team] := object.get(input.totals.byLabel, [settings.label, team, "hourlyCost"], 0) + sum([c.hourlyCost |
	some c in input.claims
	c.name in names
]) if {
	some team, names in claims
}

deny contains {"code": "budget", "claims": names, "msg": sprintf("team %s would spend %s per hour; its budget is %s", [team, lib.usd(spent[team]), lib.usd(budgets[team])])} if {
	some team, names in claims
	spent[team] > budgets[team]
}

warn contains {"code": "budget", "claims": names, "msg": sprintf("team %s would spend %s of its %s per hour", [team, lib.usd(spent[team]), lib.usd(budgets[team])])} if {
	some team, names in claims
	spent[team] <= budgets[team]
	spent[team] * 1000 >= budgets[team] * settings.warnPermille
}
