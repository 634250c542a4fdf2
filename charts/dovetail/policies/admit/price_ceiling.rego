# METADATA
# title: No giants, said early
# description: |
#   Warns of a NodePool that may buy types which launch policy no_giants would deny.
# custom:
#   hook: admit
#   default: true
#   parameters:
#     maxMicroUSD:
#       description: Highest price of a node per hour in micro-USD.
#       type: integer
#       minimum: 0
#       default: 3000000
package dovetail.admit.price_ceiling

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

annotated if input.nodePool.annotations["policy.dovetail.sh/allow-giants"] == "true"

warn contains {"code": "price", "msg": sprintf("the pool may buy nodes of up to %s per hour; launches above %s are denied", [lib.usd(input.resolved.priceMax), lib.usd(settings.maxMicroUSD)])} if {
	not annotated
	input.resolved.priceMax > settings.maxMicroUSD
}

warn contains {"code": "bare-metal", "msg": sprintf("the pool may buy bare metal (%s); such launches are denied", [min(names)])} if {
	not annotated
	names := {t.name | some t in input.resolved.types; t.bareMetal}
	count(names) > 0
}
