package dovetail.disrupt.churn_cap_test

import data.dovetail.disrupt.churn_cap

asked(reason, gone, evictions, parameters) := {
	"command": {"reason": reason, "candidates": [{"node": "n1", "pool": "web"}]},
	"nodePools": {"web": {"nodes": 100}},
	"history": {"disruptions": {"byPool": {"web": {"1h": gone, "24h": gone}}}},
	"pods": [{"namespace": "shop", "name": "cart", "node": "n1", "evictionsLast24h": evictions}],
	"parameters": parameters,
}

codes(given) := {d.code | some d in deferred} if deferred := churn_cap.defer with input as given

test_allows_a_calm_pool if codes(asked("Underutilized", 3, 1, {})) == set()

test_waits_for_the_pool if codes(asked("Underutilized", 4, 0, {})) == {"pool"}

test_waits_for_the_pod if {
	deferred := churn_cap.defer with input as asked("Drifted", 0, 2, {})
	deferred == {{"code": "pod", "seconds": 600, "nodes": ["n1"], "msg": "pod shop/cart was evicted 2 times within 24 hours"}}
}

test_nodes_that_go_anyway if {
	codes(asked("Empty", 50, 9, {})) == set()
	codes(asked("Interruption", 50, 9, {})) == set()
}

test_pool_without_history if {
	given := object.union(asked("Drifted", 0, 0, {}), {"history": {"disruptions": {"byPool": {}}}})
	codes(object.union(object.remove(given, ["history"]), {"history": {"disruptions": {"byPool": {}}}})) == set()
}

test_bad_parameter_means_the_default if {
	codes(asked("Drifted", 4, 2, {"permillePerHour": 2000, "evictionsPerDay": 0, "waitSeconds": "soon"})) == {"pool", "pod"}
}
