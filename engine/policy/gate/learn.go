package gate

import (
	"context"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Bounds of what is tried.
const (
	// trialsAtOnce is the number of offerings in one question.
	trialsAtOnce = 256
	// controls is the number of allowed nodes that are asked about again beside them.
	controls = 8
	// singleTrials is the number of offerings tried one by one.
	singleTrials = 16
)

// learn tries what the NodePools of the denied nodes of d sell besides, and returns costs
// without what is denied. Every NodePool is tried once in a plan: what policies deny
// afterwards depends on more than the offering.
func (p *planner) learn(ctx context.Context, d *draft, denied []Objection, costs *policy.Costs) (*policy.Costs, error) {
	allowed := map[string]bool{}
	for i := range d.plan.NewNodes {
		allowed[d.plan.NewNodes[i].Name] = true
	}
	for i := range d.objections {
		delete(allowed, d.objections[i].Claim)
	}
	for i := range denied {
		o := &denied[i]
		if o.Verdict != policy.VerdictDeny || p.tried[o.Pool] {
			continue
		}
		if p.tried == nil {
			p.tried = map[string]bool{}
		}
		p.tried[o.Pool] = true
		node := p.nodeOf(&d.plan, o.Claim)
		if node == nil {
			continue
		}
		deny, err := p.try(ctx, d, node, allowed, costs)
		if err != nil {
			return nil, err
		}
		costs = costs.Exclude(o.Pool, deny)
	}
	return costs, nil
}

func (p *planner) nodeOf(plan *schedule.Plan, name string) *schedule.NewNode {
	for i := range plan.NewNodes {
		if plan.NewNodes[i].Name == name {
			return &plan.NewNodes[i]
		}
	}
	return nil
}

// try asks about node as each offering that its NodePool could buy, and returns the reasons
// of those that are denied, by row of the pool's scores.
func (p *planner) try(ctx context.Context, d *draft, node *schedule.NewNode, allowed map[string]bool, costs *policy.Costs) (map[int]string, error) {
	t := p.inputs.Trials(p.result.Snapshot, d.question, &d.plan, node, costs, false)
	rows := t.Rows()
	deny := map[int]string{}
	beside := besides(&d.plan, func(name string) bool { return allowed[name] })
	any := false
	for len(rows) > 0 && !p.tries.Over(policy.Launch) {
		some := rows[:min(len(rows), trialsAtOnce)]
		rows = rows[len(some):]
		q := t.Ask(some, beside)
		q.Attempt(int64(p.result.Launch.Rounds))
		v, err := p.engine.Try(ctx, q, p.tries)
		if err != nil {
			return nil, err
		}
		for _, name := range beside {
			if v.Claims[name].Denied {
				return p.trySingly(ctx, t)
			}
		}
		for _, row := range some {
			if cv := v.Claims[t.Name(row)]; cv.Denied {
				deny[row] = v.Denial(t.Name(row))
			} else {
				any = true
			}
		}
	}
	if !any {
		return p.trySingly(ctx, t)
	}
	return deny, nil
}

// besides are the names of some nodes of plan that match.
func besides(plan *schedule.Plan, match func(string) bool) []string {
	out := make([]string, 0, controls)
	for i := range plan.NewNodes {
		if name := plan.NewNodes[i].Name; match(name) && len(out) < controls {
			out = append(out, name)
		}
	}
	return out
}

// trySingly asks about the plan with the node as one offering after the other, those that
// differ most first.
func (p *planner) trySingly(ctx context.Context, t *policy.Trials) (map[int]string, error) {
	deny := map[int]string{}
	for _, row := range t.Spread(singleTrials) {
		if p.tries.Over(policy.Launch) {
			break
		}
		q := t.Instead(row)
		q.Attempt(int64(p.result.Launch.Rounds))
		v, err := p.engine.Try(ctx, q, p.tries)
		if err != nil {
			return nil, err
		}
		if v.Claims[t.Name(row)].Denied {
			deny[row] = v.Denial(t.Name(row))
		}
	}
	return deny, nil
}
