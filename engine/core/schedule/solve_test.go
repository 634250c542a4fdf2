package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

const gib = 1 << 30

// machine is an instance type of so many CPUs, with memory in GiB, in two zones.
func machine(name string, cpu, memory int64, dollars float64) catalog.InstanceType {
	size := resources.List{corev1.ResourceCPU: cpu * 1000, corev1.ResourceMemory: memory * gib, corev1.ResourcePods: 110}
	it := catalog.InstanceType{
		Name: name, Capacity: size, Allocatable: size,
		Requirements: requirements.FromLabels(map[string]string{corev1.LabelInstanceTypeStable: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}),
	}
	for _, zone := range []string{"z1", "z2"} {
		it.Offerings = append(it.Offerings,
			catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: catalog.FromDollars(dollars)},
			catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: catalog.FromDollars(dollars * 0.4)})
	}
	return it
}

func machines(t testing.TB, types ...catalog.InstanceType) *catalog.Catalog {
	t.Helper()
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	return c
}

func pool(name string, reqs ...karpv1.Requirement) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "sim.dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	p.Spec.Template.Spec.Requirements = append(reqs, karpv1.Requirement{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"on-demand"}})
	return p
}

// pods makes n pods of a Deployment: cpu in millicores, memory in MiB.
func pods(app string, n int, cpu, memory int64, change ...func(*corev1.Pod)) []*corev1.Pod {
	out := make([]*corev1.Pod, n)
	for i := range out {
		out[i] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", app, i), Labels: map[string]string{"app": app}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(memory<<20, resource.BinarySI),
			}}}}},
		}
		for _, c := range change {
			c(out[i])
		}
	}
	return out
}

func selects(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func apart(app, key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: selects(app), TopologyKey: key}}}}
	}
}

func near(app, key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: selects(app), TopologyKey: key}}}}
	}
}

func spread(app, key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selects(app)})
	}
}

func node(name, zone string, cpu, memory int64) *corev1.Node {
	size := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(cpu, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(memory*gib, resource.BinarySI),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Capacity: size, Allocatable: size},
	}
}

// brief is a plan in a few lines: how many nodes of which offering with how many pods,
// how many pods on which existing node, and the codes of what was left out.
func brief(plan schedule.Plan) string {
	lines := map[string]int{}
	for _, n := range plan.NewNodes {
		lines[fmt.Sprintf("buy %s %s/%s: %d pods", n.Pool, n.Planned.InstanceType, n.Planned.CapacityType, len(n.Pods))]++
	}
	for _, a := range plan.Assignments {
		if !a.New {
			lines["use "+a.Node]++
		}
	}
	for _, u := range plan.Unscheduled {
		var codes []string
		for _, r := range u.Reasons {
			codes = append(codes, string(r.Code))
		}
		lines["left out: "+strings.Join(codes, " ")]++
	}
	var out []string
	for l, n := range lines {
		out = append(out, fmt.Sprintf("%d x %s", n, l))
	}
	slices.Sort(out)
	return strings.Join(append(out, fmt.Sprintf("$%.2f/h", plan.Cost.Dollars())), "\n")
}

