package dovetail.disrupt.pod_grace_test

import data.dovetail.disrupt.pod_grace

asked(value, age, blocked, parameters) := {
	"command": {"reason": "Underutilized", "candidates": [{"node": "n1", "pool": "web", "blockedSeconds": blocked}]},
	"pods": [{"namespace": "tests", "name": "t1", "node": "n1", "ageSeconds": age, "annotations": {"karpenter.sh/do-not-disrupt": value}}],
	"parameters": parameters,
}

messages(given) := {k.msg | some k in got} if got := pod_grace.keep with input as given

test_keeps_a_young_pod if messages(asked("true", 86399, 0, {})) == {"pod tests/t1 must not be disrupted for 1 seconds more"}

test_allows_an_old_pod if messages(asked("true", 86400, 0, {})) == set()

test_by_namespace if {
	messages(asked("true", 14400, 0, {"byNamespace": {"tests": 14400}})) == set()
	count(messages(asked("true", 14399, 0, {"byNamespace": {"tests": 14400}}))) == 1
}

test_own_time if {
	messages(asked("1h", 3600, 0, {})) == set()
	count(messages(asked("1h", 3599, 0, {}))) == 1
	count(messages(asked("100h", 3599, 0, {"seconds": 3600}))) == 1
}

test_other_values_and_reasons if {
	messages(asked("false", 1, 0, {})) == set()
	given := asked("true", 1, 0, {})
	messages(object.union(given, {"command": {"reason": "Interruption"}})) == set()
}

test_warns_of_blocked_nodes if {
	got := pod_grace.warn with input as asked("true", 90000, 14401, {})
	{w.nodes | some w in got} == {["n1"]}
	none := pod_grace.warn with input as asked("true", 90000, 14400, {})
	count(none) == 0
}

test_bad_parameter_means_the_default if {
	count(messages(asked("true", 86399, 0, {"seconds": "1h", "byNamespace": {"tests": -1}}))) == 1
}
