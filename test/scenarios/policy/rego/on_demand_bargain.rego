# METADATA
# title: On-demand at a contract price
# custom:
#   hook: score
package dovetail.score.on_demand_bargain

cost contains {"i": i, "microUSD": 60000} if {
	some i, c in input.candidates
	c.offering.capacityType == "on-demand"
}
