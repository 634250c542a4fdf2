package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

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

// FactsOf are what facts about owners and budgets are read from in an input; objs are its
// objects as planned.
func FactsOf(in *load.Result, objs snapshot.Objects) fact.Objects {
	return fact.Objects{
		Pod: Facts(policy.Facts{}, objs).Pod, Workload: in.Workload, ReplicaSets: objs.ReplicaSets, StatefulSets: objs.StatefulSets,
		ReplicationControllers: objs.ReplicationControllers, PodDisruptionBudgets: objs.PodDisruptionBudgets,
		Autoscalers: in.Autoscalers, Nodes: objs.Nodes, NodeClaims: objs.NodeClaims,
	}
}

// judge plans snap under policies. The error is that of [gate.Plan].
func judge(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects, policies []policy.Policy, solve schedule.Options, f policy.Facts, told func(policy.Record, any)) (*gate.Result, error) {
	e := policy.NewEngine(policy.Options{Records: -1, OnDecision: told})
	if err := e.Swap(policies); err != nil {
		return nil, err
	}
	return gate.Plan(ctx, e, &policy.Inputs{}, snap, objs.NodePools, f, solve)
}

// Under plans snap, which is made of objs, under the enforced policies of p. The snapshot
// returned is the one that was planned: NodePools that policies deny buy nothing in it.
// The error is that of [schedule.Solve].
func Under(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects, p Policies, solve schedule.Options) (*snapshot.Snapshot, schedule.Plan, error) {
	j, err := judge(ctx, snap, objs, p.Enforced, solve, Facts(p.Facts, objs), p.OnDecision)
	if err != nil {
		return nil, schedule.Plan{}, err
	}
	return j.Snapshot, j.Plan, nil
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
func underPolicies(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects, p Policies, solve schedule.Options, progress func(string)) (*gate.Result, *PolicyReport, error) {
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
		Plans:    []ComparedPlan{compared("without policies", snap, &plain, with.Scored()), compared("with policies", with.Snapshot, &with.Plan, with.Scored())},
		Pools:    poolVerdicts(with.Pools),
		Launch:   launchVerdict(&with.Launch),
		Policies: effects(with.Records, nil),
	}
	if scored := with.Scored(); scored != nil { // nobody was asked if all policies are in the shadow
		r.Unscored = scored.Unscored
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
		r.Plans = append(r.Plans, compared("with shadow too", shadow.Snapshot, &shadow.Plan, shadow.Scored()))
		r.Shadow = &ShadowReport{Pools: poolVerdicts(shadow.Pools), Launch: launchVerdict(&shadow.Launch), Policies: effects(shadow.Records, names), Nodes: difference(&with.Plan, &shadow.Plan)}
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