func TestSolve(t *testing.T) {
	small, large := machine("c.2", 2, 4, 0.08), machine("c.8", 8, 16, 0.32)
	tests := map[string]struct {
		objs  snapshot.Objects
		types []catalog.InstanceType
		opts  schedule.Options
		want  string
	}{
		"pods that fit together share the cheapest node": {
			objs:  snapshot.Objects{Pods: pods("web", 2, 900, 1024), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small, large},
			want:  "1 x buy p c.2/on-demand: 2 pods\n$0.08/h",
		},
		"room on a running node is used before a node is bought": {
			objs:  snapshot.Objects{Pods: pods("web", 3, 900, 1024), Nodes: []*corev1.Node{node("n1", "z1", 2, 4)}, NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small},
			want:  "1 x buy p c.2/on-demand: 1 pods\n2 x use n1\n$0.08/h",
		},
		"anti-affinity over hostnames puts each pod on a node of its own": {
			objs:  snapshot.Objects{Pods: pods("db", 3, 100, 128, apart("db", corev1.LabelHostname)), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small, large},
			want:  "3 x buy p c.2/on-demand: 1 pods\n$0.24/h",
		},
		"anti-affinity over zones leaves out what has no zone": {
			objs:  snapshot.Objects{Pods: pods("db", 3, 100, 128, apart("db", corev1.LabelTopologyZone)), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small},
			want:  "1 x left out: PodAntiAffinity\n2 x buy p c.2/on-demand: 1 pods\n$0.16/h",
		},
		"affinity over hostnames holds pods together on one node": {
			objs:  snapshot.Objects{Pods: pods("ring", 5, 1000, 1024, near("ring", corev1.LabelHostname)), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small, large},
			want:  "1 x buy p c.8/on-demand: 5 pods\n$0.32/h",
		},
		"a follower goes where the pod it follows goes": {
			objs: snapshot.Objects{
				Pods:      slices.Concat(pods("cache", 1, 100, 128), pods("web", 1, 100, 128, near("cache", corev1.LabelHostname))),
				NodePools: []*karpv1.NodePool{pool("p")},
			},
			types: []catalog.InstanceType{small},
			want:  "1 x buy p c.2/on-demand: 2 pods\n$0.08/h",
		},
		"zone spread buys in both zones": {
			objs:  snapshot.Objects{Pods: pods("web", 4, 900, 1024, spread("web", corev1.LabelTopologyZone)), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small, large},
			want:  "2 x buy p c.2/on-demand: 2 pods\n$0.16/h",
		},
		"a limit on nodes holds inside one pass": {
			objs: snapshot.Objects{Pods: pods("db", 3, 100, 128, apart("db", corev1.LabelHostname)), NodePools: []*karpv1.NodePool{func() *karpv1.NodePool {
				p := pool("p")
				p.Spec.Limits = corev1.ResourceList{"nodes": resource.MustParse("2")}
				return p
			}()}},
			types: []catalog.InstanceType{small},
			want:  "1 x left out: NodePoolLimit\n2 x buy p c.2/on-demand: 1 pods\n$0.16/h",
		},
		"a limit lets the most important pods in": {
			objs: snapshot.Objects{
				Pods: slices.Concat(pods("batch", 2, 1900, 1024), pods("web", 1, 1900, 1024, func(p *corev1.Pod) { v := int32(100); p.Spec.Priority = &v })),
				NodePools: []*karpv1.NodePool{func() *karpv1.NodePool {
					p := pool("p")
					p.Spec.Limits = corev1.ResourceList{"cpu": resource.MustParse("2")}
					return p
				}()},
			},
			types: []catalog.InstanceType{small},
			want:  "1 x buy p c.2/on-demand: 1 pods\n2 x left out: NodePoolLimit\n$0.08/h",
		},
		"a label that no pool has is named": {
			objs:  snapshot.Objects{Pods: pods("web", 1, 100, 128, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"team": "blue"} }), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small},
			want:  "1 x left out: LabelMismatch\n$0.00/h",
		},
		"a pod larger than any type is left out": {
			objs:  snapshot.Objects{Pods: pods("big", 1, 9000, 128), NodePools: []*karpv1.NodePool{pool("p")}},
			types: []catalog.InstanceType{small, large},
			want:  "1 x left out: InsufficientResource\n$0.00/h",
		},
		"without a NodePool nothing is bought, but nodes are used": {
			objs: snapshot.Objects{Pods: pods("web", 3, 900, 1024), Nodes: []*corev1.Node{node("n1", "z1", 2, 4)}},
			want: "1 x left out: NoNodePool InsufficientResource\n2 x use n1\n$0.00/h",
		},
		"a preference narrows what is bought": {
			objs: snapshot.Objects{
				Pods: pods("web", 1, 100, 128, func(p *corev1.Pod) {
					p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c.8"}}}}}}}}
				}),
				NodePools: []*karpv1.NodePool{pool("p")},
			},
			types: []catalog.InstanceType{small, large},
			want:  "1 x buy p c.8/on-demand: 1 pods\n$0.32/h",
		},
		"an ignored preference does not": {
			objs: snapshot.Objects{
				Pods: pods("web", 1, 100, 128, func(p *corev1.Pod) {
					p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c.8"}}}}}}}}
				}),
				NodePools: []*karpv1.NodePool{pool("p")},
			},
			types: []catalog.InstanceType{small, large},
			opts:  schedule.Options{Preferences: schedule.Ignore},
			want:  "1 x buy p c.2/on-demand: 1 pods\n$0.08/h",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			snap, problems := snapshot.Build(tt.objs, snapshot.Options{Catalog: machines(t, tt.types...), AssumeReady: true})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			plan, err := schedule.Solve(t.Context(), snap, tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, brief(plan)); diff != "" {
				t.Errorf("Solve() plan (-want +got):\n%s", diff)
			}
			if plan.Bound > plan.Cost {
				t.Errorf("Solve() bound = %v, above the cost %v", plan.Bound, plan.Cost)
			}
		})
	}
}

