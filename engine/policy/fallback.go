package policy

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// fallbacks finds what the nodes of a plan were not bought as though it comes first: a
// NodePool of more weight, or a cheaper capacity type of the same NodePool. Offerings that
// the rules of pods or policies exclude do not come first.
type fallbacks struct {
	snap   *snapshot.Snapshot
	costs  *Costs
	pools  map[string]*snapshot.Pool
	at     func(snapshot.PodKey) (int, bool)
	usage  map[string]resources.List // of each NodePool, with the plan
	units  map[string]int            // of reservations, used by the plan
	lacked map[string][]lacked
}

// Fallbacks say what nodes of plan, made with costs, were not bought as though it comes first,
// by the name of the node. Nodes that are the first choice are not in it. costs may be nil.
func Fallbacks(snap *snapshot.Snapshot, plan *schedule.Plan, costs *Costs) map[string]Fallback {
	f := newFallbacks(snap, plan, costs)
	out := map[string]Fallback{}
	for i := range plan.NewNodes {
		if first := f.of(&plan.NewNodes[i]); first != nil {
			out[plan.NewNodes[i].Name] = *first
		}
	}
	return out
}

// lacked is an offering that cannot be had now.
type lacked struct {
	it     *catalog.InstanceType
	index  int
	reason string
}

func newFallbacks(snap *snapshot.Snapshot, plan *schedule.Plan, costs *Costs) *fallbacks {
	f := &fallbacks{snap: snap, costs: costs, pools: map[string]*snapshot.Pool{}, at: podIndex(snap), usage: map[string]resources.List{}, units: map[string]int{}, lacked: map[string][]lacked{}}
	for _, p := range snap.Pools {
		f.pools[p.Name] = p
		f.usage[p.Name] = p.Usage.Clone()
	}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		if n.Planned.ReservationID != "" {
			f.units[n.Planned.ReservationID]++
		}
		p := f.pools[n.Pool]
		if p == nil || p.Catalog == nil {
			continue
		}
		if it, ok := p.Catalog.ByName(n.Planned.InstanceType); ok {
			used := f.usage[n.Pool]
			if used == nil {
				used = resources.List{}
			}
			used.AddTo(it.Capacity)
			used[snapshot.NodesResource]++
			f.usage[n.Pool] = used
		}
	}
	return f
}

// of is what comes before node n; nil if nothing does.
func (f *fallbacks) of(n *schedule.NewNode) *Fallback {
	p := f.pools[n.Pool]
	if p == nil || p.Catalog == nil {
		return nil
	}
	classes := f.classes(n.Pods)
	for _, q := range f.snap.Pools { // by weight
		if q.Weight <= p.Weight {
			break
		}
		if reason := f.full(q, n, classes); reason != "" {
			return &Fallback{Pool: q.Name, Reason: reason}
		}
	}
	return f.cheaper(p, n, classes)
}

func (f *fallbacks) classes(pods []snapshot.PodKey) []*snapshot.Class {
	var out []*snapshot.Class
	seen := map[int32]bool{}
	for _, k := range pods {
		if i, ok := f.at(k); ok && !seen[f.snap.Pods[i].Class] {
			seen[f.snap.Pods[i].Class] = true
			out = append(out, f.snap.Classes[f.snap.Pods[i].Class])
		}
	}
	return out
}

// accepts says whether the pods of all classes may run where the labels are those of set.
func accepts(classes []*snapshot.Class, set requirements.Set) bool {
	for _, c := range classes {
		if len(c.Terms) > 0 && !slices.ContainsFunc(c.Terms, func(t requirements.Set) bool { return set.Intersects(t) == nil }) {
			return false
		}
	}
	return true
}

