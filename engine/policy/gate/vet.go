package gate

import (
	"context"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// vettedOffers bounds the offerings of a NodePool that a plan's nodes may become. A launch
// looks at the cheapest few types.
const vettedOffers = 192

// vet asks about what the nodes of d may be launched as if their planned offerings cannot be
// had. What policies deny or defer is left out of [Result.Allowed], as is what they were not
// asked about.
func (p *planner) vet(ctx context.Context, d *draft) error {
	p.result.vetted = map[string]map[schedule.Offer]bool{}
	for i := range d.plan.NewNodes {
		n := &d.plan.NewNodes[i]
		if p.result.vetted[n.Pool] != nil {
			continue
		}
		t := p.inputs.Trials(p.result.Snapshot, d.question, &d.plan, n, d.costs, true)
		allowed, err := p.vetRows(ctx, d, t, cheapest(t, d.question, n.Pool))
		if err != nil {
			return err
		}
		p.result.vetted[n.Pool] = allowed
	}
	return nil
}

// cheapest are the rows of the cheapest types of each claim for a NodePool, those of the first
// type of every claim first.
func cheapest(t *policy.Trials, q *policy.LaunchInput, pool string) []int {
	var types [][]policy.PricedType
	for i := range q.Claims {
		if q.Claims[i].Pool == pool {
			types = append(types, q.Claims[i].Types)
		}
	}
	var out []int
	taken := map[string]bool{}
	for i := 0; ; i++ {
		more := false
		for _, list := range types {
			if i >= len(list) {
				continue
			}
			more = true
			if taken[list[i].Name] {
				continue
			}
			taken[list[i].Name] = true
			if out = append(out, t.RowsOf(list[i].Name)...); len(out) >= vettedOffers {
				return out
			}
		}
		if !more {
			return out
		}
	}
}

// vetRows are the offerings among rows that policies allow.
func (p *planner) vetRows(ctx context.Context, d *draft, t *policy.Trials, rows []int) (map[schedule.Offer]bool, error) {
	allowed := map[schedule.Offer]bool{}
	beside := besides(&d.plan, func(string) bool { return true })
	for rest := rows; len(rest) > 0 && !p.tries.Over(policy.Launch); {
		some := rest[:min(len(rest), trialsAtOnce)]
		rest = rest[len(some):]
		v, err := p.engine.Try(ctx, t.Ask(some, beside), p.tries)
		if err != nil {
			return nil, err
		}
		for _, name := range beside {
			if v.Claims[name].Denied {
				return p.vetSingly(ctx, t)
			}
		}
		for _, row := range some {
			if o := t.Offer(row); against(v.Claims[t.Name(row)], o) == "" {
				allowed[identity(o)] = true
			}
		}
	}
	return allowed, nil
}

// vetSingly is vetRows for policies that add claims up.
func (p *planner) vetSingly(ctx context.Context, t *policy.Trials) (map[schedule.Offer]bool, error) {
	allowed := map[schedule.Offer]bool{}
	for _, row := range t.Spread(singleTrials) {
		if p.tries.Over(policy.Launch) {
			break
		}
		v, err := p.engine.Try(ctx, t.Instead(row), p.tries)
		if err != nil {
			return nil, err
		}
		if o := t.Offer(row); against(v.Claims[t.Name(row)], o) == "" {
			allowed[identity(o)] = true
		}
	}
	return allowed, nil
}
