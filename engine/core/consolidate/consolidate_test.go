package consolidate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

const gib = 1 << 30

var now = time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)

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

// families are sizes of 4, 8 and 16 CPUs with 2, 4 and 8 GiB to each.
func families() []catalog.InstanceType {
	var out []catalog.InstanceType
	for _, cpu := range []int64{4, 8, 16} {
		for i, f := range []string{"c", "m", "r"} {
			out = append(out, machine(fmt.Sprintf("%s.%d", f, cpu), cpu, cpu*2<<i, float64(cpu)*[]float64{0.04, 0.05, 0.065}[i]))
		}
	}
	return out
}

// world is a cluster to consolidate.
type world struct {
	t     testing.TB
	types map[string]catalog.InstanceType
	cat   *catalog.Catalog
	objs  snapshot.Objects
	// change edits the candidates.
	change func(c *candidate.Candidate)
	opts   consolidate.Options
	fresh  int // new nodes so far
}

func newWorld(t testing.TB, types ...catalog.InstanceType) *world {
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	w := &world{t: t, types: map[string]catalog.InstanceType{}, cat: c}
	for _, it := range types {
		w.types[it.Name] = it
	}
	return w
}

func (w *world) pool(name string, change ...func(*karpv1.NodePool)) {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	p.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"on-demand"}}}
	p.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized
	for _, c := range change {
		c(p)
	}
	w.objs.NodePools = append(w.objs.NodePools, p)
}

// node adds a node of a type, with its claim.
func (w *world) node(name, pool, kind string, labels ...string) {
	it := w.types[kind]
	l := map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: "z1", corev1.LabelInstanceTypeStable: kind, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.NodePoolLabelKey: pool, karpv1.CapacityTypeLabelKey: "on-demand", karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	for i := 0; i+1 < len(labels); i += 2 {
		l[labels[i]] = labels[i+1]
	}
	size := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(it.Capacity[corev1.ResourceCPU], resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(it.Capacity[corev1.ResourceMemory], resource.BinarySI),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: l}, Spec: corev1.NodeSpec{ProviderID: "sim:///z1/" + name}, Status: corev1.NodeStatus{
		Capacity: size, Allocatable: size, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	for _, p := range w.objs.NodePools {
		if p.Name == pool {
			n.Spec.Taints = p.Spec.Template.Spec.Taints
		}
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + name, Labels: l}, Status: karpv1.NodeClaimStatus{NodeName: name, ProviderID: n.Spec.ProviderID, Capacity: size, Allocatable: size}}
	for _, c := range []string{karpv1.ConditionLaunched, karpv1.ConditionRegistered, karpv1.ConditionInitialized, karpv1.ConditionConsolidatable} {
		claim.Status.Conditions = append(claim.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue})
	}
	w.objs.Nodes = append(w.objs.Nodes, n)
	w.objs.NodeClaims = append(w.objs.NodeClaims, claim)
}

// pods binds n pods to a node: cpu in cores, memory in GiB.
func (w *world) pods(node string, n int, cpu, memory float64, change ...func(*corev1.Pod)) {
	for range n {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pod-%d", len(w.objs.Pods)), Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(cpu*1000), resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(int64(memory*gib), resource.BinarySI),
			}}}}},
		}
		for _, c := range change {
			c(p)
		}
		w.objs.Pods = append(w.objs.Pods, p)
	}
}

// propose takes every node of a NodePool for one that may go for any reason.
func (w *world) propose() consolidate.Result {
	w.t.Helper()
	snap, problems := snapshot.Build(w.objs, snapshot.Options{Now: now, Catalog: w.cat, AssumeReady: true})
	if len(problems) > 0 {
		w.t.Fatal(problems)
	}
	opts := w.opts
	opts.Candidates = nil
	for _, n := range snap.Nodes {
		c := candidate.Candidate{
			Node: n.Name, Claim: n.Claim, Pool: n.Pool, InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Zone: n.Labels[corev1.LabelTopologyZone],
			CapacityType: n.Labels[karpv1.CapacityTypeLabelKey], Cost: 1, Lifetime: 1, Destination: true,
		}
		for _, i := range n.Pods {
			if p := &snap.Pods[i]; !p.Daemon && !p.Terminating {
				c.Pods = append(c.Pods, p.Key)
				c.Cost++
			}
		}
		if c.Claim == "" {
			c.Graceful = []candidate.Reason{{Code: candidate.NoClaim, Message: "nobody manages it"}}
			c.Eventual = c.Graceful
		}
		if w.change != nil {
			w.change(&c)
		}
		opts.Candidates = append(opts.Candidates, c)
	}
	if opts.Allowances == nil {
		for _, p := range snap.Pools {
			for _, r := range []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonUnderutilized, karpv1.DisruptionReasonDrifted} {
				opts.Allowances = append(opts.Allowances, candidate.Allowance{Pool: p.Name, Reason: r, Unlimited: true})
			}
		}
	}
	r, err := consolidate.Propose(context.Background(), snap, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range opts.Candidates {
		moved := slices.ContainsFunc(r.Moves, func(m consolidate.Move) bool { return slices.Contains(m.Nodes, c.Node) })
		if why := r.Left[c.Node]; moved == (len(why) > 0) {
			w.t.Errorf("node %s: moved %v, reasons %v", c.Node, moved, why)
		}
	}
	return r
}

