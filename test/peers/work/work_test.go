package work

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// TestTwister holds the generator against numbers that Python prints for
// random.seed(s); [random.getrandbits(32) for _ in range(n)][-1].
func TestTwister(t *testing.T) {
	tests := map[string]struct {
		seed uint32
		n    int
		want uint32
	}{
		"the first number":                {seed: 1, n: 1, want: 577090037},
		"after the state is used up once": {seed: 1, n: 625, want: 1360367077},
		"another seed":                    {seed: 4294967295, n: 2000, want: 2640887251},
		"seed zero":                       {seed: 0, n: 3, want: 3255389356},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tw := newTwister(tt.seed)
			var got uint32
			for range tt.n {
				got = tw.uint32()
			}
			if got != tt.want {
				t.Errorf("number %d of seed %d = %d, want %d", tt.n, tt.seed, got, tt.want)
			}
		})
	}
}

func TestPods_Deterministic(t *testing.T) {
	tests := map[string]func() []*corev1.Pod{
		"uniform": func() []*corev1.Pod { return UniformPods(500, 7) },
		"diverse": func() []*corev1.Pod { return DiversePods(500, 42) },
	}
	for name, pods := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(pods(), pods()); diff != "" {
				t.Errorf("two calls differ (-first +second):\n%s", diff)
			}
		})
	}
	if cmp.Equal(UniformPods(100, 1), UniformPods(100, 2)) {
		t.Error("UniformPods() of two seeds are equal")
	}
	if cmp.Equal(DiversePods(100, 1), DiversePods(100, 2)) {
		t.Error("DiversePods() of two seeds are equal")
	}
}

// TestUniformPods_Count compares the number of pods per size with a script's, for
// random.seed(1) and 5000 pods, CPU drawn before memory.
func TestUniformPods_Count(t *testing.T) {
	got := map[int64]int{}
	for _, p := range UniformPods(5000, 1) {
		got[p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()]++
	}
	want := map[int64]int{100: 1005, 250: 1036, 500: 979, 1000: 980, 1500: 1000}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods per millicores (-want +got):\n%s", diff)
	}
}

func TestDiversePods_Mix(t *testing.T) {
	kind := func(p *corev1.Pod) string {
		switch a := p.Spec.Affinity; {
		case len(p.Spec.TopologySpreadConstraints) > 0:
			return "spread over " + p.Spec.TopologySpreadConstraints[0].TopologyKey
		case a != nil && a.PodAffinity != nil:
			return "affinity in " + a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey
		case a != nil && a.PodAntiAffinity != nil:
			return "apart in " + a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey
		}
		return "plain"
	}
	got := map[string]int{}
	for _, p := range DiversePods(503, 42) {
		got[kind(p)]++
	}
	want := map[string]int{
		"plain": 100 + 3,
		"spread over " + corev1.LabelTopologyZone: 100,
		"spread over " + corev1.LabelHostname:     100,
		"affinity in " + corev1.LabelTopologyZone: 100,
		"apart in " + corev1.LabelHostname:        100,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods per kind (-want +got):\n%s", diff)
	}
}

