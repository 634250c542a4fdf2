# hook: score
# want: Load
# says: undefined ref
package dovetail.score.hostile

deny contains {"i": i, "msg": "m"} if {
	some i, c in input.candidates
	c.instanceType.cpus > 4
}
