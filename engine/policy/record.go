package policy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Verdicts of a single policy, as metric labels.
const (
	VerdictNone   = "none"
	VerdictChange = "change"
	VerdictDeny   = "deny"
	VerdictDefer  = "defer"
	VerdictError  = "error"
)

// Record is one decision. Fields that OPA's decision log has carry its names.
type Record struct {
	ID string `json:"decision_id"`
	// Timestamp is the snapshot's time in RFC 3339.
	Timestamp string `json:"timestamp"`
	Hook      Hook   `json:"hook"`
	PlanID    string `json:"plan_id,omitempty"`
	// Subject is the NodePool, the nodes or the claims asked about.
	Subject  string         `json:"subject"`
	Policies []PolicyResult `json:"policies"`
	// InputDigest is the digest of what the policies read of the input.
	InputDigest string `json:"input_digest"`
	// Rows of the input.
	Rows int `json:"rows,omitempty"`
	// Result is the verdict of a gate; missing for score.
	Result *Verdict `json:"result,omitempty"`
	// ResultDigest is the digest of the result; equal digests mean equal verdicts.
	ResultDigest string `json:"result_digest"`
	// Effect says in a line what came of it.
	Effect string `json:"effect"`
}

// PolicyResult is the part of one policy in a decision.
type PolicyResult struct {
	Name     string `json:"name"`
	Revision string `json:"revision"`
	Mode     Mode   `json:"mode"`
	Verdict  string `json:"verdict"`
	// Reasons are at most ten.
	Reasons []Reason `json:"reasons,omitempty"`
	// Denied counts excluded rows by code.
	Denied map[string]int `json:"denied,omitempty"`
	// Changed is the number of rows with another cost or bias; Changes are ten of them.
	Changed int         `json:"changed,omitempty"`
	Changes []RowChange `json:"changes,omitempty"`
	Micros  int64       `json:"micros"`
	Steps   int64       `json:"steps,omitempty"`
	Fuel    int64       `json:"fuel,omitempty"`
	// Cached is true if the policy was not asked because nothing it reads has changed.
	Cached bool `json:"cached,omitempty"`
	// LastGood is true if an older answer stands in for a failing policy.
	LastGood    bool   `json:"last_good,omitempty"`
	Error       string `json:"error,omitempty"`
	ErrorClass  Class  `json:"error_class,omitempty"`
	InputDigest string `json:"input_digest,omitempty"`
}

// RowChange is what a policy did to a row.
type RowChange struct {
	Row        int    `json:"i"`
	Name       string `json:"name"`
	CostBefore int64  `json:"costBefore"`
	CostAfter  int64  `json:"costAfter"`
	BiasBefore int64  `json:"biasBefore,omitempty"`
	BiasAfter  int64  `json:"biasAfter,omitempty"`
}

const maxShown = 10

func (r *PolicyResult) took(st Stats) {
	r.Micros, r.Steps, r.Fuel = st.Duration.Microseconds(), st.Steps, st.Fuel
}

func (r *PolicyResult) fail(err error) {
	r.Verdict, r.Error, r.ErrorClass = VerdictError, err.Error(), ClassOf(err)
}

func (r *PolicyResult) describe(before, after *chainState, a *ScoreAnswer, rows *Offerings) {
	for i := range before.Cost {
		if before.Cost[i] == after.Cost[i] && before.Bias[i] == after.Bias[i] {
			continue
		}
		r.Changed++
		if len(r.Changes) < maxShown {
			r.Changes = append(r.Changes, RowChange{i, rows.name(i), before.Cost[i], after.Cost[i], before.Bias[i], after.Bias[i]})
		}
	}
	for _, d := range a.Deny {
		if r.Denied == nil {
			r.Denied = map[string]int{}
		}
		r.Denied[d.Code]++
		if len(r.Reasons) < maxShown {
			r.Reasons = append(r.Reasons, Reason{Policy: r.Name, Code: d.Code, Msg: rows.name(d.Row) + ": " + d.Msg})
		}
	}
	if r.Verdict != "" {
		return
	}
	switch {
	case len(a.Deny) > 0:
		r.Verdict = VerdictDeny
	case r.Changed > 0 || len(a.Cover) > 0:
		r.Verdict = VerdictChange
	default:
		r.Verdict = VerdictNone
	}
}

func (r *PolicyResult) describeGate(a *GateAnswer) {
	for _, l := range [][]Reason{a.Deny, a.Defer, a.Keep, a.Warn} {
		r.Reasons = append(r.Reasons, l[:min(len(l), maxShown-len(r.Reasons))]...)
	}
	if r.Verdict != "" {
		return
	}
	switch {
	case len(a.Deny) > 0:
		r.Verdict = VerdictDeny
	case len(a.Defer) > 0:
		r.Verdict = VerdictDefer
	case len(a.Keep)+len(a.Restrict)+len(a.Warn) > 0:
		r.Verdict = VerdictChange
	default:
		r.Verdict = VerdictNone
	}
}

func (e *Engine) scoreRecord(in *ScoreInput, key string, s *Scores) Record {
	denied, changed := 0, 0
	for i := range s.Deny {
		if s.Deny[i] != "" {
			denied++
		}
		if s.Cost[i] != in.Candidates.Rows[i].Offering.ListPrice || s.Bias[i] != 0 {
			changed++
		}
	}
	effect := fmt.Sprintf("%d of %d offerings excluded, %d with another cost or bias", denied, len(s.Deny), changed)
	if s.Unscored {
		effect += "; unscored: a policy failed"
	}
	return finish(Record{
		Timestamp: in.Now.UTC, Hook: Score, PlanID: in.PlanID, Subject: in.NodePool.Name, Rows: len(s.Deny),
		Policies: s.Policies, InputDigest: key, ResultDigest: s.Digest, Effect: effect,
	})
}

