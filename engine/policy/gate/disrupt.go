package gate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
)

// DisruptRound is the time that disrupt policies have in one round together. Moves that come
// after it are not made in this round.
const DisruptRound = 3 * time.Second

// DisruptMoves is how many moves a round finds at most where policies are asked about each.
const DisruptMoves = 20

// Disruption is what came of a round of disruption under policies.
type Disruption struct {
	consolidate.Result
	// Costs are those that moves were planned with; nil if no policy was asked.
	Costs *policy.Costs
	// Refused are the moves that policies denied, deferred or made smaller.
	Refused []RefusedMove
	// Deferred says until when nodes are not to be asked about again, by name.
	Deferred map[string]candidate.Reason
	// Warnings are about moves that are made.
	Warnings []Said
	// Records are the decisions made, in order.
	Records []policy.Record

	snap *snapshot.Snapshot
	// restricted are the new nodes that launch policies keep from some offerings, by the
	// index of their move and the name of the node.
	restricted []map[string]policy.ClaimVerdict
}

// RefusedMove is what policies said of a move that was not made as it was found.
type RefusedMove struct {
	Reason karpv1.DisruptionReason
	Nodes  []string
	// Verdict is deny, defer or keep.
	Verdict string
	// Reasons of the policies; Keep are the nodes that had to be left out.
	Reasons []Said
	Keep    []string
	// Seconds after which to ask again; 0 unless the verdict is defer.
	Seconds int64
}

// VerdictKeep is the verdict on a move that was made smaller.
const VerdictKeep = "keep"

// Allowed is what new node n of move i may be launched as, as [Result.Allowed] says for plans:
// nothing that makes the move cost more than its ceiling.
func (d *Disruption) Allowed(i int, n *schedule.NewNode) (requirements.Set, []schedule.Offer) {
	limit := d.restricted[i][n.Name]
	if most := int64(d.Moves[i].Share(n)); most > 0 && (!limit.HasMax || most < limit.MaxMicroUSD) {
		limit.HasMax, limit.MaxMicroUSD = true, most
	}
	r := &Result{Snapshot: d.snap, Costs: d.Costs}
	return r.allow(n, limit)
}

// Disrupt looks for moves as [consolidate.Propose] does, at the costs that score policies see,
// and asks the disrupt policies about each before it counts. What they deny is not made, and
// the next best is looked for in the same round; nodes that they keep are left out and the
// rest is asked about again. With disrupt policies opts.MaxMoves defaults to DisruptMoves. Launch policies are asked about the new nodes. A nil e has no
// policies; opts.Approve is asked after the policies.
//
// The error is that of Propose, or an object that cannot be shown to a policy.
func Disrupt(ctx context.Context, e *policy.Engine, in *policy.Inputs, snap *snapshot.Snapshot, objs fact.Objects, facts policy.Facts, opts consolidate.Options) (*Disruption, error) {
	d := &Disruption{snap: snap, Deferred: map[string]candidate.Reason{}}
	if e == nil {
		e = policy.NewEngine(policy.Options{})
	}
	if facts.Round == nil {
		facts.Round = policy.NewRound(DisruptRound)
	}
	before := len(facts.Round.Records())
	if slices.ContainsFunc(policy.Hooks(), func(h policy.Hook) bool { return len(e.Policies(h)) > 0 }) {
		var err error
		if d.Costs, err = e.Costs(ctx, in, snap, facts); err != nil {
			return nil, err
		}
		opts.Solve.Costs = d.Costs
	}
	if opts.MaxMoves == 0 && len(e.Policies(policy.Disrupt)) > 0 {
		opts.MaxMoves = DisruptMoves
	}
	a := &approver{engine: e, inputs: in, snap: snap, objs: objs, facts: facts, out: d, then: opts.Approve}
	opts.Approve = a.approve
	r, err := consolidate.Propose(ctx, snap, opts)
	if err != nil {
		return nil, err
	}
	d.Result = r
	d.Records = facts.Round.Records()[before:]
	return d, nil
}

