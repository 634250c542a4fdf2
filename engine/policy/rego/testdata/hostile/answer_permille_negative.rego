# hook: score
# want: BadResult
# says: permille -5
package dovetail.score.hostile

adjust contains {"i": 0, "permille": -5}
