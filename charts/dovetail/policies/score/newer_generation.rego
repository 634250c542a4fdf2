# METADATA
# title: A newer generation wins within a few percent
# description: |
#   Offerings of an older generation carry a bias of a share of their price, so that a newer
#   one of the same class (m6i and m7i are both m) is taken if it is dearer by no more than
#   that. Bias ranks; reported costs stay what is paid.
# custom:
#   hook: score
#   parameters:
#     withinPermille:
#       description: How much dearer the newest generation may be.
#       type: integer
#       minimum: 0
#       maximum: 1000
#       default: 70
package dovetail.score.newer_generation

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

# Told apart first: there are few families and many rows.
named := {[c.instanceType.family, c.instanceType.generation] | some c in input.candidates}

# Generation and class (the letters before the generation) of each family.
families := {family: {"class": split(family, sprintf("%d", [generation]))[0], "generation": generation} |
	some [family, generation] in named
	generation > 0
}

newest[class] := max(generations) if {
	some class in {f.class | some f in families}
	generations := {f.generation | some f in families; f.class == class}
}

old := {family |
	some family, f in families
	f.generation < newest[f.class]
}

# The bias of each price: zones share prices, and a division is dear.
steps := {price: floor((price * settings.withinPermille) / 1000) |
	prices := {c.offering.listPrice |
		some c in input.candidates
		c.instanceType.family in old
	}
	some price in prices
}

bias contains {"i": i, "microUSD": amount} if {
	settings.withinPermille > 0
	count(old) > 0
	some i, c in input.candidates
	c.instanceType.family in old
	amount := steps[c.offering.listPrice]
}
