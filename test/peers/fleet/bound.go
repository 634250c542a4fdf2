package fleet

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/test/peers/bound"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// Bound is the price per hour, in US dollars, below which no nodes of the pools hold all
// pods, were they free to move. It knows architectures, teams and which pods need a node
// each; zones, spread, and pods that must stay where they are could only raise it.
func (f *Fleet) Bound() float64 {
	byKey := map[string]*bound.Class{}
	dims := []string{string(corev1.ResourceCPU), string(corev1.ResourceMemory), string(corev1.ResourcePods), "amd64", "arm64"}
	for _, p := range f.Pools {
		if t := p.Spec.Template.Labels[TeamLabel]; t != "" {
			dims = append(dims, "team: "+t)
		}
	}
	dims = append(dims, "no team")
	for _, name := range sorted(f.apps) {
		if f.apps[name].apart {
			dims = append(dims, "apart: "+name)
		}
	}
	for _, p := range f.Pods {
		a := f.apps[p.Labels[AppLabel]]
		need := map[string]int64{}
		for r, v := range a.requests {
			need[string(r)] = v
		}
		if a.arch != "" {
			need[a.arch] = 1
		}
		need["no team"] = 1
		if a.team != "" {
			delete(need, "no team")
			need["team: "+a.team] = 1
		}
		if a.apart {
			need["apart: "+a.name] = 1
		}
		c := bound.Class{Count: 1}
		for _, d := range dims {
			c.Need = append(c.Need, need[d])
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
	for _, p := range f.Pools {
		w := work.Work{Pool: p}
		for _, it := range f.Types {
			price, ok := 0.0, false
			for i := range it.Offerings {
				if o := &it.Offerings[i]; w.Admits(it, o) && (!ok || o.Price.Dollars() < price) {
					price, ok = o.Price.Dollars(), true
				}
			}
			if !ok {
				continue
			}
			// Of a mark every pod needs one, so a node with room for all pods has it.
			many := it.Allocatable[corev1.ResourcePods]
			room := map[string]int64{"no team": many}
			if t := p.Spec.Template.Labels[TeamLabel]; t != "" {
				room = map[string]int64{"team: " + t: many}
			}
			for r, v := range it.Allocatable {
				room[string(r)] = v
			}
			if arch, ok := it.Requirements[corev1.LabelArchStable]; ok {
				for _, v := range arch.Values() {
					room[v] = many
				}
			}
			n := bound.Node{Price: price}
			for _, d := range dims {
				v := room[d]
				if len(d) > 7 && d[:7] == "apart: " {
					v = 1
				}
				n.Room = append(n.Room, v)
			}
			nodes = append(nodes, n)
		}
	}
	return bound.Solve(nodes, classes).Bound
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
