# hook: score
# want: Memory
# says: exponent beyond
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": x} if x := floor(to_number(sprintf("1e%d", [999999999 + (0 * input.now.hour)])))
