package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

const gib = int64(1) << 30

// twoTypes has a small and a large type in zones z1 and z2, at $0.1 and $0.2.
func twoTypes(string) (*catalog.Catalog, error) {
	var types []catalog.InstanceType
	for i, name := range []string{"small", "large"} {
		size := int64(i + 1)
		t := catalog.InstanceType{
			Name:         name,
			Requirements: requirements.NewSet(requirements.In(corev1.LabelArchStable, "amd64"), requirements.In(corev1.LabelOSStable, "linux")),
			Capacity:     resources.List{"cpu": 2000 * size, "memory": 4 * gib * size, "pods": 10},
		}
		for _, zone := range []string{"z1", "z2"} {
			t.Offerings = append(t.Offerings, catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: catalog.Price(100_000 * size)})
		}
		types = append(types, t)
	}
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return c, nil
}

// problem reads a scenario from text.
func problem(t *testing.T, text string) *Problem {
	t.Helper()
	path := filepath.Join(t.TempDir(), "case.yaml")
	if err := os.WriteFile(path, []byte("about: A test.\nexpect: {}\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	problems, err := Problems(path, twoTypes)
	if err != nil {
		t.Fatal(err)
	}
	return &problems[0]
}

// bought is a new node of a plan that check has nothing against.
func bought(name, typ, zone string) schedule.NewNode {
	cost := catalog.Price(100_000)
	if typ == "large" {
		cost = 200_000
	}
	return schedule.NewNode{
		Name: name, Pool: "default", Planned: schedule.Offer{InstanceType: typ, Zone: zone, CapacityType: catalog.OnDemand, Cost: cost},
		Labels: map[string]string{
			corev1.LabelTopologyZone: zone, corev1.LabelInstanceTypeStable: typ, "karpenter.sh/capacity-type": "on-demand",
			"karpenter.sh/nodepool": "default", corev1.LabelArchStable: "amd64",
		},
	}
}

func assign(pod, node string, isNew bool) schedule.Assignment {
	return schedule.Assignment{Pod: snapshot.PodKey{Namespace: "default", Name: pod}, Node: node, New: isNew}
}

func plan(nodes []schedule.NewNode, assignments ...schedule.Assignment) schedule.Plan {
	p := schedule.Plan{NewNodes: nodes, Assignments: assignments}
	for _, n := range nodes {
		p.Cost += n.Planned.Cost
	}
	return p
}

// TestCheck shows the checker plans that break one rule each, and one that breaks none.
func TestCheck(t *testing.T) {
	one := []schedule.NewNode{bought("default/1", "small", "z1")}
	two := []schedule.NewNode{bought("default/1", "small", "z1"), bought("default/2", "small", "z2")}
	const n1 = "nodes: [{name: n1, type: small, zone: z1}]\n"
	tests := map[string]struct {
		problem string
		plan    schedule.Plan
		want    []string // words of each fault, in order; none if the plan is right
	}{
		"nothing wrong": {"pods: [{name: a, cpu: 2}]", plan(one, assign("a", "default/1", true)), nil},
		"too large":     {"pods: [{name: a, cpu: 3}]", plan(one, assign("a", "default/1", true)), []string{"I6: default/a does not go to default/1: cpu"}},
		"two that do not fit together": {"pods: [{name: a, count: 2, cpu: 1500m}]", plan(one, assign("a-1", "default/1", true), assign("a-2", "default/1", true)),
			[]string{"a-2 does not go to default/1: cpu"}},
		"a daemon's share": {"pods: [{name: a, cpu: 2}]\ndaemons: [{name: d, cpu: 100m}]", plan(one, assign("a", "default/1", true)), []string{"cpu"}},
		"a selector":       {"pods: [{name: a, selector: {disk: ssd}}]", plan(one, assign("a", "default/1", true)), []string{"node selector or affinity"}},
		"a taint":          {"pods: [{name: a}]\nnodes: [{name: n1, type: small, zone: z1, taints: ['x=y:NoSchedule']}]", plan(nil, assign("a", "n1", false)), []string{"taint x=y:NoSchedule"}},
		"a tolerated taint": {"pods: [{name: a, tolerates: [x]}]\nnodes: [{name: n1, type: small, zone: z1, taints: ['x=y:NoSchedule']}]",
			plan(nil, assign("a", "n1", false)), nil},
		"a host port": {"pods: [{name: a, count: 2, hostPorts: [80]}]\n" + n1, plan(nil, assign("a-1", "n1", false), assign("a-2", "n1", false)),
			[]string{"host port 80"}},
		"a volume elsewhere": {"volumes: [{name: v, zone: z2}]\npods: [{name: a, claims: [v]}]", plan(one, assign("a", "default/1", true)), []string{"volume of claim v"}},
		"a missing claim":    {"pods: [{name: a, claims: [v]}]", plan(one, assign("a", "default/1", true)), []string{"a claim does not exist"}},
		"too many volumes": {"catalog: {attachLimits: {csi.example.com: 1}}\nvolumes: [{name: v, count: 2}]\npods: [{name: a, claims: [v-1, v-2]}]",
			plan(one, assign("a", "default/1", true)), []string{"2 volumes of csi.example.com, 1 attach"}},
		"a spread": {"pods: [{name: a, count: 2, spread: [{key: zone}]}]",
			plan(two, assign("a-1", "default/1", true), assign("a-2", "default/1", true)), []string{"spread over topology.kubernetes.io/zone"}},
		"a spread that holds": {"pods: [{name: a, count: 2, spread: [{key: zone}]}]", plan(two, assign("a-1", "default/1", true), assign("a-2", "default/2", true)), nil},
		"too few domains": {"pods: [{name: a, count: 2, spread: [{key: zone, minDomains: 2}]}]", plan(one, assign("a-1", "default/1", true), assign("a-2", "default/1", true)),
			[]string{"spread over"}},
		"a default spread": {"options: {defaultSpread: ['zone:1']}\npods: [{name: a, count: 2}]",
			plan(two, assign("a-1", "default/1", true), assign("a-2", "default/1", true)), []string{"spread over"}},
		"anti-affinity": {"pods: [{name: a, count: 2, apart: [zone]}]\n" + n1, plan(one, assign("a-1", "default/1", true), assign("a-2", "n1", false)),
			[]string{"anti-affinity over topology.kubernetes.io/zone"}},
		"anti-affinity of a pod that runs": {"pods: [{name: b, app: a}]\nnodes: [{name: n1, type: small, zone: z1, pods: [{name: a, apart: [hostname]}]}]",
			plan(nil, assign("b", "n1", false)), []string{"anti-affinity over kubernetes.io/hostname of a"}},
		"affinity": {"pods: [{name: b, near: [hostname], nearApp: a}]\nnodes: [{name: n1, type: small, zone: z1, pods: [{name: a}]}]",
			plan(one, assign("b", "default/1", true)), []string{"affinity over kubernetes.io/hostname"}},
		"affinity to itself": {"pods: [{name: b, near: [zone]}]", plan(one, assign("b", "default/1", true)), nil},
		"a limit": {"pools: [{name: default, limits: {nodes: '1'}}]\npods: [{name: a, count: 2}]",
			plan(two, assign("a-1", "default/1", true), assign("a-2", "default/2", true)), []string{"pool default: 2 nodes is above the limit of 1"}},
		"a requirement of the pool": {"pools: [{name: default, zones: [z2]}]\npods: [{name: a}]", plan(one, assign("a", "default/1", true)),
			[]string{`label topology.kubernetes.io/zone="z1" is not what pool default requires`}},
		"an offering that is sold out": {"catalog: {offerings: [{type: small, zone: z1, unavailable: true}]}\npods: [{name: a}]", plan(one, assign("a", "default/1", true)),
			[]string{"small/z1/on-demand cannot be bought"}},
		"a pod that could go":     {"pods: [{name: a}]\n" + n1, schedule.Plan{Unscheduled: []schedule.Unscheduled{{Pod: snapshot.PodKey{Namespace: "default", Name: "a"}, Reasons: []schedule.Reason{{Code: "X"}}}}}, []string{"I1: default/a stays pending, and n1 would take it"}},
		"a pod without a reason":  {"pods: [{name: a, cpu: 9}]", schedule.Plan{Unscheduled: []schedule.Unscheduled{{Pod: snapshot.PodKey{Namespace: "default", Name: "a"}}}}, []string{"I7: default/a"}},
		"a pod that is forgotten": {"pods: [{name: a}]", schedule.Plan{}, []string{"default/a is neither assigned nor unscheduled"}},
		"a pod assigned twice":    {"pods: [{name: a}]", plan(one, assign("a", "default/1", true), assign("a", "default/1", true)), []string{"assigned before"}},
		"a cost that is made up":  {"pods: []", schedule.Plan{Cost: 5}, []string{"cost 5 is not that of its nodes, 0"}},
		"a bound that is none": {"pods: [{name: a}]", func() schedule.Plan {
			p := plan(one, assign("a", "default/1", true))
			p.Bound = p.Cost + 1
			return p
		}(), []string{"the plan's bound 100001 is above its cost 100000"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := check(problem(t, test.problem), test.plan)
			if len(got) != len(test.want) {
				t.Fatalf("check() found %q, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("check() found %q, want %q in it", got[i], want)
				}
			}
		})
	}
}

// TestExpect shows expectations a plan that meets them and one that does not.
func TestExpect(t *testing.T) {
	p := problem(t, "pods: [{name: a}, {name: b, count: 2, cpu: 9}]\nnodes: [{name: n1, type: small, zone: z2, pods: [{name: c, app: a}]}]")
	made := plan([]schedule.NewNode{bought("default/1", "small", "z1")}, assign("a", "default/1", true))
	for _, name := range []string{"b-1", "b-2"} {
		made.Unscheduled = append(made.Unscheduled, schedule.Unscheduled{Pod: snapshot.PodKey{Namespace: "default", Name: name},
			Reasons: []schedule.Reason{{Code: schedule.NotEnough, Key: "cpu", Want: "9", Have: "4"}}})
	}
	yes, no := new(true), new(false)
	pending := []Pending{{Pod: "b", Count: 2, Reason: schedule.NotEnough, Says: []string{"cpu"}}}
	tests := map[string]struct {
		expect Expect
		wrong  bool
	}{
		"all of it": {Expect{Cost: Exactly(0.1), MaxCost: new(0.1), Nodes: new(1), Types: map[string]int{"small": 1}, Pools: map[string]int{"default": 1},
			Zones: map[string]int{"z1": 1}, CapacityTypes: map[string]int{"on-demand": 1}, Placed: map[string]int{}, Relaxed: no,
			PodsIn: map[string]map[string]int{"a": {"z1": 1, "z2": 1}}, Offers: &Offers{Types: []string{"small"}},
			OneOf: []Expect{{Nodes: new(7)}, {Nodes: new(1)}}, Pending: pending}, false},
		"cost":           {Expect{Cost: Exactly(0.2), Pending: pending}, true},
		"most cost":      {Expect{MaxCost: new(0.05), Pending: pending}, true},
		"nodes":          {Expect{Nodes: new(2), Pending: pending}, true},
		"types":          {Expect{Types: map[string]int{"large": 1}, Pending: pending}, true},
		"pools":          {Expect{Pools: map[string]int{"other": 1}, Pending: pending}, true},
		"zones":          {Expect{Zones: map[string]int{"z2": 1}, Pending: pending}, true},
		"capacity types": {Expect{CapacityTypes: map[string]int{"spot": 1}, Pending: pending}, true},
		"placed":         {Expect{Placed: map[string]int{"n1": 1}, Pending: pending}, true},
		"pods in zones":  {Expect{PodsIn: map[string]map[string]int{"a": {"z1": 2}}, Pending: pending}, true},
		"offers":         {Expect{Offers: &Offers{Zones: []string{"z2"}}, Pending: pending}, true},
		"one of":         {Expect{OneOf: []Expect{{Nodes: new(7)}}, Pending: pending}, true},
		"relaxed":        {Expect{Relaxed: yes, Pending: pending}, true},
		"pending":        {Expect{}, true},
		"pending count":  {Expect{Pending: []Pending{{Pod: "b", Count: 3}}}, true},
		"pending reason": {Expect{Pending: []Pending{{Pod: "b", Count: 2, Reason: schedule.PortTaken}}}, true},
		"pending words":  {Expect{Pending: []Pending{{Pod: "b", Count: 2, Says: []string{"memory"}}}}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := append(test.expect.judge(p, made), pendingAsExpected(&test.expect, made)...)
			if (len(got) > 0) != test.wrong {
				t.Errorf("judge() found %q, want faults: %v", got, test.wrong)
			}
		})
	}
}

func TestProblems_errors(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"no sentence":       {"expect: {}\n", "about: must say"},
		"no expectation":    {"about: A.\n", "expect: must be set"},
		"an unknown field":  {"about: A.\nexpects: {}\n", "x.yaml:2: expects: unknown field; did you mean expect?"},
		"a type":            {"about: A.\nexpect: {}\nnodes: [{name: n, type: huge}]\n", `the catalogue has no type "huge"`},
		"a type to keep":    {"about: A.\nexpect: {}\ncatalog: {types: [huge]}\n", `the catalogue has no type "huge"`},
		"a pool":            {"about: A.\nexpect: {}\nnodes: [{name: n, type: small, pool: p}]\n", `there is no pool "p"`},
		"a taint":           {"about: A.\nexpect: {}\npools: [{name: p, taints: [x]}]\n", `taint "x": write key=value:Effect`},
		"a default spread":  {"about: A.\nexpect: {}\noptions: {defaultSpread: ['zone:0']}\n", "maxSkew: 0: must be positive"},
		"a broken manifest": {"about: A.\nexpect: {}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: 7\n", "x.yaml:7: Pod default/p: spec: must be a map"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.yaml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Problems(path, twoTypes); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Problems() error %v, want %q in it", err, test.want)
			}
		})
	}
}
