package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/policies"
)

func machine(name string, cpu int64, price catalog.Price) catalog.InstanceType {
	family, _, _ := strings.Cut(name, ".")
	it := catalog.InstanceType{
		Name: name,
		Requirements: requirements.NewSet(
			requirements.In(corev1.LabelInstanceTypeStable, name), requirements.In(corev1.LabelArchStable, "amd64"),
			requirements.In(corev1.LabelOSStable, "linux"), requirements.In("karpenter.k8s.aws/instance-family", family),
		),
		Capacity:    resources.List{"cpu": cpu * 1000, "memory": cpu << 32, "pods": 110},
		Allocatable: resources.List{"cpu": cpu * 1000, "memory": cpu << 32, "pods": 110},
	}
	for _, zone := range []string{"a", "b"} {
		it.Offerings = append(it.Offerings,
			catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: price},
			catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: price * 2 / 5})
	}
	return it
}

func machines(t testing.TB) *catalog.Catalog {
	t.Helper()
	c, errs := catalog.New([]catalog.InstanceType{
		machine("m5.large", 2, 96_000), machine("c5.large", 2, 85_000), machine("c5.metal", 96, 4_080_000), machine("t3.large", 2, 83_000),
	})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return c
}

func pool(name string) *karpv1.NodePool {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "shop"}}}
	np.Spec.Template.Labels = map[string]string{"team": "shop"}
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
	np.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: karpv1.CapacityTypeLabelKey, Operator: "In", Values: []string{"on-demand"}}}
	np.Spec.Template.Spec.ExpireAfter = karpv1.DurationOf(48 * time.Hour)
	np.Spec.Limits = corev1.ResourceList{"cpu": resource.MustParse("100")}
	return np
}

func pod(name, node, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u", Labels: map[string]string{"team": "shop"}, CreationTimestamp: metav1.NewTime(noon.Add(-time.Minute))},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("1Gi")},
		}}}},
	}
}

func running(name, poolName, typ, zone string) *corev1.Node {
	room := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			karpv1.NodePoolLabelKey: poolName, corev1.LabelInstanceTypeStable: typ, corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: "on-demand",
			karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", corev1.LabelHostname: name, "team": "shop",
		}},
		Spec:   corev1.NodeSpec{ProviderID: "aws:///" + name},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

var noon = time.Date(2026, 6, 3, 12, 0, 0, 0, time.UTC)

func snap(t testing.TB, objs snapshot.Objects) *snapshot.Snapshot {
	t.Helper()
	if objs.NodePools == nil {
		objs.NodePools = []*karpv1.NodePool{pool("web")}
	}
	s, problems := snapshot.Build(objs, snapshot.Options{Now: noon, Catalog: machines(t), AssumeReady: true})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return s
}

// shipped loads a policy of the tree.
func shipped(t testing.TB, file string, parameters map[string]any) policy.Policy {
	t.Helper()
	b, err := policies.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	hook, _, _ := strings.Cut(file, "/")
	m, err := rego.Load(t.Context(), rego.Source{Name: file, Hook: policy.Hook(hook), Files: map[string]string{file: string(b)}, Parameters: parameters, Limits: policy.Limits{Deadline: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	return policy.Policy{Name: file, Hook: policy.Hook(hook), Revision: m.Revision(), Evaluator: m, Parameters: parameters, Limits: policy.Limits{Deadline: time.Minute}}
}

func solve(t testing.TB, s *snapshot.Snapshot, costs schedule.Costs) schedule.Plan {
	t.Helper()
	plan, err := schedule.Solve(t.Context(), s, schedule.Options{Costs: costs})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Unscheduled) > 0 {
		t.Fatalf("unscheduled: %v", plan.Unscheduled)
	}
	return plan
}

// bought lists what a plan buys.
func bought(plan schedule.Plan) []string {
	var out []string
	for _, n := range plan.NewNodes {
		out = append(out, fmt.Sprintf("%s/%s/%s %d", n.Planned.InstanceType, n.Planned.Zone, n.Planned.CapacityType, n.Planned.Cost))
	}
	slices.Sort(out)
	return out
}

func pods(n int) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		out = append(out, pod(fmt.Sprintf("cart-%d", i), "", "1500m"))
	}
	return out
}

var reservedTwo = policy.Facts{Commitments: []policy.Commitment{{
	ID: "ri-1", Kind: "reserved-instance", UnitsTotal: 2,
	Matches: policy.Matches{InstanceTypes: []string{"m5.large"}, Zones: []string{"a"}, CapacityTypes: []string{"on-demand"}},
}}}

