# hook: score
# want: Memory
# says: width or precision from an operand
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(sprintf("%*d", [2000000000, 1]))}
