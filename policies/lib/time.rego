package dovetail.lib

days := ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]

day_number := {substring(name, 0, 3): i | some i, name in days}

# METADATA
# description: |
#   The local time in an IANA zone at a time in seconds since 1970. A zone may be written
#   with dots in place of slashes (Europe.Berlin), as label values need it.
local(unix, zone) := {
	"weekday": weekday,
	"day": day_number[substring(weekday, 0, 3)],
	"minute": (clock[0] * 60) + clock[1],
	"date": sprintf("%04d-%02d-%02d", date),
} if {
	at := [unix * 1000000000, replace(zone, ".", "/")]
	weekday := time.weekday(at)
	clock := time.clock(at)
	date := time.date(at)
}

# METADATA
# description: |
#   The windows of a text such as "Mon-Fri 20:00-06:00; Sat-Sun 00:00-24:00". In label
#   values, "_" is a blank, "." a semicolon, and colons are left out:
#   Mon-Fri_2000-0600.Sat-Sun_0000-2400. Windows that cannot be read are left out; see
#   windows_valid.
windows(text) := [w |
	some part in window_parts(text)
	w := window(part)
]

# METADATA
# description: True if every window of a text can be read, and there is one.
windows_valid(text) if {
	is_string(text)
	count(window_parts(text)) > 0
	count(windows(text)) == count(window_parts(text))
}

window_parts(text) := [part |
	some raw in regex.split(`[;.]`, replace(replace(text, "_", " "), ":", ""))
	part := trim_space(raw)
	part != ""
]

window(part) := {"days": days_of(found[1]), "from": from, "to": to} if {
	found := regex.find_all_string_submatch_n(`^(\S+) +([0-9]{4}) *- *([0-9]{4})$`, part, 1)[0]
	from := minute_of(found[2])
	to := minute_of(found[3])
	from != to
	count(days_of(found[1])) > 0
}

minute_of(text) := minute if {
	minute := (to_number(trim_left_zero(substring(text, 0, 2))) * 60) + to_number(trim_left_zero(substring(text, 2, 2)))
	to_number(trim_left_zero(substring(text, 2, 2))) < 60
	minute <= 1440
}

trim_left_zero(text) := substring(text, 1, -1) if {
	startswith(text, "0")
} else := text

days_of("*") := {0, 1, 2, 3, 4, 5, 6}

days_of(text) := union({s |
	some part in split(text, ",")
	s := day_range(part)
}) if {
	text != "*"
	every part in split(text, ",") {
		day_range(part)
	}
}

day_range(part) := {day_number[part]}

day_range(part) := {day |
	some n in numbers.range(0, ((to - from) + 7) % 7)
	day := (from + n) % 7
} if {
	ends := split(part, "-")
	count(ends) == 2
	from := day_number[ends[0]]
	to := day_number[ends[1]]
}

# METADATA
# description: |
#   True if a time in seconds since 1970 is inside one of the windows of a text, in an IANA
#   zone. A window that ends before it begins goes on over midnight and belongs to the day
#   on which it begins.
in_windows(text, unix, zone) if {
	at := local(unix, zone)
	some w in windows(text)
	inside(w, at)
}

inside(w, at) if {
	w.from < w.to
	at.day in w.days
	at.minute >= w.from
	at.minute < w.to
}

inside(w, at) if {
	w.from > w.to
	at.day in w.days
	at.minute >= w.from
}

inside(w, at) if {
	w.from > w.to
	((at.day + 6) % 7) in w.days
	at.minute < w.to
}

# METADATA
# description: True if the local date in a zone is in a list of dates (2026-12-25).
holiday(unix, zone, dates) if local(unix, zone).date in dates
