# hook: score
# want: BadResult
# says: microUSD is number 1.5; an integer is required
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": 1.5}
