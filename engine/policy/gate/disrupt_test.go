package gate_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// thinks is a disrupt policy.
type thinks func(*policy.DisruptInput) policy.GateAnswer

func (s thinks) Score(context.Context, *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	return policy.ScoreAnswer{}, policy.Stats{}, errors.New("not asked for")
}

func (s thinks) Gate(_ context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	return s(in.(*policy.DisruptInput)), policy.Stats{}, nil
}

func (s thinks) Reads() policy.Reads { return nil }

func disrupt(name string, e policy.Evaluator) policy.Policy {
	return policy.Policy{Name: name, Hook: policy.Disrupt, Revision: "r1", Evaluator: e, Limits: policy.Limits{Deadline: time.Minute}}
}

// running adds a node of an instance type with pods on it, which may be disrupted.
func running(t testing.TB, objs *snapshot.Objects, cat *catalog.Catalog, name, kind string, on ...*corev1.Pod) {
	t.Helper()
	it, ok := cat.ByName(kind)
	if !ok {
		t.Fatalf("no type %s", kind)
	}
	labels := map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: it.Offerings[0].Zone, corev1.LabelInstanceTypeStable: kind, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.NodePoolLabelKey: objs.NodePools[0].Name, karpv1.CapacityTypeLabelKey: catalog.OnDemand, karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", "team": "shop",
	}
	size := it.Allocatable.Quantities()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}, Spec: corev1.NodeSpec{ProviderID: "sim:///" + name}}
	n.Status.Capacity, n.Status.Allocatable = size, size
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: n.CreationTimestamp}}
	c.Status.NodeName, c.Status.ProviderID, c.Status.Capacity, c.Status.Allocatable = name, n.Spec.ProviderID, size, size
	for _, kind := range []string{karpv1.ConditionLaunched, karpv1.ConditionRegistered, karpv1.ConditionInitialized, karpv1.ConditionConsolidatable} {
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, LastTransitionTime: n.CreationTimestamp})
	}
	for _, p := range on {
		p.Spec.NodeName = name
		p.Status.Phase = corev1.PodRunning
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: p.Labels["app"], UID: "u", Controller: new(true)}}
		objs.Pods = append(objs.Pods, p)
	}
	objs.Nodes, objs.NodeClaims = append(objs.Nodes, n), append(objs.NodeClaims, c)
}

