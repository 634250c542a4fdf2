package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Codes of reasons for which a pod has no node though one could be bought for it.
const (
	// PolicyDenied: Key denies the node planned for the pod; Have says why.
	PolicyDenied schedule.Code = "PolicyDenied"
	// PolicyDeferred: Key wants the node planned for the pod later, after Want; Have says
	// why.
	PolicyDeferred schedule.Code = "PolicyDeferred"
)

// MaxRounds is how often a plan is made anew without what launch policies deny in it. What
// they deny in every one of these plans is not bought.
const MaxRounds = 8

// Policies are what [Run] asks.
type Policies struct {
	// Enforced have an effect.
	Enforced []policy.Policy
	// Shadow have none: the report says what would be different with them. One with the
	// name of an enforced policy stands in for it.
	Shadow []policy.Policy
	// Facts are what the input does not say. Pod and Namespace are those of the input
	// unless they are set.
	Facts policy.Facts
	// OnDecision is told of each decision of the enforced policies; nil tells nobody.
	OnDecision func(policy.Record, any)
}

func (p Policies) none() bool { return len(p.Enforced)+len(p.Shadow) == 0 }

// judged is a plan with what policies made of it.
type judged struct {
	snap   *snapshot.Snapshot
	plan   schedule.Plan
	costs  *policy.Costs
	pools  []PoolVerdict
	launch LaunchVerdict
	made   []policy.Record
}

