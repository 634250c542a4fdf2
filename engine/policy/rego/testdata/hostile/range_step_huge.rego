# hook: score
# want: Memory
# says: numbers.range_step
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(numbers.range_step(1, 2000000000, 2))}
