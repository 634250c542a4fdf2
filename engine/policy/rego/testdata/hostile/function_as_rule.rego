# hook: score
# want: Load
# says: must be a set of objects
package dovetail.score.hostile

deny(x) if x > 1
