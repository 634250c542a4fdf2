package schedule

import "fmt"

// Code names why something was not possible, or why it was chosen. Codes are stable:
// they are metric labels and part of the JSON output.
type Code string

// Reason is one cause, as data. Only the operands that the code uses are set.
type Reason struct {
	Code Code `json:"code"`
	// Pool, Node and InstanceType say what the reason is about.
	Pool         string `json:"pool,omitempty"`
	Node         string `json:"node,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	// Key is the resource, label, taint, driver or topology key concerned.
	Key string `json:"key,omitempty"`
	// Want is what the pod needs, Have what there is.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	// Count is the number of nodes, types or offerings the reason holds for.
	Count int `json:"count,omitempty"`
	// Hint is the smallest change that would help, if one is known.
	Hint string `json:"hint,omitempty"`
}

// String formats the reason for people.
func (r Reason) String() string { return fmt.Sprintf("%s", r.Code) }
