# hook: score
# want: Builtin
# says: divide by zero
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": 5 / (input.now.minute - input.now.minute)}