// costs is a cost table for tests: a commitment pays for units of one type.
type costs struct {
	covered string
	units   int
}

func (c costs) Cost(_ string, it *catalog.InstanceType, o int) (cost, bias catalog.Price, deny string) {
	if it.Name == "c.8" {
		return it.Offerings[o].Price, 0, "no large machines"
	}
	return it.Offerings[o].Price, 0, ""
}

func (c costs) Cover(_ string, it *catalog.InstanceType, _ int) (string, catalog.Price, bool) {
	return "ri-1", 0, it.Name == c.covered
}

func (c costs) Units(string) int { return c.units }

func TestSolve_costs(t *testing.T) {
	snap, _ := snapshot.Build(
		snapshot.Objects{Pods: pods("web", 3, 1900, 1024), NodePools: []*karpv1.NodePool{pool("p")}},
		snapshot.Options{Catalog: machines(t, machine("c.2", 2, 4, 0.08), machine("c.8", 8, 16, 0.02)), AssumeReady: true})
	plan, err := schedule.Solve(t.Context(), snap, schedule.Options{Costs: costs{covered: "c.2", units: 2}})
	if err != nil {
		t.Fatal(err)
	}
	// Two units are paid for, the third node is not; the denied type would be cheaper.
	if want := "3 x buy p c.2/on-demand: 1 pods\n$0.08/h"; brief(plan) != want {
		t.Errorf("Solve() plan:\n%s\nwant:\n%s", brief(plan), want)
	}
	if plan.Bound > plan.Cost {
		t.Errorf("Solve() bound = %v, above the cost %v", plan.Bound, plan.Cost)
	}
}

