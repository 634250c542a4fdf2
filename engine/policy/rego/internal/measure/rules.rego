package dovetail.score.bench

preferred := {"m7i": 950, "c7i": 950, "m7g": 900, "c7g": 900}

adjust contains {"i": i, "addMicroUSD": c.instanceType.cpu * 12} if {
	input.nodePool.labels.team == "shop"
	some i, c in input.candidates
}

adjust contains {"i": i, "permille": p} if {
	some i, c in input.candidates
	p := preferred[c.instanceType.family]
}

adjust contains {"i": i, "permille": 1000 + c.offering.interruptionRate} if {
	some i, c in input.candidates
	c.offering.capacityType == "spot"
}

deny contains {"i": i, "code": "burstable", "msg": "burstable family"} if {
	some i, c in input.candidates
	c.instanceType.burstable
}

deny contains {"i": i, "code": "metal", "msg": "bare metal"} if {
	some i, c in input.candidates
	c.instanceType.bareMetal
}

deny contains {"i": i, "code": "old", "msg": "older generation"} if {
	some i, c in input.candidates
	c.instanceType.generation < 6
}
