# hook: score
# want: Load
# says: comprehensions nested in each other

package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if count([x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := [x | x := 1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]) > 0
