# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": n} if {
	n := count([1 | some a in numbers.range(1, 5000); some b in numbers.range(1, 5000); a * b == 7])
}
