# hook: score
# want: BadResult
# says: is above
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": 99999999999999999}
