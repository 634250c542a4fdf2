package gate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
)

var noon = time.Date(2026, 6, 3, 12, 0, 0, 0, time.UTC)

// says is a launch policy.
type says func(*policy.LaunchInput) policy.GateAnswer

func (s says) Score(context.Context, *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	return policy.ScoreAnswer{}, policy.Stats{}, errors.New("not asked for")
}

func (s says) Gate(_ context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	return s(in.(*policy.LaunchInput)), policy.Stats{}, nil
}

func (s says) Reads() policy.Reads { return nil }

// denies denies the claims that match.
func denies(match func(*policy.Claim) bool) says {
	return func(in *policy.LaunchInput) policy.GateAnswer {
		var a policy.GateAnswer
		for i := range in.Claims {
			if c := &in.Claims[i]; match(c) {
				a.Deny = append(a.Deny, policy.Reason{Msg: "not " + c.InstanceType.Name, Claims: []string{c.Name}})
			}
		}
		return a
	}
}

func launch(name string, e policy.Evaluator) policy.Policy {
	return policy.Policy{Name: name, Hook: policy.Launch, Revision: "r1", Evaluator: e, Limits: policy.Limits{Deadline: time.Minute}}
}

func inRego(t testing.TB, source string) policy.Policy {
	t.Helper()
	m, err := rego.Load(t.Context(), rego.Source{Name: "rules", Hook: policy.Launch, Files: map[string]string{"rules.rego": source}, Limits: policy.Limits{Deadline: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	return launch("rules", m)
}

func pool(name string, weight int32) *karpv1.NodePool {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	np.Spec.Template.Labels = map[string]string{"team": "shop"}
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
	np.Spec.Template.Spec.Requirements = []karpv1.Requirement{
		{Key: karpv1.CapacityTypeLabelKey, Operator: "In", Values: []string{"on-demand", "spot"}},
		{Key: corev1.LabelArchStable, Operator: "In", Values: []string{"amd64"}},
		{Key: corev1.LabelOSStable, Operator: "In", Values: []string{"linux"}},
	}
	if weight > 0 {
		np.Spec.Weight = &weight
	}
	np.SetDefaults()
	return np
}

// pods are n pods of one workload.
func pods(name string, n int, cpu, memory string, change ...func(*corev1.Pod)) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{"app": name}, CreationTimestamp: metav1.NewTime(noon.Add(-time.Minute))},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)},
			}}}},
		}
		for _, f := range change {
			f(p)
		}
		out = append(out, p)
	}
	return out
}

func spread(p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
	}}
}

func build(t testing.TB, cat *catalog.Catalog, objs snapshot.Objects) *snapshot.Snapshot {
	t.Helper()
	s, problems := snapshot.Build(objs, snapshot.Options{Now: noon, Catalog: cat, AssumeReady: true})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return s
}