// full says why pool q, which would do for n, could not buy it; "" if it would not do, or
// for another cause.
func (f *fallbacks) full(q *snapshot.Pool, n *schedule.NewNode, classes []*snapshot.Class) string {
	if q.Catalog == nil {
		return ""
	}
	for _, c := range classes {
		if snapshot.Untolerated(c.Tolerations, q.Taints) != nil {
			return ""
		}
	}
	if !accepts(classes, q.Requirements) {
		return ""
	}
	// The types that would do, the smallest first, tell whether it is a limit that is in the
	// way or capacity.
	would, limited, key := false, true, ""
	types := q.Catalog.Types()
	for i := range types {
		it := &types[i]
		if !n.Requests.FitsIn(it.Allocatable) || q.Requirements.Intersects(it.Requirements) != nil || !accepts(classes, it.Requirements) {
			continue
		}
		short := f.over(q, it)
		for j := range it.Offerings {
			o := &it.Offerings[j]
			if !q.Requirements.Get(corev1.LabelTopologyZone).Has(o.Zone) || !q.Requirements.Get(karpv1.CapacityTypeLabelKey).Has(o.CapacityType) ||
				!accepts(classes, placed(it, o)) {
				continue
			}
			if _, _, deny := f.costs.Cost(q.Name, it, j); deny != "" {
				continue
			}
			would = true
			if short != "" {
				key = short
				continue
			}
			limited = false
			if !f.gone(o) && q.Unusable == "" {
				return "" // it could have been bought: something else speaks for n
			}
		}
	}
	switch {
	case !would:
		return ""
	case q.Unusable != "":
		return q.Unusable
	case limited:
		return fmt.Sprintf("its limit of %s is reached", key)
	}
	return "it has no capacity"
}

// over is the resource of which it would take q over its limit; "" is none.
func (f *fallbacks) over(q *snapshot.Pool, it *catalog.InstanceType) string {
	for _, name := range q.Limits.Names() {
		add := it.Capacity[name]
		if name == snapshot.NodesResource {
			add = 1
		}
		if f.usage[q.Name][name]+add > q.Limits[name] {
			return string(name)
		}
	}
	return ""
}

// gone says whether an offering cannot be had: it has no capacity, or its reservation is used
// up.
func (f *fallbacks) gone(o *catalog.Offering) bool {
	return o.Unavailable || o.ReservationID != "" && f.units[o.ReservationID] >= o.ReservationCapacity
}

// placed are the labels of a node of it that o fixes.
func placed(it *catalog.InstanceType, o *catalog.Offering) requirements.Set {
	set := it.Requirements.Clone()
	set[corev1.LabelTopologyZone] = requirements.In(corev1.LabelTopologyZone, o.Zone)
	set[karpv1.CapacityTypeLabelKey] = requirements.In(karpv1.CapacityTypeLabelKey, o.CapacityType)
	return set
}

// missing are the offerings of p that cannot be had now.
func (f *fallbacks) missing(p *snapshot.Pool) []lacked {
	if list, ok := f.lacked[p.Name]; ok {
		return list
	}
	list := []lacked{}
	types := p.Catalog.Types()
	zones, kinds := p.Requirements.Get(corev1.LabelTopologyZone), p.Requirements.Get(karpv1.CapacityTypeLabelKey)
	for i := range types {
		it := &types[i]
		for j := range it.Offerings {
			o := &it.Offerings[j]
			if !f.gone(o) || !zones.Has(o.Zone) || !kinds.Has(o.CapacityType) || p.Requirements.Intersects(it.Requirements) != nil {
				continue
			}
			l := lacked{it: it, index: j, reason: "no capacity of " + it.Name + " in " + o.Zone}
			if o.ReservationID != "" {
				l.reason = "reservation " + o.ReservationID + " is used up"
			}
			list = append(list, l)
		}
	}
	f.lacked[p.Name] = list
	return list
}

// cheaper is a capacity type of p that would have been cheaper for n but cannot be had.
func (f *fallbacks) cheaper(p *snapshot.Pool, n *schedule.NewNode, classes []*snapshot.Class) *Fallback {
	planned := n.Planned.Cost + n.Planned.Bias
	best, rank := (*Fallback)(nil), planned
	kinds := map[string]bool{} // whether the pods may run there at all
	for _, l := range f.missing(p) {
		o := &l.it.Offerings[l.index]
		if o.CapacityType == n.Planned.CapacityType && o.ReservationID == n.Planned.ReservationID || !n.Requests.FitsIn(l.it.Allocatable) {
			continue
		}
		cost, bias, deny := f.costs.Cost(p.Name, l.it, l.index)
		if deny != "" || cost+bias >= rank {
			continue
		}
		may, ok := kinds[o.CapacityType]
		if !ok {
			may = accepts(classes, requirements.NewSet(requirements.In(karpv1.CapacityTypeLabelKey, o.CapacityType)))
			kinds[o.CapacityType] = may
		}
		if !may || !accepts(classes, placed(l.it, o)) {
			continue
		}
		best, rank = &Fallback{Pool: p.Name, CapacityType: o.CapacityType, Reason: l.reason}, cost+bias
	}
	return best
}
