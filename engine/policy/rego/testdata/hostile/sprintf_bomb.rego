# hook: score
# want: Memory
# says: sprintf: operands of more than 65536 bytes
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(x11)} if {
	x0 := "aaaaaaaa"
	x1 := sprintf("%s%s%s%s%s%s%s%s", [x0, x0, x0, x0, x0, x0, x0, x0])
	x2 := sprintf("%s%s%s%s%s%s%s%s", [x1, x1, x1, x1, x1, x1, x1, x1])
	x3 := sprintf("%s%s%s%s%s%s%s%s", [x2, x2, x2, x2, x2, x2, x2, x2])
	x4 := sprintf("%s%s%s%s%s%s%s%s", [x3, x3, x3, x3, x3, x3, x3, x3])
	x5 := sprintf("%s%s%s%s%s%s%s%s", [x4, x4, x4, x4, x4, x4, x4, x4])
	x6 := sprintf("%s%s%s%s%s%s%s%s", [x5, x5, x5, x5, x5, x5, x5, x5])
	x7 := sprintf("%s%s%s%s%s%s%s%s", [x6, x6, x6, x6, x6, x6, x6, x6])
	x8 := sprintf("%s%s%s%s%s%s%s%s", [x7, x7, x7, x7, x7, x7, x7, x7])
	x9 := sprintf("%s%s%s%s%s%s%s%s", [x8, x8, x8, x8, x8, x8, x8, x8])
	x10 := sprintf("%s%s%s%s%s%s%s%s", [x9, x9, x9, x9, x9, x9, x9, x9])
	x11 := sprintf("%s%s%s%s%s%s%s%s", [x10, x10, x10, x10, x10, x10, x10, x10])
}
