# METADATA
# title: Library
# description: What policies share. It is plain Rego, so the opa binary runs it as well.
package dovetail.lib

# METADATA
# description: |
#   The parameters that the METADATA of the calling package declares (custom.parameters, a
#   JSON Schema for each), with the given values where they fit and the defaults where not.
#   Call it as lib.settings(rego.metadata.chain(), input.parameters).
settings(chain, given) := {name: value |
	some annotated in chain
	annotated.annotations.scope == "package"
	some name, schema in annotated.annotations.custom.parameters
	value := setting(given, name, schema)
}

setting(given, name, schema) := given[name] if {
	fits(given[name], schema)
} else := schema["default"]

# METADATA
# description: |
#   True if a value fits a simple JSON Schema: type, minimum, maximum, enum, and the same
#   for the items of a list or the values of an object.
fits(value, schema) if {
	fits_plain(value, schema)
	every item in items(value, schema) {
		fits_plain(item, schema.items)
	}
	every item in values(value, schema) {
		fits_plain(item, schema.additionalProperties)
	}
}

fits_plain(value, schema) if {
	has_type(value, object.get(schema, "type", "any"))
	not outside(value, schema)
}

outside(value, schema) if value < schema.minimum

outside(value, schema) if value > schema.maximum

outside(value, schema) if {
	schema.enum
	not value in schema.enum
}

items(value, schema) := value if {
	is_array(value)
	schema.items
} else := []

values(value, schema) := value if {
	is_object(value)
	is_object(schema.additionalProperties)
} else := {}

has_type(_, "any")

has_type(value, "string") if is_string(value)

has_type(value, "boolean") if is_boolean(value)

has_type(value, "number") if is_number(value)

has_type(value, "array") if is_array(value)

has_type(value, "object") if is_object(value)

has_type(value, "integer") if {
	is_number(value)
	value == round(value)
}
