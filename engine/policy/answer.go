package policy

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// ScoreAnswer is what a policy says about the rows of a [ScoreInput]. It is sparse: a row
// that is not mentioned keeps its cost. Lists are in ascending order of row.
type ScoreAnswer struct {
	Deny        []RowDeny   `json:"deny,omitempty"`
	Adjust      []RowAdjust `json:"adjust,omitempty"`
	Cost        []RowAmount `json:"cost,omitempty"`
	Bias        []RowAmount `json:"bias,omitempty"`
	Cover       []RowCover  `json:"cover,omitempty"`
	Commitments []Units     `json:"commitments,omitempty"`
}

// RowDeny excludes a row.
type RowDeny struct {
	Row  int    `json:"i"`
	Code string `json:"code,omitempty"`
	Msg  string `json:"msg"`
}

// RowAdjust changes the cost of a row: either by a factor or by an amount.
type RowAdjust struct {
	Row int `json:"i"`
	// Permille is the factor in thousandths, at least 0; it counts if Factor is true.
	Permille int64 `json:"permille,omitempty"`
	Factor   bool  `json:"factor,omitempty"`
	// AddMicroUSD is added after all factors.
	AddMicroUSD int64 `json:"addMicroUSD,omitempty"`
}

// RowAmount is an amount in micro-USD per hour for a row.
type RowAmount struct {
	Row      int   `json:"i"`
	MicroUSD int64 `json:"microUSD"`
}

// RowCover says that a commitment pays for a row while it has units left.
type RowCover struct {
	Row        int    `json:"i"`
	Commitment string `json:"commitment"`
	// Units that one node takes, at least 1.
	Units int64 `json:"units"`
	// MicroUSD is the cost per hour while covered.
	MicroUSD int64 `json:"microUSD"`
}

// Units says how many units a commitment has, those held by running nodes included.
type Units struct {
	ID    string `json:"id"`
	Units int64  `json:"units"`
}

// Money in an answer stays below this, so that sums of a whole plan fit in an int64.
const maxMicroUSD = int64(1) << 53

// maxPermille is the largest factor: a thousandfold.
const maxPermille = 1_000_000

func badResult(rule, format string, args ...any) *Error {
	return &Error{Class: ClassBadResult, Rule: rule, Msg: fmt.Sprintf(format, args...)}
}

// weight is about what a takes of memory.
func (a *ScoreAnswer) weight() int {
	n := 32*len(a.Adjust) + 16*(len(a.Cost)+len(a.Bias)) + 48*len(a.Cover) + 32*len(a.Commitments)
	for i := range a.Deny {
		n += 48 + len(a.Deny[i].Msg)
	}
	return n
}

// Check returns an *[Error] for the first part of a that the contract does not allow for
// an input of that many rows, and cuts long messages.
func (a *ScoreAnswer) Check(rows int) error {
	row := func(rule string, i int) *Error {
		if i < 0 || i >= rows {
			return badResult(rule, "row %d does not exist; rows are 0 to %d", i, rows-1)
		}
		return nil
	}
	money := func(rule string, i int, v int64) *Error {
		if v < 0 {
			return badResult(rule, "row %d: cost %d is negative; a cost is at least 0", i, v)
		}
		if v > maxMicroUSD {
			return badResult(rule, "row %d: cost %d is above %d micro-USD per hour", i, v, maxMicroUSD)
		}
		return nil
	}
	if len(a.Deny) > MaxRows {
		return badResult("deny", "%d denials; at most %d are allowed", len(a.Deny), MaxRows)
	}
	for i := range a.Deny {
		d := &a.Deny[i]
		if err := row("deny", d.Row); err != nil {
			return err
		}
		if strings.TrimSpace(d.Msg) == "" {
			return badResult("deny", "row %d: denial without a message (msg)", d.Row)
		}
		d.Msg, d.Code = cut(d.Msg), cut(d.Code)
	}
	for _, d := range a.Adjust {
		if err := row("adjust", d.Row); err != nil {
			return err
		}
		if d.Factor && (d.Permille < 0 || d.Permille > maxPermille) {
			return badResult("adjust", "row %d: permille %d; allowed are 0 to %d", d.Row, d.Permille, maxPermille)
		}
		if d.AddMicroUSD > maxMicroUSD || d.AddMicroUSD < -maxMicroUSD {
			return badResult("adjust", "row %d: addMicroUSD %d is beyond %d", d.Row, d.AddMicroUSD, maxMicroUSD)
		}
	}
	for i, c := range a.Cost {
		if err := row("cost", c.Row); err != nil {
			return err
		}
		if err := money("cost", c.Row, c.MicroUSD); err != nil {
			return err
		}
		if i > 0 && a.Cost[i-1].Row == c.Row {
			return &Error{Class: ClassConflict, Rule: "cost", Msg: fmt.Sprintf("row %d has two costs, %d and %d", c.Row, a.Cost[i-1].MicroUSD, c.MicroUSD)}
		}
	}
	for _, b := range a.Bias {
		if err := row("bias", b.Row); err != nil {
			return err
		}
		if b.MicroUSD > maxMicroUSD || b.MicroUSD < -maxMicroUSD {
			return badResult("bias", "row %d: bias %d is beyond %d", b.Row, b.MicroUSD, maxMicroUSD)
		}
	}
	units := make(map[string]bool, len(a.Commitments))
	for _, u := range a.Commitments {
		if u.ID == "" || u.Units < 0 || u.Units > math.MaxInt32 {
			return badResult("commitments", "commitment %q has %d units; an id and 0 to %d units are required", u.ID, u.Units, math.MaxInt32)
		}
		if units[u.ID] {
			return &Error{Class: ClassConflict, Rule: "commitments", Msg: fmt.Sprintf("commitment %q has two numbers of units", u.ID)}
		}
		units[u.ID] = true
	}
	for i, c := range a.Cover {
		if err := row("cover", c.Row); err != nil {
			return err
		}
		if err := money("cover", c.Row, c.MicroUSD); err != nil {
			return err
		}
		if c.Units < 1 || c.Units > math.MaxInt32 {
			return badResult("cover", "row %d: %d units; a node takes at least 1", c.Row, c.Units)
		}
		if !units[c.Commitment] {
			return badResult("cover", "row %d: commitment %q is not in commitments", c.Row, c.Commitment)
		}
		if i > 0 && a.Cover[i-1].Row == c.Row {
			return &Error{Class: ClassConflict, Rule: "cover", Msg: fmt.Sprintf("row %d is covered twice, by %q and %q", c.Row, a.Cover[i-1].Commitment, c.Commitment)}
		}
	}
	return nil
}

