# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(p)} if {
	d := numbers.range(1, 12)
	p := [1 | some a in d; some b in d; some c in d; some e in d; some g in d; some h in d; (((((a + b) + c) + e) + g) + h) == 0]
}
