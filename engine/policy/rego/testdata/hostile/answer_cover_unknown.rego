# hook: score
# want: BadResult
# says: commitment "x" is not in commitments
package dovetail.score.hostile

cover contains {"i": 0, "commitment": "x", "microUSD": 0}
