package simulate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// emptyPools finds the pools that could buy but for whose requirements the catalogue has
// nothing.
func emptyPools(snap *snapshot.Snapshot) []snapshot.Problem {
	var out []snapshot.Problem
	for _, p := range snap.Pools {
		if p.Unusable != "" {
			continue
		}
		if key, empty := nothingFor(p); empty {
			problem := snapshot.Problem{Kind: "NodePool", Name: p.Name, Field: "spec.template.spec.requirements",
				Message: "no instance type of the catalogue meets them all: this NodePool buys nothing"}
			if key != "" {
				problem.Field += "[" + key + "]"
				problem.Message = "no instance type of the catalogue has " + p.Requirements[key].Constraint() + ": this NodePool buys nothing"
			}
			out = append(out, problem)
		}
	}
	return out
}

// nothingFor reports whether no type of p's catalogue meets p's requirements, with the
// first key that none meets by itself, if there is one.
func nothingFor(p *snapshot.Pool) (key string, empty bool) {
	types := p.Catalog.Types()
	known := map[string]bool{}
	for i := range types {
		for k := range types[i].Requirements {
			known[k] = true
		}
	}
	keys := slices.DeleteFunc(p.Requirements.Keys(), func(k string) bool {
		return !known[k] && k != corev1.LabelTopologyZone && k != karpv1.CapacityTypeLabelKey
	})
	met := map[string]bool{}
	for i := range types {
		all := true
		for _, k := range keys {
			if meets(&types[i], p.Requirements[k]) {
				met[k] = true
			} else {
				all = false
			}
		}
		if all {
			return "", false
		}
	}
	i := slices.IndexFunc(keys, func(k string) bool { return !met[k] })
	if i < 0 {
		return "", true
	}
	return keys[i], true
}

func meets(t *catalog.InstanceType, r requirements.Requirement) bool {
	offered := func(value func(*catalog.Offering) string) bool {
		return slices.ContainsFunc(t.Offerings, func(o catalog.Offering) bool { return !o.Unavailable && r.Has(value(&o)) })
	}
	switch key := r.Key(); {
	case key == corev1.LabelTopologyZone:
		return offered(func(o *catalog.Offering) string { return o.Zone })
	case key == karpv1.CapacityTypeLabelKey:
		return offered(func(o *catalog.Offering) string { return o.CapacityType })
	case !t.Requirements.Has(key):
		return r.AllowsAbsent()
	default:
		return t.Requirements[key].Intersects(r)
	}
}
