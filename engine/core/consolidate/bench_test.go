package consolidate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// manySizes are 8 families of 8 sizes with prices that are nearly linear.
func manySizes() []catalog.InstanceType {
	var out []catalog.InstanceType
	for f := range int64(8) {
		for i, cpu := range []int64{2, 4, 8, 16, 24, 32, 48, 64} {
			ratio := int64(2) << (f % 3)
			price := float64(cpu)*(0.035+0.004*float64(ratio)) + 0.003*float64(f) + 0.0005*float64(i)
			out = append(out, machine(fmt.Sprintf("f%d.%d", f, cpu), cpu, cpu*ratio, price))
		}
	}
	return out
}

// idle is a cluster of n nodes of many sizes of which about 40 % is used: apps of pods that
// are alike, part of them spread over zones, or one to a node.
func idle(t testing.TB, n, pools int, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	types := manySizes()
	w := newWorld(t, types...)
	for p := range pools {
		name := fmt.Sprintf("pool-%d", p)
		w.pool(name, func(np *karpv1.NodePool) {
			if p > 0 {
				np.Spec.Template.Spec.Taints = []corev1.Taint{taint(name)}
			}
		})
	}
	type app struct {
		cpu, memory float64
		change      []func(*corev1.Pod)
		own         bool
	}
	all := make([][]app, pools)
	for p := range pools {
		for a := range max(60/pools, 6) {
			name := fmt.Sprintf("app-%d-%d", p, a)
			x := app{cpu: []float64{0.1, 0.25, 0.5, 1, 2, 3}[r.IntN(6)]}
			x.memory = x.cpu * []float64{1.5, 3, 6}[r.IntN(3)]
			x.change = append(x.change, func(pod *corev1.Pod) { pod.Labels["app"] = name })
			if p > 0 {
				x.change = append(x.change, tolerates(fmt.Sprintf("pool-%d", p)))
			}
			sel := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
			switch a % 6 {
			case 0:
				x.change = append(x.change, func(pod *corev1.Pod) {
					pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: sel}}
				})
			case 1:
				if a < 12 {
					x.own = true
					x.change = append(x.change, func(pod *corev1.Pod) {
						pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: sel, TopologyKey: corev1.LabelHostname}}}}
					})
				}
			}
			all[p] = append(all[p], x)
		}
	}
	for i := range n {
		p := r.IntN(pools)
		it := types[r.IntN(len(types))]
		for it.Capacity[corev1.ResourceCPU] > 32000 {
			it = types[r.IntN(len(types))]
		}
		name := fmt.Sprintf("node-%04d", i)
		w.node(name, fmt.Sprintf("pool-%d", p), it.Name, corev1.LabelTopologyZone, []string{"z1", "z2"}[r.IntN(2)])
		cpu, mem := float64(it.Capacity[corev1.ResourceCPU])/1000, float64(it.Capacity[corev1.ResourceMemory])/gib
		used, usedMem := 0.0, 0.0
		mine := map[int]bool{}
		for range 200 {
			k := r.IntN(len(all[p]))
			x := all[p][k]
			if x.own && mine[k] || used+x.cpu > cpu*0.95 || usedMem+x.memory > mem*0.95 || (used+x.cpu)/cpu > 0.5 || (usedMem+x.memory)/mem > 0.6 {
				continue
			}
			mine[k] = true
			used, usedMem = used+x.cpu, usedMem+x.memory
			w.pods(name, 1, x.cpu, x.memory, x.change...)
			if used/cpu > 0.4 {
				break
			}
		}
	}
	return w
}

// settle runs rounds until nothing moves and returns what the nodes cost then.
func settle(b testing.TB, w *world, rounds int) (cost float64, evictions, moves int, slowest time.Duration) {
	still := 0
	w.opts.Memory = &consolidate.Memory{}
	for round := range rounds {
		at := time.Now()
		r := w.propose()
		took := time.Since(at)
		slowest = max(slowest, took)
		cost = r.Cost.Dollars()
		b.Logf("round %d: $%.2f, %d moves, %d trials, %v", round, cost, len(r.Moves), r.Trials, took.Round(time.Millisecond))
		if len(r.Moves) > 0 {
			still = 0
		} else if still++; r.Complete || still == 5 {
			return cost, evictions, moves, slowest
		}
		for _, m := range r.Moves {
			moves++
			evictions += m.Evictions
		}
		w.apply(r)
	}
	return cost, evictions, moves, slowest
}

// apply makes the moves: new nodes are there, pods are where they were planned.
func (w *world) apply(r consolidate.Result) {
	byKey := make(map[snapshot.PodKey]*corev1.Pod, len(w.objs.Pods))
	for _, p := range w.objs.Pods {
		byKey[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	}
	gone := map[string]bool{}
	for _, m := range r.Moves {
		onto := map[string]string{}
		for _, n := range m.Plan.NewNodes {
			w.fresh++
			name := fmt.Sprintf("new-%05d", w.fresh)
			w.node(name, n.Pool, n.Planned.InstanceType, corev1.LabelTopologyZone, n.Planned.Zone)
			onto[n.Name] = name
		}
		for _, a := range m.Plan.Assignments {
			byKey[a.Pod].Spec.NodeName = a.Node
			if a.New {
				byKey[a.Pod].Spec.NodeName = onto[a.Node]
			}
		}
		for _, n := range m.Nodes {
			gone[n] = true
		}
	}
	var nodes []*corev1.Node
	var claims []*karpv1.NodeClaim
	for i, n := range w.objs.Nodes {
		if !gone[n.Name] {
			nodes, claims = append(nodes, n), append(claims, w.objs.NodeClaims[i])
		}
	}
	w.objs.Nodes, w.objs.NodeClaims = nodes, claims
}

func BenchmarkSettle(b *testing.B) {
	for _, size := range []struct{ nodes, pools int }{{100, 3}, {500, 4}, {2000, 20}} {
		b.Run(fmt.Sprintf("nodes=%d", size.nodes), func(b *testing.B) {
			for b.Loop() {
				w := idle(b, size.nodes, size.pools, 7)
				before, bound := w.bound(b)
				after, evictions, moves, slowest := settle(b, w, 40)
				b.ReportMetric(after/bound, "cost/bound")
				b.ReportMetric(before/bound, "before/bound")
				b.ReportMetric(float64(evictions), "evictions")
				b.ReportMetric(float64(moves), "moves")
				b.ReportMetric(float64(len(w.objs.Pods)), "pods")
				b.ReportMetric(slowest.Seconds(), "slowest-s")
			}
		})
	}
}

// bound is the cost now and a bound of it for the same pods.
func (w *world) bound(b testing.TB) (cost, bound float64) {
	snap, _ := snapshot.Build(w.objs, snapshot.Options{Now: now, Catalog: w.cat, AssumeReady: true})
	without := map[string]bool{}
	for _, n := range snap.Nodes {
		without[n.Name] = true
	}
	plan, err := schedule.Solve(context.Background(), snap.Fork(without), schedule.Options{})
	if err != nil {
		b.Fatal(err)
	}
	r := w.propose()
	b.Logf("anew: $%.2f, bound $%.2f, %d nodes, unscheduled %d", plan.Cost.Dollars(), plan.Bound.Dollars(), len(plan.NewNodes), len(plan.Unscheduled))
	return r.Cost.Dollars(), plan.Bound.Dollars()
}
