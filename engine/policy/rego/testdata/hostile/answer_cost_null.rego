# hook: score
# want: BadResult
# says: microUSD is null
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": null}
