# hook: score
# want: BadResult Memory Fuel Deadline
# says: 
package dovetail.score.hostile

deny contains {"i": 0, "msg": m} if {
	pad := concat("", [sprintf("%0900d", [x]) | some x in numbers.range(1, 50)])
	some n in numbers.range(1, 200)
	m := sprintf("%d%s", [n, pad])
}
