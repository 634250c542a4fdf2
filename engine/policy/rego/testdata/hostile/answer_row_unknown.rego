# hook: score
# want: BadResult
# says: row 60 does not exist; rows are 0 to 59
package dovetail.score.hostile

deny contains {"i": 60, "msg": "m"}
