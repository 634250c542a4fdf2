# METADATA
# title: Commitment first, then the cheapest
# description: |
#   Offerings that a commitment pays for cost nothing while it has units left; then their
#   own price counts again. The engine counts the units, those of running nodes as well as
#   those it hands out inside a pass, so the last one is used once.
# custom:
#   hook: score
#   parameters:
#     kinds:
#       description: Kinds of commitments that are counted in nodes.
#       type: array
#       items: {type: string}
#       default: [reserved-instance, capacity-reservation, capacity-block]
#     coveredMicroUSD:
#       description: Cost per hour of a covered node in micro-USD.
#       type: integer
#       minimum: 0
#       default: 0
package dovetail.score.commitment_first

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

# Commitments that may count, by id.
usable[m.id] := m.matches if {
	some m in input.commitments
	m.kind in settings.kinds
	m.unitsTotal > 0
}

# Rows that each commitment pays for.
paid[i] contains id if {
	some id, matches in usable
	some i, c in input.candidates
	any_of(matches.instanceTypes, c.instanceType.name)
	any_of(matches.families, c.instanceType.family)
	any_of(matches.zones, c.offering.zone)
	any_of(matches.capacityTypes, c.offering.capacityType)
}

any_of(list, value) if value in list

any_of([], _)

commitments contains {"id": m.id, "units": m.unitsTotal} if {
	some m in input.commitments
	usable[m.id]
}

# A row that several commitments pay for goes to the first by name.
cover contains {"i": i, "commitment": min(ids), "units": 1, "microUSD": cost} if {
	cost := settings.coveredMicroUSD
	some i, ids in paid
}
