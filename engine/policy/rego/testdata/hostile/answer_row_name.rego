# hook: score
# want: BadResult
# says: i is string "m5.large"; an integer is required
package dovetail.score.hostile

deny contains {"i": "m5.large", "msg": "m"}