func TestEngine_Costs_commitments(t *testing.T) {
	e := engine(t, shipped(t, "score/commitment_first.rego", nil))
	var in policy.Inputs
	costs := func(s *snapshot.Snapshot) *policy.Costs {
		t.Helper()
		c, err := e.Costs(t.Context(), &in, s, reservedTwo)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}

	t.Run("units run out inside a pass", func(t *testing.T) {
		s := snap(t, snapshot.Objects{Pods: pods(5)})
		c := costs(s)
		if got := c.Units("ri-1"); got != 2 {
			t.Errorf("Units() = %d, want 2", got)
		}
		plan := solve(t, s, c)
		want := []string{"m5.large/a/on-demand 0", "m5.large/a/on-demand 0", "t3.large/a/on-demand 83000", "t3.large/a/on-demand 83000", "t3.large/a/on-demand 83000"}
		if d := cmp.Diff(want, bought(plan)); d != "" {
			t.Errorf("Solve() buys (-want +got):\n%s", d)
		}
		launch := in.Launch(s, &plan, c, reservedTwo)
		covered := 0
		for _, cl := range launch.Claims {
			if cl.Commitment == "ri-1" {
				covered++
			}
		}
		if covered != 2 || launch.Plan.AddedHourlyCost != 249_000 {
			t.Errorf("Launch() has %d covered claims and adds %d, want 2 and 249000", covered, launch.Plan.AddedHourlyCost)
		}
	})

	t.Run("across passes, and come back when the node goes", func(t *testing.T) {
		s := snap(t, snapshot.Objects{
			Pods:  append(pods(2), pod("old", "n1", "1800m")),
			Nodes: []*corev1.Node{running("n1", "web", "m5.large", "a")},
		})
		c := costs(s)
		if got := c.Units("ri-1"); got != 1 {
			t.Errorf("Units() = %d with a node that holds one, want 1", got)
		}
		if d := cmp.Diff([]string{"m5.large/a/on-demand 0", "t3.large/a/on-demand 83000"}, bought(solve(t, s, c))); d != "" {
			t.Errorf("Solve() buys (-want +got):\n%s", d)
		}
		without := s.Fork(map[string]bool{"n1": true})
		back := c.On(without)
		if got := back.Units("ri-1"); got != 2 {
			t.Errorf("Units() = %d without that node, want 2", got)
		}
		if d := cmp.Diff([]string{"m5.large/a/on-demand 0", "m5.large/a/on-demand 0", "t3.large/a/on-demand 83000"}, bought(solve(t, without, back))); d != "" {
			t.Errorf("Solve() of the fork buys (-want +got):\n%s", d)
		}
	})

	t.Run("shared by two pools", func(t *testing.T) {
		s := snap(t, snapshot.Objects{
			NodePools: []*karpv1.NodePool{pool("web"), pool("api")}, Pods: pods(1),
			Nodes: []*corev1.Node{running("n1", "web", "m5.large", "a"), running("n2", "api", "m5.large", "a")},
		})
		if got := costs(s).Units("ri-1"); got != 0 {
			t.Errorf("Units() = %d with a node in each pool, want 0", got)
		}
	})
}

