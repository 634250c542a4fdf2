package karpenter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// TestToKarpenter_FakeTypes gives Karpenter back what its fake cloud offers.
func TestToKarpenter_FakeTypes(t *testing.T) {
	ours, err := FakeTypes(400)
	if err != nil {
		t.Fatal(err)
	}
	theirs := fake.InstanceTypes(400)
	if len(ours) != len(theirs) {
		t.Fatalf("FakeTypes(400) has %d types, want %d", len(ours), len(theirs))
	}
	for i, want := range theirs {
		got := ToKarpenter(ours[i])
		if got.Name != want.Name {
			t.Fatalf("type %d is %s, want %s", i, got.Name, want.Name)
		}
		if g, w := got.Requirements.String(), want.Requirements.String(); g != w {
			t.Errorf("%s: requirements %s, want %s", want.Name, g, w)
		}
		if !equality.Semantic.DeepEqual(got.Capacity, want.Capacity) {
			t.Errorf("%s: capacity %v, want %v", want.Name, got.Capacity, want.Capacity)
		}
		if !equality.Semantic.DeepEqual(got.Allocatable(), want.Allocatable()) {
			t.Errorf("%s: allocatable %v, want %v", want.Name, got.Allocatable(), want.Allocatable())
		}
		if len(got.Offerings) != len(want.Offerings) {
			t.Fatalf("%s: %d offerings, want %d", want.Name, len(got.Offerings), len(want.Offerings))
		}
		for j, w := range want.Offerings {
			g := got.Offerings[j]
			if g.Zone() != w.Zone() || g.CapacityType() != w.CapacityType() || g.Available != w.Available {
				t.Errorf("%s: offering %d is %s/%s available=%v, want %s/%s available=%v", want.Name, j,
					g.Zone(), g.CapacityType(), g.Available, w.Zone(), w.CapacityType(), w.Available)
			}
			if d := g.Price - w.Price; d > 5e-7 || d < -5e-7 {
				t.Errorf("%s: offering %d costs %v, want %v to the micro-dollar", want.Name, j, g.Price, w.Price)
			}
		}
	}
}

// TestFromKarpenter_RoundTrip loses nothing of our own types on the way through
// Karpenter's.
func TestFromKarpenter_RoundTrip(t *testing.T) {
	lower, err := requirements.New("example.com/cores", corev1.NodeSelectorOpGt, "3")
	if err != nil {
		t.Fatal(err)
	}
	upper, err := requirements.New("example.com/cores", corev1.NodeSelectorOpLt, "9")
	if err != nil {
		t.Fatal(err)
	}
	not, err := requirements.New("example.com/kind", corev1.NodeSelectorOpNotIn, "old", "older")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]catalog.InstanceType{
		"a plain type": {
			Name:         "m9.large",
			Requirements: requirements.NewSet(requirements.In(corev1.LabelInstanceTypeStable, "m9.large"), requirements.In(corev1.LabelOSStable, "linux", "windows")),
			Capacity:     resources.List{"cpu": 2000, "memory": 8 << 30, "pods": 29, work.GPU: 1},
			Allocatable:  resources.List{"cpu": 1930, "memory": 7 << 30, "pods": 29, work.GPU: 1},
			Offerings:    []catalog.Offering{{Zone: "a", CapacityType: catalog.OnDemand, Price: 96123}, {Zone: "b", CapacityType: catalog.Spot, Price: 30001}},
		},
		"an offering that cannot be bought": {
			Name:      "m9.large",
			Offerings: []catalog.Offering{{Zone: "a", CapacityType: catalog.OnDemand, Price: 5, Unavailable: true}},
		},
		"a reservation with a label of its own": {
			Name: "m9.large",
			Offerings: []catalog.Offering{{
				Zone: "a", CapacityType: catalog.Reserved, Price: 1, ReservationID: "r-1", ReservationCapacity: 3,
				Requirements: requirements.NewSet(requirements.In("topology.k8s.aws/zone-id", "use1-az1")),
			}},
		},
		"bounds, exclusions and absence": {
			Name:         "m9.large",
			Requirements: requirements.NewSet(lower, upper, not, requirements.DoesNotExist("special")),
		},
		"attach limits": {Name: "m9.large", AttachLimits: map[string]int64{"ebs.csi.aws.com": 27}},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := FromKarpenter(ToKarpenter(&want))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("FromKarpenter(ToKarpenter()) (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFromKarpenter_Override(t *testing.T) {
	it := fake.NewInstanceType("x", fake.WithOfferings(cloudprovider.Offering{
		Available:        true,
		Requirements:     scheduling.NewLabelRequirements(map[string]string{corev1.LabelTopologyZone: "a", karpenterv1.CapacityTypeLabelKey: "spot"}),
		CapacityOverride: corev1.ResourceList{},
	}))
	if _, err := FromKarpenter(it); err == nil {
		t.Error("FromKarpenter() of a type with a capacity override: no error, want one")
	}
}

func TestSolve(t *testing.T) {
	types, err := FakeTypes(400)
	if err != nil {
		t.Fatal(err)
	}
	w := work.Diverse(100, 42, types)
	out, err := Solve(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Check(out); err != nil {
		t.Error(err)
	}
	if len(out.Unscheduled) != 0 {
		t.Errorf("Solve() leaves %d pods unscheduled, want none", len(out.Unscheduled))
	}
	if n := len(out.New); n != 20 { // one per pod with anti-affinity
		t.Errorf("Solve() buys %d nodes, want 20", n)
	}
	if b := w.ClassBound(w.Pods); w.Cost(out).Dollars() < b.Bound {
		t.Errorf("Solve() costs %v $/h, below the bound of %v", w.Cost(out).Dollars(), b.Bound)
	}
}

// TestSolve_Builtin schedules on the product's own catalogue, whose offerings carry
// labels of their own.
func TestSolve_Builtin(t *testing.T) {
	all := sim.Builtin().Types()
	types := make([]*catalog.InstanceType, len(all))
	for i := range all {
		types[i] = &all[i]
	}
	w := work.Uniform(50, 1, types)
	out, err := Solve(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Check(out); err != nil {
		t.Error(err)
	}
	if len(out.Unscheduled) > 0 {
		t.Errorf("Solve() leaves %d pods unscheduled, want none: %s", len(out.Unscheduled), out.Why)
	}
}
