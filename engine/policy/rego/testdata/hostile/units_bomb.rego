# hook: score
# want: Memory
# says: units.parse
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": x} if x := units.parse("1e999999999")
