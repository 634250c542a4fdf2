# hook: score
# want: Load Memory BadResult Builtin
# says: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": x} if x := 1e999999999 + 1
