package gate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
)

// MaxRounds is how often a plan is made anew without what launch policies deny in it, at
// most. What they deny in the best of these plans is not bought.
const MaxRounds = 8

// Result is a plan under policies.
type Result struct {
	// Snapshot is the one that was planned: NodePools that policies deny buy nothing in it.
	Snapshot *snapshot.Snapshot
	// Plan has no node that launch policies deny or defer; the pods of those are among its
	// unscheduled.
	Plan schedule.Plan
	// Costs are those that the plan was made with; what launch policies rule out is excluded
	// in them. They are nil if no policy was asked.
	Costs *policy.Costs
	// Pools are the verdicts of admit policies, by NodePool; empty without such policies.
	Pools  []PoolVerdict
	Launch Launch
	// Records are the decisions made, in order.
	Records []policy.Record

	scored *policy.Costs
	// vetted are the offerings that launch policies allow, by NodePool; nil if there are no
	// such policies.
	vetted map[string]map[schedule.Offer]bool

	mu      sync.Mutex
	allowed map[allowedKey]allowed
}

// Scored are the costs as score policies left them: unlike Costs, without what launch
// policies rule out. They are nil if no policy was asked.
func (r *Result) Scored() *policy.Costs { return r.scored }

// Fallbacks say what nodes of the plan were not bought as though it comes first, by the name
// of the node; see [fact.FallbackAnnotation].
func (r *Result) Fallbacks() map[string]policy.Fallback {
	return policy.Fallbacks(r.Snapshot, &r.Plan, r.Costs)
}

// RetryAfter is the shortest time after which a deferred node may be planned again; 0 if
// none is deferred.
func (r *Result) RetryAfter() time.Duration {
	least := int64(0)
	for i := range r.Launch.Objections {
		if s := r.Launch.Objections[i].Seconds; s > 0 && (least == 0 || s < least) {
			least = s
		}
	}
	return time.Duration(least) * time.Second
}

// Plan plans snap under the policies of e; pools are the objects of its NodePools. A nil e
// has no policies. Policies that fail are no error: their failure policy applies. If
// facts.Round is nil, the policies of each hook have [policy.DefaultRound] together.
//
// The error is that of [schedule.Solve], or a NodePool that cannot be shown to a policy.
func Plan(ctx context.Context, e *policy.Engine, in *policy.Inputs, snap *snapshot.Snapshot, pools []*karpv1.NodePool, facts policy.Facts, solve schedule.Options) (*Result, error) {
	r := &Result{Snapshot: snap}
	if e == nil {
		e = policy.NewEngine(policy.Options{})
	}
	if facts.Round == nil {
		facts.Round = policy.NewRound(0)
	}
	before := len(facts.Round.Records())
	p := &planner{engine: e, inputs: in, facts: facts, solve: solve, result: r, tries: facts.Round.Fresh()}
	if err := p.run(ctx, pools); err != nil {
		return nil, err
	}
	r.Records = facts.Round.Records()[before:]
	return r, nil
}

type planner struct {
	engine *policy.Engine
	inputs *policy.Inputs
	facts  policy.Facts
	solve  schedule.Options
	result *Result
	tries  *policy.Round
	tried  map[string]bool // NodePools of which all offerings were tried
}

// draft is a plan with what policies say of it.
type draft struct {
	plan       schedule.Plan
	costs      *policy.Costs
	question   *policy.LaunchInput
	verdict    policy.Verdict
	objections []Objection
}