// Facts are f with the pods and namespaces of objs, unless f has its own.
func Facts(f policy.Facts, objs snapshot.Objects) policy.Facts {
	if f.Pod == nil {
		pods := make(map[snapshot.PodKey]*corev1.Pod, len(objs.Pods))
		for _, p := range objs.Pods {
			pods[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
		}
		f.Pod = func(k snapshot.PodKey) *corev1.Pod { return pods[k] }
	}
	if f.Namespace == nil {
		namespaces := make(map[string]*corev1.Namespace, len(objs.Namespaces))
		for _, n := range objs.Namespaces {
			namespaces[n.Name] = n
		}
		f.Namespace = func(name string) *corev1.Namespace { return namespaces[name] }
	}
	return f
}

// AdmitInput is the question about NodePool np of snap, as for a new object.
func AdmitInput(in *policy.Inputs, snap *snapshot.Snapshot, np *karpv1.NodePool, f policy.Facts) (*policy.AdmitInput, error) {
	raw, err := json.Marshal(np)
	if err != nil {
		return nil, fmt.Errorf("NodePool %s: %w", np.Name, err)
	}
	r := policy.Review{BudgetWeek: budgetWeek(np.Spec.Disruption, snap.Now)}
	if err := json.Unmarshal(raw, &r.Object); err != nil {
		return nil, fmt.Errorf("NodePool %s: %w", np.Name, err)
	}
	return in.Admit(snap, np, r, f), nil
}

// judge plans snap under policies: NodePools that they deny buy nothing, offerings cost
// what they say, and what they deny of a plan is planned again. The error is that of
// [schedule.Solve].
func judge(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects, policies []policy.Policy, solve schedule.Options, f policy.Facts, told func(policy.Record, any)) (*judged, error) {
	out := &judged{}
	e := policy.NewEngine(policy.Options{Records: -1, OnDecision: func(r policy.Record, in any) {
		out.made = append(out.made, r)
		if told != nil {
			told(r, in)
		}
	}})
	if err := e.Swap(policies); err != nil {
		return nil, err
	}
	in := &policy.Inputs{}
	var err error
	if out.snap, out.pools, err = admit(ctx, e, in, snap, objs.NodePools, f); err != nil {
		return nil, err
	}
	if out.costs, err = e.Costs(ctx, in, out.snap, f); err != nil {
		return nil, err
	}
	costs := out.costs
	var best *schedule.Plan
	for round := 1; round <= MaxRounds; round++ {
		solve.Costs = costs
		plan, err := schedule.Solve(ctx, out.snap, solve)
		if err != nil {
			return nil, err
		}
		v := policy.Verdict{Allowed: true}
		if len(plan.NewNodes) > 0 {
			if v, err = e.Launch(ctx, in.Launch(out.snap, &plan, costs, f)); err != nil {
				return nil, err
			}
		}
		kept, objections := without(plan, &v)
		if best == nil || better(&kept, best) {
			best = &kept
			out.launch.Objections = objections
		}
		out.launch.Rounds = round
		for _, w := range v.Warn {
			if said := (Said{w.Policy, w.Code, w.Msg}); !slices.Contains(out.launch.Warnings, said) {
				out.launch.Warnings = append(out.launch.Warnings, said)
			}
		}
		for _, o := range objections {
			if !slices.ContainsFunc(out.launch.Refused, func(r Objection) bool { return r.same(o) }) {
				out.launch.Refused = append(out.launch.Refused, o)
			}
		}
		if !slices.ContainsFunc(objections, func(o Objection) bool { return o.Verdict != policy.VerdictDefer }) {
			break
		}
		next := costs.Without(&plan, &v)
		if next == nil {
			break
		}
		costs = next
	}
	out.plan = *best
	return out, nil
}

// Under plans snap, which is made of objs, under the enforced policies of p. The snapshot
// returned is the one that was planned: NodePools that policies deny buy nothing in it.
// The error is that of [schedule.Solve].
func Under(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects, p Policies, solve schedule.Options) (*snapshot.Snapshot, schedule.Plan, error) {
	j, err := judge(ctx, snap, objs, p.Enforced, solve, Facts(p.Facts, objs), p.OnDecision)
	if err != nil {
		return nil, schedule.Plan{}, err
	}
	return j.snap, j.plan, nil
}

// better says whether plan a leaves fewer pods without a node than b, or is cheaper.
func better(a, b *schedule.Plan) bool {
	return cmp.Or(cmp.Compare(len(a.Unscheduled), len(b.Unscheduled)), cmp.Compare(a.Cost+a.Bias, b.Cost+b.Bias)) < 0
}

// admit asks about every NodePool and returns a snapshot in which denied ones buy nothing.
func admit(ctx context.Context, e *policy.Engine, in *policy.Inputs, snap *snapshot.Snapshot, pools []*karpv1.NodePool, f policy.Facts) (*snapshot.Snapshot, []PoolVerdict, error) {
	if len(e.Policies(policy.Admit)) == 0 {
		return snap, nil, nil
	}
	out := *snap
	out.Pools = slices.Clone(snap.Pools)
	var verdicts []PoolVerdict
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b *karpv1.NodePool) int { return strings.Compare(a.Name, b.Name) })
	for _, np := range pools {
		q, err := AdmitInput(in, snap, np, f)
		if err != nil {
			return nil, nil, err
		}
		v, err := e.Admit(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		pv := PoolVerdict{Pool: np.Name, Denied: !v.Allowed, Reasons: said(v.Deny), Warnings: said(v.Warn)}
		verdicts = append(verdicts, pv)
		if !pv.Denied {
			continue
		}
		for i, p := range out.Pools {
			if p.Name == np.Name {
				q := *p
				q.Unusable = fmt.Sprintf("policy %s denies it: %s", v.Deny[0].Policy, v.Deny[0].Msg)
				out.Pools[i] = &q
			}
		}
	}
	return &out, verdicts, nil
}

func said(list []policy.Reason) []Said {
	out := make([]Said, 0, len(list))
	for _, r := range list {
		out = append(out, Said{r.Policy, r.Code, r.Msg})
	}
	return out
}

