package catalog

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// TestCatalog_Sold holds that requirements which differ in one value of many have answers of
// their own, the first time and the second.
func TestCatalog_Sold(t *testing.T) {
	var types []InstanceType
	for i := range 30 {
		types = append(types, InstanceType{
			Name: fmt.Sprintf("t%02d", i), Capacity: resources.List{corev1.ResourceCPU: 1000},
			Requirements: requirements.FromLabels(map[string]string{corev1.LabelArchStable: "amd64"}),
			Offerings: []Offering{
				{Zone: "a", CapacityType: OnDemand, Price: 10}, {Zone: "b", CapacityType: Spot, Price: 5}, {Zone: "b", CapacityType: OnDemand, Price: 10, Unavailable: true},
			},
		})
	}
	c, errs := New(types)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	names := func(n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("t%02d", i))
		}
		return out
	}
	tests := map[string]struct {
		want requirements.Set
		n    int
	}{
		"all":                 {requirements.Set{}, 60},
		"29 of the types":     {set(requirements.In(corev1.LabelInstanceTypeStable, names(29)...)), 58},
		"28 and the last":     {set(requirements.In(corev1.LabelInstanceTypeStable, append(names(28), "t29")...)), 58},
		"one zone":            {set(requirements.In(corev1.LabelTopologyZone, "a")), 30},
		"one capacity type":   {set(requirements.In(karpv1.CapacityTypeLabelKey, Spot)), 30},
		"no such arch":        {set(requirements.In(corev1.LabelArchStable, "arm64")), 0},
		"the pool's own":      {set(requirements.In("team", "a")), 60},
		"only types have it":  {set(requirements.In("karpenter.k8s.aws/instance-family", "m5")), 0},
		"reserved, of no one": {set(requirements.In(ReservationIDLabel, "r")), 0},
	}
	var last []Sold
	for range 2 {
		for name, test := range tests {
			got := c.Sold(test.want)
			if len(got) != test.n {
				t.Errorf("%s: %d offerings, want %d", name, len(got), test.n)
			}
			if name == "28 and the last" {
				last = got
			}
		}
	}
	if !slices.ContainsFunc(last, func(s Sold) bool { return c.Types()[s.Type].Name == "t29" }) || slices.ContainsFunc(last, func(s Sold) bool { return c.Types()[s.Type].Name == "t28" }) {
		t.Error("the answer to a list of types is that to another")
	}
}

func set(rs ...requirements.Requirement) requirements.Set {
	s := requirements.Set{}
	s.Add(rs...)
	return s
}
