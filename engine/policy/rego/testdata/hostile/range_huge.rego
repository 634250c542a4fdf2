# hook: score
# want: Memory
# says: numbers.range: more than 100000 numbers
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(numbers.range(1, 2000000000))}
