package fleet

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/test/peers/bound"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// Bound is the price per hour, in US dollars, below which no nodes of the pools hold all
// pods, were they free to move. Besides requests it knows architectures. Everything else,
// pods that must stay where they are included, could only raise it; teams do not even do
// that, since a relaxation buys nodes in fractions and every team may buy the same ones.
func (f *Fleet) Bound() float64 {
	dims := []string{string(corev1.ResourceCPU), string(corev1.ResourceMemory), string(corev1.ResourcePods), "amd64", "arm64"}
	byKey := map[string]*bound.Class{}
	for _, p := range f.Pods {
		a := f.apps[p.Labels[AppLabel]]
		c := bound.Class{Count: 1}
		for _, d := range dims {
			need := a.requests[corev1.ResourceName(d)]
			if d == a.arch {
				need = 1
			}
			c.Need = append(c.Need, need)
		}
		key := fmt.Sprint(c.Need)
		if have := byKey[key]; have != nil {
			have.Count++
			continue
		}
		byKey[key] = &c
	}
	classes := make([]bound.Class, 0, len(byKey))
	for _, key := range sorted(byKey) {
		classes = append(classes, *byKey[key])
	}
	var nodes []bound.Node
	for _, it := range f.Types {
		price, ok := f.cheapest(it)
		if !ok {
			continue
		}
		n := bound.Node{Price: price}
		archs := it.Requirements[corev1.LabelArchStable].Values()
		for _, d := range dims {
			room := it.Allocatable[corev1.ResourceName(d)]
			if slices.Contains(archs, d) {
				// Every pod of the architecture needs one, so this is as good as no bound.
				room = it.Allocatable[corev1.ResourcePods]
			}
			n.Room = append(n.Room, room)
		}
		nodes = append(nodes, n)
	}
	return bound.Solve(nodes, classes).Bound
}

// cheapest is the lowest price at which some pool may buy the type.
func (f *Fleet) cheapest(it *catalog.InstanceType) (dollars float64, ok bool) {
	for _, p := range f.Pools {
		w := work.Work{Pool: p}
		for i := range it.Offerings {
			if o := &it.Offerings[i]; w.Admits(it, o) && (!ok || o.Price.Dollars() < dollars) {
				dollars, ok = o.Price.Dollars(), true
			}
		}
	}
	return dollars, ok
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