func TestEngine_Costs_scores(t *testing.T) {
	e := engine(t,
		shipped(t, "score/burstable_baseline.rego", nil),
		shipped(t, "score/host_fee.rego", map[string]any{"microUSD": 1000}),
	)
	var in policy.Inputs
	s := snap(t, snapshot.Objects{Pods: pods(1)})
	c, err := e.Costs(t.Context(), &in, s, policy.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	// t3.large: 83000 + 2 cores × (50 % − 30 %) × 50000 + 1000.
	plan := solve(t, s, c)
	if d := cmp.Diff([]string{"c5.large/a/on-demand 86000"}, bought(plan)); d != "" {
		t.Errorf("Solve() buys (-want +got):\n%s", d)
	}
	types := s.Pools[0].Catalog.Types()
	for i := range types {
		for j, o := range types[i].Offerings {
			want := o.Price + 1000
			if types[i].Name == "t3.large" {
				want += 20_000
			}
			if o.CapacityType == catalog.Spot { // the pool does not buy it, so it is not scored
				want = o.Price
			}
			if cost, bias, deny := c.Cost("web", &types[i], j); cost != want || bias != 0 || deny != "" {
				t.Errorf("Cost(%s, %d) = %d, %d, %q; want %d", types[i].Name, j, cost, bias, deny, want)
			}
			if cost, _, _ := c.Cost("elsewhere", &types[i], j); cost != o.Price {
				t.Errorf("Cost() in an unknown pool = %d, want the list price %d", cost, o.Price)
			}
		}
	}
	if in.Score(s, s.Pools[0], policy.Facts{}).Candidates != in.Score(s, s.Pools[0], policy.Facts{}).Candidates {
		t.Error("the table of offerings was made twice for one state")
	}
	if in.Score(s, s.Pools[0], policy.Facts{}).Candidates == in.Score(s, s.Pools[0], policy.Facts{OfferingRevision: "2"}).Candidates {
		t.Error("the table of offerings is the same for another revision")
	}
}

// TestCosts_Without plans again with what the launch gate leaves.
func TestCosts_Without(t *testing.T) {
	e := engine(t,
		policy.Policy{Name: "no-t3", Hook: policy.Launch, Evaluator: &fake{gate: func(in policy.GateInput) (policy.GateAnswer, error) {
			var a policy.GateAnswer
			for _, c := range in.(*policy.LaunchInput).Claims {
				if c.InstanceType.Burstable {
					a.Deny = append(a.Deny, policy.Reason{Msg: "no burstables", Claims: []string{c.Name}})
				}
				a.Restrict = append(a.Restrict, policy.Restriction{Claim: c.Name, DropTypes: []string{"c5.large"}})
			}
			return a, nil
		}}},
	)
	var in policy.Inputs
	s := snap(t, snapshot.Objects{Pods: pods(2)})
	costs, err := e.Costs(t.Context(), &in, s, policy.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 0
	for {
		plan := solve(t, s, costs)
		v, err := e.Launch(t.Context(), in.Launch(s, &plan, costs, policy.Facts{}))
		if err != nil {
			t.Fatal(err)
		}
		next := costs.Without(&plan, &v)
		if rounds++; rounds > 4 {
			t.Fatalf("no plan passes after %d rounds; the last was %v, verdict %s", rounds, bought(plan), v.Text())
		}
		if v.Allowed {
			// The restriction stays; it is met by what is planned.
			if d := cmp.Diff([]string{"m5.large/a/on-demand 96000", "m5.large/a/on-demand 96000"}, bought(plan)); d != "" {
				t.Errorf("Solve() buys (-want +got):\n%s", d)
			}
			break
		}
		costs = next
	}
	if rounds != 3 { // t3 in zone a, t3 in zone b, then m5
		t.Errorf("%d rounds, want 3", rounds)
	}
	if got := costs.Without(&schedule.Plan{}, &policy.Verdict{}); got != nil {
		t.Error("Without() of a verdict that lets everything be is not nil")
	}
}

// TestInputs_Launch_fallback says what the plan would have bought first.
func TestInputs_Launch_fallback(t *testing.T) {
	both := func(np *karpv1.NodePool) *karpv1.NodePool {
		np.Spec.Template.Spec.Requirements[0].Values = []string{"on-demand", "spot", "reserved"}
		return np
	}
	weighty := func(np *karpv1.NodePool, limit string) *karpv1.NodePool {
		np.Name, np.Spec.Weight = "first", new(int32(10))
		np.Spec.Limits = corev1.ResourceList{"cpu": resource.MustParse(limit)}
		return np
	}
	onDemand := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: "on-demand"}
		return p
	}
	noSpot := func(o *catalog.Offering) { o.Unavailable = o.Unavailable || o.CapacityType == catalog.Spot }
	reserved := func(capacity int) func(it *catalog.InstanceType) {
		return func(it *catalog.InstanceType) {
			it.Offerings = append(it.Offerings, catalog.Offering{
				Zone: "a", CapacityType: catalog.Reserved, Price: 1, ReservationID: "cr-1", ReservationCapacity: capacity,
				Requirements: requirements.NewSet(requirements.In(catalog.ReservationIDLabel, "cr-1")),
			})
		}
	}
	tests := map[string]struct {
		pools  []*karpv1.NodePool
		pods   []*corev1.Pod
		typ    func(*catalog.InstanceType)
		offer  func(*catalog.Offering)
		denied string // capacity type
		want   []string
	}{
		"nothing comes before the cheapest":          {pools: []*karpv1.NodePool{both(pool("web"))}, want: []string{"spot after nothing"}},
		"on-demand where spot has no capacity":       {pools: []*karpv1.NodePool{both(pool("web"))}, offer: noSpot, want: []string{"on-demand after web spot: no capacity of t3.large in a"}},
		"not where the pool has no spot":             {pools: []*karpv1.NodePool{pool("web")}, offer: noSpot, want: []string{"on-demand after nothing"}},
		"not where the pod must not run on spot":     {pools: []*karpv1.NodePool{both(pool("web"))}, pods: []*corev1.Pod{onDemand(pod("cart-0", "", "1500m"))}, offer: noSpot, want: []string{"on-demand after nothing"}},
		"not where a policy excludes spot":           {pools: []*karpv1.NodePool{both(pool("web"))}, denied: "spot", offer: noSpot, want: []string{"on-demand after nothing"}},
		"not where the spot offerings are too small": {pools: []*karpv1.NodePool{both(pool("web"))}, pods: []*corev1.Pod{pod("cart-0", "", "20")}, offer: func(o *catalog.Offering) { o.Unavailable = o.CapacityType == catalog.Spot && o.Price < 1_000_000 }, want: []string{"spot after nothing"}},
		"a reservation that is used up inside the plan": {
			pools: []*karpv1.NodePool{both(pool("web"))}, pods: pods(2), typ: reserved(1),
			want: []string{"reserved after nothing", "spot after web reserved: reservation cr-1 is used up"},
		},
		"a reservation without units": {
			pools: []*karpv1.NodePool{both(pool("web"))}, typ: reserved(0), want: []string{"spot after web reserved: reservation cr-1 is used up"},
		},
		"a pool of more weight at its limit": {pools: []*karpv1.NodePool{pool("web"), weighty(pool("first"), "1")}, want: []string{"on-demand after first : its limit of cpu is reached"}},
		"a pool of more weight without capacity": {pools: []*karpv1.NodePool{pool("web"), weighty(func() *karpv1.NodePool {
			p := pool("first")
			p.Spec.Template.Spec.Requirements[0].Values = []string{"spot"}
			return p
		}(), "100")}, offer: noSpot, want: []string{"on-demand after first : it has no capacity"}},
		"not a pool whose taints keep the pod off": {pools: []*karpv1.NodePool{pool("web"), weighty(func() *karpv1.NodePool {
			p := pool("first")
			p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoSchedule"}}
			return p
		}(), "1")}, want: []string{"on-demand after nothing"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			types := []catalog.InstanceType{machine("m5.large", 2, 96_000), machine("c5.metal", 96, 4_080_000), machine("t3.large", 2, 83_000)}
			for i := range types {
				if test.typ != nil && types[i].Name == "m5.large" {
					test.typ(&types[i])
				}
				for j := range types[i].Offerings {
					if test.offer != nil {
						test.offer(&types[i].Offerings[j])
					}
				}
			}
			cat, errs := catalog.New(types)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if test.pods == nil {
				test.pods = pods(1)
			}
			s, problems := snapshot.Build(snapshot.Objects{NodePools: test.pools, Pods: test.pods}, snapshot.Options{Now: noon, Catalog: cat, AssumeReady: true})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			e := engine(t, policy.Policy{Name: "no", Hook: policy.Score, Evaluator: &fake{score: func(in *policy.ScoreInput) (policy.ScoreAnswer, error) {
				var a policy.ScoreAnswer
				for i := range in.Candidates.Rows {
					if in.Candidates.Rows[i].Offering.CapacityType == test.denied {
						a.Deny = append(a.Deny, policy.RowDeny{Row: i, Msg: "no"})
					}
				}
				return a, nil
			}}})
			var in policy.Inputs
			costs, err := e.Costs(t.Context(), &in, s, policy.Facts{})
			if err != nil {
				t.Fatal(err)
			}
			plan := solve(t, s, costs)
			q := in.Launch(s, &plan, costs, policy.Facts{})
			var got []string
			for _, c := range q.Claims {
				text := c.Offering.CapacityType + " after nothing"
				if f := c.FallbackFrom; f != nil {
					text = fmt.Sprintf("%s after %s %s: %s", c.Offering.CapacityType, f.Pool, f.CapacityType, f.Reason)
				}
				got = append(got, text)
			}
			slices.Sort(got)
			if d := cmp.Diff(test.want, got); d != "" {
				t.Errorf("claims (-want +got):\n%s", d)
			}
		})
	}
}

