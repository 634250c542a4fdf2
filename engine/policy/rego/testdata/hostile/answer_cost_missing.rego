# hook: score
# want: BadResult
# says: microUSD is missing
package dovetail.score.hostile

cost contains {"i": 0}
