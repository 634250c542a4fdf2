# hook: score
# want: BadResult
# says: neither permille nor addMicroUSD
package dovetail.score.hostile

adjust contains {"i": 0}
