package world

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// thin is c with one zone for each instance type and capacity type: the cheapest, where all
// zones are alike but for that. Plans are the same but for the names of zones, which they
// choose in this order anyway, and come a good deal faster.
func thin(c *catalog.Catalog) *catalog.Catalog {
	types := slices.Clone(c.Types())
	for i := range types {
		t := &types[i]
		sorted := slices.Clone(t.Offerings)
		slices.SortStableFunc(sorted, func(a, b catalog.Offering) int {
			return cmp.Or(cmp.Compare(a.CapacityType, b.CapacityType), cmp.Compare(a.Price, b.Price))
		})
		kept := sorted[:0]
		for _, o := range sorted {
			if o.Unavailable {
				continue
			}
			if n := len(kept); n > 0 && kept[n-1].CapacityType == o.CapacityType && o.ReservationID == "" && kept[n-1].ReservationID == "" {
				continue
			}
			kept = append(kept, o)
		}
		if len(kept) > 0 {
			t.Offerings = kept
		}
	}
	out, errs := catalog.New(types)
	if len(errs) > 0 {
		return c // types that were in a catalogue have no faults
	}
	return out
}

// alike reports whether zones are alike to everybody: no node is there that nobody bought
// here, nothing asks for a zone or spreads over them, and no zone runs out of capacity or
// changes its prices by itself.
func (w *World) alike(class string) bool {
	if w.adopted || w.noise != nil || w.zonal {
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
	// What policies and overlays look at is not known.
	if w.zonal || len(w.opts.Policies) > 0 || len(w.rest.NodeOverlays) > 0 {
		return false
	}
	c, err := w.store.NodeClass(w.context(), class)
	if err != nil || len(c.Spec.Capacity)+len(c.Spec.Failures) > 0 {
		return false
	}
	for i := range c.Spec.Prices {
		if len(c.Spec.Prices[i].Zones) > 0 {
			return false
		}
	}
	return true
}

// zoneKeys are labels that tell zones apart.
var zoneKeys = [...]string{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone, "topology.k8s.aws/zone-id"}

// offered is what a NodePool is planned with of what is sold.
func (w *World) offered(np *karpv1.NodePool, c *catalog.Catalog) *catalog.Catalog {
	ref := np.Spec.Template.Spec.NodeClassRef
	if ref == nil || !w.alike(ref.Name) {
		return c
	}
	if w.thinned == nil || len(w.thinned) > 16 {
		w.thinned = map[*catalog.Catalog]*catalog.Catalog{}
	}
	if w.thinned[c] == nil {
		w.thinned[c] = thin(c)
	}
	return w.thinned[c]
}