func plan(t testing.TB, cat *catalog.Catalog, objs snapshot.Objects, policies ...policy.Policy) *gate.Result {
	t.Helper()
	if objs.NodePools == nil {
		objs.NodePools = []*karpv1.NodePool{pool("main", 0)}
	}
	e := policy.NewEngine(policy.Options{})
	if err := e.Swap(policies); err != nil {
		t.Fatal(err)
	}
	r, err := gate.Plan(t.Context(), e, &policy.Inputs{}, build(t, cat, objs), objs.NodePools, policy.Facts{Round: policy.NewRound(-1)}, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPlan_deniedClass holds that pods get nodes as long as one offering that would do is
// allowed, however many cheaper ones are denied.
func TestPlan_deniedClass(t *testing.T) {
	if testing.Short() {
		t.Skip("plans with hundreds of instance types")
	}
	tests := map[string]struct {
		deny policy.Policy
		// allowed says of a bought node whether the policy allows it.
		allowed func(*catalog.InstanceType, schedule.Offer) bool
	}{
		"all spot capacity": {
			deny:    launch("rules", denies(func(c *policy.Claim) bool { return c.Offering.CapacityType == "spot" })),
			allowed: func(_ *catalog.InstanceType, o schedule.Offer) bool { return o.CapacityType == "on-demand" },
		},
		"all spot capacity, in Rego": {
			deny: inRego(t, `package dovetail.launch.rules
deny contains {"claims": [c.name], "msg": "no spot"} if {
	some c in input.claims
	c.offering.capacityType == "spot"
}`),
			allowed: func(_ *catalog.InstanceType, o schedule.Offer) bool { return o.CapacityType == "on-demand" },
		},
		"more than 4 CPUs": {
			deny:    launch("rules", denies(func(c *policy.Claim) bool { return c.InstanceType.CPU > 4_000 })),
			allowed: func(it *catalog.InstanceType, _ schedule.Offer) bool { return it.Capacity["cpu"] <= 4_000 },
		},
		"all zones but one": {
			deny:    launch("rules", denies(func(c *policy.Claim) bool { return c.Offering.Zone != "us-east-1c" })),
			allowed: func(_ *catalog.InstanceType, o schedule.Offer) bool { return o.Zone == "us-east-1c" },
		},
		"nodes above a price": {
			deny:    launch("rules", denies(func(c *policy.Claim) bool { return c.HourlyCost > 30_000 })),
			allowed: func(_ *catalog.InstanceType, o schedule.Offer) bool { return o.Cost <= 30_000 },
		},
		"all families but one, and spot": {
			deny: launch("rules", denies(func(c *policy.Claim) bool { return c.InstanceType.Family != "m6i" || c.Offering.CapacityType == "spot" })),
			allowed: func(it *catalog.InstanceType, o schedule.Offer) bool {
				return strings.HasPrefix(it.Name, "m6i.") && o.CapacityType == "on-demand"
			},
		},
	}
	cat := sim.Builtin()
	t.Logf("%d instance types", cat.Len())
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			objs := snapshot.Objects{Pods: slices.Concat(pods("web", 8, "500m", "400Mi"), pods("db", 3, "1500m", "2Gi"))}
			begin := time.Now()
			r := plan(t, cat, objs, test.deny)
			t.Logf("%d rounds, %d nodes for $%.4f, %s", r.Launch.Rounds, len(r.Plan.NewNodes), r.Plan.Cost.Dollars(), time.Since(begin).Round(time.Millisecond))
			if len(r.Plan.Unscheduled) > 0 || len(r.Launch.Objections) > 0 {
				t.Fatalf("%d pods wait: %v", len(r.Plan.Unscheduled), r.Plan.Unscheduled[0])
			}
			choices := 0
			for i := range r.Plan.NewNodes {
				n := &r.Plan.NewNodes[i]
				_, offers := r.Allowed(n)
				choices += len(offers)
				for _, o := range append(offers, n.Planned) {
					it, _ := cat.ByName(o.InstanceType)
					if !test.allowed(it, o) {
						t.Fatalf("%s may become %+v, which is denied", n.Name, o)
					}
				}
			}
			if choices < 4*len(r.Plan.NewNodes) {
				t.Errorf("%d offerings are left for %d nodes", choices, len(r.Plan.NewNodes))
			}
			again := plan(t, cat, objs, test.deny)
			if d := cmp.Diff(text(t, r), text(t, again)); d != "" {
				t.Errorf("another plan for the same (-first +second):\n%s", d)
			}
		})
	}
}