func TestInputs_Score(t *testing.T) {
	s := snap(t, snapshot.Objects{
		Pods: append(pods(2), pod("old", "n1", "1")), Nodes: []*corev1.Node{running("n1", "web", "m5.large", "a")},
		DaemonSets: []*appsv1.DaemonSet{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cni"},
			Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: pod("x", "", "100m").Spec}},
		}},
	})
	byKey := map[snapshot.PodKey]*corev1.Pod{}
	for _, p := range pods(2) {
		byKey[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	}
	var in policy.Inputs
	got := in.Score(s, s.Pools[0], policy.Facts{
		PlanID: "p1", Pod: func(k snapshot.PodKey) *corev1.Pod { return byKey[k] },
		Namespace: func(n string) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"tz": "UTC"}}}
		},
		Offering: func(_ string, it *catalog.InstanceType, _ *catalog.Offering, out *policy.Offering) {
			if it.Name == "m5.large" {
				out.ICEHistory.LastHour = 2
			}
		},
	})
	if d := cmp.Diff(policy.Pods{
		Count: 2, SumRequests: policy.Requests{CPU: 3000, Memory: 2048}, Namespaces: []string{"shop"}, Teams: []string{"shop"}, Priorities: []int64{0},
		MaxPendingSeconds: 60, NamespaceLabels: map[string]map[string]string{"shop": {"tz": "UTC"}},
	}, got.Pods); d != "" {
		t.Errorf("pods (-want +got):\n%s", d)
	}
	if d := cmp.Diff(policy.Totals{
		Nodes: 1, CPU: 2000, Memory: 8192, HourlyCost: 96_000, NodesByZone: map[string]int64{"a": 1}, NodesByCapacityType: map[string]int64{"on-demand": 1},
		ByLabel: map[string]map[string]policy.LabelTotals{"team": {"shop": {Nodes: 1, CPU: 2000, HourlyCost: 96_000}}},
	}, got.Totals); d != "" {
		t.Errorf("totals (-want +got):\n%s", d)
	}
	np := got.NodePool
	if np.Nodes != 1 || np.HourlyCost != 96_000 || *np.Limits.CPU != 100_000 || *np.Remaining.CPU != 98_000 || *np.Disruption.ExpireAfterSeconds != 172_800 {
		t.Errorf("nodePool %+v", np)
	}
	var row *policy.OfferingRow
	for i := range got.Candidates.Rows {
		if r := &got.Candidates.Rows[i]; r.InstanceType.Name == "m5.large" && r.Offering.Zone == "b" {
			row = r
		}
	}
	if row == nil || got.Candidates.Len() != 8 {
		t.Fatalf("%d rows, or none for m5.large in zone b; want 4 types in 2 zones", got.Candidates.Len())
	}
	od, spot := int64(96_000), int64(38_400)
	want := policy.OfferingRow{
		InstanceType: &policy.InstanceType{
			Name: "m5.large", Family: "m5", Generation: 5, Size: "large", Arch: "amd64", OS: []string{"linux"}, CPU: 2000, Memory: 8192, Pods: 110,
			Labels: map[string]string{corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", "karpenter.k8s.aws/instance-family": "m5"},
		},
		Offering: policy.Offering{Zone: "b", CapacityType: "on-demand", Available: true, ListPrice: od, OnDemandPrice: &od, SpotPrice: &spot, PriceSource: "catalogue", ICEHistory: policy.ICEHistory{LastHour: 2}},
		// A request of 1Gi and a request of 100m.
		DaemonOverhead: policy.Daemons{CPU: 100, Memory: 1024, Pods: 1, Names: []string{"kube-system/cni"}},
		Cost:           od,
	}
	if d := cmp.Diff(want, *row); d != "" {
		t.Errorf("row (-want +got):\n%s", d)
	}
	if got.Now.Weekday != "Wednesday" || got.Now.Hour != 12 || got.Now.Unix != noon.Unix() {
		t.Errorf("now %+v", got.Now)
	}
}

