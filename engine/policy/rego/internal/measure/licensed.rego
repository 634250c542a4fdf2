# The rules of the Wasm guests: a weight by family, a licence per core, the risk of spot,
# four exclusions. Whole numbers only, and an amount for every row.
package dovetail.score.bench

weights := {"m7i": 950, "c7g": 950, "r6i": 1050, "r7iz": 1050}

default licence := 0

licence := 12500 if input.nodePool.labels.licensed == "true"

default arm := false

arm if input.nodePool.labels.arm == "true"

cost contains {"i": i, "microUSD": (weighted - (weighted % 1000)) / 1000 + ((c.instanceType.cpu / 1000) * licence)} if {
	some i, c in input.candidates
	c.offering.capacityType != "spot"
	weighted := c.cost * object.get(weights, c.instanceType.family, 1000)
}

cost contains {"i": i, "microUSD": ((weighted - (weighted % 1000)) / 1000 + ((c.instanceType.cpu / 1000) * licence)) + ((risk - (risk % 1000)) / 1000)} if {
	some i, c in input.candidates
	c.offering.capacityType == "spot"
	weighted := c.cost * object.get(weights, c.instanceType.family, 1000)
	risk := c.cost * c.offering.interruptionRate
}

deny contains {"i": i, "code": "burstable", "msg": "burstable family"} if {
	some i, c in input.candidates
	c.instanceType.family in {"t4g", "t3", "t3a"}
}

deny contains {"i": i, "code": "small", "msg": "less than 4 GiB"} if {
	some i, c in input.candidates
	c.instanceType.memory < 4096
}

deny contains {"i": i, "code": "giant", "msg": "more than 64 cores"} if {
	some i, c in input.candidates
	c.instanceType.cpu > 64000
}

deny contains {"i": i, "code": "arch", "msg": "arm64 is not allowed"} if {
	not arm
	some i, c in input.candidates
	c.instanceType.arch == "arm64"
}