type approver struct {
	engine *policy.Engine
	inputs *policy.Inputs
	snap   *snapshot.Snapshot
	objs   fact.Objects
	facts  policy.Facts
	desk   *fact.Desk
	out    *Disruption
	then   func(ctx context.Context, m *consolidate.Move) (consolidate.Verdict, error)
}

func (a *approver) approve(ctx context.Context, m *consolidate.Move) (consolidate.Verdict, error) {
	var restricted map[string]policy.ClaimVerdict
	var warnings []Said
	if len(a.engine.Policies(policy.Disrupt)) > 0 {
		v, warned, err := a.disrupt(ctx, m)
		if err != nil || len(v.Deny)+len(v.Keep) > 0 {
			return v, err
		}
		warnings = warned
	}
	if len(m.Plan.NewNodes) > 0 && len(a.engine.Policies(policy.Launch)) > 0 {
		v, r, err := a.launch(ctx, m)
		if err != nil || len(v.Deny) > 0 {
			return v, err
		}
		restricted = r
	}
	if a.then != nil {
		v, err := a.then(ctx, m)
		if err != nil || len(v.Deny)+len(v.Keep) > 0 {
			return v, err
		}
	}
	a.out.restricted = append(a.out.restricted, restricted)
	for _, w := range warnings {
		if !slices.Contains(a.out.Warnings, w) {
			a.out.Warnings = append(a.out.Warnings, w)
		}
	}
	return consolidate.Verdict{}, nil
}

// disrupt asks the disrupt policies.
func (a *approver) disrupt(ctx context.Context, m *consolidate.Move) (consolidate.Verdict, []Said, error) {
	if a.facts.Round.Over(policy.Disrupt) {
		return consolidate.Verdict{Deny: []candidate.Reason{{Code: consolidate.NotReached, Message: "disrupt policies have used up the time that they have in one round"}}}, nil, nil
	}
	p := fact.Proposal{Reason: string(m.Reason), Nodes: m.Nodes, Plan: m.Plan, Costs: a.out.Costs}
	if m.Reason == karpv1.DisruptionReasonUnhealthy {
		p.Reason = policy.Repair
	}
	if at, ok := a.expire(m); ok {
		p.Reason, p.Deadline = policy.Expired, at
	}
	for _, score := range m.Score {
		if s := int64(score * 1000); p.Balanced == nil || s < *p.Balanced {
			p.Balanced = &s
		}
	}
	if a.desk == nil {
		a.desk = a.objs.Desk(a.inputs, a.snap, a.facts)
	}
	q, err := a.desk.Question(p)
	if err != nil {
		return consolidate.Verdict{}, nil, err
	}
	v, err := a.engine.Disrupt(ctx, q)
	if err != nil {
		return consolidate.Verdict{}, nil, err
	}
	return a.verdict(m, &v), said(v.Warn), nil
}

// expire reports whether the nodes of a move go for their age, and when they do whatever
// policies say.
func (a *approver) expire(m *consolidate.Move) (at time.Time, ok bool) {
	if m.Reason != karpv1.DisruptionReasonDrifted {
		return at, false
	}
	for i, n := range m.Nodes {
		forced, ok := a.objs.Expired[n]
		if !ok {
			return time.Time{}, false
		}
		if i == 0 || forced.IsZero() || !at.IsZero() && forced.After(at) {
			at = forced
		}
	}
	return at, true
}