func (p *planner) run(ctx context.Context, pools []*karpv1.NodePool) error {
	r := p.result
	if err := p.admit(ctx, pools); err != nil {
		return err
	}
	asked := slices.ContainsFunc(policy.Hooks(), func(h policy.Hook) bool { return len(p.engine.Policies(h)) > 0 })
	if asked {
		var err error
		if r.Costs, err = p.engine.Costs(ctx, p.inputs, r.Snapshot, p.facts); err != nil {
			return err
		}
		r.scored = r.Costs
	}
	if len(p.engine.Policies(policy.Launch)) == 0 {
		d, err := p.draft(ctx, r.Snapshot, r.Costs)
		r.Plan = d.plan
		return err
	}
	best, err := p.search(ctx)
	if err != nil {
		return err
	}
	if best, err = p.settle(ctx, best); err != nil {
		return err
	}
	if err := p.vet(ctx, best); err != nil {
		return err
	}
	r.Plan, r.Costs = best.plan, best.costs
	for _, w := range best.verdict.Warn {
		if s := (Said{w.Policy, w.Code, w.Msg}); !slices.Contains(r.Launch.Warnings, s) {
			r.Launch.Warnings = append(r.Launch.Warnings, s)
		}
	}
	for i := range r.Plan.NewNodes {
		n := &r.Plan.NewNodes[i]
		if v := best.verdict.Claims[n.Name]; len(v.DropTypes) > 0 || v.HasMax {
			if r.Launch.Restricted == nil {
				r.Launch.Restricted = map[string]policy.ClaimVerdict{}
			}
			r.Launch.Restricted[n.Name] = v
		}
	}
	return nil
}

// admit asks about every NodePool; denied ones buy nothing in the result's snapshot.
func (p *planner) admit(ctx context.Context, pools []*karpv1.NodePool) error {
	if len(p.engine.Policies(policy.Admit)) == 0 {
		return nil
	}
	snap := p.result.Snapshot
	out := *snap
	out.Pools = slices.Clone(snap.Pools)
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b *karpv1.NodePool) int { return strings.Compare(a.Name, b.Name) })
	for _, np := range pools {
		review, err := fact.Review(np, nil, snap.Now)
		if err != nil {
			return err
		}
		v, err := p.engine.Admit(ctx, p.inputs.Admit(snap, np, review, p.facts))
		if err != nil {
			return err
		}
		pv := PoolVerdict{Pool: np.Name, Denied: !v.Allowed, Deny: said(v.Deny), Warnings: said(v.Warn)}
		p.result.Pools = append(p.result.Pools, pv)
		if !pv.Denied {
			continue
		}
		for i, pool := range out.Pools {
			if pool.Name == np.Name {
				q := *pool
				q.Unusable = fmt.Sprintf("policy %s denies it: %s", v.Deny[0].Policy, v.Deny[0].Msg)
				out.Pools[i] = &q
			}
		}
	}
	p.result.Snapshot = &out
	return nil
}

// draft plans snap with costs and asks about the plan.
func (p *planner) draft(ctx context.Context, snap *snapshot.Snapshot, costs *policy.Costs) (draft, error) {
	solve := p.solve
	if costs != nil {
		solve.Costs = costs
	}
	plan, err := schedule.Solve(ctx, snap, solve)
	if err != nil {
		return draft{}, err
	}
	p.result.Launch.Rounds++
	d := draft{plan: plan, costs: costs, verdict: policy.Verdict{Allowed: true}}
	if len(plan.NewNodes) == 0 || len(p.engine.Policies(policy.Launch)) == 0 {
		return d, nil
	}
	d.question = p.inputs.Launch(p.result.Snapshot, &d.plan, costs, p.facts)
	d.question.Attempt(int64(p.result.Launch.Rounds))
	if d.verdict, err = p.engine.Launch(ctx, d.question); err != nil {
		return draft{}, err
	}
	d.objections = object(&d.plan, &d.verdict)
	p.remember(d.objections)
	return d, nil
}

func (p *planner) remember(objections []Objection) {
	l := &p.result.Launch
	for _, o := range objections {
		same := func(r Objection) bool {
			return r.Offer == o.Offer && r.Verdict == o.Verdict && slices.Equal(r.Reasons, o.Reasons)
		}
		if !slices.ContainsFunc(l.Refused, same) {
			l.Refused = append(l.Refused, o)
		}
	}
}

