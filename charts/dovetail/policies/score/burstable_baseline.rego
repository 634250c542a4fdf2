# METADATA
# title: What burstable types cost at work
# description: |
#   A burstable type earns CPU credits for a share of its cores only; work above that share
#   is billed per core and hour. This adds what a node costs at the utilisation that is
#   expected, so that burstable types win where nodes idle and lose where they work.
# custom:
#   hook: score
#   default: true
#   parameters:
#     expectedPermille:
#       description: CPU utilisation that is expected.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 500
#     microUSDPerCore:
#       description: Price of a core and hour above the baseline, in micro-USD.
#       type: object
#       additionalProperties: {type: integer, minimum: 0}
#       default: {amd64: 50000, arm64: 40000}
#     baselinePermille:
#       description: Share of the cores that is included, by size.
#       type: object
#       additionalProperties: {type: integer, minimum: 0, maximum: 1000}
#       default: {nano: 50, micro: 100, small: 200, medium: 200, large: 300, xlarge: 400, 2xlarge: 400}
package dovetail.score.burstable_baseline

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

# What a node of each burstable type costs beyond its price.
surplus[it.name] := amount if {
	some c in input.candidates
	c.instanceType.burstable
	it := c.instanceType
	over := settings.expectedPermille - settings.baselinePermille[it.size]
	amount := floor(((it.cpu * settings.microUSDPerCore[it.arch]) * over) / 1000000)
	amount > 0
}

adjust contains {"i": i, "addMicroUSD": amount} if {
	count(surplus) > 0
	some i, c in input.candidates
	amount := surplus[c.instanceType.name]
}
