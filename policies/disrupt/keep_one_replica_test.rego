package dovetail.disrupt.keep_one_replica_test

import data.dovetail.disrupt.keep_one_replica

asked(reason, owner, parameters) := {
	"command": {"reason": reason},
	"owners": [object.union({"kind": "Deployment", "namespace": "shop", "name": "cart", "replicas": 2, "surgeDrain": false}, owner)],
	"parameters": parameters,
}

messages(given) := {d.msg | some d in got} if got := keep_one_replica.deny with input as given

test_allows_when_one_stays if messages(asked("Underutilized", {"ready": 2, "onThisNode": 1}, {})) == set()

test_denies_the_last if messages(asked("Underutilized", {"ready": 2, "onThisNode": 2}, {})) == {"Deployment shop/cart would have 0 of 2 replicas ready"}

test_none_on_the_nodes if messages(asked("Underutilized", {"ready": 0, "onThisNode": 0}, {})) == set()

test_surge if messages(asked("Drifted", {"ready": 1, "onThisNode": 1, "surgeDrain": true}, {})) == set()

test_single_replicas if {
	single := {"replicas": 1, "ready": 1, "onThisNode": 1}
	count(messages(asked("Drifted", single, {}))) == 1
	messages(asked("Drifted", single, {"singles": false})) == set()
	count(messages(asked("Drifted", {"ready": 1, "onThisNode": 1}, {"singles": false}))) == 1
}

test_other_kinds_and_reasons if {
	messages(asked("Underutilized", {"kind": "Job", "ready": 1, "onThisNode": 1}, {})) == set()
	messages(asked("Interruption", {"ready": 1, "onThisNode": 1}, {})) == set()
}

test_bad_parameter_means_the_default if count(messages(asked("Drifted", {"ready": 1, "onThisNode": 1}, {"kinds": "Job", "singles": "no"}))) == 1