func text(t *testing.T, r *gate.Result) string {
	t.Helper()
	b, err := r.Plan.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPlan_budget holds that what a policy allows of several nodes is bought: the more
// important pods come first.
func TestPlan_budget(t *testing.T) {
	budget := func(in *policy.LaunchInput) policy.GateAnswer {
		spent := int64(0)
		for i := range in.Claims {
			spent += in.Claims[i].HourlyCost
		}
		if spent <= 250_000 {
			return policy.GateAnswer{}
		}
		return policy.GateAnswer{Deny: []policy.Reason{{Code: "budget", Msg: fmt.Sprintf("%d is too much", spent)}}}
	}
	important := func(p *corev1.Pod) { p.Spec.Priority = new(int32(100)) }
	objs := snapshot.Objects{Pods: slices.Concat(pods("a", 3, "1500m", "1Gi"), pods("z", 1, "1500m", "1Gi", important), pods("b", 2, "1500m", "1Gi"))}
	for _, p := range objs.Pods { // each on a node of its own
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}},
		}}}
	}
	r := plan(t, twoSizes(t), objs, launch("budget", says(budget)))
	if len(r.Plan.NewNodes) != 2 || r.Plan.Cost != 200_000 || len(r.Plan.Unscheduled) != 4 {
		t.Fatalf("%d nodes for %d, %d pods wait; want the 2 nodes that the budget is enough for, for 200000, and 4 that wait", len(r.Plan.NewNodes), r.Plan.Cost, len(r.Plan.Unscheduled))
	}
	for _, u := range r.Plan.Unscheduled {
		if u.Pod.Name == "z-0" {
			t.Error("the important pod waits")
		}
		if got := u.Reasons[0]; got.Code != schedule.PolicyDenied || got.Key != "budget" {
			t.Errorf("%s waits for %s, want the budget", u.Pod, got)
		}
	}
	last := r.Records[len(r.Records)-1]
	if last.Rows != 2 || !last.Result.Allowed {
		t.Errorf("the last decision is on %d nodes, allowed %t; want that of the 2 nodes bought", last.Rows, last.Result.Allowed)
	}
}

// TestPlan_addsUp holds that a policy that adds claims up is not taken to deny offerings
// that it would deny only together.
func TestPlan_addsUp(t *testing.T) {
	policyOf := func(in *policy.LaunchInput) policy.GateAnswer {
		var a policy.GateAnswer
		spent := int64(0)
		for i := range in.Claims {
			c := &in.Claims[i]
			spent += c.HourlyCost
			if c.InstanceType.Name == "large" {
				a.Deny = append(a.Deny, policy.Reason{Msg: "no large", Claims: []string{c.Name}})
			}
		}
		if spent > 500_000 {
			a.Deny = append(a.Deny, policy.Reason{Msg: "too much"})
		}
		return a
	}
	var names []string
	for i := range 40 { // together they cost more than the policy allows
		names = append(names, fmt.Sprintf("medium%d", i))
	}
	r := plan(t, sizes(t, append([]string{"large"}, names...)...), snapshot.Objects{Pods: pods("web", 2, "1500m", "1Gi")}, launch("both", says(policyOf)))
	if len(r.Plan.Unscheduled) > 0 || len(r.Plan.NewNodes) != 2 {
		t.Fatalf("%d nodes, %d pods wait: %v", len(r.Plan.NewNodes), len(r.Plan.Unscheduled), r.Launch.Objections)
	}
}

// TestPlan_topology holds that pods are spread over the zones that are left.
func TestPlan_topology(t *testing.T) {
	deny := launch("zone", denies(func(c *policy.Claim) bool { return c.Offering.Zone == "c" }))
	// There will be no node in the third zone, so that the spread does not count it.
	r := plan(t, threeZones(t), snapshot.Objects{Pods: pods("web", 6, "1500m", "1Gi", spread)}, deny)
	zones := map[string]int{}
	for i := range r.Plan.NewNodes {
		zones[r.Plan.NewNodes[i].Planned.Zone] += len(r.Plan.NewNodes[i].Pods)
	}
	if want := map[string]int{"a": 3, "b": 3}; !maps.Equal(zones, want) || len(r.Plan.Unscheduled) > 0 {
		t.Errorf("pods by zone %v, want %v; %d wait, want none", zones, want, len(r.Plan.Unscheduled))
	}
}

