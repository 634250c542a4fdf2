package dovetail.launch.diverse_spot_test

import data.dovetail.launch.diverse_spot

asked(kind, types, price, parameters) := {
	"claims": [{"name": "web/1", "typesCount": types, "offering": {"capacityType": kind, "listPrice": price, "onDemandPrice": 100000}}],
	"parameters": parameters,
}

codes(given) := {d.code | some d in got} if got := diverse_spot.deny with input as given

test_allows_diverse_and_cheap if codes(asked("spot", 5, 70000, {})) == set()

test_denies_few_types if codes(asked("spot", 4, 30000, {})) == {"few-types"}

test_denies_dear_spot if codes(asked("spot", 9, 70001, {})) == {"dear"}

test_on_demand_is_not_concerned if codes(asked("on-demand", 1, 100000, {})) == set()

test_unknown_on_demand_price if {
	given := {"claims": [{"name": "x", "typesCount": 9, "offering": {"capacityType": "spot", "listPrice": 1}}], "parameters": {}}
	codes(given) == set()
}

test_bad_parameter_means_the_default if codes(asked("spot", 4, 70001, {"types": 0, "permille": "all"})) == {"few-types", "dear"}