// brief is a result in a few lines.
func brief(r consolidate.Result) []string {
	out := []string{}
	for _, m := range r.Moves {
		s := fmt.Sprintf("%s %v", m.Reason, m.Nodes)
		for _, n := range m.Plan.NewNodes {
			s += fmt.Sprintf(" +%s/%s", n.Pool, n.Planned.InstanceType)
		}
		out = append(out, fmt.Sprintf("%s saves %.2f, evicts %d", s, m.Saving().Dollars(), m.Evictions))
	}
	return out
}

func taint(key string) corev1.Taint {
	return corev1.Taint{Key: key, Value: "true", Effect: corev1.TaintEffectNoSchedule}
}

func tolerates(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}

func selects(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func TestPropose(t *testing.T) {
	tests := map[string]struct {
		types []catalog.InstanceType
		given func(w *world)
		want  []string
	}{
		"a blocker at the head of the order (S-01)": {given: func(w *world) {
			w.pool("default")
			w.node("n1", "default", "r.8")
			w.pods("n1", 1, 7, 60, selects(corev1.LabelInstanceTypeStable, "r.8"))
			for _, n := range []string{"n2", "n3", "n4"} {
				w.node(n, "default", "c.4")
				w.pods(n, 1, 1.8, 7)
			}
		}, want: []string{"Underutilized [n2 n3] +default/m.4 saves 0.12, evicts 2"}},
		"pools that share nothing (S-02)": {given: func(w *world) {
			for _, p := range []string{"a", "b", "c", "d"} {
				w.pool(p, func(np *karpv1.NodePool) { np.Spec.Template.Spec.Taints = []corev1.Taint{taint(p)} })
			}
			for _, i := range []string{"1", "2"} {
				for _, p := range []string{"a", "b", "c", "d"} {
					w.node(p+i, p, "c.4")
					w.pods(p+i, 1, 1.8, 7, tolerates(p))
				}
			}
		}, want: []string{
			"Underutilized [a1 a2] +a/m.4 saves 0.12, evicts 2", "Underutilized [b1 b2] +b/m.4 saves 0.12, evicts 2",
			"Underutilized [c1 c2] +c/m.4 saves 0.12, evicts 2", "Underutilized [d1 d2] +d/m.4 saves 0.12, evicts 2",
		}},
		"three to two (S-03)": {types: []catalog.InstanceType{machine("c.12", 12, 24, 0.48), machine("c.16", 16, 32, 0.64)}, given: func(w *world) {
			w.pool("default")
			for _, n := range []string{"n1", "n2", "n3"} {
				w.node(n, "default", "c.12")
				w.pods(n, 4, 2.5, 4)
			}
		}, want: []string{"Underutilized [n1 n2 n3] +default/c.16 +default/c.16 saves 0.16, evicts 12"}},
		"one node is split (S-04)": {types: []catalog.InstanceType{machine("m.4", 4, 16, 0.10), machine("m.8", 8, 32, 0.30)}, given: func(w *world) {
			w.pool("default")
			w.node("n1", "default", "m.8")
			w.pods("n1", 2, 3, 12)
		}, want: []string{"Underutilized [n1] +default/m.4 +default/m.4 saves 0.10, evicts 2"}},
		"equal price is no saving (S-06)": {types: []catalog.InstanceType{machine("c.8", 8, 16, 0.32), machine("c.16", 16, 32, 0.64)}, given: func(w *world) {
			w.pool("default")
			for _, n := range []string{"n1", "n2"} {
				w.node(n, "default", "c.8")
				w.pods(n, 2, 3.5, 6)
			}
		}, want: []string{}},
		"pods that need no GPU keep a GPU node (S-07)": {types: append(families(), machine("g.4", 4, 16, 1)), given: func(w *world) {
			w.pool("gpu", func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Taints = []corev1.Taint{taint("gpu")}
				p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.Requirement{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"g.4"}})
			})
			w.pool("cpu", func(p *karpv1.NodePool) { w := int32(10); p.Spec.Weight = &w })
			w.node("n1", "gpu", "g.4")
			w.pods("n1", 2, 1, 2, tolerates("gpu"))
		}, want: []string{"Underutilized [n1] +cpu/c.4 saves 0.84, evicts 2"}},
		"ten nodes at 60 % (S-08)": {types: []catalog.InstanceType{machine("c.4", 4, 8, 0.16)}, given: func(w *world) {
			w.pool("default")
			for i := range 10 {
				n := fmt.Sprintf("n%d", i)
				w.node(n, "default", "c.4")
				w.pods(n, 2, 1.2, 1)
			}
		}, want: []string{
			"Underutilized [n0] saves 0.16, evicts 2", "Underutilized [n1] saves 0.16, evicts 2", "Underutilized [n2] saves 0.16, evicts 2",
		}},
		"less disruption wins at equal saving (S-10)": {given: func(w *world) {
			w.pool("default")
			w.node("a", "default", "c.4")
			w.node("b", "default", "c.4")
			w.node("c", "default", "c.8")
			w.pods("a", 2, 0.5, 0.5)
			w.pods("b", 4, 0.25, 0.25)
			w.pods("c", 1, 7, 8)
			w.change = func(c *candidate.Candidate) {
				if c.Node == "c" {
					c.Graceful = []candidate.Reason{{Code: candidate.NodeDoNotDisrupt, Message: "the annotation"}}
				}
			}
		}, want: []string{"Underutilized [a] saves 0.16, evicts 2"}},
		"room on a node that nobody manages (S-11)": {given: func(w *world) {
			w.pool("default")
			w.node("n1", "default", "c.4")
			w.pods("n1", 1, 1, 2)
			w.node("own", "", "c.8")
			w.objs.NodeClaims = w.objs.NodeClaims[:1]
			delete(w.objs.Nodes[1].Labels, karpv1.NodePoolLabelKey)
			w.pods("own", 1, 5, 10)
		}, want: []string{"Underutilized [n1] saves 0.16, evicts 1"}},
		"empty nodes go": {given: func(w *world) {
			w.pool("default")
			w.node("n1", "default", "c.4")
			w.node("n2", "default", "c.8")
		}, want: []string{"Empty [n2] saves 0.32, evicts 0", "Empty [n1] saves 0.16, evicts 0"}},
		"a drifted node is replaced though nothing is saved, the oldest first": {given: func(w *world) {
			w.pool("default")
			w.node("n1", "default", "c.4")
			w.node("n2", "default", "c.4")
			w.pods("n1", 1, 3.5, 6)
			w.pods("n2", 1, 3.5, 6)
			w.change = func(c *candidate.Candidate) {
				c.Drifted, c.DriftedSince = "NodePoolDrifted", now.Add(-time.Minute)
				if c.Node == "n2" {
					c.DriftedSince = now.Add(-time.Hour)
				}
			}
		}, want: []string{"Drifted [n2] +default/c.4 saves 0.00, evicts 1", "Drifted [n1] +default/c.4 saves 0.00, evicts 1"}},
		"budgets bound what goes": {given: func(w *world) {
			w.pool("default")
			for _, n := range []string{"n1", "n2", "n3"} {
				w.node(n, "default", "c.4")
			}
			w.opts.Allowances = []candidate.Allowance{{Pool: "default", Reason: karpv1.DisruptionReasonEmpty, Allowed: 2, Left: 2}}
		}, want: []string{"Empty [n1] saves 0.16, evicts 0", "Empty [n2] saves 0.16, evicts 0"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			types := test.types
			if types == nil {
				types = families()
			}
			w := newWorld(t, types...)
			test.given(w)
			r := w.propose()
			if got := brief(r); !slices.Equal(got, test.want) {
				t.Errorf("moves %q\nwant  %q", got, test.want)
				for n, why := range r.Left {
					t.Logf("%s: %v", n, why)
				}
			}
		})
	}
}