func TestSolve_options(t *testing.T) {
	snap, _ := snapshot.Build(snapshot.Objects{}, snapshot.Options{})
	if _, err := schedule.Solve(t.Context(), snap, schedule.Options{Preferences: "Maybe", MaxAlternatives: -1}); err == nil || !strings.Contains(err.Error(), "Maybe") || !strings.Contains(err.Error(), "maxAlternatives") {
		t.Errorf("Solve() error = %v, want one that names both options", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := schedule.Solve(ctx, snap, schedule.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Solve() error = %v, want that of the context", err)
	}
}

// TestSolve_fork plans as if a node were gone: its pods need a place, its room is lost.
func TestSolve_fork(t *testing.T) {
	bound := pods("web", 2, 900, 1024, func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	snap, _ := snapshot.Build(
		snapshot.Objects{Pods: bound, Nodes: []*corev1.Node{node("n1", "z1", 2, 4), node("n2", "z1", 1, 4)}, NodePools: []*karpv1.NodePool{pool("p")}},
		snapshot.Options{Catalog: machines(t, machine("c.2", 2, 4, 0.08)), AssumeReady: true})
	plan, err := schedule.Solve(t.Context(), snap.Fork(map[string]bool{"n1": true}), schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 x buy p c.2/on-demand: 1 pods\n1 x use n2\n$0.08/h"; brief(plan) != want {
		t.Errorf("Solve() plan of the fork:\n%s\nwant:\n%s", brief(plan), want)
	}
	if len(snap.Pending) != 0 || len(snap.Nodes) != 2 {
		t.Errorf("the fork changed its origin: %d pending, %d nodes", len(snap.Pending), len(snap.Nodes))
	}
}

func TestExplain(t *testing.T) {
	snap, _ := snapshot.Build(
		snapshot.Objects{Pods: slices.Concat(pods("web", 1, 900, 1024), pods("big", 1, 9000, 64)), Nodes: []*corev1.Node{node("n1", "z1", 1, 4)}, NodePools: []*karpv1.NodePool{pool("p")}},
		snapshot.Options{Catalog: machines(t, machine("c.2", 2, 4, 0.08)), AssumeReady: true})
	e, err := schedule.Explain(t.Context(), snap, schedule.Options{}, snapshot.PodKey{Namespace: "default", Name: "web-0"})
	if err != nil || e.Node != "n1" || e.New {
		t.Errorf("Explain(web-0) = node %q, new %v, %v, want n1", e.Node, e.New, err)
	}
	e, err = schedule.Explain(t.Context(), snap, schedule.Options{}, snapshot.PodKey{Namespace: "default", Name: "big-0"})
	if err != nil || e.Node != "" || len(e.Pools) != 1 || len(e.Pools[0].Nearest) == 0 || len(e.Nodes) != 1 || len(e.Nodes[0].Reasons) == 0 {
		t.Fatalf("Explain(big-0) = %+v, %v, want reasons for the pool, its nearest offerings and the node", e, err)
	}
	if got := e.Pools[0].Reasons[0].String(); !strings.Contains(got, "cpu: wants 9, at most 2 is free") {
		t.Errorf("Explain(big-0) pool reason = %q", got)
	}
	if _, err = schedule.Explain(t.Context(), snap, schedule.Options{}, snapshot.PodKey{Name: "nobody"}); err == nil {
		t.Error("Explain() of an unknown pod: no error")
	}
}

// FuzzSolve holds plans of random clusters against what must always be true: every pod
// once, no node overfull, cost the sum of its nodes, bound not above it, the same plan
// again for the same objects in another order.
func FuzzSolve(f *testing.F) {
	f.Add(uint64(1), uint8(2), uint8(30))
	f.Add(uint64(7), uint8(0), uint8(60))
	f.Add(uint64(42), uint8(9), uint8(5))
	f.Fuzz(func(t *testing.T, seed uint64, nodes, count uint8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		keys := []string{corev1.LabelHostname, corev1.LabelTopologyZone}
		var objs snapshot.Objects
		for i := range int(nodes % 12) {
			objs.Nodes = append(objs.Nodes, node(fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", 1+i%3), 1+rng.Int64N(8), 1+rng.Int64N(16)))
		}
		for i := 0; i < int(count%80); {
			app := fmt.Sprintf("app%d", i)
			rules := []func(*corev1.Pod){func(*corev1.Pod) {}, apart(app, keys[rng.IntN(2)]), near(app, keys[rng.IntN(2)]), spread(app, keys[rng.IntN(2)])}
			batch := pods(app, 1+rng.IntN(9), rng.Int64N(4000), rng.Int64N(8192), rules[rng.IntN(len(rules))])
			objs.Pods = append(objs.Pods, batch...)
			i += len(batch)
		}
		objs.NodePools = []*karpv1.NodePool{pool("p")}
		opts := snapshot.Options{Catalog: machines(t, machine("c.2", 2, 4, 0.08), machine("m.4", 4, 16, 0.2), machine("r.8", 8, 64, 0.52)), AssumeReady: true}
		plan := check(t, objs, opts)
		rng.Shuffle(len(objs.Pods), func(i, j int) { objs.Pods[i], objs.Pods[j] = objs.Pods[j], objs.Pods[i] })
		rng.Shuffle(len(objs.Nodes), func(i, j int) { objs.Nodes[i], objs.Nodes[j] = objs.Nodes[j], objs.Nodes[i] })
		if again := check(t, objs, opts); again != plan {
			t.Errorf("another order of objects gives another plan (-first +second):\n%s", cmp.Diff(plan, again))
		}
	})
}

func check(t *testing.T, objs snapshot.Objects, opts snapshot.Options) string {
	t.Helper()
	snap, problems := snapshot.Build(objs, opts)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	plan, err := schedule.Solve(t.Context(), snap, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	requests := map[snapshot.PodKey]resources.List{}
	for _, p := range objs.Pods {
		requests[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = resources.PodRequests(p)
	}
	room := map[string]resources.List{}
	for _, n := range objs.Nodes {
		room[n.Name], _ = resources.FromQuantities(n.Status.Allocatable)
	}
	cost := catalog.Price(0)
	for _, n := range plan.NewNodes {
		room[n.Name] = n.Allocatable.Clone()
		cost += n.Planned.Cost
		if offers := n.Alternatives(); !slices.Contains(offers, n.Planned) {
			t.Errorf("node %s: planned offering is not among its alternatives", n.Name)
		}
	}
	if cost != plan.Cost || plan.Bound > plan.Cost {
		t.Errorf("cost = %v, its nodes %v, bound %v", plan.Cost, cost, plan.Bound)
	}
	for _, a := range plan.Assignments {
		if requests[a.Pod] == nil {
			t.Errorf("pod %s is placed twice, or is none", a.Pod)
		}
		room[a.Node].SubFrom(requests[a.Pod])
		delete(requests, a.Pod)
	}
	for _, u := range plan.Unscheduled {
		if requests[u.Pod] == nil || len(u.Reasons) == 0 {
			t.Errorf("pod %s is left out without a reason, or is placed too", u.Pod)
		}
		delete(requests, u.Pod)
	}
	if len(requests) > 0 {
		t.Errorf("pods neither placed nor left out: %v", requests)
	}
	for name, r := range room {
		for res, v := range r {
			if v < 0 {
				t.Errorf("node %s: %s is over by %d", name, res, -v)
			}
		}
	}
	text, err := plan.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
