# hook: score
# want: Conflict
# says: object keys must be unique
package dovetail.score.hostile

o := {k: v | some v in [1, 2]; k := "a"}

bias contains {"i": 0, "microUSD": o.a}
