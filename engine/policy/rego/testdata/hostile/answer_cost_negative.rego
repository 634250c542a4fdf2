# hook: score
# want: BadResult
# says: cost -1 is negative
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": -1}
