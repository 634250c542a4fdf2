package dovetail.lib_test

import data.dovetail.lib

# 2026-06-03 is a Wednesday.
wednesday_noon := 1780488000

test_local_follows_the_zone if {
	lib.local(wednesday_noon, "UTC") == {"weekday": "Wednesday", "day": 3, "minute": 720, "date": "2026-06-03"}
	lib.local(wednesday_noon, "Asia/Tokyo") == {"weekday": "Wednesday", "day": 3, "minute": 1260, "date": "2026-06-03"}
	lib.local(wednesday_noon, "Europe.Berlin").minute == 840
}

test_local_follows_daylight_saving if {
	# 2026-01-14 12:00 UTC
	lib.local(1768392000, "Europe/Berlin").minute == 780
}

test_windows[name] if {
	some name, tc in {
		"inside": {"text": "Mon-Fri 09:00-17:00", "want": true},
		"label form": {"text": "Mon-Fri_0900-1700", "want": true},
		"before": {"text": "Mon-Fri 12:01-17:00", "want": false},
		"the end is outside": {"text": "Mon-Fri 09:00-12:00", "want": false},
		"other day": {"text": "Sat,Sun 00:00-24:00", "want": false},
		"one of several": {"text": "Sat 00:00-24:00; Wed 11:00-13:00", "want": true},
		"every day": {"text": "* 00:00-24:00", "want": true},
		"week wraps": {"text": "Sat-Wed 00:00-24:00", "want": true},
		"over midnight, before it": {"text": "Wed 11:00-03:00", "want": true},
		"over midnight, after it": {"text": "Tue 23:00-12:30", "want": true},
		"over midnight, day before is another": {"text": "Wed 23:00-12:30", "want": false},
	}
	lib.windows_valid(tc.text)
	inside(tc.text) == tc.want
}

default inside(_) := false

inside(text) if lib.in_windows(text, wednesday_noon, "UTC")

test_bad_windows[text] if {
	some text in ["", "Mon-Fri", "Mon 9-17", "Xyz 09:00-17:00", "Mon 09:00-25:00", "Mon 09:61-10:00", "Mon 09:00-09:00", "Mon-Fri-Sat 09:00-10:00"]
	not lib.windows_valid(text)
}

test_holiday if {
	lib.holiday(wednesday_noon, "UTC", ["2026-06-03"])
	not lib.holiday(wednesday_noon, "UTC", ["2026-06-04"])
}

test_quantities if {
	lib.cpu_milli("500m") == 500
	lib.cpu_milli("2") == 2000
	lib.cpu_milli(1.5) == 1500
	lib.memory_mib("1Gi") == 1024
	lib.memory_mib(1048577) == 2
	lib.duration_seconds("720h") == 2592000
	not lib.duration_seconds("Never")
}

test_money if {
	lib.micro_usd("0.25") == 250000
	lib.usd(1250000) == "$1.25"
	lib.usd(12345) == "$0.01"
	lib.usd(345) == "$0.000345"
	lib.usd(-345) == "-$0.000345"
	lib.permille(1, 3) == 333
	lib.permille(1, 0) == 0
}

chain := [{"path": ["x"], "annotations": {"scope": "package", "custom": {"parameters": {
	"n": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
	"s": {"type": "string", "enum": ["a", "b"], "default": "a"},
	"l": {"type": "array", "items": {"type": "string"}, "default": []},
	"m": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
	"b": {"type": "boolean", "default": false},
	"f": {"type": "number", "default": 0.5},
	"free": {"default": "x"},
}}}}]

test_settings_take_what_fits if {
	given := {"n": 9, "s": "b", "l": ["x"], "m": {"k": 1}, "b": true, "f": 1.5, "free": 7}
	lib.settings(chain, given) == given
}

test_settings_default_what_does_not if {
	defaults := {"n": 5, "s": "a", "l": [], "m": {}, "b": false, "f": 0.5, "free": "x"}
	lib.settings(chain, {}) == defaults
	lib.settings(chain, {"n": 0, "s": "c", "l": [1], "m": {"k": "v"}, "b": "yes", "f": "1", "other": 1}) == defaults
	lib.settings(chain, {"n": 10, "s": 1, "l": "x", "m": [], "b": 0}) == defaults
	lib.settings(chain, {"n": 1.5}) == defaults
}

test_each_has_one_row if {
	got := lib.each({"now": 1, "candidates": ["a", "b"]})
	got == [{"i": 0, "input": {"now": 1, "candidates": ["a"]}}, {"i": 1, "input": {"now": 1, "candidates": ["b"]}}]
}
