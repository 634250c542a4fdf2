# METADATA
# title: Minimum saving
# description: |
#   Nodes are not consolidated for pennies: the saving must reach an amount, a share of what
#   the nodes cost, and an amount for each pod that moves. A deletion without evictions
#   saves for free and is always worth it.
# custom:
#   hook: disrupt
#   default: true
#   parameters:
#     hourlyMicroUSD:
#       description: Least saving per hour in micro-USD.
#       type: integer
#       minimum: 0
#       default: 50000
#     permille:
#       description: Least saving as a share of the nodes' cost.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 80
#     perPodMicroUSD:
#       description: Least saving per hour for each moved pod, in micro-USD.
#       type: integer
#       minimum: 0
#       default: 5000
package dovetail.disrupt.minimum_saving

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

saving := input.command.savings.hourly

concerned if {
	input.command.reason == "Underutilized"
	input.command.podsMoved > 0
}

deny contains {"code": "saving", "msg": sprintf("saves %s per hour; at least %s is required", [lib.usd(saving), lib.usd(settings.hourlyMicroUSD)])} if {
	concerned
	saving < settings.hourlyMicroUSD
}

deny contains {"code": "share", "msg": sprintf("saves %d permille of the nodes' cost; at least %d are required", [input.command.savings.permille, settings.permille])} if {
	concerned
	input.command.savings.permille < settings.permille
}

deny contains {"code": "per-pod", "msg": sprintf("saves %s per hour while %d pods move; at least %s for each is required", [lib.usd(saving), moved, lib.usd(settings.perPodMicroUSD)])} if {
	concerned
	moved := input.command.podsMoved
	saving < settings.perPodMicroUSD * moved
}
