# hook: score
# want: BadResult
# says: permille 1000001
package dovetail.score.hostile

adjust contains {"i": 0, "permille": 1000001}
