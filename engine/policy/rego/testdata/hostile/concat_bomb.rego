# hook: score
# want: Memory
# says: concat: operands of more than
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(x9)} if {
	x0 := "aaaaaaaa"
	x1 := concat("", [x0, x0, x0, x0, x0, x0, x0, x0, x0, x0, x0, x0, x0, x0, x0, x0])
	x2 := concat("", [x1, x1, x1, x1, x1, x1, x1, x1, x1, x1, x1, x1, x1, x1, x1, x1])
	x3 := concat("", [x2, x2, x2, x2, x2, x2, x2, x2, x2, x2, x2, x2, x2, x2, x2, x2])
	x4 := concat("", [x3, x3, x3, x3, x3, x3, x3, x3, x3, x3, x3, x3, x3, x3, x3, x3])
	x5 := concat("", [x4, x4, x4, x4, x4, x4, x4, x4, x4, x4, x4, x4, x4, x4, x4, x4])
	x6 := concat("", [x5, x5, x5, x5, x5, x5, x5, x5, x5, x5, x5, x5, x5, x5, x5, x5])
	x7 := concat("", [x6, x6, x6, x6, x6, x6, x6, x6, x6, x6, x6, x6, x6, x6, x6, x6])
	x8 := concat("", [x7, x7, x7, x7, x7, x7, x7, x7, x7, x7, x7, x7, x7, x7, x7, x7])
	x9 := concat("", [x8, x8, x8, x8, x8, x8, x8, x8, x8, x8, x8, x8, x8, x8, x8, x8])
}
