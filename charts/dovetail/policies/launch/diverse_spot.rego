# METADATA
# title: Spot only if diverse and really cheap
# description: |
#   A spot node may be bought if enough instance types will do, so that losing one is no
#   drama, and if it is well below the on-demand price. Otherwise the claim is denied, and
#   the next plan takes on-demand capacity.
# custom:
#   hook: launch
#   parameters:
#     types:
#       description: Least number of instance types.
#       type: integer
#       minimum: 1
#       default: 5
#     permille:
#       description: Highest price as a share of the on-demand price.
#       type: integer
#       minimum: 0
#       default: 700
package dovetail.launch.diverse_spot

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

deny contains {"code": "few-types", "claims": [c.name], "msg": sprintf("spot claim %s has %d instance types; at least %d are required", [c.name, c.typesCount, settings.types])} if {
	some c in input.claims
	c.offering.capacityType == "spot"
	c.typesCount < settings.types
}

deny contains {"code": "dear", "claims": [c.name], "msg": sprintf("spot claim %s costs %s per hour, %d permille of on-demand; at most %d are allowed", [c.name, lib.usd(c.offering.listPrice), share, settings.permille])} if {
	some c in input.claims
	c.offering.capacityType == "spot"
	share := lib.permille(c.offering.listPrice, c.offering.onDemandPrice)
	c.offering.listPrice * 1000 > settings.permille * c.offering.onDemandPrice
}
