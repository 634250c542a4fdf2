# METADATA
# title: Carbon
# description: |
#   Adds the price of the carbon that a node emits: grams per kWh of its zone (signal
#   carbon) × its power × the price of a kilogram. Zones whose figure is stale or missing
#   are left alone. The document data.watts gives watts by instance type; other types count
#   by their cores.
# custom:
#   hook: score
#   parameters:
#     microUSDPerKg:
#       description: Price of a kilogram of CO2 in micro-USD; 100000 is $100 a tonne.
#       type: integer
#       minimum: 0
#       default: 100000
#     milliwattsPerCore:
#       description: Power of a core in milliwatts, by architecture.
#       type: object
#       additionalProperties: {type: integer, minimum: 0}
#       default: {amd64: 5000, arm64: 3000}
package dovetail.score.carbon

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

default watts := {}

watts := data.watts

# Micro-USD per 1000 W and hour, by zone.
rates := {zone: rate |
	some zone, signal in input.signals.carbon
	not signal.stale
	is_number(signal.value)
	rate := round((signal.value * settings.microUSDPerKg) / 1000)
	rate > 0
}

# Milliwatts by instance type.
power[it.name] := watts[it.name] * 1000 if {
	count(rates) > 0
	some c in input.candidates
	it := c.instanceType
	watts[it.name]
}

power[it.name] := (it.cpu / 1000) * settings.milliwattsPerCore[it.arch] if {
	count(rates) > 0
	some c in input.candidates
	it := c.instanceType
	not watts[it.name]
}

adjust contains {"i": i, "addMicroUSD": round((power[c.instanceType.name] * rate) / 1000000)} if {
	count(rates) > 0
	some i, c in input.candidates
	rate := rates[c.offering.zone]
}