func TestTracePods(t *testing.T) {
	tests := map[string]struct {
		in      string
		limit   int
		want    []resources.List
		wantErr string
	}{
		"columns are found by name": {
			in:   "name,num_gpu,memory_mib,extra,cpu_milli\na,2,1024,x,500\nb,0,1,x,100\n",
			want: []resources.List{{"cpu": 500, "memory": 1 << 30, "pods": 1, GPU: 2}, {"cpu": 100, "memory": 1 << 20, "pods": 1}},
		},
		"a limit ends the reading": {
			in: "cpu_milli,memory_mib,num_gpu\n1,1,0\nbad,1,0\n", limit: 1,
			want: []resources.List{{"cpu": 1, "memory": 1 << 20, "pods": 1}},
		},
		"a missing column":     {in: "cpu_milli,num_gpu\n1,1\n", wantErr: "column memory_mib is missing"},
		"a bad number":         {in: "cpu_milli,memory_mib,num_gpu\n1,1,0\n1,-3,0\n", wantErr: "line 3: memory_mib is \"-3\""},
		"a row too short":      {in: "cpu_milli,memory_mib,num_gpu\n1,1\n", wantErr: "wrong number of fields"},
		"nothing":              {in: "", wantErr: "header"},
		"a header and no pods": {in: "cpu_milli,memory_mib,num_gpu\n", wantErr: "no pods"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pods, err := TracePods(strings.NewReader(tt.in), tt.limit)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("TracePods() error = %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []resources.List
			for _, p := range pods {
				got = append(got, Requests(p))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// machine is a type of cpu millicores with 4 MiB for each, at a price in micro-dollars.
func machine(name string, cpu int64, price catalog.Price, labels ...requirements.Requirement) *catalog.InstanceType {
	room := resources.List{"cpu": cpu, "memory": cpu * 4 << 20, "pods": 100}
	return &catalog.InstanceType{
		Name: name, Capacity: room, Allocatable: room, Requirements: requirements.NewSet(labels...),
		Offerings: []catalog.Offering{
			{Zone: "a", CapacityType: catalog.OnDemand, Price: price},
			{Zone: "b", CapacityType: catalog.OnDemand, Price: price / 2, Unavailable: true},
			{Zone: "a", CapacityType: catalog.Spot, Price: price / 4},
		},
	}
}

func TestWork_ClassBound(t *testing.T) {
	w := &Work{Types: OnDemand([]*catalog.InstanceType{machine("small", 2000, 1e6), machine("large", 20000, 5e6)}), Pool: NewPool()}
	var plain, apart maker
	for range 40 {
		plain.add(nil, requests(1000, 16))
	}
	if got := w.ClassBound(plain.pods).Bound; math.Abs(got-10) > 1e-4 {
		t.Errorf("40 pods of one CPU: bound %v, want 10 (two large nodes)", got)
	}
	for _, p := range DiversePods(15, 1) {
		if p.Spec.Affinity != nil && p.Spec.Affinity.PodAntiAffinity != nil {
			apart.pods = append(apart.pods, p)
		}
	}
	if got := w.ClassBound(apart.pods).Bound; math.Abs(got-3) > 1e-4 {
		t.Errorf("3 pods apart from each other: bound %v, want 3 (a small node each)", got)
	}
	w.Pool = NewPool(karpv1.Requirement{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"small"}})
	if got := w.ClassBound(plain.pods).Bound; math.Abs(got-20) > 1e-4 {
		t.Errorf("40 pods of one CPU on small nodes only: bound %v, want 20", got)
	}
}

func TestWork_Admitted(t *testing.T) {
	gen := func(g string) requirements.Requirement { return requirements.In(GenerationLabel, g) }
	cat := func(c string) requirements.Requirement { return requirements.In(CategoryLabel, c) }
	amd := requirements.In(corev1.LabelArchStable, "amd64")
	types := OnDemand([]*catalog.InstanceType{
		machine("m5.large", 2000, 1e6, gen("5"), cat("m"), amd),
		machine("m2.large", 2000, 1e6, gen("2"), cat("m"), amd),
		machine("m10.large", 2000, 1e6, gen("10"), cat("m"), amd),
		machine("t3.large", 2000, 1e6, gen("3"), cat("t"), amd),
		machine("c7g.large", 2000, 1e6, gen("7"), cat("c"), requirements.In(corev1.LabelArchStable, "arm64")),
	})
	if got := Uniform(1, 1, types).Admitted(); got != 2 {
		t.Errorf("uniform work admits %d types, want 2 (m5.large, m10.large)", got)
	}
	if got := Catalogue(1, 1, types).Admitted(); got != 5 {
		t.Errorf("catalogue work admits %d types, want all 5", got)
	}
}

func TestWork_Check(t *testing.T) {
	m := maker{}
	for range 3 {
		m.add(nil, requests(1000, 16))
	}
	w := &Work{Pods: m.pods, Types: OnDemand([]*catalog.InstanceType{machine("small", 2000, 1e6)}), Pool: NewPool()}
	small := func(pods ...*corev1.Pod) Node {
		return Node{InstanceType: "small", Zone: "a", CapacityType: catalog.OnDemand, Pods: pods}
	}
	p := m.pods
	tests := map[string]struct {
		out     Outcome
		wantErr string
	}{
		"every pod once": {out: Outcome{New: []Node{small(p[0], p[1])}, Unscheduled: p[2:]}},
		"too full":       {out: Outcome{New: []Node{small(p...)}}, wantErr: "there is room for"},
		"a pod twice":    {out: Outcome{New: []Node{small(p[0], p[1]), small(p[1], p[2])}}, wantErr: "placed 2 times"},
		"a pod nowhere":  {out: Outcome{New: []Node{small(p[0], p[1])}}, wantErr: "placed 0 times"},
		"an offering that is gone": {
			out:     Outcome{New: []Node{{InstanceType: "small", Zone: "b", CapacityType: catalog.OnDemand, Pods: p[:1]}}, Unscheduled: p[1:]},
			wantErr: "not for sale",
		},
		"a bound too high": {out: Outcome{New: []Node{small(p[0], p[1])}, Unscheduled: p[2:], OwnBound: 1e6 + 1}, wantErr: "above its cost"},
		"an unknown type":  {out: Outcome{New: []Node{{InstanceType: "big", Pods: p[:1]}}}, wantErr: "no such type"},
		"an unknown node":  {out: Outcome{Existing: map[string][]*corev1.Pod{"n": p}}, wantErr: "does not exist"},
		"an empty node":    {out: Outcome{New: []Node{small()}, Unscheduled: p}, wantErr: "has no pods"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := w.Check(&tt.out)
			if tt.wantErr == "" && err != nil {
				t.Errorf("Check() = %v, want nil", err)
			}
			if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("Check() = %v, want an error with %q", err, tt.wantErr)
			}
		})
	}
	if got := w.Cost(&Outcome{New: []Node{small(p[0]), small(p[1])}}); got != 2e6 {
		t.Errorf("Cost() = %d micro-dollars, want 2000000", got)
	}
}

func TestWork_WithHalfFullNodes(t *testing.T) {
	w := Diverse(10, 42, []*catalog.InstanceType{machine("8", 8000, 1e6), machine("16", 16000, 2e6), machine("7", 7000, 1e6)})
	if err := w.WithHalfFullNodes(5); err != nil {
		t.Fatal(err)
	}
	if len(w.Nodes) != 5 || len(w.NodeClaims) != 5 {
		t.Errorf("%d nodes and %d claims, want 5 of each", len(w.Nodes), len(w.NodeClaims))
	}
	used := map[string]int64{}
	for _, p := range w.Bound {
		used[p.Spec.NodeName] += Requests(p)[corev1.ResourceCPU]
	}
	for _, n := range w.Nodes {
		if got, want := used[n.Name], n.Status.Capacity.Cpu().MilliValue()/2; got != want {
			t.Errorf("node %s: %d millicores used, want %d", n.Name, got, want)
		}
	}
	if err := Diverse(1, 42, nil).WithHalfFullNodes(1); err == nil {
		t.Error("WithHalfFullNodes() without types: no error, want one")
	}
}

// TestWork_ClassBound_Catalogue compares with what an LP solver makes of the same
// relaxation, written out in full, for the same pods and prices.
func TestWork_ClassBound_Catalogue(t *testing.T) {
	all := sim.Builtin().Types()
	types := make([]*catalog.InstanceType, len(all))
	for i := range all {
		types[i] = &all[i]
	}
	tests := map[string]struct {
		w     *Work
		types int
		want  float64
	}{
		"5000 pods on current general types": {w: Uniform(5000, 1, types), types: 714, want: 128.9},
		"5000 pods on every type":            {w: Catalogue(5000, 1, types), types: 1345, want: 57.3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.w.Admitted(); got != tt.types {
				t.Errorf("Admitted() = %d types, want %d", got, tt.types)
			}
			got := tt.w.ClassBound(tt.w.Pods)
			if math.Abs(got.Bound-tt.want) > 0.002*tt.want {
				t.Errorf("ClassBound() = %v, want %v within 0.2 %%", got.Bound, tt.want)
			}
			if got.Gap() > 1e-5 || got.Unheld != 0 {
				t.Errorf("ClassBound() has a gap of %v and leaves out %d pods, want neither", got.Gap(), got.Unheld)
			}
		})
	}
}
