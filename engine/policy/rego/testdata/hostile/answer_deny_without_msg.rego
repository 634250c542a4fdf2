# hook: score
# want: BadResult
# says: denial without a message
package dovetail.score.hostile

deny contains {"i": 0}