// without is plan less the nodes that v denies, defers or has another price or type for,
// whose pods get no node, with what stands against them.
func without(plan schedule.Plan, v *policy.Verdict) (schedule.Plan, []Objection) {
	var objections []Objection
	gone := map[string]schedule.Reason{}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		cv := v.Claims[n.Name]
		o := Objection{Claim: n.Name, Offer: newOffer(n.Planned), Pods: len(n.Pods)}
		r := schedule.Reason{Pool: n.Pool, InstanceType: n.Planned.InstanceType, Code: PolicyDenied}
		switch {
		case cv.Denied:
			o.Verdict, o.Reasons = policy.VerdictDeny, said(about(v.Deny, n.Name))
		case cv.HasMax && int64(n.Planned.Cost) > cv.MaxMicroUSD:
			o.Verdict = VerdictRestrict
			o.Reasons = []Said{{Policy: restricting(v), Msg: fmt.Sprintf("%s costs $%s an hour, at most $%s is allowed", n.Planned.InstanceType, money(n.Planned.Cost.Dollars()), money(catalog.Price(cv.MaxMicroUSD).Dollars()))}}
		case slices.Contains(cv.DropTypes, n.Planned.InstanceType):
			o.Verdict = VerdictRestrict
			o.Reasons = []Said{{Policy: restricting(v), Msg: n.Planned.InstanceType + " is ruled out"}}
		case cv.DeferSeconds > 0:
			o.Verdict, o.Reasons, o.Seconds = policy.VerdictDefer, said(about(v.Defer, n.Name)), cv.DeferSeconds
			r.Code, r.Want = PolicyDeferred, fmt.Sprintf("%d s", cv.DeferSeconds)
		default:
			continue
		}
		if len(o.Reasons) > 0 {
			r.Key, r.Have = o.Reasons[0].Policy, o.Reasons[0].Msg
		}
		gone[n.Name] = r
		objections = append(objections, o)
	}
	if len(gone) == 0 {
		return plan, nil
	}
	out := plan
	out.Assignments, out.NewNodes = nil, nil
	out.Unscheduled = slices.Clone(plan.Unscheduled)
	out.Cost, out.Bias = 0, 0
	for i := range plan.NewNodes {
		n := plan.NewNodes[i]
		if r, ok := gone[n.Name]; ok {
			for _, p := range n.Pods {
				out.Unscheduled = append(out.Unscheduled, schedule.Unscheduled{Pod: p, Reasons: []schedule.Reason{r}})
			}
			continue
		}
		out.NewNodes = append(out.NewNodes, n)
		out.Cost += n.Planned.Cost
		out.Bias += n.Planned.Bias
	}
	for _, a := range plan.Assignments {
		if _, ok := gone[a.Node]; !ok || !a.New {
			out.Assignments = append(out.Assignments, a)
		}
	}
	slices.SortFunc(out.Unscheduled, func(a, b schedule.Unscheduled) int {
		return cmp.Or(strings.Compare(a.Pod.Namespace, b.Pod.Namespace), strings.Compare(a.Pod.Name, b.Pod.Name))
	})
	// The bound is for all pods that were on new nodes; for fewer it is not one.
	out.Bound = 0
	return out, objections
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

// restricting names the policies that may have restricted a claim.
func restricting(v *policy.Verdict) string {
	var names []string
	for i := range v.Policies {
		if p := &v.Policies[i]; p.Mode == policy.Enforce && p.Verdict == policy.VerdictChange {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, ", ")
}

// total is what a plan costs: at list prices, and at costs, which may be nil.
type total struct {
	list, cost catalog.Price
	excluded   int
}

// price prices plan. Units of commitments are used up in the order of the plan.
func price(snap *snapshot.Snapshot, plan *schedule.Plan, costs *policy.Costs) total {
	var t total
	pools := map[string]*snapshot.Pool{}
	for _, p := range snap.Pools {
		pools[p.Name] = p
	}
	used := map[string]int{}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		it, at := find(pools[n.Pool], n.Planned)
		if it == nil {
			t.list += n.Planned.Cost
			t.cost += n.Planned.Cost
			continue
		}
		t.list += it.Offerings[at].Price
		cost, _, deny := costs.Cost(n.Pool, it, at)
		if id, covered, ok := costs.Cover(n.Pool, it, at); ok && covered < cost && used[id] < costs.Units(id) {
			used[id]++
			cost = covered
		}
		t.cost += cost
		if deny != "" {
			t.excluded++
		}
	}
	return t
}

func find(p *snapshot.Pool, o schedule.Offer) (*catalog.InstanceType, int) {
	if p == nil || p.Catalog == nil {
		return nil, 0
	}
	types := p.Catalog.Types()
	for i := range types {
		if types[i].Name != o.InstanceType {
			continue
		}
		for j := range types[i].Offerings {
			have := &types[i].Offerings[j]
			if have.Zone == o.Zone && have.CapacityType == o.CapacityType && have.ReservationID == o.ReservationID {
				return &types[i], j
			}
		}
	}
	return nil, 0
}

// candidates are the enforced policies with those of the shadow in place or beside them.
func (p Policies) candidates() []policy.Policy {
	shadow := map[string]bool{}
	for _, s := range p.Shadow {
		shadow[s.Name] = true
	}
	out := slices.DeleteFunc(slices.Clone(p.Enforced), func(e policy.Policy) bool { return shadow[e.Name] })
	for _, s := range p.Shadow {
		if s.Mode != policy.Disabled {
			s.Mode = policy.Enforce
		}
		out = append(out, s)
	}
	return out
}

