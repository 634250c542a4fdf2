package dovetail.lib

# METADATA
# description: |
#   The input once for each row, with that row as the only candidate, for rules that are
#   easier to write for a single row:
#
#     deny contains object.union(d, {"i": e.i}) if {
#       some e in lib.each(input)
#       some d in row_deny with input as e.input
#     }
#
#   It costs about ten times as much as a rule over all rows.
each(doc) := [{"i": i, "input": one} |
	rest := object.remove(doc, ["candidates"])
	some i, row in doc.candidates
	one := object.union(rest, {"candidates": [row]})
]
