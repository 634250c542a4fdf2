# METADATA
# title: Budget sanity
# description: |
#   Disruption budgets must be readable. Warns if a reason has no limit at some time of the
#   week, or is never open.
# custom:
#   hook: admit
#   parameters:
#     minOpenMinutes:
#       description: Minutes of the week that each reason should be open.
#       type: integer
#       minimum: 1
#       default: 1
package dovetail.admit.budget_sanity

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

deny contains {"code": "unreadable", "msg": problem} if {
	some problem in input.budgetWeek.errors
}

warn contains {"code": "unlimited", "msg": sprintf("%s has no limit for %d minutes of the week", [reason, minutes])} if {
	some reason, minutes in input.budgetWeek.unlimitedMinutes
	minutes > 0
}

warn contains {"code": "closed", "msg": sprintf("%s is open for %d minutes of the week; at least %d are expected", [reason, minutes, settings.minOpenMinutes])} if {
	some reason, minutes in input.budgetWeek.openMinutes
	minutes < settings.minOpenMinutes
}
