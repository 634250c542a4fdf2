package candidate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
)

// world is a claim and what it is compared with.
type world struct {
	pool    *karpv1.NodePool
	claim   *karpv1.NodeClaim
	offered *catalog.Catalog
}

// spotOf makes the claim one of spot capacity in a place.
func spotOf(id string) func(*world) {
	return func(w *world) {
		w.claim.Labels[corev1.LabelTopologyZone], w.claim.Labels[karpv1.CapacityTypeLabelKey], w.claim.Labels["zone-id"] = "b", catalog.Spot, id
	}
}

func TestDrift(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	offered, err := catalog.New([]catalog.InstanceType{{Name: "large", Offerings: []catalog.Offering{
		{Zone: "a", CapacityType: catalog.OnDemand, Price: 100, Unavailable: true},
		{Zone: "b", CapacityType: catalog.Spot, Price: 40, Requirements: requirements.NewSet(requirements.In("zone-id", "b1"))},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change func(*world)
		want   string
	}{
		"as it was bought":                    {func(*world) {}, ""},
		"an offering that is unavailable now": {func(w *world) { w.claim.Labels["team"] = "x" }, ""},
		"a label of the template":             {func(w *world) { w.pool.Spec.Template.Labels = map[string]string{"a": "b"} }, NodePoolDrifted},
		"a hash of another version says nothing": {func(w *world) {
			w.pool.Spec.Template.Labels = map[string]string{"a": "b"}
			w.claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = "v3"
		}, ""},
		"a claim without hash": {func(w *world) {
			w.pool.Spec.Template.Labels = map[string]string{"a": "b"}
			w.claim.Annotations = nil
		}, ""},
		"weight and limits": {func(w *world) {
			w.pool.Spec.Weight = new(int32(7))
			w.pool.Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: {}}
		}, ""},
		"requirements that it satisfies": {func(w *world) {
			w.pool.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a", "c"}}}
		}, ""},
		"requirements that it does not": {func(w *world) {
			w.pool.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}
		}, RequirementsDrifted},
		"requirements on a label it does not have": {func(w *world) {
			w.pool.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: "team", Operator: corev1.NodeSelectorOpExists}}
		}, RequirementsDrifted},
		"a requirement that accepts absence": {func(w *world) {
			w.pool.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: "team", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"x"}}}
		}, ""},
		"a label that the claim left open": {func(w *world) {
			r := karpv1.Requirement{Key: "team", Operator: corev1.NodeSelectorOpExists}
			w.pool.Spec.Template.Spec.Requirements, w.claim.Spec.Requirements = []karpv1.Requirement{r}, []karpv1.Requirement{r}
		}, ""},
		"an instance type that is gone": {func(w *world) { w.claim.Labels[corev1.LabelInstanceTypeStable] = "huge" }, InstanceTypeNotFound},
		"what is on offer is not known": {func(w *world) { w.claim.Labels[corev1.LabelInstanceTypeStable], w.offered = "huge", nil }, ""},
		"a young claim of an unknown type": {func(w *world) {
			w.claim.Labels[corev1.LabelInstanceTypeStable] = "huge"
			w.claim.CreationTimestamp.Time = now
		}, ""},
		"a zone in which it is not sold":      {func(w *world) { w.claim.Labels[corev1.LabelTopologyZone] = "c" }, InstanceTypeNotFound},
		"a reservation that became on-demand": {func(w *world) { w.claim.Labels[karpv1.CapacityTypeLabelKey] = catalog.Reserved }, ""},
		"spot, of another placement":          {spotOf("b2"), InstanceTypeNotFound},
		"spot, where it is sold":              {spotOf("b1"), ""},
		"the first reason counts, the hash before": {func(w *world) {
			w.pool.Spec.Template.Labels = map[string]string{"a": "b"}
			w.claim.Labels[corev1.LabelInstanceTypeStable] = "huge"
		}, NodePoolDrifted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &world{pool: &karpv1.NodePool{}, claim: &karpv1.NodeClaim{}, offered: offered}
			w.claim.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Hour))
			w.claim.Labels = map[string]string{corev1.LabelInstanceTypeStable: "large", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: catalog.OnDemand}
			w.claim.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: w.pool.Hash(), karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion}
			tt.change(w)
			if got := Drift(w.pool, w.claim, w.offered, now); got != tt.want {
				t.Errorf("Drift() = %q, want %q", got, tt.want)
			}
		})
	}
}
