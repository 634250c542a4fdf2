package dovetail.admit.price_ceiling_test

import data.dovetail.admit.price_ceiling

asked(price, annotations, parameters) := {
	"nodePool": {"annotations": annotations}, "parameters": parameters,
	"resolved": {"priceMax": price, "types": [{"name": "m7i.metal-24xl", "bareMetal": price > 5000000}]},
}

warned(given) := {d.code | some d in got} if got := price_ceiling.warn with input as given

test_allows_common_pools if warned(asked(3000000, {}, {})) == set()

test_warns if {
	warned(asked(3000001, {}, {})) == {"price"}
	warned(asked(5000001, {}, {})) == {"price", "bare-metal"}
}

test_annotated if warned(asked(9000000, {"policy.dovetail.sh/allow-giants": "true"}, {})) == set()

test_bad_parameter_means_the_default if warned(asked(3000001, {}, {"maxMicroUSD": "1"})) == {"price"}
