package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CodePolicyError is the code of reasons that stand for a failing policy.
const CodePolicyError = "PolicyError"

// Verdict is what all policies of a gate say together.
type Verdict struct {
	// Allowed is false if the whole question is denied or deferred, or all nodes of a
	// command are kept. For launch that means every claim; see Claims for the others.
	Allowed bool `json:"allowed"`
	// Advisory is true if Deny, Defer and Keep are told but have no effect, because the
	// nodes go anyway.
	Advisory bool     `json:"advisory,omitempty"`
	Deny     []Reason `json:"deny,omitempty"`
	Defer    []Reason `json:"defer,omitempty"`
	// RetryAfterSeconds is the longest deferral of the whole question; 0 is none.
	RetryAfterSeconds int64 `json:"retryAfterSeconds,omitempty"`
	// Keep are nodes to leave out of the command.
	Keep []Reason `json:"keep,omitempty"`
	Warn []Reason `json:"warn,omitempty"`
	// Claims are verdicts on single claims of a launch, by name; claims without one are
	// allowed as they are.
	Claims map[string]ClaimVerdict `json:"claims,omitempty"`
	// Policies are the results one by one, shadow policies included.
	Policies []PolicyResult `json:"-"`
}

// ClaimVerdict is the verdict on one claim.
type ClaimVerdict struct {
	Denied bool `json:"denied,omitempty"`
	// DeferSeconds is the longest deferral; 0 is none.
	DeferSeconds int64 `json:"deferSeconds,omitempty"`
	// DropTypes are instance types that must not be bought, sorted.
	DropTypes []string `json:"dropTypes,omitempty"`
	// MaxMicroUSD is the highest cost per hour; it counts if HasMax is true.
	MaxMicroUSD int64 `json:"maxMicroUSD,omitempty"`
	HasMax      bool  `json:"hasMax,omitempty"`
	// Restricting are the policies that drop types or bound the cost, in order.
	Restricting []string `json:"restricting,omitempty"`
}

