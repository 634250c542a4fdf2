package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The columns of an answer. All but the denial's are of score only.
const (
	AnswerCost       = 1  // i64, micro-USD per hour: replaces the cost
	AnswerDeny       = 2  // u8: 1 denies the row
	AnswerReason     = 3  // string: why, required where a row is denied
	AnswerCode       = 4  // string: a short name of the reason
	AnswerPermille   = 5  // i32: factor of the cost, 1000 changes nothing
	AnswerAdd        = 6  // i64, micro-USD per hour: added after all factors
	AnswerBias       = 7  // i64, micro-USD per hour: added to the bias
	AnswerCover      = 8  // string: id of the commitment that pays for the row
	AnswerCoverUnits = 9  // i64: units of it that a node takes
	AnswerCoverCost  = 10 // i64, micro-USD per hour: the cost while covered
)

var answerTypes = map[uint16]Type{
	AnswerCost: I64, AnswerDeny: U8, AnswerReason: String, AnswerCode: String, AnswerPermille: I32, AnswerAdd: I64,
	AnswerBias: I64, AnswerCover: String, AnswerCoverUnits: I64, AnswerCoverCost: I64,
}

const (
	// MaxReason is the length of a text in bytes. Longer messages and codes are cut; a
	// longer name of a commitment or instance type is an error.
	MaxReason = 256
	// MaxRecords is how many records an answer may have, and how many rows they name.
	MaxRecords = 8192
	// MaxMoney bounds amounts in an answer, in micro-USD per hour, so that the sums of a
	// whole plan stay inside 64 bits.
	MaxMoney = 1 << 53
	// MaxPermille is the largest factor.
	MaxPermille = 1_000_000
	// MaxDefer is the longest deferral in seconds: a week.
	MaxDefer = 7 * 24 * 3600
	maxUnits = 1<<31 - 1
)

// Verdict is what kind of opinion a guest has.
type Verdict string

// The verdicts. Score knows Deny only, admit Deny and Warn; Keep is of disrupt and
// Restrict of launch.
const (
	Deny     Verdict = "deny"
	Defer    Verdict = "defer"
	Keep     Verdict = "keep"
	Warn     Verdict = "warn"
	Restrict Verdict = "restrict"
)

// Opinion is one verdict of a guest.
type Opinion struct {
	Verdict Verdict `json:"verdict"`
	// Rows that the opinion is about, in the order given; none means the question as a
	// whole.
	Rows    []int  `json:"rows,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
	// Seconds after which to ask again: of Defer.
	Seconds int64 `json:"seconds,omitempty"`
	// Drop are instance types that must not be bought: of Restrict.
	Drop []string `json:"drop,omitempty"`
	// Max is the highest cost in micro-USD per hour, of Restrict; it counts if HasMax.
	Max    int64 `json:"maxMicroUSD,omitempty"`
	HasMax bool  `json:"hasMax,omitempty"`
}

// Denial excludes a row.
type Denial struct {
	Row     int    `json:"row"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}

// Amount is a number for a row.
type Amount struct {
	Row   int   `json:"row"`
	Value int64 `json:"value"`
}

// Cover says that a commitment pays for a row while it has units left.
type Cover struct {
	Row        int    `json:"row"`
	Commitment string `json:"commitment"`
	Units      int64  `json:"units"`
	// Cost while covered, in micro-USD per hour.
	Cost int64 `json:"cost"`
}

// Commitment says how many units a commitment has.
type Commitment struct {
	ID    string `json:"id"`
	Units int64  `json:"units"`
}

// Answer is what a guest says. Lists are in ascending order of row and leave out rows
// about which it says nothing.
type Answer struct {
	// Denials are the rows that the columns deny.
	Denials []Denial `json:"denials,omitempty"`
	// Opinions are the records, in their order.
	Opinions []Opinion `json:"opinions,omitempty"`
	// Cost replaces the cost, Permille multiplies it, Add adds to it; Bias adds to the bias.
	Cost        []Amount     `json:"cost,omitempty"`
	Permille    []Amount     `json:"permille,omitempty"`
	Add         []Amount     `json:"add,omitempty"`
	Bias        []Amount     `json:"bias,omitempty"`
	Covers      []Cover      `json:"covers,omitempty"`
	Commitments []Commitment `json:"commitments,omitempty"`
}

