# hook: score
# want: BadResult
# says: boolean true; a set of objects is required
package dovetail.score.hostile

deny := true
