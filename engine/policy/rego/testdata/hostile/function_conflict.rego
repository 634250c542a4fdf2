# hook: score
# want: Conflict
# says: produced conflicting values
package dovetail.score.hostile

g(_) := 1

g(n) := n

bias contains {"i": 0, "microUSD": g(input.now.unix)}
