# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

deny contains {"i": i, "msg": "m"} if {
	some i, a in input.candidates
	some b in input.candidates
	some c in input.candidates
	a.offering.listPrice + b.offering.listPrice == c.offering.listPrice
}
