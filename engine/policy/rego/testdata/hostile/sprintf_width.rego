# hook: score
# want: Memory
# says: width or precision of more than 999
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(sprintf("%2000000000d", [1]))}