// TestPlan_nearDenied holds that a pod is not planned near one whose node is denied.
func TestPlan_nearDenied(t *testing.T) {
	near := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
		}}}
	}
	big := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: "large"} }
	small := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: "small"} }
	objs := snapshot.Objects{Pods: slices.Concat(pods("db", 1, "1500m", "1Gi", big), pods("web", 1, "1500m", "1Gi", near, small), pods("job", 1, "1500m", "1Gi", small))}
	r := plan(t, twoSizes(t), objs, launch("no-large", denies(func(c *policy.Claim) bool { return c.InstanceType.Name == "large" })))
	var placed []string
	for _, a := range r.Plan.Assignments {
		placed = append(placed, a.Pod.Name)
	}
	if d := cmp.Diff([]string{"job-0"}, placed); d != "" {
		t.Errorf("placed pods (-want +got):\n%s", d)
	}
	reasons := map[string]schedule.Code{}
	for _, u := range r.Plan.Unscheduled {
		reasons[u.Pod.Name] = u.Reasons[0].Code
	}
	if reasons["db-0"] == "" || reasons["web-0"] == "" {
		t.Errorf("reasons %v", reasons)
	}
}

func TestPlan_deferred(t *testing.T) {
	wait := says(func(in *policy.LaunchInput) policy.GateAnswer {
		var a policy.GateAnswer
		for i := range in.Claims {
			if in.Claims[i].InstanceType.Name == "large" {
				a.Defer = append(a.Defer, policy.Reason{Msg: "wait", Claims: []string{in.Claims[i].Name}, Seconds: 90})
			}
		}
		return a
	})
	big := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: "large"} }
	small := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: "small"} }
	r := plan(t, twoSizes(t), snapshot.Objects{Pods: slices.Concat(pods("big", 1, "1", "1Gi", big), pods("web", 1, "1", "1Gi", small))}, launch("wait", wait))
	if r.RetryAfter() != 90*time.Second || len(r.Plan.NewNodes) != 1 || r.Launch.Rounds != 1 {
		t.Errorf("retry after %s, %d nodes, %d rounds; want 1m30s, 1, 1", r.RetryAfter(), len(r.Plan.NewNodes), r.Launch.Rounds)
	}
	want := "NodePool main: policy wait defers large for 90 s: wait"
	if got := r.Plan.Unscheduled[0].Reasons[0].String(); got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}