// GuestError is an error that a guest reported in a frame.
type GuestError struct {
	Code, Message string
}

func (e *GuestError) Error() string {
	if e.Code == "" {
		return e.Message
	}
	return e.Code + ": " + e.Message
}

// ErrAnswer is matched by the errors of [DecodeAnswer], but for those of the guest.
var ErrAnswer = errors.New("bad answer")

// AnswerError is an answer that the ABI does not allow. It matches [ErrAnswer].
type AnswerError struct {
	// Part is the column or key concerned, if it is known.
	Part    string
	Problem string
}

func (e *AnswerError) Error() string {
	if e.Part == "" {
		return e.Problem
	}
	return e.Part + ": " + e.Problem
}

// Is reports whether target is [ErrAnswer].
func (e *AnswerError) Is(target error) bool { return target == ErrAnswer }

func wrong(part, format string, args ...any) error {
	return &AnswerError{Part: part, Problem: fmt.Sprintf(format, args...)}
}

// DecodeAnswer checks a guest's frame against the question it answers, of hook and rows.
// The error is a [*GuestError] if the guest reports one, and matches [ErrAnswer] if the
// frame is not an answer.
func DecodeAnswer(b []byte, hook Hook, rows int) (Answer, error) {
	f, err := Decode(b)
	if err != nil {
		return Answer{}, wrong("", "%v", strings.TrimPrefix(err.Error(), "frame: "))
	}
	if f.Hook == Failure {
		return Answer{}, f.failure()
	}
	if f.Hook != hook {
		return Answer{}, wrong("", "frame of %s, want %s", f.Hook, hook)
	}
	if f.Rows != rows {
		return Answer{}, wrong("", "%d rows, want %d as in the question", f.Rows, rows)
	}
	for i := range f.columns {
		c := &f.columns[i]
		if want, known := answerTypes[c.id]; known && c.kind != want {
			return Answer{}, wrong(partName(c.id), "column of %s, want %s", c.kind, want)
		}
	}
	var a Answer
	if err := f.denials(&a); err != nil {
		return Answer{}, err
	}
	if hook == Score {
		if err := f.score(&a); err != nil {
			return Answer{}, err
		}
	}
	if err := f.records(&a, hook); err != nil {
		return Answer{}, err
	}
	return a, nil
}

func partName(id uint16) string {
	return map[uint16]string{
		AnswerCost: "cost", AnswerDeny: "deny", AnswerReason: "reason", AnswerCode: "code", AnswerPermille: "permille",
		AnswerAdd: "addMicroUSD", AnswerBias: "bias", AnswerCover: "cover", AnswerCoverUnits: "cover units",
		AnswerCoverCost: "cover cost",
	}[id]
}

func (f *Frame) failure() error {
	e := &GuestError{Message: "no message"}
	for i := range f.Values() {
		switch v := f.Value(i); {
		case v.Key == "error.code" && v.Type == String:
			e.Code = clip(v.Text)
		case v.Key == "error.message" && v.Type == String && v.Text != "":
			e.Message = clip(v.Text)
		}
	}
	return e
}

// clip shortens a text to MaxReason bytes.
func clip(s string) string {
	if len(s) <= MaxReason {
		return s
	}
	return strings.ToValidUTF8(s[:MaxReason-len("…")], "") + "…"
}

func (f *Frame) data(id uint16) []byte {
	if c := f.find(id); c != nil {
		return c.data
	}
	return nil
}

// cell is a string of a column, or "" without one.
func (f *Frame) cell(data []byte, row int) string {
	if data == nil {
		return ""
	}
	return f.Text(binary.LittleEndian.Uint32(data[4*row:]))
}

