package dovetail.admit.safe_edits_test

import data.dovetail.admit.safe_edits

# 2026-06-03 is a Wednesday.
noon := 1780488000

night := 1780527600

asked(operation, drifted, unix, groups, parameters) := {
	"operation": operation, "impact": {"nodes": 10, "nodesDrifted": drifted, "podsUnschedulable": 0},
	"now": {"unix": unix}, "user": {"name": "u", "groups": groups}, "parameters": parameters,
}

denied(given) := count(got) > 0 if got := safe_edits.deny with input as given

test_denies_a_large_edit_at_night if denied(asked("UPDATE", 3, night, [], {}))

test_allows_small_edits if not denied(asked("UPDATE", 2, night, [], {}))

test_allows_in_the_window if not denied(asked("UPDATE", 10, noon, [], {}))

test_allows_the_release_group if not denied(asked("UPDATE", 10, night, ["dev", "release"], {}))

test_new_pools if not denied(asked("CREATE", 0, night, [], {}))

test_warns_all_the_same if {
	got := safe_edits.warn with input as asked("UPDATE", 3, noon, [], {})
	got == {{"code": "drift", "msg": "3 of 10 nodes would drift"}}
	pods := safe_edits.warn with input as object.union(asked("UPDATE", 0, noon, [], {}), {"impact": {"podsUnschedulable": 4}})
	pods == {{"code": "pods", "msg": "4 pods would not fit any more"}}
}

test_unreadable_window_is_closed if denied(asked("UPDATE", 3, noon, [], {"window": "always"}))

test_bad_parameter_means_the_default if {
	denied(asked("UPDATE", 3, night, [], {"permille": 5000, "window": 1, "zone": 2, "group": 3}))
	not denied(asked("UPDATE", 3, noon, [], {"permille": 5000, "window": 1, "zone": 2, "group": 3}))
}