// underPolicies plans with and without policies and reports both.
func underPolicies(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects, p Policies, solve schedule.Options, progress func(string)) (*judged, *PolicyReport, error) {
	f := Facts(p.Facts, objs)
	plain, err := schedule.Solve(ctx, snap, solve)
	if err != nil {
		return nil, nil, err
	}
	progress(fmt.Sprintf("planning under %d policies", len(p.Enforced)))
	with, err := judge(ctx, snap, objs, p.Enforced, solve, f, p.OnDecision)
	if err != nil {
		return nil, nil, err
	}
	r := &PolicyReport{
		Plans:    []ComparedPlan{compared("without policies", snap, &plain, with.costs), compared("with policies", with.snap, &with.plan, with.costs)},
		Pools:    with.pools,
		Launch:   with.launch,
		Policies: effects(with.made, nil),
		Unscored: with.costs.Unscored,
	}
	if len(p.Shadow) > 0 {
		progress(fmt.Sprintf("planning under %d policies in shadow", len(p.Shadow)))
		shadow, err := judge(ctx, snap, objs, p.candidates(), solve, f, nil)
		if err != nil {
			return nil, nil, err
		}
		names := map[string]bool{}
		for _, s := range p.Shadow {
			names[s.Name] = true
		}
		r.Plans = append(r.Plans, compared("with shadow too", shadow.snap, &shadow.plan, shadow.costs))
		r.Shadow = &ShadowReport{Pools: shadow.pools, Launch: shadow.launch, Policies: effects(shadow.made, names), Nodes: difference(&with.plan, &shadow.plan)}
	}
	return with, r, nil
}

func compared(name string, snap *snapshot.Snapshot, plan *schedule.Plan, costs *policy.Costs) ComparedPlan {
	t := price(snap, plan, costs)
	c := ComparedPlan{Name: name, Nodes: len(plan.NewNodes), Unscheduled: len(plan.Unscheduled), List: t.list.Dollars(), Cost: t.cost.Dollars(), Excluded: t.excluded, Types: map[string]int{}}
	for i := range plan.NewNodes {
		c.Types[plan.NewNodes[i].Planned.InstanceType]++
		c.Bias += plan.NewNodes[i].Planned.Bias.Dollars()
	}
	c.Bias = round6(c.Bias)
	return c
}

// difference is how many nodes of each offering b has more than a.
func difference(a, b *schedule.Plan) map[string]int {
	out := map[string]int{}
	for plan, sign := range map[*schedule.Plan]int{a: -1, b: 1} {
		for i := range plan.NewNodes {
			n := &plan.NewNodes[i]
			out[n.Planned.InstanceType+"/"+n.Planned.Zone+"/"+n.Planned.CapacityType] += sign
		}
	}
	maps.DeleteFunc(out, func(_ string, n int) bool { return n == 0 })
	return out
}

// effects are the parts of each policy in the decisions, of the named ones only unless
// names is nil. Launch decisions repeat from round to round; equal parts are told once.
func effects(records []policy.Record, names map[string]bool) []PolicyEffect {
	out := []PolicyEffect{}
	for i := range records {
		rec := &records[i]
		for _, p := range rec.Policies {
			if names != nil && !names[p.Name] {
				continue
			}
			e := PolicyEffect{
				Policy: p.Name, Hook: rec.Hook, Subject: rec.Subject, Verdict: p.Verdict, Rows: rec.Rows, Changed: p.Changed,
				Denied: p.Denied, Error: p.Error, ErrorClass: p.ErrorClass, Reasons: []string{},
			}
			for _, r := range p.Reasons {
				e.Reasons = append(e.Reasons, r.Msg)
			}
			for _, c := range p.Changes {
				e.Changes = append(e.Changes, Change{
					Offering: c.Name, Before: catalog.Price(c.CostBefore).Dollars(), After: catalog.Price(c.CostAfter).Dollars(),
					Bias: catalog.Price(c.BiasAfter - c.BiasBefore).Dollars(),
				})
			}
			if !slices.ContainsFunc(out, func(o PolicyEffect) bool { return o.same(&e) }) {
				out = append(out, e)
			}
		}
	}
	return out
}