func TestInputs_Disrupt(t *testing.T) {
	s := snap(t, snapshot.Objects{
		Pods:  []*corev1.Pod{pod("a", "n1", "1"), pod("b", "n2", "500m")},
		Nodes: []*corev1.Node{running("n1", "web", "m5.large", "a"), running("n2", "web", "c5.large", "b")},
	})
	var in policy.Inputs
	cand, err := in.CandidateOf(s, "n1", policy.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	if cand.HourlyCost != 96_000 || cand.Utilization.CPU != 500 || cand.InstanceType.Family != "m5" || *cand.Offering.OnDemandPrice != 96_000 {
		t.Errorf("CandidateOf() = %+v", cand)
	}
	if _, err := in.CandidateOf(s, "n9", policy.Facts{}); err == nil {
		t.Error("CandidateOf() of an unknown node: no error")
	}
	got := in.Disrupt(s, policy.Command{Reason: policy.Underutilized, Candidates: []policy.Candidate{cand}}, nil, policy.Facts{})
	if len(got.Pods) != 1 || got.Pods[0].Name != "a" || got.Pods[0].Node != "n1" || got.PodTotals.SumRequests.CPU != 1000 || got.NodePool == nil || got.NodePools["web"].Nodes != 2 {
		t.Errorf("Disrupt() = %+v", got)
	}
}

func TestInputs_Admit(t *testing.T) {
	other := pool("other")
	other.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	s := snap(t, snapshot.Objects{NodePools: []*karpv1.NodePool{pool("web"), pool("api"), other}})
	var in policy.Inputs
	got := in.Admit(s, pool("web"), policy.Review{}, policy.Facts{})
	if d := cmp.Diff([]policy.Sibling{{Name: "api", Overlap: true}, {Name: "other"}}, got.Siblings); d != "" {
		t.Errorf("siblings (-want +got):\n%s", d)
	}
	r := got.Resolved
	if r.TypesCount != 4 || r.PriceMin != 83_000 || r.PriceMax != 4_080_000 || !slices.Equal(r.CapacityTypes, []string{"on-demand"}) || !slices.Equal(r.Zones, []string{"a", "b"}) {
		t.Errorf("resolved %+v", r)
	}
	e := engine(t, shipped(t, "admit/price_ceiling.rego", nil), shipped(t, "admit/nodepool_hygiene.rego", nil))
	v, err := e.Admit(t.Context(), got)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, w := range v.Warn {
		codes = append(codes, w.Code)
	}
	if d := cmp.Diff([]string{"overlap", "bare-metal", "price"}, codes); d != "" || !v.Allowed {
		t.Errorf("warnings (-want +got):\n%s\n%s", d, v.Text())
	}
}

// TestEngine_Costs_pass checks that ten policies cost a pass next to nothing once nothing
// changes for them.
func TestEngine_Costs_pass(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	var ps []*corev1.Pod
	for i := range 5000 {
		p := pod(fmt.Sprintf("p-%d", i), "", []string{"100m", "250m", "500m", "1", "1500m"}[i%5])
		p.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse([]string{"100Mi", "256Mi", "512Mi", "1Gi", "2Gi", "4Gi", "3Gi"}[i%7])
		ps = append(ps, p)
	}
	np := pool("web")
	np.Spec.Limits = nil
	s, problems := snapshot.Build(snapshot.Objects{Pods: ps, NodePools: []*karpv1.NodePool{np}}, snapshot.Options{Now: noon, Catalog: sim.Builtin(), AssumeReady: true})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var list []policy.Policy
	for i, f := range []string{"burstable_baseline", "capacity_aware", "carbon", "commitment_first", "contract_price", "host_fee", "newer_generation", "zone_balance", "host_fee", "burstable_baseline"} {
		p := shipped(t, "score/"+f+".rego", nil)
		p.Name, p.Order = fmt.Sprintf("%d-%s", i, f), i
		list = append(list, p)
	}
	e := engine(t, list...)
	var in policy.Inputs
	solve := func(costs schedule.Costs) time.Duration {
		begin := time.Now()
		if _, err := schedule.Solve(t.Context(), s, schedule.Options{Costs: costs}); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	ask := func() (*policy.Costs, time.Duration) {
		begin := time.Now()
		c, err := e.Costs(t.Context(), &in, s, policy.Facts{})
		took := time.Since(begin)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range c.Scores("web").Policies {
			if r.Error != "" {
				t.Fatalf("policy %s: %s", r.Name, r.Error)
			}
		}
		return c, took
	}
	_, first := ask()
	// The same costs as a ready table are the pass without policies: other costs make
	// another plan, which may be harder or easier to find.
	table, asked := ask()
	without, list0 := solve(table), solve(nil)
	for range 6 {
		_, d := ask()
		asked = min(asked, d)
		without, list0 = min(without, solve(table)), min(list0, solve(nil))
	}
	ratio := float64(without+asked) / float64(without)
	t.Logf("pods=5000 policies=10 first=%s cached=%s solve=%s solve_at_list_prices=%s ratio=%.2f", first, asked, without, list0, ratio)
	if ratio > 1.2 {
		t.Errorf("a pass with ten cached policies takes %.2f times a pass without, want at most 1.2", ratio)
	}
}
