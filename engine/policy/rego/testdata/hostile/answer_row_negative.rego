# hook: score
# want: BadResult
# says: row -1 does not exist
package dovetail.score.hostile

deny contains {"i": -1, "msg": "m"}
