# METADATA
# title: Capacity-aware order
# description: |
#   Offerings that ran into capacity errors lately step back by a share of their price for
#   each error, and offerings that the account's quota has no room for are left out.
# custom:
#   hook: score
#   parameters:
#     errors:
#       description: Errors of the last hour from which an offering steps back.
#       type: integer
#       minimum: 1
#       default: 2
#     permillePerError:
#       description: Share of the price for each error.
#       type: integer
#       minimum: 0
#       default: 100
package dovetail.score.capacity_aware

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

bias contains {"i": i, "microUSD": floor(((c.offering.listPrice * permille) * errors) / 1000)} if {
	least := settings.errors
	permille := settings.permillePerError
	some i, c in input.candidates
	errors := c.offering.iceHistory["1h"]
	errors >= least
}

deny contains {"i": i, "code": "quota", "msg": sprintf("needs %d cores and the quota has %d left", [cores, left])} if {
	some i, c in input.candidates
	left := c.offering.quotaRemaining
	cores := ceil(c.instanceType.cpu / 1000)
	cores > left
}