// verdict turns what policies say into what the search understands, and remembers it. A denial
// that names nodes is about those only.
func (a *approver) verdict(m *consolidate.Move, v *policy.Verdict) consolidate.Verdict {
	var out consolidate.Verdict
	if v.Advisory {
		return out
	}
	keep := func(r policy.Reason, code candidate.Code) bool {
		if len(r.Nodes) == 0 || len(r.Nodes) >= len(m.Nodes) {
			return false
		}
		for _, n := range r.Nodes {
			if slices.Contains(m.Nodes, n) {
				if out.Keep == nil {
					out.Keep = map[string]candidate.Reason{}
				}
				out.Keep[n] = reasonOf(r, code)
			}
		}
		return true
	}
	refused := RefusedMove{Reason: m.Reason, Nodes: m.Nodes, Verdict: VerdictKeep}
	for _, r := range v.Keep {
		refused.Reasons = append(refused.Reasons, said([]policy.Reason{r})...)
		if !keep(r, consolidate.PolicyDenied) {
			out.Deny = append(out.Deny, reasonOf(r, consolidate.PolicyDenied))
		}
	}
	for _, r := range v.Deny {
		refused.Reasons = append(refused.Reasons, said([]policy.Reason{r})...)
		if !keep(r, consolidate.PolicyDenied) {
			refused.Verdict = policy.VerdictDeny
			out.Deny = append(out.Deny, reasonOf(r, consolidate.PolicyDenied))
		}
	}
	for _, r := range v.Defer {
		refused.Reasons = append(refused.Reasons, said([]policy.Reason{r})...)
		reason := reasonOf(r, PolicyDeferred)
		seconds := cmp.Or(r.Seconds, v.RetryAfterSeconds)
		reason.Until = a.snap.Now.Add(time.Duration(seconds) * time.Second)
		nodes := r.Nodes
		if len(nodes) == 0 {
			nodes = m.Nodes
		}
		for _, n := range nodes {
			if have, ok := a.out.Deferred[n]; !ok || have.Until.Before(reason.Until) {
				a.out.Deferred[n] = reason
			}
		}
		if !keep(r, PolicyDeferred) {
			refused.Verdict, refused.Seconds = policy.VerdictDefer, max(refused.Seconds, seconds)
			out.Deny = append(out.Deny, reason)
		}
	}
	for n := range out.Keep {
		refused.Keep = append(refused.Keep, n)
	}
	slices.Sort(refused.Keep)
	if len(out.Deny)+len(out.Keep) > 0 {
		a.out.Refused = append(a.out.Refused, refused)
	} else if !v.Allowed {
		out.Deny = []candidate.Reason{{Code: consolidate.PolicyDenied, Message: "a policy denies it"}}
	}
	return out
}

// PolicyDeferred: a policy wants to be asked about the node again later.
const PolicyDeferred candidate.Code = "PolicyDeferred"

func reasonOf(r policy.Reason, code candidate.Code) candidate.Reason {
	out := candidate.Reason{Code: code, Message: r.Msg}
	if r.Policy != "" {
		out.Object = "policy " + r.Policy
	}
	return out
}

// launch asks the launch policies about the new nodes of a move; all must be allowed.
func (a *approver) launch(ctx context.Context, m *consolidate.Move) (consolidate.Verdict, map[string]policy.ClaimVerdict, error) {
	without := map[string]bool{}
	for _, n := range m.Nodes {
		without[n] = true
	}
	q := a.inputs.Launch(a.snap.Fork(without), &m.Plan, a.out.Costs, a.facts)
	v, err := a.engine.Launch(ctx, q)
	if err != nil {
		return consolidate.Verdict{}, nil, err
	}
	var out consolidate.Verdict
	for _, r := range slices.Concat(v.Deny, v.Defer) {
		out.Deny = append(out.Deny, reasonOf(r, consolidate.PolicyDenied))
	}
	restricted := map[string]policy.ClaimVerdict{}
	for i := range m.Plan.NewNodes {
		n := &m.Plan.NewNodes[i]
		c, ok := v.Claims[n.Name]
		switch {
		case !ok:
		case c.Denied || c.DeferSeconds > 0 || slices.Contains(c.DropTypes, n.Planned.InstanceType) || c.HasMax && int64(n.Planned.Cost) > c.MaxMicroUSD:
			if len(out.Deny) == 0 {
				out.Deny = append(out.Deny, candidate.Reason{Code: consolidate.PolicyDenied, Message: fmt.Sprintf("launch policies do not allow %s (%s) in its place", n.Planned.InstanceType, strings.Join(c.Restricting, ", "))})
			}
		case len(c.DropTypes) > 0 || c.HasMax:
			restricted[n.Name] = c
		}
	}
	if len(out.Deny) > 0 {
		a.out.Refused = append(a.out.Refused, RefusedMove{Reason: m.Reason, Nodes: m.Nodes, Verdict: policy.VerdictDeny, Reasons: []Said{{Msg: out.Deny[0].String()}}})
	}
	return out, restricted, nil
}
