# hook: score
# want: BadResult
# says: rule cost: microUSD is string "12"; an integer is required
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": "12"}
