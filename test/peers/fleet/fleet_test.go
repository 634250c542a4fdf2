package fleet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

func builtin() []*catalog.InstanceType {
	all := sim.Builtin().Types()
	out := make([]*catalog.InstanceType, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

func TestGenerate(t *testing.T) {
	offered := builtin()
	f, err := Generate(Size{Nodes: 100, Seed: 1}, offered)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Use(); got < use || got > use+0.02 {
		t.Errorf("pods use %.3f of the CPU, want %.2f", got, use)
	}
	if len(f.Nodes) != 100 || len(f.Claims) != 100 || len(f.Pools) != 5 || len(f.Pending()) != 0 {
		t.Errorf("%d nodes, %d claims, %d pools, %d pending pods; want 100, 100, 5 and none", len(f.Nodes), len(f.Claims), len(f.Pools), len(f.Pending()))
	}
	if err := f.Check(f); err != nil {
		t.Error(err)
	}
	shapes := map[string]int{}
	for _, a := range f.apps {
		for name, has := range map[string]bool{"arch": a.arch != "", "zone": a.zone != "", "team": a.team != "", "spread": a.spread, "apart": a.apart, "fixed": a.fixed} {
			if has {
				shapes[name]++
			}
		}
	}
	if len(shapes) != 6 || len(f.Budgets) < 2 {
		t.Errorf("Deployments with constraints: %v, budgets: %d; want all six kinds and some budgets", shapes, len(f.Budgets))
	}
	if b, cost := f.Bound(), f.Cost().Dollars(); b <= 0 || b > cost {
		t.Errorf("bound %.2f, cost %.2f; want a bound between 0 and the cost", b, cost)
	}
	again, err := Generate(Size{Nodes: 100, Seed: 1}, offered)
	if err != nil {
		t.Fatal(err)
	}
	for key, p := range f.Pods {
		if q := again.Pods[key]; q == nil || q.Spec.NodeName != p.Spec.NodeName {
			t.Fatalf("pod %s is on node %s; is not there again with the same seed", key, p.Spec.NodeName)
		}
	}
}

func TestGenerate_TooMany(t *testing.T) {
	if _, err := Generate(Size{Nodes: 2, Pods: 100000, Seed: 1}, builtin()); err == nil {
		t.Error("Generate() of 100000 pods on 2 nodes: no error, want one")
	}
}

// movable is a node whose pods may all go.
func movable(f *Fleet) string {
	for _, name := range sorted(f.state) {
		n := f.state[name]
		ok := len(n.pods) > 0
		for key := range n.pods {
			ok = ok && f.fixed(f.Pods[key]) == ""
		}
		if ok {
			return name
		}
	}
	return ""
}

func TestFleet_Remove(t *testing.T) {
	first, err := Generate(Size{Nodes: 60, Seed: 2}, builtin())
	if err != nil {
		t.Fatal(err)
	}
	f := first.Clone()
	name := movable(f)
	pods, cost := len(f.state[name].pods), f.Cost()
	if err := f.Remove(name); err != nil {
		t.Fatal(err)
	}
	if got := len(f.Pending()); got != pods || f.Evictions != pods {
		t.Errorf("%d pods are pending, %d evicted, want %d each", got, f.Evictions, pods)
	}
	if left := f.Bind(); left != 0 {
		t.Errorf("Bind() leaves %d pods, want none on so empty a fleet", left)
	}
	if f.Cost() >= cost || first.Cost() != cost || first.Nodes[name] == nil {
		t.Errorf("cost %v, of the original %v, was %v; want less, and the original as it was", f.Cost(), first.Cost(), cost)
	}
	if err := f.Check(first); err != nil {
		t.Error(err)
	}
	if err := f.Remove(name); err == nil {
		t.Error("Remove() of a node that is gone: no error, want one")
	}
	for key, p := range f.Pods {
		if f.fixed(p) != "" {
			if err := f.Remove(p.Spec.NodeName); err == nil {
				t.Errorf("Remove(%s), which has pod %s: no error, want one", p.Spec.NodeName, key)
			}
		}
	}
}

func TestFleet_Launch(t *testing.T) {
	f, err := Generate(Size{Nodes: 20, Seed: 3}, builtin())
	if err != nil {
		t.Fatal(err)
	}
	zone := f.Nodes["node-00000"].Labels[corev1.LabelTopologyZone]
	tests := map[string]struct {
		name, pool, instanceType, zone string
		want                           string
	}{
		"an offering of the pool":       {name: "new", pool: "amd64-01", instanceType: "m6i.large", zone: zone},
		"an offering it does not admit": {name: "new-2", pool: "amd64-01", instanceType: "m6g.large", zone: zone, want: "may not buy"},
		"a type nobody offers":          {name: "new-2", pool: "amd64-01", instanceType: "x", zone: zone, want: "no instance type"},
		"a pool that is not there":      {name: "new-2", pool: "x", instanceType: "m6i.large", zone: zone, want: "no NodePool"},
		"a name that is taken":          {name: "node-00000", pool: "amd64-01", instanceType: "m6i.large", zone: zone, want: "of this name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := f.Clone().Launch(tt.name, tt.pool, tt.instanceType, tt.zone)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Launch() = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestFleet_Bind places pods one by one on a fleet of three nodes.
func TestFleet_Bind(t *testing.T) {
	full, err := Generate(Size{Nodes: 60, Seed: 3}, builtin())
	if err != nil {
		t.Fatal(err)
	}
	var zones []string
	seen := map[string]bool{}
	for _, n := range sorted(full.state) {
		if z := full.state[n].zone; !seen[z] {
			seen[z] = true
			zones = append(zones, z)
		}
	}
	tests := map[string]struct {
		change  func(*app)
		pods    int
		pending int
		// want is the number of pods by node.
		want map[string]int
	}{
		"the emptiest node is taken first": {pods: 3, want: map[string]int{"large": 2, "small": 1}},
		"one pod a node":                   {change: func(a *app) { a.apart = true }, pods: 4, pending: 1, want: map[string]int{"large": 1, "small": 1, "far": 1}},
		"zones stay even":                  {change: func(a *app) { a.spread = true }, pods: 4, want: map[string]int{"large": 2, "far": 2}},
		"an architecture nobody has":       {change: func(a *app) { a.arch = "arm64" }, pods: 1, pending: 1, want: map[string]int{}},
		"a zone":                           {change: func(a *app) { a.zone = zones[1] }, pods: 1, want: map[string]int{"far": 1}},
		"a team without nodes":             {change: func(a *app) { a.team = "x" }, pods: 1, pending: 1, want: map[string]int{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := full.Clone()
			f.Nodes, f.Claims = map[string]*corev1.Node{}, map[string]*karpv1.NodeClaim{}
			f.Pods, f.state = map[types.NamespacedName]*corev1.Pod{}, map[string]*node{}
			for _, n := range []struct{ name, instanceType, zone string }{{"large", "m6i.8xlarge", zones[0]}, {"small", "m6i.4xlarge", zones[0]}, {"far", "m6i.large", zones[1]}} {
				if err := f.Launch(n.name, "amd64-01", n.instanceType, n.zone); err != nil {
					t.Fatal(err)
				}
			}
			a := &app{name: "x", namespace: "x", byZone: map[string]int{}, requests: map[corev1.ResourceName]int64{"cpu": 500, "memory": 1 << 30, "pods": 1}}
			if tt.pods == 3 {
				a.requests["cpu"] = 12000
			}
			if tt.change != nil {
				tt.change(a)
			}
			f.apps["x"] = a
			for range tt.pods {
				f.add(a, false)
			}
			if got := f.Bind(); got != tt.pending || got != len(f.Pending()) {
				t.Errorf("Bind() = %d, %d pods are pending, want %d", got, len(f.Pending()), tt.pending)
			}
			got := map[string]int{}
			for _, p := range f.Pods {
				if p.Spec.NodeName != "" {
					got[p.Spec.NodeName]++
				}
			}
			for n, want := range tt.want {
				if got[n] != want {
					t.Errorf("pods by node %v, want %v", got, tt.want)
				}
				delete(got, n)
			}
			if len(got) > 0 {
				t.Errorf("pods on nodes %v too, want %v", got, tt.want)
			}
		})
	}
}
