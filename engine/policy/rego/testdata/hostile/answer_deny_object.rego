# hook: score
# want: BadResult
# says: object; a set of objects is required
package dovetail.score.hostile

deny := {"i": 0, "msg": "m"}
