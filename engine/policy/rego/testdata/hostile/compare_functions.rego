# hook: score
# want: Load
# says: a value has more than
package dovetail.score.hostile

pair(a) := [a, a]

deny contains {"i": 0, "msg": "m"} if {
	x0 := input.now
	y0 := json.unmarshal(json.marshal(input.now))
	x1 := pair(x0)
	x2 := pair(x1)
	x3 := pair(x2)
	x4 := pair(x3)
	x5 := pair(x4)
	x6 := pair(x5)
	x7 := pair(x6)
	x8 := pair(x7)
	x9 := pair(x8)
	x10 := pair(x9)
	x11 := pair(x10)
	x12 := pair(x11)
	x13 := pair(x12)
	x14 := pair(x13)
	x15 := pair(x14)
	x16 := pair(x15)
	x17 := pair(x16)
	x18 := pair(x17)
	x19 := pair(x18)
	x20 := pair(x19)
	x21 := pair(x20)
	x22 := pair(x21)
	x23 := pair(x22)
	y1 := pair(y0)
	y2 := pair(y1)
	y3 := pair(y2)
	y4 := pair(y3)
	y5 := pair(y4)
	y6 := pair(y5)
	y7 := pair(y6)
	y8 := pair(y7)
	y9 := pair(y8)
	y10 := pair(y9)
	y11 := pair(y10)
	y12 := pair(y11)
	y13 := pair(y12)
	y14 := pair(y13)
	y15 := pair(y14)
	y16 := pair(y15)
	y17 := pair(y16)
	y18 := pair(y17)
	y19 := pair(y18)
	y20 := pair(y19)
	y21 := pair(y20)
	y22 := pair(y21)
	y23 := pair(y22)
	x23 == y23
}
