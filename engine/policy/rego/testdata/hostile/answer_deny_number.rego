# hook: score
# want: BadResult
# says: element is number 5; an object is required
package dovetail.score.hostile

deny contains 5
