package consolidate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
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

// narrow keeps of offers those that cost no more than most, and of set what leaves no other
// choice. A claim chooses types, zones and capacity types one by one, so a type is kept only
// if it is cheap enough in every zone that is; if the planned type is not, the zones are those
// in which it is.
func narrow(set requirements.Set, offers []schedule.Offer, planned schedule.Offer, most catalog.Price) (requirements.Set, []schedule.Offer) {
	type place struct{ zone, capacityType string }
	dear := func(o schedule.Offer) bool { return o.Cost > most }
	places := map[place]bool{}
	for _, o := range offers {
		if o.InstanceType == planned.InstanceType && !dear(o) {
			places[place{o.Zone, o.CapacityType}] = true
		}
	}
	bad := map[string]bool{}
	zones, capacity := map[string]bool{}, map[string]bool{}
	for p := range places {
		zones[p.zone], capacity[p.capacityType] = true, true
	}
	for _, o := range offers {
		if zones[o.Zone] && capacity[o.CapacityType] && dear(o) && o.InstanceType != planned.InstanceType {
			bad[o.InstanceType] = true
		}
	}
	for _, o := range offers { // the planned type is dear in some pair of them: only the planned one is left
		if o.InstanceType == planned.InstanceType && zones[o.Zone] && capacity[o.CapacityType] && dear(o) {
			zones, capacity = map[string]bool{planned.Zone: true}, map[string]bool{planned.CapacityType: true}
			bad = map[string]bool{}
			for _, o := range offers {
				if o.Zone == planned.Zone && o.CapacityType == planned.CapacityType && dear(o) {
					bad[o.InstanceType] = true
				}
			}
			break
		}
	}
	var kept []schedule.Offer
	types := map[string]bool{}
	for _, o := range offers {
		if zones[o.Zone] && capacity[o.CapacityType] && !bad[o.InstanceType] && !dear(o) {
			kept = append(kept, o)
			types[o.InstanceType] = true
		}
	}
	if len(kept) == len(offers) {
		return set, offers
	}
	out := set.Clone()
	keep := func(key string, values map[string]bool) {
		n := out.Get(key).MinValues()
		r := requirements.In(key, sorted(values)...)
		if out.Has(key) {
			r = out[key].Intersect(r)
		}
		out[key] = r.WithMinValues(min(n, len(values)))
	}
	keep(corev1.LabelInstanceTypeStable, types)
	keep(corev1.LabelTopologyZone, zones)
	keep(karpv1.CapacityTypeLabelKey, capacity)
	return out, kept
}

func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// typesBelow is the number of instance types that a new node may be of at a cost of most.
func typesBelow(n *schedule.NewNode, most catalog.Price) int {
	types := map[string]bool{}
	for _, o := range n.Alternatives() {
		if o.Cost <= most {
			types[o.InstanceType] = true
		}
	}
	return len(types)
}
