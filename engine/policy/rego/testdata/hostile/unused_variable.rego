# hook: score
# want: Load
# says: unused
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if {
	x := 4
}