// GateAnswer is what a policy says to a question of hooks disrupt, launch and admit.
type GateAnswer struct {
	Deny     []Reason      `json:"deny,omitempty"`
	Defer    []Reason      `json:"defer,omitempty"`
	Keep     []Reason      `json:"keep,omitempty"`
	Warn     []Reason      `json:"warn,omitempty"`
	Restrict []Restriction `json:"restrict,omitempty"`
}

// Reason is one denial, deferral, exception or warning.
type Reason struct {
	// Policy that says so.
	Policy string `json:"policy,omitempty"`
	Code   string `json:"code,omitempty"`
	Msg    string `json:"msg"`
	// Nodes or Claims concerned; none means all.
	Nodes  []string `json:"nodes,omitempty"`
	Claims []string `json:"claims,omitempty"`
	// Seconds after which to ask again, for deferrals.
	Seconds int64 `json:"seconds,omitempty"`
}

// Restriction narrows a claim.
type Restriction struct {
	// Claim is the name of the claim.
	Claim string `json:"claim"`
	// DropTypes are instance types that must not be bought.
	DropTypes []string `json:"dropTypes,omitempty"`
	// MaxMicroUSD is the highest cost per hour; it counts if HasMax is true.
	MaxMicroUSD int64 `json:"maxMicroUSD,omitempty"`
	HasMax      bool  `json:"hasMax,omitempty"`
}

// maxDeferSeconds bounds deferrals to a week.
const maxDeferSeconds = 7 * 24 * 3600

// Check returns an *[Error] for the first part of a that the contract does not allow in
// an answer to in, and cuts long messages.
func (a *GateAnswer) Check(in GateInput) error {
	known, hook := in.Known(), in.Question()
	names := func(rule string, list []string) error {
		for _, n := range list {
			if !known[n] {
				return badResult(rule, "%q is not one of the %s asked about", n, map[Hook]string{Disrupt: "nodes", Launch: "claims", Admit: "objects"}[hook])
			}
		}
		return nil
	}
	for _, part := range []struct {
		rule string
		list []Reason
	}{{"deny", a.Deny}, {"defer", a.Defer}, {"keep", a.Keep}, {"warn", a.Warn}} {
		rule, list := part.rule, part.list
		if len(list) > MaxRows {
			return badResult(rule, "%d reasons; at most %d are allowed", len(list), MaxRows)
		}
		for i := range list {
			r := &list[i]
			if strings.TrimSpace(r.Msg) == "" {
				return badResult(rule, "reason without a message (msg)")
			}
			r.Msg, r.Code = cut(r.Msg), cut(r.Code)
			if err := names(rule, r.Nodes); err != nil {
				return err
			}
			if err := names(rule, r.Claims); err != nil {
				return err
			}
			switch {
			case rule == "defer" && (r.Seconds < 1 || r.Seconds > maxDeferSeconds):
				return badResult(rule, "%d seconds; 1 to %d are required", r.Seconds, maxDeferSeconds)
			case rule == "keep" && len(r.Nodes) == 0:
				return badResult(rule, "no nodes; a node to keep must be named (nodes)")
			}
		}
	}
	for _, r := range a.Restrict {
		if err := names("restrict", []string{r.Claim}); err != nil {
			return err
		}
		if r.HasMax && (r.MaxMicroUSD < 0 || r.MaxMicroUSD > maxMicroUSD) {
			return badResult("restrict", "claim %q: maxMicroUSD %d; 0 to %d are allowed", r.Claim, r.MaxMicroUSD, maxMicroUSD)
		}
	}
	return nil
}

// cut shortens s to MaxMessage bytes of valid UTF-8.
func cut(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxMessage {
		return s
	}
	end := MaxMessage - len("…")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
