package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestNodeOverlay_RuntimeValidate(t *testing.T) {
	tests := map[string]struct {
		spec NodeOverlaySpec
		want []string
	}{
		"an overlay of everything is valid": {},
		"an overlay of a NodePool is valid": {spec: NodeOverlaySpec{Requirements: []Requirement{{Key: "karpenter.sh/nodepool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}},
		"NotIn needs a value":               {spec: NodeOverlaySpec{Requirements: []Requirement{{Key: "a", Operator: corev1.NodeSelectorOpNotIn}}}, want: []string{"spec.requirements[0].values: Required"}},
		"In needs a value":                  {spec: NodeOverlaySpec{Requirements: []Requirement{{Key: "a", Operator: corev1.NodeSelectorOpIn}}}, want: []string{"spec.requirements[0].values: Required"}},
		"the hostname cannot be matched":    {spec: NodeOverlaySpec{Requirements: []Requirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpExists}}}, want: []string{"spec.requirements[0].key: Forbidden"}},
		"an extended resource can be added": {spec: NodeOverlaySpec{Capacity: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}},
		"all faults are reported at once": {
			spec: NodeOverlaySpec{
				Requirements: []Requirement{{Key: "a", Operator: "Like"}},
				Capacity:     corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("1")},
			},
			want: []string{"spec.requirements[0].operator: Unsupported", "spec.capacity[cpu]: Forbidden", "spec.capacity[memory]: Forbidden"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := (&NodeOverlay{Spec: tt.spec}).RuntimeValidate()
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("RuntimeValidate() = %v, want %v", err, tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("RuntimeValidate() = %v, want part %q", err, want)
				}
			}
		})
	}
}

func TestAddToScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"NodeOverlay", "NodeOverlayList"} {
		if _, err := scheme.New(GroupVersion.WithKind(kind)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