// Kept are the names of the nodes to keep, sorted; none if the verdict is advisory.
func (v *Verdict) Kept() []string {
	if v.Advisory {
		return nil
	}
	var out []string
	for _, r := range v.Keep {
		out = append(out, r.Nodes...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Disrupt asks whether the nodes of a command may go. A failing policy is not an error,
// its failure policy applies; the error is ctx.Err().
func (e *Engine) Disrupt(ctx context.Context, in *DisruptInput) (Verdict, error) {
	return e.decide(ctx, in, func(en *entry) GateInput {
		if len(en.Reasons) > 0 && !slices.Contains(en.Reasons, in.Command.Reason) {
			return nil
		}
		for i := range in.Command.Candidates {
			if en.applies(in.NodePools, in.Command.Candidates[i].Pool) {
				return in
			}
		}
		return nil
	})
}

// Launch asks whether planned nodes may be bought. A failing policy is not an error, its
// failure policy applies; the error is ctx.Err().
func (e *Engine) Launch(ctx context.Context, in *LaunchInput) (Verdict, error) {
	return e.decide(ctx, in, claimsFor(in))
}

// Try asks as [Engine.Launch] does about nodes that are not planned, to learn what is worth
// planning. Nothing is decided by it, so that it makes no decision record, and that it takes
// its time from round and not from that of the decisions.
func (e *Engine) Try(ctx context.Context, in *LaunchInput, round *Round) (Verdict, error) {
	q := *in
	q.round = round
	return e.gate(ctx, e.set.Load(), &q, claimsFor(&q))
}

// claimsFor leaves each policy the claims of the NodePools that it applies to.
func claimsFor(in *LaunchInput) func(*entry) GateInput {
	return func(en *entry) GateInput {
		if en.Applies == nil {
			return in
		}
		q := *in
		q.Claims = nil
		for _, c := range in.Claims {
			if en.applies(in.NodePools, c.Pool) {
				q.Claims = append(q.Claims, c)
			}
		}
		if len(q.Claims) == 0 {
			return nil
		}
		return &q
	}
}

// Admit asks whether a NodePool is acceptable. A failing policy is not an error, its
// failure policy applies; the error is ctx.Err().
func (e *Engine) Admit(ctx context.Context, in *AdmitInput) (Verdict, error) {
	return e.decide(ctx, in, func(en *entry) GateInput {
		if en.Applies != nil && !en.Applies(&in.NodePool) {
			return nil
		}
		return in
	})
}

func (en *entry) applies(pools map[string]NodePool, name string) bool {
	if en.Applies == nil {
		return true
	}
	p, ok := pools[name]
	if !ok {
		p.Name = name
	}
	return en.Applies(&p)
}

// advisory says whether the nodes of a command go whatever policies say.
func advisory(in GateInput) bool {
	d, ok := in.(*DisruptInput)
	if !ok {
		return false
	}
	left := d.Command.SecondsToDeadline
	switch d.Command.Reason {
	case Expired:
		return left != nil && *left <= 0
	case Repair, Interruption:
		return left == nil || *left <= 0
	}
	return false
}

// failure is the failure policy of en for in.
func (en *entry) failure(in GateInput) FailurePolicy {
	if en.Failure != "" {
		return en.Failure
	}
	if d, ok := in.(*DisruptInput); ok {
		switch d.Command.Reason {
		case Empty, Expired, Repair, Interruption:
			return Ignore
		}
		return Deny
	}
	return Ignore
}

// decide asks the policies and records the decision.
func (e *Engine) decide(ctx context.Context, in GateInput, of func(*entry) GateInput) (Verdict, error) {
	s := e.set.Load()
	v, err := e.gate(ctx, s, in, of)
	if err != nil {
		return v, err
	}
	e.record(gateRecord(s, in, &v), in, in.Terms().round)
	return v, nil
}

// gate asks the policies of s; of returns what a policy is asked, nil for nothing.
func (e *Engine) gate(ctx context.Context, s *set, in GateInput, of func(*entry) GateInput) (Verdict, error) {
	hook := in.Question()
	t := in.Terms()
	v := Verdict{Allowed: true, Advisory: advisory(in)}
	for _, en := range s.byHook[hook] {
		q := of(en)
		if q == nil {
			continue
		}
		q = q.withMeta(en.meta(*t, hook, 0))
		res := PolicyResult{Name: en.Name, Revision: en.Revision, Mode: en.Mode}
		var a GateAnswer
		st, err := e.run(ctx, en, t, len(in.Known()), func(ctx context.Context) (Stats, error) {
			var (
				st  Stats
				err error
			)
			a, st, err = en.Evaluator.Gate(ctx, q)
			return st, err
		})
		if ctx.Err() != nil {
			return Verdict{}, ctx.Err()
		}
		res.took(st)
		if err != nil {
			res.fail(err)
			r := Reason{Code: CodePolicyError, Msg: cut(err.Error())}
			if en.failure(in) == Deny {
				a = GateAnswer{Deny: []Reason{r}}
			} else {
				a = GateAnswer{Warn: []Reason{r}}
			}
		}
		for _, l := range [][]Reason{a.Deny, a.Defer, a.Keep, a.Warn} {
			for i := range l {
				l[i].Policy = en.Name
			}
		}
		res.describeGate(&a)
		v.Policies = append(v.Policies, res)
		if en.Mode == Enforce {
			v.merge(en.Name, q, &a)
		}
	}
	v.settle(in)
	return v, nil
}

// merge adds the answer a of the named policy to question q.
func (v *Verdict) merge(name string, q GateInput, a *GateAnswer) {
	v.Deny = append(v.Deny, a.Deny...)
	v.Defer = append(v.Defer, a.Defer...)
	v.Keep = append(v.Keep, a.Keep...)
	v.Warn = append(v.Warn, a.Warn...)
	l, ok := q.(*LaunchInput)
	if !ok {
		for _, r := range a.Defer {
			v.RetryAfterSeconds = max(v.RetryAfterSeconds, r.Seconds)
		}
		return
	}
	if v.Claims == nil {
		v.Claims = map[string]ClaimVerdict{}
	}
	// A reason without claims is for all claims that this policy was asked about.
	claims := func(r Reason, f func(*ClaimVerdict)) {
		names := r.Claims
		if len(names) == 0 {
			for i := range l.Claims {
				names = append(names, l.Claims[i].Name)
			}
		}
		for _, n := range names {
			c := v.Claims[n]
			f(&c)
			v.Claims[n] = c
		}
	}
	for _, r := range a.Deny {
		claims(r, func(c *ClaimVerdict) { c.Denied = true })
	}
	for _, r := range a.Defer {
		claims(r, func(c *ClaimVerdict) { c.DeferSeconds = max(c.DeferSeconds, r.Seconds) })
	}
	for _, r := range a.Restrict {
		c := v.Claims[r.Claim]
		// What two policies allow is what both allow: drops add up, the lower price holds.
		c.DropTypes = append(slices.Clone(c.DropTypes), r.DropTypes...)
		slices.Sort(c.DropTypes)
		c.DropTypes = slices.Compact(c.DropTypes)
		if r.HasMax && (!c.HasMax || r.MaxMicroUSD < c.MaxMicroUSD) {
			c.HasMax, c.MaxMicroUSD = true, r.MaxMicroUSD
		}
		if !slices.Contains(c.Restricting, name) {
			c.Restricting = append(slices.Clone(c.Restricting), name)
		}
		v.Claims[r.Claim] = c
	}
}

// settle says what follows from all answers for the question as a whole.
func (v *Verdict) settle(in GateInput) {
	if l, ok := in.(*LaunchInput); ok {
		if len(l.Claims) == 0 {
			return
		}
		free := 0
		shortest := int64(0)
		for i := range l.Claims {
			c := v.Claims[l.Claims[i].Name]
			switch {
			case c.Denied:
			case c.DeferSeconds > 0:
				if shortest == 0 || c.DeferSeconds < shortest {
					shortest = c.DeferSeconds
				}
			default:
				free++
			}
		}
		v.Allowed = free > 0
		if !v.Allowed {
			v.RetryAfterSeconds = shortest
		}
		return
	}
	v.Allowed = v.Advisory || len(v.Deny)+len(v.Defer) == 0
	if d, ok := in.(*DisruptInput); ok && len(v.Keep) > 0 && !v.Advisory {
		v.Allowed = v.Allowed && len(v.Kept()) < len(d.Command.Candidates)
	}
}

// Text is the verdict for people, one line.
func (v *Verdict) Text() string {
	var parts []string
	add := func(what string, l []Reason) {
		for _, r := range l {
			parts = append(parts, fmt.Sprintf("%s by %s: %s", what, r.Policy, r.Msg))
		}
	}
	add("denied", v.Deny)
	add("deferred", v.Defer)
	add("kept", v.Keep)
	add("warning", v.Warn)
	for _, name := range slices.Sorted(maps.Keys(v.Claims)) {
		c := v.Claims[name]
		if len(c.DropTypes) > 0 {
			parts = append(parts, fmt.Sprintf("%s without types %s", name, strings.Join(c.DropTypes, ", ")))
		}
		if c.HasMax {
			parts = append(parts, fmt.Sprintf("%s for at most %d micro-USD per hour", name, c.MaxMicroUSD))
		}
	}
	if len(parts) == 0 {
		return "allowed"
	}
	return strings.Join(parts, "; ")
}
