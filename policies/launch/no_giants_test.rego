package dovetail.launch.no_giants_test

import data.dovetail.launch.no_giants

asked(claim, annotations, parameters) := {
	"claims": [object.union(
		{
			"name": "web/1", "pool": "web", "hourlyCost": 1000000, "maxPrice": 1000000, "wasteRatio": 100,
			"instanceType": {"name": "m7i.4xlarge", "bareMetal": false},
		},
		claim,
	)],
	"nodePools": {"web": {"annotations": annotations}}, "parameters": parameters,
}

codes(given) := {d.code | some d in got} if got := no_giants.deny with input as given

allow := {"policy.dovetail.sh/allow-giants": "true"}

test_allows_common_nodes if codes(asked({}, {}, {})) == set()

test_denies_giants if {
	codes(asked({"hourlyCost": 3000001}, {}, {})) == {"price"}
	codes(asked({"instanceType": {"bareMetal": true}}, {}, {})) == {"bare-metal"}
	codes(asked({"wasteRatio": 501}, {}, {})) == {"waste"}
}

test_the_limits_themselves if codes(asked({"hourlyCost": 3000000, "wasteRatio": 500}, {}, {})) == set()

test_cheap_nodes_may_be_empty if codes(asked({"hourlyCost": 499999, "wasteRatio": 990}, {}, {})) == set()

test_annotated_pools_may if {
	given := asked({"hourlyCost": 9000000, "maxPrice": 9000000, "instanceType": {"bareMetal": true}}, allow, {})
	codes(given) == set()
	none := no_giants.restrict with input as given
	count(none) == 0
}

test_alternatives_are_restricted if {
	got := no_giants.restrict with input as asked({"maxPrice": 4000000}, {}, {})
	got == {{"claim": "web/1", "maxMicroUSD": 3000000}}
}

test_bad_parameter_means_the_default if codes(asked({"hourlyCost": 3000001}, {}, {"maxMicroUSD": "9", "maxWastePermille": -1, "wasteFromMicroUSD": null})) == {"price"}
