# hook: score
# want: Conflict
# says: produced conflicting values
package dovetail.score.hostile

x := 1 if input.now.unix > 0

x := 2 if input.now.unix > 1

bias contains {"i": 0, "microUSD": x}
