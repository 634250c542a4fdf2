# METADATA
# title: Zone balance
# description: |
#   Zones that have more than their share of the cluster's nodes carry a bias for each
#   permille above it. Shares are equal unless targets are given, such as 800 and 200. Zones
#   short of addresses step back as well, and zones without any are left out.
# custom:
#   hook: score
#   parameters:
#     targets:
#       description: Share of each zone in permille; a zone that is not named has none.
#       type: object
#       additionalProperties: {type: integer, minimum: 0, maximum: 1000}
#       default: {}
#     microUSDPerPermille:
#       description: Bias for each permille above the share.
#       type: integer
#       minimum: 0
#       default: 20
#     fewIPs:
#       description: Free addresses below which a zone steps back.
#       type: integer
#       minimum: 0
#       default: 64
#     fewIPsMicroUSD:
#       description: Bias of a zone short of addresses.
#       type: integer
#       minimum: 0
#       default: 10000
package dovetail.score.zone_balance

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

zones := {c.offering.zone | some c in input.candidates}

nodes := sum([n | some n in input.totals.nodesByZone])

target(_) := floor(1000 / count(zones)) if count(settings.targets) == 0

target(zone) := object.get(settings.targets, zone, 0) if count(settings.targets) > 0

# Bias of each zone above its share.
excess[zone] := amount if {
	some zone in zones
	share := lib.permille(object.get(input.totals.nodesByZone, zone, 0), nodes)
	amount := (share - target(zone)) * settings.microUSDPerPermille
	amount > 0
}

bias contains {"i": i, "microUSD": amount} if {
	count(excess) > 0
	some i, c in input.candidates
	amount := excess[c.offering.zone]
}

# Its own rule, and an odd amount at most once: equal answers would be one.
bias contains {"i": i, "microUSD": amount, "code": "addresses"} if {
	few := settings.fewIPs
	amount := settings.fewIPsMicroUSD
	some i, c in input.candidates
	c.offering.zoneFreeIPs < few
}

deny contains {"i": i, "code": "addresses", "msg": sprintf("zone %s has no free address", [c.offering.zone])} if {
	some i, c in input.candidates
	c.offering.zoneFreeIPs == 0
}
