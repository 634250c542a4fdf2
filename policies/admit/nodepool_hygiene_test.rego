package dovetail.admit.nodepool_hygiene_test

import data.dovetail.admit.nodepool_hygiene

good := {
	"name": "web", "weight": 10, "labels": {"team": "shop", "env": "production"}, "limits": {"cpu": 100000},
	"disruption": {"expireAfterSeconds": 2592000, "consolidateAfterSeconds": 300},
}

asked(pool, parameters) := {
	"nodePool": pool, "resolved": {"types": [{"family": "m7i"}, {"family": "c7i"}]},
	"siblings": [{"name": "other", "weight": 20, "overlap": true}, {"name": "far", "weight": 10, "overlap": false}],
	"parameters": parameters,
}

warned(given) := {d.code | some d in got} if got := nodepool_hygiene.warn with input as given

denied(given) := {d.code | some d in got} if got := nodepool_hygiene.deny with input as given

test_allows_a_good_pool if {
	warned(asked(good, {})) == set()
	denied(asked(good, {"enforce": true})) == set()
}

test_warns_or_denies if {
	bad := {"name": "x", "weight": 20, "labels": {}, "limits": {}, "disruption": {}}
	warned(asked(bad, {})) == {"limits", "owner", "expiry", "overlap"}
	denied(asked(bad, {})) == set()
	denied(asked(bad, {"enforce": true})) == {"limits", "owner", "expiry", "overlap"}
	warned(asked(bad, {"enforce": true})) == set()
}

test_edges if {
	warned(asked(object.union(good, {"disruption": {"expireAfterSeconds": 2592001}}), {})) == {"expiry"}
	warned(asked(object.union(good, {"disruption": {"consolidateAfterSeconds": 299}}), {})) == {"consolidation"}
	warned(asked(object.union(good, {"disruption": {"consolidateAfterSeconds": 0}, "labels": {"env": "test"}}), {})) == set()
	warned(asked(object.union(object.remove(good, ["limits"]), {"limits": {"nodes": 3}}), {})) == set()
}

test_families if {
	warned(asked(good, {"families": ["m7i"]})) == {"families"}
	warned(asked(good, {"families": ["m7i", "c7i", "r7i"]})) == set()
}

test_bad_parameter_means_the_default if {
	bad := {"enforce": "yes", "ownerLabel": 1, "maxExpireSeconds": "30d", "families": "m7i", "minConsolidateAfterSeconds": -5, "production": null}
	warned(asked(good, bad)) == set()
	warned(asked(object.union(good, {"disruption": {"expireAfterSeconds": 2592001}}), bad)) == {"expiry"}
}
