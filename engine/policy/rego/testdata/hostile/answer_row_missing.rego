# hook: score
# want: BadResult
# says: i is missing
package dovetail.score.hostile

deny contains {"msg": "m"}
