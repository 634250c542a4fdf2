# METADATA
# title: Contract price plus licence
# description: |
#   Cost = price × (1 − discount) + licence per core × cores + licence per host, in this
#   order. Rates may come from documents: data.rates gives discounts in permille by family,
#   data.licences perCoreMicroUSD and perHostMicroUSD.
# custom:
#   hook: score
#   parameters:
#     discountPermille:
#       description: Discount on families that data.rates does not name.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 0
#     capacityTypes:
#       description: Capacity types that the discount is for.
#       type: array
#       items: {type: string}
#       default: [on-demand]
#     perCoreMicroUSD:
#       description: Licence per core and hour in micro-USD.
#       type: integer
#       minimum: 0
#       default: 0
#     perHostMicroUSD:
#       description: Licence per host and hour in micro-USD.
#       type: integer
#       minimum: 0
#       default: 0
package dovetail.score.contract_price

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

default licences := {}

licences := data.licences

per_core := object.get(licences, "perCoreMicroUSD", settings.perCoreMicroUSD)

per_host := object.get(licences, "perHostMicroUSD", settings.perHostMicroUSD)

default rates := {}

rates := data.rates

# What is left of the price, by family, where that is less than all.
factors := {family: factor |
	families := {c.instanceType.family | some c in input.candidates}
	some family in families
	factor := 1000 - object.get(rates, family, settings.discountPermille)
	factor != 1000
}

adjust contains {"i": i, "permille": factor} if {
	kinds := settings.capacityTypes
	some i, c in input.candidates
	factor := factors[c.instanceType.family]
	c.offering.capacityType in kinds
}

# Cores are whole ones: a licence is not sold in parts.
adjust contains {"i": i, "addMicroUSD": fee} if {
	core := per_core
	host := per_host
	core + host > 0
	some i, c in input.candidates
	fee := (ceil(c.instanceType.cpu / 1000) * core) + host
}
