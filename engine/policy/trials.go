package policy

import (
	"cmp"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Trials are questions about a plan in which one node is something else: to learn which
// offerings launch policies deny without a plan for each.
type Trials struct {
	whole  *LaunchInput
	claim  Claim // of the node
	scores *Scores
	costs  *Costs
	pool   *snapshot.Pool
	node   *schedule.NewNode
	rows   []int
	// standIn says that the node would be something else only where its planned offering
	// cannot be had.
	standIn bool
	// kinds are the types that would do, by capacity type.
	kinds map[string]claimTypes
}

// Trials prepares questions about node n of plan, of which whole is the question as planned.
// With standIn the node would be something else only where its planned offering cannot be
// had. costs must have scores of its NodePool;
// rows that are excluded in them are not tried, nor are those that cannot be bought now or
// that are too small for every pod that plan has on new nodes of the NodePool.
func (b *Inputs) Trials(snap *snapshot.Snapshot, whole *LaunchInput, plan *schedule.Plan, n *schedule.NewNode, costs *Costs, standIn bool) *Trials {
	t := &Trials{whole: whole, scores: costs.Scores(n.Pool), costs: costs, node: n, standIn: standIn}
	for i := range t.whole.Claims {
		if t.whole.Claims[i].Name == n.Name {
			t.claim = t.whole.Claims[i]
		}
	}
	for _, p := range snap.Pools {
		if p.Name == n.Pool {
			t.pool = p
		}
	}
	if t.scores == nil || t.pool == nil {
		return t
	}
	var keys []snapshot.PodKey
	for i := range plan.NewNodes {
		if plan.NewNodes[i].Pool == n.Pool {
			keys = append(keys, plan.NewNodes[i].Pods...)
		}
	}
	smallest := smallestRequests(snap, keys)
	prices := map[string]map[string]int64{}
	for i := range t.scores.Rows.Rows {
		row := &t.scores.Rows.Rows[i]
		it, ok := t.pool.Catalog.ByName(row.InstanceType.Name)
		if !ok || t.scores.Deny[i] != "" || !row.Offering.Available || !smallest.FitsIn(it.Allocatable) {
			continue
		}
		t.rows = append(t.rows, i)
		need := n.Requests.Clone()
		need[corev1.ResourceCPU] += row.DaemonOverhead.CPU
		need[corev1.ResourceMemory] += row.DaemonOverhead.Memory * mib
		if !need.FitsIn(it.Allocatable) {
			continue
		}
		of := prices[row.Offering.CapacityType]
		if of == nil {
			of = map[string]int64{}
			prices[row.Offering.CapacityType] = of
		}
		if have, ok := of[row.InstanceType.Name]; !ok || t.scores.Cost[i] < have {
			of[row.InstanceType.Name] = t.scores.Cost[i]
		}
	}
	t.kinds = map[string]claimTypes{}
	for kind, of := range prices {
		k := claimTypes{types: priced(of), count: int64(len(of)), min: math.MaxInt64}
		for _, price := range of {
			k.min, k.max = min(k.min, price), max(k.max, price)
		}
		t.kinds[kind] = k
	}
	return t
}

// smallestRequests are the least that a pod of keys asks for of each resource.
func smallestRequests(snap *snapshot.Snapshot, keys []snapshot.PodKey) resources.List {
	var out resources.List
	at := podIndex(snap)
	for _, k := range keys {
		i, ok := at(k)
		if !ok {
			continue
		}
		requests := snap.Classes[snap.Pods[i].Class].Requests
		if out == nil {
			out = requests.Clone()
			continue
		}
		for name, v := range out {
			out[name] = min(v, requests[name])
		}
	}
	return out
}

// Rows are the offerings to try, as rows of the pool's scores, in order.
func (t *Trials) Rows() []int { return t.rows }

// RowsOf are the rows of an instance type that are not excluded, whether they can be bought
// now or not.
func (t *Trials) RowsOf(name string) []int {
	if t.scores == nil {
		return nil
	}
	var out []int
	for _, i := range t.scores.Rows.index[name] {
		if i >= 0 && t.scores.Deny[i] == "" {
			out = append(out, int(i))
		}
	}
	return out
}

// Offer is the offering of row, with what it costs.
func (t *Trials) Offer(row int) schedule.Offer {
	r := &t.scores.Rows.Rows[row]
	return schedule.Offer{
		InstanceType: r.InstanceType.Name, Zone: r.Offering.Zone, CapacityType: r.Offering.CapacityType, ReservationID: r.reservation(),
		Cost: catalog.Price(t.scores.Cost[row]), Bias: catalog.Price(t.scores.Bias[row]),
	}
}

// Name is the claim's name in a question about row.
func (t *Trials) Name(row int) string { return t.claim.Name + " as " + t.scores.Rows.name(row) }

// Ask is the question about the node as each of rows, beside the named claims of the plan.
func (t *Trials) Ask(rows []int, beside []string) *LaunchInput {
	q := *t.whole
	q.Claims = make([]Claim, 0, len(rows)+len(beside))
	for i := range t.whole.Claims {
		if slices.Contains(beside, t.whole.Claims[i].Name) {
			q.Claims = append(q.Claims, t.whole.Claims[i])
		}
	}
	for _, row := range rows {
		q.Claims = append(q.Claims, t.as(row))
	}
	return &q
}

// Instead is the question about the plan with the node as row.
func (t *Trials) Instead(row int) *LaunchInput {
	q := *t.whole
	q.Claims = slices.Clone(t.whole.Claims)
	for i := range q.Claims {
		if q.Claims[i].Name == t.claim.Name {
			q.Claims[i] = t.as(row)
			q.Plan.AddedHourlyCost += q.Claims[i].HourlyCost - t.claim.HourlyCost
		}
	}
	return &q
}

// Spread are up to n rows that differ: of each zone and capacity type the cheapest, then
// the next.
func (t *Trials) Spread(n int) []int {
	groups := map[string][]int{}
	for _, row := range t.rows {
		o := &t.scores.Rows.Rows[row].Offering
		key := o.CapacityType + "/" + o.Zone
		groups[key] = append(groups[key], row)
	}
	keys := slices.Sorted(maps.Keys(groups))
	for _, key := range keys {
		slices.SortStableFunc(groups[key], func(a, b int) int { return cmp.Compare(t.scores.Cost[a], t.scores.Cost[b]) })
	}
	var out []int
	for i := 0; len(out) < n; i++ {
		more := false
		for _, key := range keys {
			if i < len(groups[key]) && len(out) < n {
				out, more = append(out, groups[key][i]), true
			}
		}
		if !more {
			break
		}
	}
	return out
}

// as is the claim of the node as row.
func (t *Trials) as(row int) Claim {
	r := &t.scores.Rows.Rows[row]
	c := t.claim
	c.Name = t.Name(row)
	c.InstanceType, c.Offering, c.DaemonOverhead = r.InstanceType, r.Offering, r.DaemonOverhead
	c.HourlyCost = t.scores.Cost[row]
	c.Commitment = ""
	if cover, ok := t.scores.Cover[row]; ok && cover.MicroUSD < c.HourlyCost && t.costs.Units(cover.Commitment) > 0 {
		c.HourlyCost, c.Commitment = cover.MicroUSD, cover.Commitment
	}
	if t.standIn && c.Offering.CapacityType != t.claim.Offering.CapacityType && c.HourlyCost > t.claim.HourlyCost {
		c.FallbackFrom = &Fallback{Pool: c.Pool, CapacityType: t.claim.Offering.CapacityType, Reason: "it would stand in for what is planned"}
	}
	c.Labels = maps.Clone(t.claim.Labels)
	maps.Copy(c.Labels, r.InstanceType.Labels)
	c.Labels[corev1.LabelInstanceTypeStable] = r.InstanceType.Name
	c.Labels[corev1.LabelTopologyZone] = r.Offering.Zone
	c.Labels[karpv1.CapacityTypeLabelKey] = r.Offering.CapacityType
	k, ok := t.kinds[r.Offering.CapacityType]
	if !ok {
		k = claimTypes{types: []PricedType{{Name: r.InstanceType.Name, Price: c.HourlyCost}}, count: 1, min: c.HourlyCost}
	}
	c.Types, c.TypesCount, c.MinPrice, c.MaxPrice = k.types, k.count, min(k.min, c.HourlyCost), max(k.max, c.HourlyCost)
	if it, ok := t.pool.Catalog.ByName(r.InstanceType.Name); ok {
		need := resources.List{corev1.ResourceCPU: t.node.Requests[corev1.ResourceCPU] + r.DaemonOverhead.CPU,
			corev1.ResourceMemory: t.node.Requests[corev1.ResourceMemory] + r.DaemonOverhead.Memory*mib}
		c.WasteRatio = waste(need, it.Allocatable)
	}
	return c
}
