# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": n} if {
	n := count([1 | walk(input, [_, a]); walk(input, [_, b]); a == b])
}
