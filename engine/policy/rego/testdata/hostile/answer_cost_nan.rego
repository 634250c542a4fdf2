# hook: score
# want: BadResult
# says: microUSD is string "NaN"; an integer is required
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": "NaN"}
