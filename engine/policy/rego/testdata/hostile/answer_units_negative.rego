# hook: score
# want: BadResult
# says: commitment "x" has -1 units
package dovetail.score.hostile

commitments contains {"id": "x", "units": -1}
