package policy

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Costs are the scores of all NodePools of a snapshot in the form that the scheduling
// core reads. The zero value has list prices only.
type Costs struct {
	pools map[string]*poolCosts
	units map[string]int
	// Unscored are the NodePools whose costs lack the part of a failing policy, sorted.
	Unscored []string
}

var _ schedule.Costs = (*Costs)(nil)

type poolCosts struct {
	*Scores
	rows map[*catalog.InstanceType][]int32
}

// Costs asks the score policies about the NodePools of snap that can buy something. The
// error is ctx.Err().
func (e *Engine) Costs(ctx context.Context, in *Inputs, snap *snapshot.Snapshot, facts Facts) (*Costs, error) {
	out := &Costs{pools: map[string]*poolCosts{}}
	for _, p := range snap.Pools {
		if p.Unusable != "" || p.Catalog == nil {
			continue
		}
		scores, err := e.Score(ctx, in.Score(snap, p, facts))
		if err != nil {
			return nil, err
		}
		out.add(p, scores)
	}
	return out.On(snap), nil
}

func (c *Costs) add(p *snapshot.Pool, scores *Scores) {
	types := p.Catalog.Types()
	pc := &poolCosts{Scores: scores, rows: make(map[*catalog.InstanceType][]int32, len(types))}
	for i := range types {
		pc.rows[&types[i]] = scores.Rows.index[types[i].Name]
	}
	c.pools[p.Name] = pc
	if scores.Unscored {
		c.Unscored = append(c.Unscored, p.Name)
	}
}

// On returns the same costs with the units of commitments that the nodes of snap leave: a
// fork of a snapshot without some nodes has the units back that those held.
func (c *Costs) On(snap *snapshot.Snapshot) *Costs {
	out := &Costs{pools: c.pools, Unscored: c.Unscored}
	left := map[string]int64{}
	perNode := map[string]int64{}
	for _, pc := range c.pools {
		for id, n := range pc.Commitments {
			// Pools share a commitment; where they disagree the smaller number is safe.
			if have, ok := left[id]; !ok || n < have {
				left[id] = n
			}
		}
		for _, cover := range pc.Cover {
			perNode[cover.Commitment] = max(perNode[cover.Commitment], cover.Units)
		}
	}
	if len(left) > 0 {
		for _, n := range snap.Nodes {
			if cover, ok := c.held(n); ok {
				left[cover.Commitment] -= cover.Units
			}
		}
	}
	out.units = make(map[string]int, len(left))
	for id, n := range left {
		out.units[id] = int(min(max(n, 0)/max(perNode[id], 1), math.MaxInt32))
	}
	return out
}

// held is the cover of the offering that node n is of.
func (c *Costs) held(n *snapshot.Node) (RowCover, bool) {
	pc := c.pools[n.Pool]
	if pc == nil || len(pc.Cover) == 0 {
		return RowCover{}, false
	}
	row, ok := pc.find(n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelTopologyZone], n.Labels[karpv1.CapacityTypeLabelKey])
	if !ok {
		return RowCover{}, false
	}
	cover, ok := pc.Cover[row]
	return cover, ok
}

func (pc *poolCosts) find(name, zone, capacityType string) (int, bool) {
	for _, i := range pc.Rows.index[name] {
		if i < 0 {
			continue
		}
		if o := &pc.Rows.Rows[i].Offering; o.Zone == zone && o.CapacityType == capacityType {
			return int(i), true
		}
	}
	return 0, false
}

// row is that of an offering; ok is false if it was not scored.
func (c *Costs) row(pool string, it *catalog.InstanceType, offering int) (*poolCosts, int, bool) {
	if c == nil {
		return nil, 0, false
	}
	pc := c.pools[pool]
	if pc == nil {
		return nil, 0, false
	}
	rows, ok := pc.rows[it]
	if !ok {
		rows = pc.Rows.index[it.Name]
	}
	if offering >= len(rows) || rows[offering] < 0 {
		return nil, 0, false
	}
	return pc, int(rows[offering]), true
}

// Cost is part of [schedule.Costs]. An offering that was not scored has its list price.
func (c *Costs) Cost(pool string, it *catalog.InstanceType, offering int) (cost, bias catalog.Price, deny string) {
	pc, row, ok := c.row(pool, it, offering)
	if !ok {
		return it.Offerings[offering].Price, 0, ""
	}
	return catalog.Price(pc.Scores.Cost[row]), catalog.Price(pc.Bias[row]), pc.Deny[row]
}

