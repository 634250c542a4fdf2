package gate

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Allowed is what node n of the plan may be launched as: the requirements of its NodeClaim,
// and the offerings that hold its pods, in order of cost + bias, the planned one included.
// Policies allow all of them: no offering that the requirements allow and the NodePool's
// catalogue has is excluded, denied, of a dropped type, or dearer than they allow. A type
// that can be had in a forbidden way as well as in an allowed one goes before the choice of
// zones and capacity types gets smaller.
//
// Where there are launch policies, only offerings that they were asked about are left: those
// of the cheapest types.
//
// It may be called at the same time for several nodes, which share what is returned: it must
// not be changed.
func (r *Result) Allowed(n *schedule.NewNode) (requirements.Set, []schedule.Offer) {
	limit := r.Launch.Restricted[n.Name]
	key := allowedKey{n.Kind(), fmt.Sprint(limit.DropTypes, limit.HasMax, limit.MaxMicroUSD)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.allowed[key]; ok {
		return a.set, a.offers
	}
	set, offers := r.allow(n, limit)
	if r.allowed == nil {
		r.allowed = map[allowedKey]allowed{}
	}
	r.allowed[key] = allowed{set, offers}
	return set, offers
}

type allowedKey struct {
	kind  any
	limit string
}

type allowed struct {
	set    requirements.Set
	offers []schedule.Offer
}

func (r *Result) allow(n *schedule.NewNode, limit policy.ClaimVerdict) (requirements.Set, []schedule.Offer) {
	set, offers := n.Requirements(), n.Alternatives()
	if r.Costs == nil && len(limit.DropTypes) == 0 && !limit.HasMax {
		return set, offers
	}
	var pool *snapshot.Pool
	for _, p := range r.Snapshot.Pools {
		if p.Name == n.Pool {
			pool = p
		}
	}
	offers = slices.DeleteFunc(slices.Clone(offers), func(o schedule.Offer) bool { return !r.permits(n, limit, o) })
	forbidden := r.forbidden(pool, n, limit, offers)

	// Each step leaves less choice; the last leaves the planned offering. Policies come
	// before minValues, which a step that is not the last must meet.
	steps := []func(schedule.Offer) bool{
		func(schedule.Offer) bool { return true },
		func(o schedule.Offer) bool { return o.CapacityType == n.Planned.CapacityType },
		func(o schedule.Offer) bool { return o.Zone == n.Planned.Zone },
		func(o schedule.Offer) bool {
			return o.CapacityType == n.Planned.CapacityType && o.Zone == n.Planned.Zone
		},
		func(o schedule.Offer) bool { return sameOffering(o, n.Planned) },
	}
	for i, keep := range steps {
		some := slices.DeleteFunc(slices.Clone(offers), func(o schedule.Offer) bool { return !keep(o) })
		zones, kinds := map[string]bool{}, map[string]bool{}
		for _, o := range some {
			zones[o.Zone], kinds[o.CapacityType] = true, true
		}
		bad := map[string]bool{}
		for _, o := range forbidden {
			if zones[o.Zone] && kinds[o.CapacityType] {
				bad[o.InstanceType] = true
			}
		}
		last := i == len(steps)-1
		if bad[n.Planned.InstanceType] && !last {
			continue
		}
		if !last {
			some = slices.DeleteFunc(some, func(o schedule.Offer) bool { return bad[o.InstanceType] })
		}
		if last || meetsMinValues(set, pool, some) {
			offers = some
			break
		}
	}
	return narrow(set, offers), offers
}

// permits says whether node n, which l restricts, may become o.
func (r *Result) permits(n *schedule.NewNode, l policy.ClaimVerdict, o schedule.Offer) bool {
	if sameOffering(o, n.Planned) {
		return true
	}
	if r.vetted != nil && !r.vetted[n.Pool][identity(o)] {
		return false
	}
	return !slices.Contains(l.DropTypes, o.InstanceType) && (!l.HasMax || int64(o.Cost) <= l.MaxMicroUSD)
}

// forbidden are the offerings of the types of offers that policies rule out.
func (r *Result) forbidden(pool *snapshot.Pool, n *schedule.NewNode, l policy.ClaimVerdict, offers []schedule.Offer) []schedule.Offer {
	if pool == nil || pool.Catalog == nil {
		return nil
	}
	var out []schedule.Offer
	seen := map[string]bool{}
	for _, o := range offers {
		it, ok := pool.Catalog.ByName(o.InstanceType)
		if !ok || seen[it.Name] {
			continue
		}
		seen[it.Name] = true
		for j := range it.Offerings {
			of := &it.Offerings[j]
			cost, _, deny := r.Costs.Cost(pool.Name, it, j)
			o := schedule.Offer{InstanceType: it.Name, Zone: of.Zone, CapacityType: of.CapacityType, ReservationID: of.ReservationID, Cost: cost}
			if deny != "" || !r.permits(n, l, o) {
				out = append(out, o)
			}
		}
	}
	return out
}

// sameOffering says whether two offers are of one offering; a commitment may give it another
// cost.
func sameOffering(a, b schedule.Offer) bool {
	return identity(a) == identity(b)
}

// identity is o without what it costs.
func identity(o schedule.Offer) schedule.Offer {
	o.Cost, o.Bias = 0, 0
	return o
}

// ways are the labels in which offers differ.
func ways() map[string]func(schedule.Offer) string {
	return map[string]func(schedule.Offer) string{
		corev1.LabelInstanceTypeStable: func(o schedule.Offer) string { return o.InstanceType },
		corev1.LabelTopologyZone:       func(o schedule.Offer) string { return o.Zone },
		karpv1.CapacityTypeLabelKey:    func(o schedule.Offer) string { return o.CapacityType },
	}
}

// narrow is set with the instance types, zones and capacity types of offers.
func narrow(set requirements.Set, offers []schedule.Offer) requirements.Set {
	out := set.Clone()
	for key, of := range ways() {
		values := map[string]bool{}
		for _, o := range offers {
			values[of(o)] = true
		}
		least := out.Get(key).MinValues()
		r := requirements.In(key, slices.Sorted(maps.Keys(values))...)
		if out.Has(key) {
			r = out[key].Intersect(r)
		}
		out[key] = r.WithMinValues(least)
	}
	return out
}

// meetsMinValues says whether offers of pool have as many values as set asks for.
func meetsMinValues(set requirements.Set, pool *snapshot.Pool, offers []schedule.Offer) bool {
	own := ways()
	for _, key := range set.Keys() {
		least := set[key].MinValues()
		if least == 0 {
			continue
		}
		values := map[string]bool{}
		for _, o := range offers {
			if of := own[key]; of != nil {
				values[of(o)] = true
			} else if it, ok := pool.Catalog.ByName(o.InstanceType); ok {
				if v, ok := it.Requirements.Get(key).IsSingle(); ok {
					values[v] = true
				}
			}
		}
		if len(values) < least {
			return false
		}
	}
	return true
}