// TestResult_Allowed holds that a claim can become nothing that policies rule out, whatever
// of its requirements is chosen.
func TestResult_Allowed(t *testing.T) {
	cat := sim.Builtin()
	restrict := func(f func(*policy.Claim) policy.Restriction) says {
		return func(in *policy.LaunchInput) policy.GateAnswer {
			var a policy.GateAnswer
			for i := range in.Claims {
				x := f(&in.Claims[i])
				x.Claim = in.Claims[i].Name
				a.Restrict = append(a.Restrict, x)
			}
			return a
		}
	}
	tests := map[string]struct {
		policies []policy.Policy
	}{
		"a highest cost that the planned offering keeps to": {
			policies: []policy.Policy{launch("cheap", restrict(func(c *policy.Claim) policy.Restriction {
				return policy.Restriction{MaxMicroUSD: c.HourlyCost * 2, HasMax: true}
			}))},
		},
		"types dropped beside the planned one": {
			policies: []policy.Policy{launch("drop", restrict(func(c *policy.Claim) policy.Restriction {
				var a policy.Restriction
				for _, t := range c.Types {
					if t.Name != c.InstanceType.Name && strings.HasPrefix(t.Name, "t3") {
						a.DropTypes = append(a.DropTypes, t.Name)
					}
				}
				return a
			}))},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := plan(t, cat, snapshot.Objects{Pods: pods("web", 3, "1", "3Gi")}, test.policies...)
			for i := range r.Plan.NewNodes {
				n := &r.Plan.NewNodes[i]
				limit, ok := r.Launch.Restricted[n.Name]
				if !ok {
					t.Fatalf("%s is not restricted", n.Name)
				}
				set, offers := r.Allowed(n)
				before := n.Requirements()
				if len(offers) == 0 || offers[0] != n.Alternatives()[0] || len(offers) >= len(n.Alternatives()) {
					t.Errorf("%d offers of %d, the first %+v", len(offers), len(n.Alternatives()), offers[0])
				}
				could := 0
				for _, it := range cat.Types() {
					if !set.Get(corev1.LabelInstanceTypeStable).Has(it.Name) {
						continue
					}
					for j := range it.Offerings {
						o := &it.Offerings[j]
						if !set.Get(corev1.LabelTopologyZone).Has(o.Zone) || !set.Get(karpv1.CapacityTypeLabelKey).Has(o.CapacityType) {
							continue
						}
						could++
						if limit.HasMax && int64(o.Price) > limit.MaxMicroUSD || slices.Contains(limit.DropTypes, it.Name) {
							t.Errorf("%s may become %s/%s/%s for %d", n.Name, it.Name, o.Zone, o.CapacityType, o.Price)
						}
					}
				}
				if could < 2 {
					t.Errorf("%d offerings are left", could)
				}
				for _, key := range before.Keys() {
					if key != corev1.LabelInstanceTypeStable && key != corev1.LabelTopologyZone && key != karpv1.CapacityTypeLabelKey && !before[key].Equal(set[key]) {
						t.Errorf("requirement %s has become %s", before[key], set[key])
					}
				}
			}
		})
	}
}

func TestPlan_withoutPolicies(t *testing.T) {
	objs := snapshot.Objects{NodePools: []*karpv1.NodePool{pool("main", 0)}, Pods: pods("web", 2, "1", "1Gi")}
	snap := build(t, twoSizes(t), objs)
	r, err := gate.Plan(t.Context(), nil, &policy.Inputs{}, snap, objs.NodePools, policy.Facts{}, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Plan.NewNodes) == 0 || r.Costs != nil || r.Launch.Rounds != 1 || len(r.Records) > 0 {
		t.Fatalf("result %+v", r)
	}
	set, offers := r.Allowed(&r.Plan.NewNodes[0])
	if !set.Equal(r.Plan.NewNodes[0].Requirements()) || len(offers) != len(r.Plan.NewNodes[0].Alternatives()) {
		t.Errorf("without policies a claim is restricted: %v, %v", set, offers)
	}
}

func twoSizes(t testing.TB) *catalog.Catalog { return sizes(t, "small", "large") }

// sizes are instance types in one zone: large has 4 CPUs, the others 2.
func sizes(t testing.TB, names ...string) *catalog.Catalog {
	t.Helper()
	var b strings.Builder
	b.WriteString("instanceTypes:\n")
	for i, name := range names {
		cpu, memory, price := 2, 4, 0.1
		if name == "large" {
			cpu, memory, price = 4, 8, 0.19
		}
		fmt.Fprintf(&b, "- {name: %s, capacity: {cpu: %d, memory: %dGi, pods: 20}, offerings: [{zone: a, price: %.4f}]}\n", name, cpu, memory, price+float64(i)/10_000*0.1)
	}
	return read(t, b.String())
}

func threeZones(t testing.TB) *catalog.Catalog {
	return read(t, `instanceTypes:
- name: small
  capacity: {cpu: 2, memory: 4Gi, pods: 20}
  offerings: [{zone: a, price: 0.1}, {zone: b, price: 0.1}, {zone: c, price: 0.1}]
`)
}

func read(t testing.TB, text string) *catalog.Catalog {
	t.Helper()
	cat, errs := sim.ReadFile(strings.NewReader(text), "catalog.yaml")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return cat
}