// Cover is part of [schedule.Costs].
func (c *Costs) Cover(pool string, it *catalog.InstanceType, offering int) (commitment string, cost catalog.Price, ok bool) {
	pc, row, ok := c.row(pool, it, offering)
	if !ok {
		return "", 0, false
	}
	cover, ok := pc.Scores.Cover[row]
	return cover.Commitment, catalog.Price(cover.MicroUSD), ok
}

// Units is part of [schedule.Costs].
func (c *Costs) Units(commitment string) int {
	if c == nil {
		return 0
	}
	return c.units[commitment]
}

// Scores are those of a pool; nil if it was not scored.
func (c *Costs) Scores(pool string) *Scores {
	if c == nil || c.pools[pool] == nil {
		return nil
	}
	return c.pools[pool].Scores
}

// commitment names the commitment that pays for a planned offer, if one does.
func (c *Costs) commitment(pool string, o schedule.Offer) string {
	if c == nil || c.pools[pool] == nil {
		return ""
	}
	pc := c.pools[pool]
	row, ok := pc.find(o.InstanceType, o.Zone, o.CapacityType)
	if !ok {
		return ""
	}
	cover, ok := pc.Scores.Cover[row]
	// A plan counts the cost of the cover where it used a unit, and the offering's own
	// cost where none was left.
	if !ok || int64(o.Cost) != cover.MicroUSD || int64(o.Cost) == pc.Scores.Cost[row] {
		return ""
	}
	return cover.Commitment
}

// Without returns costs that exclude what the verdict v on plan objects to, so that the
// next plan is another one: the offering planned for a denied claim, and the types and
// prices that a restriction rules out, for the whole NodePool of the claim. A new plan may
// meet new objections, so callers repeat. Nil is returned if v lets everything be.
func (c *Costs) Without(plan *schedule.Plan, v *Verdict) *Costs {
	type bar struct {
		drop    map[string]string // instance type -> reason
		offers  map[[3]string]string
		max     int64
		hasMax  bool
		maxText string
	}
	bars := map[string]*bar{}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		cv, ok := v.Claims[n.Name]
		if !ok || !cv.Denied && len(cv.DropTypes) == 0 && !cv.HasMax {
			continue
		}
		b := bars[n.Pool]
		if b == nil {
			b = &bar{drop: map[string]string{}, offers: map[[3]string]string{}}
			bars[n.Pool] = b
		}
		if cv.Denied {
			b.offers[[3]string{n.Planned.InstanceType, n.Planned.Zone, n.Planned.CapacityType}] = v.Denial(n.Name)
		}
		for _, t := range cv.DropTypes {
			b.drop[t] = "a launch policy drops this type"
		}
		if cv.HasMax && (!b.hasMax || cv.MaxMicroUSD < b.max) {
			b.hasMax, b.max = true, cv.MaxMicroUSD
			b.maxText = "a launch policy allows less per hour"
		}
	}
	if len(bars) == 0 {
		return nil
	}
	out := &Costs{pools: map[string]*poolCosts{}, units: c.units, Unscored: c.Unscored}
	for name, pc := range c.pools {
		b := bars[name]
		if b == nil {
			out.pools[name] = pc
			continue
		}
		s := *pc.Scores
		s.Deny = append([]string(nil), s.Deny...)
		for i := range s.Deny {
			row := &s.Rows.Rows[i]
			reason := b.drop[row.InstanceType.Name]
			reason = cmp.Or(reason, b.offers[[3]string{row.InstanceType.Name, row.Offering.Zone, row.Offering.CapacityType}])
			if reason == "" && b.hasMax && s.Cost[i] > b.max {
				reason = b.maxText
			}
			s.Deny[i] = cmp.Or(s.Deny[i], reason)
		}
		out.pools[name] = &poolCosts{Scores: &s, rows: pc.rows}
	}
	return out
}

// Exclude returns costs that exclude rows of the scores of pool besides, with reasons. c is
// left as it is; it is returned itself if there is nothing to exclude.
func (c *Costs) Exclude(pool string, rows map[int]string) *Costs {
	pc := c.pools[pool]
	if pc == nil || len(rows) == 0 {
		return c
	}
	out := &Costs{pools: maps.Clone(c.pools), units: c.units, Unscored: c.Unscored}
	s := *pc.Scores
	s.Deny = slices.Clone(s.Deny)
	for row, reason := range rows {
		s.Deny[row] = cmp.Or(s.Deny[row], reason)
	}
	out.pools[pool] = &poolCosts{Scores: &s, rows: pc.rows}
	return out
}

// Denial is the first reason for which a claim is denied, with the policy.
func (v *Verdict) Denial(claim string) string {
	for _, r := range v.Deny {
		if len(r.Claims) == 0 || slices.Contains(r.Claims, claim) {
			return r.Policy + ": " + r.Msg
		}
	}
	return "denied by a launch policy"
}