func disruption(t testing.TB, cat *catalog.Catalog, objs snapshot.Objects, e *policy.Engine, in *policy.Inputs, opts consolidate.Options) *gate.Disruption {
	t.Helper()
	snap := build(t, cat, objs)
	facts := candidate.Facts{Now: noon}
	opts.Candidates = candidate.Examine(snap, objs, facts)
	opts.Allowances = candidate.Allowances(objs, facts, opts.Candidates)
	byKey := make(map[snapshot.PodKey]*corev1.Pod, len(objs.Pods))
	for _, p := range objs.Pods {
		byKey[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	}
	of := fact.Objects{Pod: func(k snapshot.PodKey) *corev1.Pod { return byKey[k] }, Nodes: objs.Nodes, NodeClaims: objs.NodeClaims}
	d, err := gate.Disrupt(t.Context(), e, in, snap, of, policy.Facts{Round: policy.NewRound(-1)}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// anytime is a pool that lets all its nodes go.
func anytime() *karpv1.NodePool {
	np := pool("main", 0)
	np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized
	np.Spec.Disruption.ConsolidateAfter = karpv1.NillableDuration{Duration: new(time.Duration(0))}
	np.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	np.Spec.Template.Spec.Requirements[0].Values = []string{catalog.OnDemand}
	return np
}

func TestDisrupt(t *testing.T) {
	cat := sim.Builtin()
	half := func(names ...string) snapshot.Objects {
		objs := snapshot.Objects{NodePools: []*karpv1.NodePool{anytime()}}
		for _, n := range names {
			running(t, &objs, cat, n, "m5.xlarge", pods("web-"+n, 2, "800m", "2Gi")...)
		}
		return objs
	}
	names := func(d *gate.Disruption) []string {
		out := []string{}
		for _, m := range d.Moves {
			out = append(out, strings.Join(m.Nodes, "+"))
		}
		return out
	}
	has := func(in *policy.DisruptInput, node string) bool {
		return slices.ContainsFunc(in.Command.Candidates, func(c policy.Candidate) bool { return c.Node == node })
	}
	tests := map[string]struct {
		policies []policy.Policy
		objs     snapshot.Objects
		want     []string
		check    func(t *testing.T, d *gate.Disruption)
	}{
		"no policies": {objs: half("a", "b"), want: []string{"a"}},
		"the next best move is found when the best is denied": {
			objs: half("a", "b"),
			policies: []policy.Policy{disrupt("not-a", thinks(func(in *policy.DisruptInput) (a policy.GateAnswer) {
				if has(in, "a") {
					a.Deny = []policy.Reason{{Msg: "not a"}}
				}
				return a
			}))},
			want: []string{"b"},
			check: func(t *testing.T, d *gate.Disruption) {
				why := d.Left["a"]
				if len(d.Refused) == 0 || d.Refused[0].Verdict != policy.VerdictDeny || !slices.ContainsFunc(why, func(r candidate.Reason) bool { return r.Code == consolidate.PolicyDenied && r.Object == "policy not-a" }) {
					t.Errorf("refused %+v, a is left for %v", d.Refused, why)
				}
			},
		},
		"all denied": {
			objs: half("a", "b"),
			policies: []policy.Policy{disrupt("none", thinks(func(in *policy.DisruptInput) policy.GateAnswer {
				return policy.GateAnswer{Deny: []policy.Reason{{Msg: "nothing"}}}
			}))},
			want: []string{},
		},
		"deferred nodes are told until when": {
			objs: half("a", "b"),
			policies: []policy.Policy{disrupt("later", thinks(func(in *policy.DisruptInput) policy.GateAnswer {
				return policy.GateAnswer{Defer: []policy.Reason{{Msg: "later", Seconds: 600}}}
			}))},
			want: []string{},
			check: func(t *testing.T, d *gate.Disruption) {
				for _, n := range []string{"a", "b"} {
					if r := d.Deferred[n]; !r.Until.Equal(noon.Add(10*time.Minute)) || r.Code != gate.PolicyDeferred {
						t.Errorf("%s deferred: %+v", n, r)
					}
				}
			},
		},
		"kept nodes are left out of a move": {
			objs: func() snapshot.Objects {
				objs := snapshot.Objects{NodePools: []*karpv1.NodePool{anytime()}}
				for _, n := range []string{"a", "b", "c"} { // one pod to a node: together on a large one
					running(t, &objs, cat, n, "m5.xlarge", pods("web-"+n, 1, "3000m", "3Gi")...)
				}
				return objs
			}(),
			policies: []policy.Policy{disrupt("keep-b", thinks(func(in *policy.DisruptInput) (a policy.GateAnswer) {
				if has(in, "b") {
					a.Keep = []policy.Reason{{Msg: "b stays", Nodes: []string{"b"}}}
				}
				return a
			}))},
			check: func(t *testing.T, d *gate.Disruption) {
				for _, m := range d.Moves {
					if slices.Contains(m.Nodes, "b") {
						t.Errorf("b goes: %v", names(d))
					}
				}
				if len(d.Moves) == 0 || len(d.Left["b"]) == 0 {
					t.Errorf("moves %v, b is left for %v", names(d), d.Left["b"])
				}
			},
		},
		"launch policies rule out a replacement, and another is found": {
			objs: func() snapshot.Objects {
				objs := snapshot.Objects{NodePools: []*karpv1.NodePool{anytime()}}
				running(t, &objs, cat, "a", "m5.4xlarge", pods("web", 1, "1500m", "3Gi")...)
				return objs
			}(),
			policies: []policy.Policy{launch("only-m", denies(func(c *policy.Claim) bool { return !strings.HasPrefix(c.InstanceType.Name, "m") }))},
			check: func(t *testing.T, d *gate.Disruption) {
				for i, m := range d.Moves {
					for j := range m.Plan.NewNodes {
						_, offers := d.Allowed(i, &m.Plan.NewNodes[j])
						for _, o := range offers {
							if o.Cost > m.Share(&m.Plan.NewNodes[j]) {
								t.Errorf("%s at %v, over the share %v", o.InstanceType, o.Cost, m.Share(&m.Plan.NewNodes[j]))
							}
						}
					}
				}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := policy.NewEngine(policy.Options{})
			if err := e.Swap(test.policies); err != nil {
				t.Fatal(err)
			}
			d := disruption(t, cat, test.objs, e, &policy.Inputs{}, consolidate.Options{})
			if got := names(d); test.want != nil && !slices.Equal(got, test.want) {
				t.Errorf("moves %v, want %v; left %v", got, test.want, d.Left)
			}
			if test.check != nil {
				test.check(t, d)
			}
		})
	}
}

// BenchmarkDisrupt is one round on 2000 nodes with the default budgets of 10 %, with and
// without 20 disrupt policies.
func BenchmarkDisrupt(b *testing.B) {
	cat := sim.Builtin()
	objs := snapshot.Objects{NodePools: []*karpv1.NodePool{anytime()}}
	objs.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
	kinds := []string{"m5.xlarge", "m5.2xlarge", "c5.2xlarge", "r5.xlarge", "m6i.4xlarge"}
	for i := range 2000 {
		kind := kinds[i%len(kinds)]
		var on []*corev1.Pod
		for j := range 1 + i*7%5 {
			on = append(on, pods(fmt.Sprintf("w%d-%d-%d", i%150, i, j), 2, fmt.Sprintf("%dm", 200+i*37%500), fmt.Sprintf("%dMi", 256+i*91%1500), func(p *corev1.Pod) {
				p.Labels["app"] = fmt.Sprint("w", i%150)
			})...)
		}
		running(b, &objs, cat, fmt.Sprintf("n%04d", i), kind, on...)
	}
	var list []policy.Policy
	for i, p := range shipped(b, "disrupt/back_to_spot.rego", "disrupt/churn_cap.rego", "disrupt/cool_down.rego", "disrupt/keep_one_replica.rego", "disrupt/minimum_saving.rego", "disrupt/pod_grace.rego", "disrupt/working_hours.rego", "disrupt/circuit_breaker.rego", "disrupt/drift_canary.rego") {
		list = append(list, p)
		p.Name += fmt.Sprint("-again-", i)
		list = append(list, p)
	}
	for name, list := range map[string][]policy.Policy{"none": nil, "twenty": append(list, list[4], list[6])} {
		if len(list) == 20 {
			list[18].Name, list[19].Name = "more-1", "more-2"
		}
		b.Run("policies="+name, func(b *testing.B) {
			e := policy.NewEngine(policy.Options{})
			if err := e.Swap(list); err != nil {
				b.Fatal(err)
			}
			in := &policy.Inputs{}
			var d *gate.Disruption
			for b.Loop() {
				d = disruption(b, cat, objs, e, in, consolidate.Options{})
			}
			b.ReportMetric(float64(len(d.Moves)), "moves")
			b.ReportMetric(float64(len(d.Refused)), "refused")
		})
	}
}

// TestDisrupt_denialsLeaveNothingOut lets policies deny moves of random clusters at random, and
// sees that no round says that there is nothing to do while a move is left that saves and that
// they allow.
func TestDisrupt_denialsLeaveNothingOut(t *testing.T) {
	cat := sim.Builtin()
	kinds := []string{"m5.large", "m5.xlarge", "m5.2xlarge", "c5.xlarge", "r5.xlarge"}
	idle, denials := 0, 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // not for secrets: a seed is a cluster
		objs := snapshot.Objects{NodePools: []*karpv1.NodePool{anytime()}}
		nodes := 2 + r.IntN(7)
		for i := range nodes {
			var on []*corev1.Pod
			for j := range r.IntN(4) {
				on = append(on, pods(fmt.Sprintf("w%d-%d", i, j), 1, fmt.Sprintf("%dm", 200+r.IntN(500)), fmt.Sprintf("%dMi", 256+r.IntN(1200)))...)
			}
			running(t, &objs, cat, fmt.Sprintf("n%d", i), kinds[r.IntN(len(kinds))], on...)
		}
		harsh := 50 + r.IntN(50)
		denied := func(names []string) bool { // the same answer whenever the same is asked
			h := fnv.New64a()
			for _, n := range names {
				_, _ = h.Write([]byte(n))
			}
			return int((h.Sum64()^seed*0x9e3779b97f4a7c15)>>20%100) < harsh
		}
		policies := []policy.Policy{disrupt("moody", thinks(func(in *policy.DisruptInput) (a policy.GateAnswer) {
			var names []string
			for _, c := range in.Command.Candidates {
				names = append(names, c.Node)
			}
			slices.Sort(names)
			if denied(names) {
				a.Deny = []policy.Reason{{Msg: "not these"}}
			}
			return a
		}))}
		e := policy.NewEngine(policy.Options{})
		if err := e.Swap(policies); err != nil {
			t.Fatal(err)
		}
		d := disruption(t, cat, objs, e, &policy.Inputs{}, consolidate.Options{})
		denials += len(d.Refused)
		if len(d.Moves) > 0 {
			continue
		}
		idle++
		// Each node, and each two, as if only they might go, and nobody were asked.
		for i := range nodes {
			for j := i; j < nodes; j++ {
				held := map[string]candidate.Reason{}
				for k := range nodes {
					if k != i && k != j {
						held[fmt.Sprintf("n%d", k)] = candidate.Reason{Code: "Held", Message: "not this time"}
					}
				}
				alone := disruption(t, cat, objs, nil, &policy.Inputs{}, consolidate.Options{Held: held})
				for _, m := range alone.Moves {
					if m.Saving() > 0 && !denied(m.Nodes) {
						t.Errorf("seed %d: nothing is done, and %v may go for %v a hour less", seed, m.Nodes, m.Saving())
					}
				}
			}
		}
	}
	if idle < 4 || denials < 50 {
		t.Errorf("%d rounds did nothing, %d moves were denied: the test tests little", idle, denials)
	}
}