// search plans until policies object to nothing, or to no more than deferrals. It returns
// the best of its plans.
func (p *planner) search(ctx context.Context) (*draft, error) {
	costs := p.result.Costs
	var best *draft
	for range MaxRounds {
		d, err := p.draft(ctx, p.result.Snapshot, costs)
		if err != nil {
			return nil, err
		}
		if best == nil || d.better(best) {
			best = &d
		}
		denied := slices.DeleteFunc(slices.Clone(d.objections), func(o Objection) bool { return o.Verdict == policy.VerdictDefer })
		if len(denied) == 0 {
			break
		}
		next := costs.Without(&d.plan, &d.verdict)
		if next == nil {
			break
		}
		if next, err = p.learn(ctx, &d, denied, next); err != nil {
			return nil, err
		}
		costs = next
	}
	return best, nil
}

// better says whether d leaves fewer pods without a node than o, or is cheaper.
func (d *draft) better(o *draft) bool {
	waiting := func(d *draft) int {
		n := len(d.plan.Unscheduled)
		for i := range d.objections {
			n += len(d.objections[i].Pods)
		}
		return n
	}
	cost := func(d *draft) catalog.Price {
		c := d.plan.Cost + d.plan.Bias
		for i := range d.objections {
			c -= d.objections[i].Offer.Cost + d.objections[i].Offer.Bias
		}
		return c
	}
	return cmp.Or(cmp.Compare(waiting(d), waiting(o)), cmp.Compare(cost(d), cost(o))) < 0
}

// against is the verdict that keeps a claim from becoming o; "" is none.
func against(v policy.ClaimVerdict, o schedule.Offer) string {
	switch {
	case v.Denied:
		return policy.VerdictDeny
	case v.HasMax && int64(o.Cost) > v.MaxMicroUSD, slices.Contains(v.DropTypes, o.InstanceType):
		return VerdictRestrict
	case v.DeferSeconds > 0:
		return policy.VerdictDefer
	}
	return ""
}

// object lists what v has against the nodes of plan.
func object(plan *schedule.Plan, v *policy.Verdict) []Objection {
	var out []Objection
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		cv := v.Claims[n.Name]
		o := Objection{Claim: n.Name, Pool: n.Pool, Offer: n.Planned, Pods: n.Pods, Verdict: against(cv, n.Planned)}
		switch o.Verdict {
		case policy.VerdictDeny:
			o.Reasons = said(about(v.Deny, n.Name))
		case VerdictRestrict:
			msg := n.Planned.InstanceType + " is ruled out"
			if cv.HasMax && int64(n.Planned.Cost) > cv.MaxMicroUSD {
				msg = fmt.Sprintf("%s costs $%s an hour, at most $%s is allowed", n.Planned.InstanceType, dollars(n.Planned.Cost), dollars(catalog.Price(cv.MaxMicroUSD)))
			}
			o.Reasons = []Said{{Policy: strings.Join(cv.Restricting, ", "), Msg: msg}}
		case policy.VerdictDefer:
			o.Reasons, o.Seconds = said(about(v.Defer, n.Name)), cv.DeferSeconds
		default:
			continue
		}
		out = append(out, o)
	}
	return out
}

func dollars(p catalog.Price) string {
	s := fmt.Sprintf("%.6f", p.Dollars())
	whole, part, _ := strings.Cut(s, ".")
	part = strings.TrimRight(part, "0")
	if len(part) < 2 {
		part += strings.Repeat("0", 2-len(part))
	}
	return whole + "." + part
}

// about are the reasons that concern a claim.
func about(list []policy.Reason, claim string) []policy.Reason {
	var out []policy.Reason
	for _, r := range list {
		if len(r.Claims) == 0 || slices.Contains(r.Claims, claim) {
			out = append(out, r)
		}
	}
	return out
}
