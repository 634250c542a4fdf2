package v1

import (
	"encoding/json"
	"fmt"
	"time"
)

// Never is the text of a [NillableDuration] that switches its feature off.
const Never = "Never"

// NillableDuration is a duration or [Never]. It keeps the text it was read from, so
// that an object is written back as its author wrote it ("60m" stays "60m").
//
// The zero value is an absent duration. It means Never, but [NodePool.SetDefaults] and
// [NodeClaim.SetDefaults] may replace it, as the API server does.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Pattern=`^(([0-9]+(s|m|h))+|Never)$`
type NillableDuration struct {
	// Duration is nil for Never.
	Duration *time.Duration `json:"-"`
	// Text is how Duration was written, "Never" included, or empty. It is ignored where it
	// does not mean Duration, so code may set Duration alone.
	Text string `json:"-"`
}

// DurationOf returns a NillableDuration of d.
func DurationOf(d time.Duration) NillableDuration { return NillableDuration{Duration: &d} }

// ParseNillableDuration reads a Go duration such as "720h", or "Never".
func ParseNillableDuration(text string) (NillableDuration, error) {
	if text == Never {
		return NillableDuration{Text: Never}, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return NillableDuration{}, fmt.Errorf("duration %q: want a number with unit h, m or s, or %q", text, Never)
	}
	return NillableDuration{Duration: &d, Text: text}, nil
}

// IsZero reports whether the duration is absent.
func (d NillableDuration) IsZero() bool { return d.Duration == nil && d.Text == "" }

// IsNever reports whether there is no duration.
func (d NillableDuration) IsNever() bool { return d.Duration == nil }

// Value returns the duration, and false for Never.
func (d NillableDuration) Value() (time.Duration, bool) {
	if d.Duration == nil {
		return 0, false
	}
	return *d.Duration, true
}

// Equal reports whether both mean the same, whatever their text.
func (d NillableDuration) Equal(o NillableDuration) bool {
	if d.Duration == nil || o.Duration == nil {
		return d.Duration == o.Duration
	}
	return *d.Duration == *o.Duration
}

// String returns the text the duration was read from if it still holds, else Go's form
// of it, or "Never".
func (d NillableDuration) String() string {
	if d.Duration == nil {
		return Never
	}
	if d.Text != "" {
		if parsed, err := time.ParseDuration(d.Text); err == nil && parsed == *d.Duration {
			return d.Text
		}
	}
	return d.Duration.String()
}

// UnmarshalJSON reads a JSON string; null leaves d unchanged.
func (d *NillableDuration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("duration %s: want a string such as \"720h\" or %q", b, Never)
	}
	parsed, err := ParseNillableDuration(text)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// MarshalJSON writes [NillableDuration.String] as a JSON string.
func (d NillableDuration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// ToUnstructured returns what MarshalJSON writes, without the detour through JSON.
func (d NillableDuration) ToUnstructured() any { return d.String() }

// OpenAPISchemaType is the type in an OpenAPI schema.
func (NillableDuration) OpenAPISchemaType() []string { return []string{"string"} }

// OpenAPISchemaFormat is the format in an OpenAPI schema: none.
func (NillableDuration) OpenAPISchemaFormat() string { return "" }