func gateRecord(s *set, in GateInput, v *Verdict) Record {
	t := in.Terms()
	var subject []string
	switch q := in.(type) {
	case *AdmitInput:
		subject = []string{q.NodePool.Name}
	default:
		subject = slices.Sorted(maps.Keys(in.Known()))
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("policy: a verdict is always JSON: " + err.Error())
	}
	effect := v.Text()
	if v.Advisory && len(v.Deny)+len(v.Defer) > 0 {
		effect = "advisory: " + effect
	}
	return finish(Record{
		Timestamp: t.Now.UTC, Hook: in.Question(), PlanID: t.PlanID, Subject: strings.Join(subject, ","), Rows: len(in.Known()),
		Policies: v.Policies, InputDigest: digestInput(in, s.question(in.Question())), Result: v, ResultDigest: hexSum(sha256.Sum256(b)), Effect: effect,
	})
}

func finish(r Record) Record {
	d := newDigester()
	for _, s := range []string{r.Timestamp, string(r.Hook), r.PlanID, r.Subject, r.InputDigest, r.ResultDigest} {
		d.str(s)
	}
	r.ID = d.sum()[:32]
	return r
}

// ring keeps the latest records.
type ring struct {
	mu   sync.Mutex
	size int
	buf  []Record
	next int
}

func (r *ring) add(rec Record) {
	if r.size == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.buf) < r.size {
		r.buf = append(r.buf, rec)
		return
	}
	r.buf[r.next] = rec
	r.next = (r.next + 1) % r.size
}

func (r *ring) list() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(slices.Clone(r.buf[r.next:]), r.buf[:r.next]...)
}

// Logged is a decision with its whole input, one line of a log that can be replayed.
type Logged struct {
	Record Record          `json:"record"`
	Input  json.RawMessage `json:"input"`
}

// NewLog returns a function for [Options.OnDecision] that writes one line of JSON for
// each decision to w, and reports what could not be written to failed, which may be nil.
func NewLog(w io.Writer, failed func(error)) func(Record, any) {
	var mu sync.Mutex
	return func(r Record, in any) {
		raw, err := json.Marshal(in)
		if err == nil {
			var line []byte
			if line, err = json.Marshal(Logged{r, raw}); err == nil {
				mu.Lock()
				_, err = w.Write(append(line, '\n'))
				mu.Unlock()
			}
		}
		if err != nil && failed != nil {
			failed(fmt.Errorf("log decision %s: %w", r.ID, err))
		}
	}
}

// Difference is how a replayed decision differs from the recorded one.
type Difference struct {
	ID, Field, Recorded, Replayed string
}

func (d Difference) String() string {
	return fmt.Sprintf("decision %s: %s is %s, was %s", d.ID, d.Field, d.Replayed, d.Recorded)
}

// Replay asks the policies in force what l records and returns how the verdict differs;
// none means that it is the same to the byte. The error is a bad record or ctx.Err().
func (e *Engine) Replay(ctx context.Context, l Logged) ([]Difference, error) {
	fresh := NewEngine(Options{Records: 1, Concurrent: e.opts.Concurrent})
	fresh.set.Store(e.set.Load())
	in := map[Hook]any{Score: &ScoreInput{}, Disrupt: &DisruptInput{}, Launch: &LaunchInput{}, Admit: &AdmitInput{}}[l.Record.Hook]
	if in == nil {
		return nil, fmt.Errorf("decision %s: hook %q is unknown", l.Record.ID, l.Record.Hook)
	}
	if err := decode(l.Input, in); err != nil {
		return nil, fmt.Errorf("decision %s: input: %w", l.Record.ID, err)
	}
	var err error
	switch q := in.(type) {
	case *ScoreInput:
		if q.Candidates == nil {
			q.Candidates = &Offerings{}
		}
		_, err = fresh.Score(ctx, q)
	case *DisruptInput:
		_, err = fresh.Disrupt(ctx, q)
	case *LaunchInput:
		_, err = fresh.Launch(ctx, q)
	case *AdmitInput:
		_, err = fresh.Admit(ctx, q)
	}
	if err != nil {
		return nil, err
	}
	got := fresh.Records()[0]
	var out []Difference
	diff := func(field, a, b string) {
		if a != b {
			out = append(out, Difference{l.Record.ID, field, a, b})
		}
	}
	diff("result", l.Record.ResultDigest, got.ResultDigest)
	diff("effect", l.Record.Effect, got.Effect)
	for i := range max(len(l.Record.Policies), len(got.Policies)) {
		if i >= len(got.Policies) || i >= len(l.Record.Policies) {
			diff("number of policies", fmt.Sprint(len(l.Record.Policies)), fmt.Sprint(len(got.Policies)))
			break
		}
		a, b := l.Record.Policies[i], got.Policies[i]
		diff("policy", a.Name, b.Name)
		diff("policy "+a.Name+" revision", a.Revision, b.Revision)
		diff("policy "+a.Name+" verdict", a.Verdict, b.Verdict)
	}
	return out, nil
}
