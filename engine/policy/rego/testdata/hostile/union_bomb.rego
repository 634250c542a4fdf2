# hook: score
# want: Memory Fuel Deadline
# says: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(object.union_n([{k: 1 | some k in numbers.range(a * 1000, (a * 1000) + 999)} | some a in numbers.range(1, 200)]))}
