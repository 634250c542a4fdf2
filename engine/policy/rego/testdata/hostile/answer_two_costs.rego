# hook: score
# want: Conflict
# says: row 0 has two costs, 5 and 6
package dovetail.score.hostile

cost contains {"i": 0, "microUSD": 5}

cost contains {"i": 0, "microUSD": 6}
