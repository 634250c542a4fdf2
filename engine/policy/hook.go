package policy

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Hook names a question that policies answer.
type Hook string

// The hooks.
const (
	Score   Hook = "score"
	Disrupt Hook = "disrupt"
	Launch  Hook = "launch"
	Admit   Hook = "admit"
)

// Hooks lists all hooks in the order in which they are documented.
func Hooks() []Hook { return []Hook{Score, Disrupt, Launch, Admit} }

// APIVersion is the version of the inputs. Inside a version the inputs only grow.
const APIVersion = "policy.dovetail.sh/v1"

// Mode says whether a policy has an effect.
type Mode string

// Modes of a policy. The zero value is Enforce.
const (
	Enforce  Mode = "Enforce"
	Shadow   Mode = "Shadow"
	Disabled Mode = "Disabled"
)

// FailurePolicy says what holds when a policy gives no answer.
type FailurePolicy string

// Failure policies. The zero value is the default of the hook: Ignore for score, launch
// and admit; for disrupt Ignore if the command is not voluntary or its nodes are empty,
// and Deny otherwise.
const (
	Ignore FailurePolicy = "Ignore"
	Deny   FailurePolicy = "Deny"
)

// Reasons of a disruption.
const (
	Empty         = "Empty"
	Underutilized = "Underutilized"
	Drifted       = "Drifted"
	Expired       = "Expired"
	Repair        = "Repair"
	Interruption  = "Interruption"
	Requested     = "Requested"
	Unblock       = "Unblock"
)

// Limits bound one evaluation of one policy. Zero fields take the hook's default.
type Limits struct {
	// Deadline is wall time, for up to 1000 rows. A deadline that is set has no PerRow
	// unless that is set as well.
	Deadline time.Duration
	// PerRow is added to Deadline for each row beyond 1000.
	PerRow time.Duration
	// Steps is the number of evaluation steps (Rego).
	Steps int64
	// StepsPerRow is added to Steps for each row of the input.
	StepsPerRow int64
	// AllocBytes is what the process may allocate meanwhile (Rego), a coarse guard.
	AllocBytes int64
	// Fuel is the number of fuel units (Wasm).
	Fuel int64
	// MemoryBytes is the size of the guest's memory (Wasm).
	MemoryBytes int64
	// ResultBytes is the size of the answer, for up to 1000 rows; each further row adds
	// 256 bytes.
	ResultBytes int64
}

// DefaultLimits are the limits of a hook's policies.
func DefaultLimits(h Hook) Limits {
	l := Limits{Steps: 100_000, MemoryBytes: 16 << 20, ResultBytes: 1 << 20}
	switch h {
	case Score:
		l.Deadline, l.StepsPerRow, l.AllocBytes, l.Fuel = 250*time.Millisecond, 200, 64<<20, 20_000_000
		l.PerRow = 200 * time.Microsecond
	case Disrupt, Launch:
		l.Deadline, l.StepsPerRow, l.AllocBytes, l.Fuel = 100*time.Millisecond, 200, 32<<20, 10_000_000
	default:
		l.Deadline, l.AllocBytes, l.Fuel = 50*time.Millisecond, 16<<20, 5_000_000
	}
	return l
}

// WithDefaults returns l with its zero fields taken from the defaults of h.
func (l Limits) WithDefaults(h Hook) Limits {
	d := DefaultLimits(h)
	pick := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	if l.Deadline == 0 {
		l.Deadline = d.Deadline
		if l.PerRow == 0 {
			l.PerRow = d.PerRow
		}
	}
	pick(&l.Steps, d.Steps)
	pick(&l.StepsPerRow, d.StepsPerRow)
	pick(&l.AllocBytes, d.AllocBytes)
	pick(&l.Fuel, d.Fuel)
	pick(&l.MemoryBytes, d.MemoryBytes)
	pick(&l.ResultBytes, d.ResultBytes)
	return l
}

// Wall is the wall time of an evaluation of that many rows.
func (l Limits) Wall(rows int) time.Duration {
	return l.Deadline + l.PerRow*time.Duration(max(0, rows-1000))
}

// Result is the size of an answer on that many rows.
func (l Limits) Result(rows int) int64 { return l.ResultBytes + 256*int64(max(0, rows-1000)) }

// Limits on answers that hold for every runtime.
const (
	// MaxRows is the largest number of rows of an input, and of denials of an answer.
	MaxRows = 65536
	// MaxMessage is the length in bytes to which messages are cut.
	MaxMessage = 256
)

// Class says in which way a policy failed. Classes are metric labels.
type Class string

// Error classes.
const (
	// ClassLoad is a policy that could not be loaded.
	ClassLoad Class = "Load"
	// ClassDeadline is an evaluation out of wall time.
	ClassDeadline Class = "Deadline"
	// ClassFuel is an evaluation out of steps or fuel units.
	ClassFuel Class = "Fuel"
	// ClassMemory is an evaluation out of memory.
	ClassMemory Class = "Memory"
	// ClassTrap is a guest that crashed, or an evaluator that cannot be used any more.
	ClassTrap Class = "Trap"
	// ClassBuiltin is a failing builtin function or a failing operation on values.
	ClassBuiltin Class = "Builtin"
	// ClassConflict is two values for one thing.
	ClassConflict Class = "Conflict"
	// ClassUndefined is no answer at all.
	ClassUndefined Class = "Undefined"
	// ClassBadResult is an answer that breaks the contract of the hook.
	ClassBadResult Class = "BadResult"
	// ClassCanceled is an evaluation whose caller went away; it says nothing about the
	// policy.
	ClassCanceled Class = "Canceled"
)

// Error is a failing policy.
type Error struct {
	Class Class `json:"class"`
	// Policy is the name of the policy.
	Policy string `json:"policy,omitempty"`
	// Rule is the rule or column of the answer concerned, if one is known.
	Rule string `json:"rule,omitempty"`
	// File and Line are the place in the policy's source, if known.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// Msg says what is wrong and what is required.
	Msg string `json:"msg"`
	// Err is the cause, if there is one.
	Err error `json:"-"`
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Policy != "" {
		fmt.Fprintf(&b, "policy %q: ", e.Policy)
	}
	if e.File != "" {
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	}
	if e.Rule != "" {
		fmt.Fprintf(&b, "rule %s: ", e.Rule)
	}
	b.WriteString(e.Msg)
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of a policy's error: that of the *[Error] in err's chain, ""
// for nil, and ClassTrap for an error that is none of ours.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ClassTrap
}

// InputTypes are the types of the inputs by hook.
func InputTypes() map[Hook]reflect.Type {
	return map[Hook]reflect.Type{
		Score:   reflect.TypeFor[ScoreInput](),
		Disrupt: reflect.TypeFor[DisruptInput](),
		Launch:  reflect.TypeFor[LaunchInput](),
		Admit:   reflect.TypeFor[AdmitInput](),
	}
}
