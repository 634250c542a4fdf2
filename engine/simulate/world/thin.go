package world

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// A plan for few pods is mostly a matter of how many offerings there are to choose from. Where
// it can be told that some of them will never be chosen, the world plans without them: that
// makes the same plans, and many more of them a second.

// thinKey names a catalogue as a NodePool sees it.
type thinKey struct {
	pool *karpv1.NodePool
	from *catalog.Catalog
}

// offered is what a NodePool is planned with of what is sold.
func (w *World) offered(np *karpv1.NodePool, c *catalog.Catalog) *catalog.Catalog {
	if !w.alike(np) {
		return c
	}
	key := thinKey{np, c}
	if w.thinned == nil || len(w.thinned) > 64 {
		w.thinned = map[thinKey]*catalog.Catalog{}
	}
	if w.thinned[key] == nil {
		w.thinned[key] = thin(np, c, !w.choosy)
	}
	return w.thinned[key]
}

// alike reports whether zones are alike to everybody: no node is there that nobody bought
// here, nothing asks for a zone or spreads over them, and no zone runs out of capacity or
// changes its prices by itself.
func (w *World) alike(np *karpv1.NodePool) bool {
	ref := np.Spec.Template.Spec.NodeClassRef
	// What policies and overlays look at is not known.
	if ref == nil || w.adopted || w.noise != nil || len(w.opts.Policies) > 0 || len(w.rest.NodeOverlays) > 0 {
		return false
	}
	for _, np := range w.rest.NodePools {
		for _, r := range np.Spec.Template.Spec.Requirements {
			w.zonal = w.zonal || slices.Contains(zoneKeys[:], r.Key)
		}
	}
	for _, s := range w.opts.DefaultSpread {
		w.zonal = w.zonal || slices.Contains(zoneKeys[:], s.TopologyKey)
	}
	if w.zonal {
		return false
	}
	c, err := w.store.NodeClass(w.context(), ref.Name)
	return err == nil && len(c.Spec.Capacity)+len(c.Spec.Failures)+len(c.Spec.Prices) == 0
}

// notice looks at what a snapshot's pods look at. It reports whether that is more than was
// known.
func (w *World) notice(snap *snapshot.Snapshot) bool {
	zonal, choosy := w.zonal, w.choosy
	for key := range snap.LabelKeys {
		switch {
		case slices.Contains(zoneKeys[:], key):
			zonal = true
		case key != corev1.LabelHostname && key != karpv1.NodePoolLabelKey && key != requirements.FieldName:
			choosy = true
		}
	}
	more := zonal != w.zonal || choosy != w.choosy
	w.zonal, w.choosy = zonal, choosy
	if more {
		w.thinned = nil
	}
	return more
}

// zoneKeys are labels that tell zones apart.
var zoneKeys = [...]string{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone, "topology.k8s.aws/zone-id"}

// thin is what of c a NodePool may buy, with one zone for each instance type and capacity
// type: the cheapest, and the first of those.
//
// If types are alike to pods but for what they hold, types that another one beats are left out
// too: that holds no less and costs no more. They would not be chosen. It takes a NodePool
// without limits, which may allow the smaller of two types alone, without minValues, and
// without spot capacity, which is the better for more types to choose from.
func thin(np *karpv1.NodePool, c *catalog.Catalog, alike bool) *catalog.Catalog {
	reqs := requirements.FromLabels(np.Spec.Template.Labels)
	for _, r := range np.Spec.Template.Spec.Requirements {
		req, err := requirements.New(r.Key, r.Operator, r.Values...)
		if err != nil {
			return c
		}
		reqs.Add(req)
		alike = alike && r.MinValues == nil
	}
	capacity := reqs.Get(karpv1.CapacityTypeLabelKey)
	alike = alike && np.Spec.Limits == nil && !capacity.Has(catalog.Spot) && !capacity.Has(catalog.Reserved)
	var kept []catalog.InstanceType
	for _, t := range c.Types() {
		if t.Requirements.Intersects(reqs) != nil {
			continue
		}
		t.Offerings = oneZone(t.Offerings, capacity)
		if len(t.Offerings) > 0 {
			kept = append(kept, t)
		}
	}
	if alike {
		kept = unbeaten(kept)
	}
	out, errs := catalog.New(kept)
	if len(errs) > 0 || out.Len() == 0 {
		return c // types that were in a catalogue have no faults; none at all is for others to explain
	}
	return out
}

// oneZone are offerings with one for each capacity type, and all reserved ones.
func oneZone(in []catalog.Offering, capacity requirements.Requirement) []catalog.Offering {
	sorted := slices.DeleteFunc(slices.Clone(in), func(o catalog.Offering) bool { return o.Unavailable || !capacity.Has(o.CapacityType) })
	slices.SortStableFunc(sorted, func(a, b catalog.Offering) int {
		return cmp.Or(strings.Compare(a.CapacityType, b.CapacityType), cmp.Compare(a.Price, b.Price))
	})
	out := sorted[:0]
	for _, o := range sorted {
		if n := len(out); n > 0 && out[n-1].CapacityType == o.CapacityType && o.ReservationID == "" && out[n-1].ReservationID == "" {
			continue
		}
		out = append(out, o)
	}
	return out
}

// unbeaten are the types that no other beats.
func unbeaten(types []catalog.InstanceType) []catalog.InstanceType {
	price := func(t *catalog.InstanceType) catalog.Price { return t.Offerings[0].Price }
	order := slices.Clone(types)
	slices.SortStableFunc(order, func(a, b catalog.InstanceType) int {
		return cmp.Or(cmp.Compare(price(&a), price(&b)), -cmp.Compare(a.Allocatable[corev1.ResourceMemory], b.Allocatable[corev1.ResourceMemory]), strings.Compare(a.Name, b.Name))
	})
	holds := func(a, b resources.List) bool {
		for name, v := range b {
			if a[name] < v {
				return false
			}
		}
		return true
	}
	var out []catalog.InstanceType
	for _, t := range order {
		beaten := slices.ContainsFunc(out, func(o catalog.InstanceType) bool {
			if price(&o) > price(&t) || !holds(o.Allocatable, t.Allocatable) || len(t.AttachLimits) != len(o.AttachLimits) {
				return false
			}
			for driver, n := range t.AttachLimits {
				if have, ok := o.AttachLimits[driver]; !ok || have < n {
					return false
				}
			}
			return true
		})
		if !beaten {
			out = append(out, t)
		}
	}
	return out
}
