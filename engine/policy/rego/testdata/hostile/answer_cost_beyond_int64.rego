# hook: score
# want: BadResult
# says: an integer is required
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": 99999999999999999999999999}
