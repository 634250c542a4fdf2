# hook: score
# want: Load
# says: must be a set of objects
package dovetail.score.hostile

bias[i] := 5 if some i, _ in input.candidates
