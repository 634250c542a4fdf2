# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

d[k] contains a if {
	some a in numbers.range(1, 60000)
	k := a % 3
}

bias contains {"i": 0, "microUSD": count(d[0]) + count([1 | some x in d[1]; some y in d[2]; x == y])}
