# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

ok if {
	every a in numbers.range(1, 3000) {
		every b in numbers.range(1, 3000) {
			a + b > 0
		}
	}
}

deny contains {"i": 0, "msg": "m"} if ok
