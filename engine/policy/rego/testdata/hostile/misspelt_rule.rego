# hook: score
# want: Load
# says: no package dovetail.score.<name>
package dovetail.score.hostile

dney contains {"i": 0, "msg": "m"}
