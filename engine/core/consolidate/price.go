package consolidate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// price is what a node costs per hour.
type price struct{ cost, bias catalog.Price }

type prices struct {
	pools map[string]*snapshot.Pool
	costs schedule.Costs
}

func priceList(snap *snapshot.Snapshot, costs schedule.Costs) prices {
	p := prices{pools: make(map[string]*snapshot.Pool, len(snap.Pools)), costs: costs}
	for _, pool := range snap.Pools {
		p.pools[pool.Name] = pool
	}
	return p
}

// of is what a running node costs; ok is false if its offering is not known. An offering that
// cannot be bought now, or that policies exclude, still costs what it costs. A node that a
// commitment covers costs what it does under it, since the commitment is paid for anyway.
func (p prices) of(c *candidate.Candidate) (price, bool) {
	pool := p.pools[c.Pool]
	if pool == nil || pool.Catalog == nil {
		return price{}, false
	}
	it, ok := pool.Catalog.ByName(c.InstanceType)
	if !ok {
		return price{}, false
	}
	i := slices.IndexFunc(it.Offerings, func(o catalog.Offering) bool {
		return o.Zone == c.Zone && o.CapacityType == c.CapacityType && o.ReservationID == c.ReservationID
	})
	if i < 0 {
		return price{}, false
	}
	out := price{cost: it.Offerings[i].Price}
	if p.costs != nil {
		out.cost, out.bias, _ = p.costs.Cost(c.Pool, it, i)
		if _, cost, ok := p.costs.Cover(c.Pool, it, i); ok {
			out.cost = cost
		}
	}
	return out, true
}

// choices counts what a new node may be of at a cost of most.
func choices(n *schedule.NewNode, most catalog.Price) map[string]int {
	values := map[string]map[string]bool{corev1.LabelInstanceTypeStable: {}, corev1.LabelTopologyZone: {}, karpv1.CapacityTypeLabelKey: {}}
	for _, o := range n.Alternatives() {
		if o.Cost <= most {
			values[corev1.LabelInstanceTypeStable][o.InstanceType] = true
			values[corev1.LabelTopologyZone][o.Zone] = true
			values[karpv1.CapacityTypeLabelKey][o.CapacityType] = true
		}
	}
	out := map[string]int{}
	for key, v := range values {
		out[key] = len(v)
	}
	return out
}

// keepsMinValues reports whether a new node at a cost of most still has the instance types,
// zones and capacity types to choose from that its pool asks for.
func (p prices) keepsMinValues(n *schedule.NewNode, most catalog.Price) bool {
	pool := p.pools[n.Pool]
	if n.MinValuesRelaxed || pool == nil {
		return true
	}
	var have map[string]int
	want := pool.Requirements // no one else sets minValues
	for key := range want {
		least := want[key].MinValues()
		if least <= 1 {
			continue
		}
		if have == nil {
			have = choices(n, most)
		}
		if k, ok := have[key]; ok && k < least {
			return false
		}
	}
	return true
}
