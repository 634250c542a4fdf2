package snapshot

import (
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// applyOverlays gives each pool the catalogue that NodeOverlays make of its own.
func (b *builder) applyOverlays() {
	if len(b.objs.NodeOverlays) == 0 {
		return
	}
	var overlays []catalog.Overlay
	for _, o := range b.objs.NodeOverlays {
		set := requirements.Set{}
		valid := true
		for i, r := range o.Spec.Requirements {
			req, err := requirements.New(r.Key, r.Operator, r.Values...)
			if err != nil {
				b.problem("NodeOverlay", o, "spec.requirements", "[%d]: %v", i, err)
				valid = false
				continue
			}
			set.Add(req)
		}
		capacity, err := resources.FromQuantities(o.Spec.Capacity)
		if err != nil {
			b.problem("NodeOverlay", o, "spec.capacity", "%v", err)
			valid = false
		}
		if !valid {
			continue
		}
		c := catalog.Overlay{Name: o.Name, Requirements: set, Capacity: capacity}
		if o.Spec.Weight != nil {
			c.Weight = *o.Spec.Weight
		}
		if o.Spec.Price != nil {
			c.Price = *o.Spec.Price
		}
		if o.Spec.PriceAdjustment != nil {
			c.PriceAdjustment = *o.Spec.PriceAdjustment
		}
		overlays = append(overlays, c)
	}
	seen := map[string]bool{}
	for _, p := range b.snap.Pools {
		if p.Catalog == nil {
			continue
		}
		known := b.memo.overlays[p.Name]
		if known == nil || known.pool != p.Object || known.from != p.Catalog || !slices.Equal(known.overlays, b.objs.NodeOverlays) {
			known = &overlaid{pool: p.Object, from: p.Catalog, overlays: b.objs.NodeOverlays}
			known.to, known.problems = catalog.ApplyOverlays(p.Catalog, p.Name, p.Requirements, overlays)
		}
		known.build = b.memo.build
		if b.memo.overlays != nil {
			b.memo.overlays[p.Name] = known
		}
		p.Catalog = known.to
		for _, pr := range known.problems {
			if text := pr.Error(); !seen[text] {
				seen[text] = true
				b.problems = append(b.problems, Problem{Kind: "NodeOverlay", Name: pr.Overlay, Field: "spec", Message: pr.Message})
			}
		}
	}
}
