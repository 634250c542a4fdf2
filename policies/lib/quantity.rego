package dovetail.lib

# METADATA
# description: Millicores of a Kubernetes quantity such as 500m, 2 or "1.5".
cpu_milli(quantity) := ceil(to_number(trim_suffix(quantity, "m"))) if {
	is_string(quantity)
	endswith(quantity, "m")
}

cpu_milli(quantity) := ceil(to_number(quantity) * 1000) if {
	not endswith(sprintf("%v", [quantity]), "m")
}

# METADATA
# description: MiB of a Kubernetes quantity such as 512Mi, 1Gi or 1500000000, rounded up.
memory_mib(quantity) := ceil(units.parse_bytes(sprintf("%v", [quantity])) / 1048576)

# METADATA
# description: Seconds of a duration such as 720h or 5m; undefined for Never.
duration_seconds(text) := ceil(time.parse_duration_ns(text) / 1000000000) if text != "Never"

# METADATA
# description: Micro-US-dollars of an amount in dollars such as "0.25".
micro_usd(dollars) := round(to_number(dollars) * 1000000)

# METADATA
# description: Micro-US-dollars as text for people, such as $1.25.
usd(micro) := sprintf("$%d.%02d", [floor(cents / 100), cents % 100]) if {
	micro >= 10000
	cents := round(micro / 10000)
} else := sprintf("-%s", [usd_tiny(0 - micro)]) if {
	micro < 0
} else := usd_tiny(micro)

usd_tiny(micro) := sprintf("$%d.%06d", [floor(micro / 1000000), micro % 1000000])

# METADATA
# description: A share in permille; 0 of nothing.
permille(part, whole) := floor((part * 1000) / whole) if {
	whole > 0
} else := 0
