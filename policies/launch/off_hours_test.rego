package dovetail.launch.off_hours_test

import data.dovetail.launch.off_hours

# 2026-06-03 is a Wednesday.
noon := 1780488000

night := 1780527600

asked(unix, tier, commitment, parameters) := {
	"claims": [object.union({"name": "b/1", "pool": "b"}, commitment)],
	"nodePools": {"b": {"labels": {"tier": tier}}}, "now": {"unix": unix}, "parameters": parameters,
}

codes(given) := {d.code | some d in got} if got := off_hours.deny with input as given

test_allows_in_working_hours if codes(asked(noon, "batch", {}, {})) == set()

test_denies_at_night if codes(asked(night, "batch", {}, {})) == {"off-hours"}

test_committed_capacity_is_free if codes(asked(night, "batch", {"commitment": "ri-1"}, {})) == set()

test_other_pools if codes(asked(night, "web", {}, {})) == set()

test_zone_and_window if {
	codes(asked(noon, "batch", {}, {"zone": "Asia/Tokyo"})) == {"off-hours"}
	codes(asked(night, "batch", {}, {"window": "* 00:00-24:00"})) == set()
	codes(asked(night, "web", {}, {"value": "web"})) == {"off-hours"}
}

test_unreadable_window_never_begins if codes(asked(noon, "batch", {}, {"window": "office"})) == {"off-hours"}

test_bad_parameter_means_the_default if {
	codes(asked(noon, "batch", {}, {"window": 9, "zone": false, "label": [], "value": 1})) == set()
	codes(asked(night, "batch", {}, {"window": 9, "zone": false, "label": [], "value": 1})) == {"off-hours"}
}
