package dovetail.disrupt.minimum_saving_test

import data.dovetail.disrupt.minimum_saving

asked(reason, hourly, permille, moved, parameters) := {
	"command": {"reason": reason, "podsMoved": moved, "savings": {"hourly": hourly, "permille": permille}},
	"parameters": parameters,
}

codes(given) := {d.code | some d in denied} if denied := minimum_saving.deny with input as given

test_allows_a_good_saving if codes(asked("Underutilized", 100000, 200, 10, {})) == set()

test_denies_each_kind if {
	codes(asked("Underutilized", 49999, 200, 1, {})) == {"saving"}
	codes(asked("Underutilized", 100000, 79, 1, {})) == {"share"}
	codes(asked("Underutilized", 100000, 200, 21, {})) == {"per-pod"}
	codes(asked("Underutilized", 1000, 10, 5, {})) == {"saving", "share", "per-pod"}
}

test_the_limit_itself_is_enough if codes(asked("Underutilized", 50000, 80, 10, {})) == set()

test_other_reasons_and_moves_without_pods if {
	codes(asked("Drifted", 0, 0, 10, {})) == set()
	codes(asked("Underutilized", 0, 0, 0, {})) == set()
}

test_message if {
	denied := minimum_saving.deny with input as asked("Underutilized", 20000, 200, 1, {})
	denied == {{"code": "saving", "msg": "saves $0.02 per hour; at least $0.05 is required"}}
}

test_bad_parameter_means_the_default if {
	codes(asked("Underutilized", 49999, 200, 1, {"hourlyMicroUSD": "0", "permille": 5000, "perPodMicroUSD": -1})) == {"saving"}
}
