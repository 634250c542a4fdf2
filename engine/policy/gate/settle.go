package gate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// settle gives up the nodes of d that policies object to, and returns a plan that holds
// without them.
func (p *planner) settle(ctx context.Context, d *draft) (*draft, error) {
	waits := map[snapshot.PodKey]schedule.Reason{}
	for range MaxRounds {
		if len(d.objections) == 0 {
			break
		}
		var gone []Objection
		var err error
		if d, gone, err = p.share(ctx, d); err != nil {
			return nil, err
		}
		p.giveUp(gone, waits)
		left := without(p.result.Snapshot, waits)
		if !bound(left) {
			d = d.without(gone)
			break
		}
		// Pods that are spread, or that want to be near others, may not be where they are
		// planned unless the others are, too.
		next, err := p.draft(ctx, left, d.costs)
		if err != nil {
			return nil, err
		}
		d = &next
	}
	if len(d.objections) > 0 {
		// Whatever is planned is objected to: only the room that there is may be used.
		p.giveUp(d.objections, waits)
		left := without(p.result.Snapshot, waits)
		for i, pool := range left.Pools {
			q := *pool
			q.Unusable = "launch policies deny all that was planned for it"
			left.Pools[i] = &q
		}
		next, err := p.draft(ctx, left, d.costs)
		if err != nil {
			return nil, err
		}
		d = &next
	}
	if len(waits) == 0 {
		return d, nil
	}
	d.plan.Unscheduled = slices.Clone(d.plan.Unscheduled)
	for pod, why := range waits {
		d.plan.Unscheduled = append(d.plan.Unscheduled, schedule.Unscheduled{Pod: pod, Reasons: []schedule.Reason{why}})
	}
	slices.SortFunc(d.plan.Unscheduled, func(a, b schedule.Unscheduled) int {
		return cmp.Or(strings.Compare(a.Pod.Namespace, b.Pod.Namespace), strings.Compare(a.Pod.Name, b.Pod.Name))
	})
	return d, nil
}

func (p *planner) giveUp(gone []Objection, waits map[snapshot.PodKey]schedule.Reason) {
	p.result.Launch.Objections = append(p.result.Launch.Objections, gone...)
	for i := range gone {
		for _, pod := range gone[i].Pods {
			waits[pod] = gone[i].reason()
		}
	}
}

// share looks for denied nodes of d that are allowed without the others, such as those that
// a budget is enough for. It returns the plan less the nodes that remain denied, with what
// policies say of it, and the objections to the nodes given up.
func (p *planner) share(ctx context.Context, d *draft) (*draft, []Objection, error) {
	var denied, rest []Objection
	for _, o := range d.objections {
		if o.Verdict == policy.VerdictDeny {
			denied = append(denied, o)
		} else {
			rest = append(rest, o)
		}
	}
	if len(denied) < 2 {
		return d, d.objections, nil
	}
	priority := p.priorities(&d.plan)
	slices.SortStableFunc(denied, func(a, b Objection) int { return cmp.Compare(priority[b.Claim], priority[a.Claim]) })
	// Deferred nodes are not bought now, so they are no part of the question.
	ask := func(n int, ask func(context.Context, *policy.LaunchInput) (policy.Verdict, error)) (*draft, error) {
		sub := d.without(slices.Concat(denied[n:], rest))
		sub.question = p.inputs.Launch(p.result.Snapshot, &sub.plan, sub.costs, p.facts)
		sub.question.Attempt(int64(p.result.Launch.Rounds))
		var err error
		if sub.verdict, err = ask(ctx, sub.question); err != nil {
			return nil, err
		}
		sub.objections = object(&sub.plan, &sub.verdict)
		return sub, nil
	}
	// What is allowed with more nodes is taken to be allowed with fewer.
	least, most := 0, len(denied)
	for next := 1; next < most; next = (least + most + 1) / 2 {
		sub, err := ask(next, func(ctx context.Context, q *policy.LaunchInput) (policy.Verdict, error) {
			return p.engine.Try(ctx, q, p.tries)
		})
		if err != nil {
			return nil, nil, err
		}
		if len(sub.objections) > 0 {
			most = next
		} else {
			least = next
		}
		if least == 0 || most-least == 1 {
			break
		}
	}
	if least == 0 {
		return d, d.objections, nil
	}
	sub, err := ask(least, p.engine.Launch)
	if err != nil {
		return nil, nil, err
	}
	return sub, slices.Concat(denied[least:], rest, sub.objections), nil
}

// priorities are the highest priorities of the pods of each new node.
func (p *planner) priorities(plan *schedule.Plan) map[string]int32 {
	snap := p.result.Snapshot
	of := make(map[snapshot.PodKey]int32, len(snap.Pending))
	for _, i := range snap.Pending {
		of[snap.Pods[i].Key] = snap.Classes[snap.Pods[i].Class].Priority
	}
	out := make(map[string]int32, len(plan.NewNodes))
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		for j, pod := range n.Pods {
			if have := out[n.Name]; j == 0 || of[pod] > have {
				out[n.Name] = of[pod]
			}
		}
	}
	return out
}

// without is d less the nodes that are objected to, with their pods.
func (d *draft) without(gone []Objection) *draft {
	out := *d
	if len(gone) == 0 {
		return &out
	}
	names := make(map[string]bool, len(gone))
	for i := range gone {
		names[gone[i].Claim] = true
	}
	plan := d.plan
	plan.Assignments, plan.NewNodes = nil, nil
	plan.Cost, plan.Bias = 0, 0
	// The bound is for all pods that were on new nodes; for fewer it is not one.
	plan.Bound = 0
	for i := range d.plan.NewNodes {
		n := d.plan.NewNodes[i]
		if names[n.Name] {
			continue
		}
		plan.NewNodes = append(plan.NewNodes, n)
		plan.Cost += n.Planned.Cost
		plan.Bias += n.Planned.Bias
	}
	for _, a := range d.plan.Assignments {
		if !a.New || !names[a.Node] {
			plan.Assignments = append(plan.Assignments, a)
		}
	}
	out.plan, out.objections = plan, nil
	return &out
}

// without is snap as if the pods did not exist.
func without(snap *snapshot.Snapshot, pods map[snapshot.PodKey]schedule.Reason) *snapshot.Snapshot {
	out := *snap
	out.Pools = slices.Clone(snap.Pools)
	out.Pending = nil
	for _, i := range snap.Pending {
		if _, ok := pods[snap.Pods[i].Key]; !ok {
			out.Pending = append(out.Pending, i)
		}
	}
	return &out
}

// bound says whether the place of a pending pod may depend on where others are.
func bound(snap *snapshot.Snapshot) bool {
	for _, i := range snap.Pending {
		c := snap.Classes[snap.Pods[i].Class]
		if len(c.Near) > 0 || slices.ContainsFunc(c.Spread, func(s snapshot.Spread) bool { return !s.Soft }) {
			return true
		}
	}
	return false
}

// String is o for people.
func (o *Objection) String() string {
	return fmt.Sprintf("%s: %s", o.Verdict, o.reason())
}