func (f *Frame) denials(a *Answer) error {
	deny := f.data(AnswerDeny)
	reasons, codes := f.data(AnswerReason), f.data(AnswerCode)
	count := 0
	for _, v := range deny {
		if v == 1 {
			count++
		}
	}
	if count > 0 {
		a.Denials = make([]Denial, 0, count)
	}
	for row, v := range deny {
		if v > 1 {
			return wrong("deny", "row %d: value %d, want 0 or 1", row, v)
		}
		if v == 0 {
			continue
		}
		d := Denial{Row: row, Message: clip(f.cell(reasons, row)), Code: clip(f.cell(codes, row))}
		if strings.TrimSpace(d.Message) == "" {
			return wrong("deny", "row %d: denied without a reason", row)
		}
		a.Denials = append(a.Denials, d)
	}
	return nil
}

func (f *Frame) score(a *Answer) error {
	le := binary.LittleEndian
	amounts := func(id uint16, none, low, high int64, out *[]Amount) error {
		c := f.find(id)
		if c == nil {
			return nil
		}
		for row := range f.Rows {
			var v int64
			if c.kind == I32 {
				if v = int64(int32(le.Uint32(c.data[4*row:]))); v == NoI32 {
					continue
				}
			} else if v = int64(le.Uint64(c.data[8*row:])); v == NoI64 {
				continue
			}
			if v == none {
				continue
			}
			if v < low || v > high {
				return wrong(partName(id), "row %d: value %d, want %d to %d", row, v, low, high)
			}
			if *out == nil {
				*out = make([]Amount, 0, f.Rows-row)
			}
			*out = append(*out, Amount{Row: row, Value: v})
		}
		return nil
	}
	err := errors.Join(
		amounts(AnswerCost, NoI64, 0, MaxMoney, &a.Cost),
		amounts(AnswerPermille, 1000, 0, MaxPermille, &a.Permille),
		amounts(AnswerAdd, 0, -MaxMoney, MaxMoney, &a.Add),
		amounts(AnswerBias, 0, -MaxMoney, MaxMoney, &a.Bias))
	if err != nil {
		return err
	}
	ids := f.data(AnswerCover)
	if ids == nil {
		return nil
	}
	units, costs := f.data(AnswerCoverUnits), f.data(AnswerCoverCost)
	for row := range f.Rows {
		id := le.Uint32(ids[4*row:])
		if id == None {
			continue
		}
		c := Cover{Row: row, Commitment: f.Text(id), Units: 1}
		if units != nil {
			c.Units = int64(le.Uint64(units[8*row:]))
		}
		if costs != nil {
			c.Cost = int64(le.Uint64(costs[8*row:]))
		}
		switch {
		case c.Commitment == "" || len(c.Commitment) > MaxReason:
			return wrong("cover", "row %d: commitment id of %d bytes, want 1 to %d", row, len(c.Commitment), MaxReason)
		case c.Units < 1 || c.Units > maxUnits:
			return wrong("cover units", "row %d: value %d, want 1 to %d", row, c.Units, maxUnits)
		case c.Cost < 0 || c.Cost > MaxMoney:
			return wrong("cover cost", "row %d: value %d, want 0 to %d", row, c.Cost, int64(MaxMoney))
		}
		a.Covers = append(a.Covers, c)
	}
	return nil
}

// allowed are the records of each hook.
var allowed = map[Hook][]string{
	Score:   {"commitment"},
	Disrupt: {string(Deny), string(Defer), string(Keep), string(Warn)},
	Launch:  {string(Deny), string(Defer), string(Restrict), string(Warn)},
	Admit:   {string(Deny), string(Warn)},
}

