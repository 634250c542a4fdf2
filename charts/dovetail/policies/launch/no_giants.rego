# METADATA
# title: No giants
# description: |
#   Denies nodes above a price, bare metal, and dear nodes that stay mostly empty, and keeps
#   dear types out of the claim's alternatives. A NodePool that means it says so with the
#   annotation policy.dovetail.sh/allow-giants: "true".
# custom:
#   hook: launch
#   default: true
#   parameters:
#     maxMicroUSD:
#       description: Highest price of a node per hour in micro-USD.
#       type: integer
#       minimum: 0
#       default: 3000000
#     maxWastePermille:
#       description: Highest unrequested share of a dear node.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 500
#     wasteFromMicroUSD:
#       description: Price from which a node counts as dear in this sense. Cheap nodes are often empty, and harmless.
#       type: integer
#       minimum: 0
#       default: 500000
package dovetail.launch.no_giants

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

allowed contains pool if {
	some pool, p in input.nodePools
	p.annotations["policy.dovetail.sh/allow-giants"] == "true"
}

concerned contains c if {
	some c in input.claims
	not c.pool in allowed
}

deny contains {"code": "price", "claims": [c.name], "msg": sprintf("claim %s costs %s per hour; at most %s is allowed", [c.name, lib.usd(c.hourlyCost), lib.usd(settings.maxMicroUSD)])} if {
	some c in concerned
	c.hourlyCost > settings.maxMicroUSD
}

deny contains {"code": "bare-metal", "claims": [c.name], "msg": sprintf("claim %s is bare metal (%s)", [c.name, c.instanceType.name])} if {
	some c in concerned
	c.instanceType.bareMetal
}

deny contains {"code": "waste", "claims": [c.name], "msg": sprintf("claim %s leaves %d permille of %s unrequested; at most %d are allowed", [c.name, c.wasteRatio, c.instanceType.name, settings.maxWastePermille])} if {
	some c in concerned
	c.hourlyCost >= settings.wasteFromMicroUSD
	c.wasteRatio > settings.maxWastePermille
}

restrict contains {"claim": c.name, "maxMicroUSD": settings.maxMicroUSD} if {
	some c in concerned
	c.hourlyCost <= settings.maxMicroUSD
	c.maxPrice > settings.maxMicroUSD
}