// records reads the context of an answer. An entry with a verdict for its key begins a
// record; entries with other known keys belong to the record before them.
func (f *Frame) records(a *Answer, hook Hook) error {
	commitments := map[string]bool{}
	var open *Opinion
	rowsLeft := MaxRecords
	for i := range f.Values() {
		v := f.Value(i)
		text := func() (string, error) {
			if v.Type != String {
				return "", wrong(v.Key, "value of %s, want string", v.Type)
			}
			return v.Text, nil
		}
		name := func() (string, error) {
			if s, err := text(); err != nil || s != "" && len(s) <= MaxReason {
				return s, err
			}
			return "", wrong(v.Key, "name of %d bytes, want 1 to %d", len(v.Text), MaxReason)
		}
		number := func(low, high int64) (int64, error) {
			if v.Type != I32 && v.Type != I64 {
				return 0, wrong(v.Key, "value of %s, want i64", v.Type)
			}
			if v.Int < low || v.Int > high {
				return 0, wrong(v.Key, "value %d, want %d to %d", v.Int, low, high)
			}
			return v.Int, nil
		}
		var err error
		switch v.Key {
		case string(Deny), string(Defer), string(Keep), string(Warn), string(Restrict), "commitment":
			known := false
			for _, k := range allowed[hook] {
				known = known || k == v.Key
			}
			if !known {
				return wrong(v.Key, "not a verdict of %s", hook)
			}
			if v.Key == "commitment" {
				s, err := name()
				if err != nil {
					return err
				}
				if commitments[s] {
					return wrong(v.Key, "%q is repeated", s)
				}
				commitments[s] = true
				a.Commitments = append(a.Commitments, Commitment{ID: s, Units: -1})
				continue
			}
			s, err := text()
			if err != nil {
				return err
			}
			if len(a.Opinions) == MaxRecords {
				return wrong(v.Key, "more than %d verdicts", MaxRecords)
			}
			a.Opinions = append(a.Opinions, Opinion{Verdict: Verdict(v.Key), Message: clip(s)})
			open = &a.Opinions[len(a.Opinions)-1]
		case "units":
			if n := len(a.Commitments); n == 0 {
				err = wrong(v.Key, "before any commitment")
			} else {
				a.Commitments[n-1].Units, err = number(0, maxUnits)
			}
		case "code", "row", "seconds", "drop", "maxMicroUSD":
			if open == nil {
				if hook == Score {
					continue
				}
				return wrong(v.Key, "before any verdict")
			}
			var n int64
			switch v.Key {
			case "code":
				open.Code, err = text()
				open.Code = clip(open.Code)
			case "row":
				if n, err = number(0, int64(f.Rows)-1); err == nil {
					open.Rows = append(open.Rows, int(n))
				}
				if rowsLeft--; rowsLeft < 0 {
					err = wrong(v.Key, "more than %d rows in all verdicts", MaxRecords)
				}
			case "seconds":
				open.Seconds, err = number(1, MaxDefer)
			case "drop":
				var s string
				if s, err = name(); err == nil {
					open.Drop = append(open.Drop, s)
				}
			case "maxMicroUSD":
				open.Max, err = number(0, MaxMoney)
				open.HasMax = true
			}
		}
		if err != nil {
			return err
		}
	}
	for i := range a.Opinions {
		o := &a.Opinions[i]
		part := string(o.Verdict)
		switch {
		case o.Verdict != Restrict && strings.TrimSpace(o.Message) == "":
			return wrong(part, "without a message")
		case o.Verdict == Defer && o.Seconds == 0:
			return wrong(part, "without seconds")
		case o.Verdict == Keep && len(o.Rows) == 0:
			return wrong(part, "without a row")
		case o.Verdict == Restrict && (len(o.Rows) == 0 || !o.HasMax && len(o.Drop) == 0):
			return wrong(part, "without a row, or without drop or maxMicroUSD")
		}
	}
	for _, c := range a.Commitments {
		if c.Units < 0 {
			return wrong("commitment", "%q has no units", c.ID)
		}
	}
	for _, c := range a.Covers {
		if !commitments[c.Commitment] {
			return wrong("cover", "row %d: commitment %q is not among the commitments", c.Row, c.Commitment)
		}
	}
	return nil
}
