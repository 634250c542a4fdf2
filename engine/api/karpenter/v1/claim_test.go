package v1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodePool_NewClaim(t *testing.T) {
	least := 2
	p := &NodePool{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u1"}}
	p.Spec.Template = NodeClaimTemplate{
		ObjectMeta: ObjectMeta{Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "x"}},
		Spec: NodeClaimTemplateSpec{
			Taints:        []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}},
			StartupTaints: []corev1.Taint{{Key: "net", Effect: corev1.TaintEffectNoExecute}},
			Requirements: []Requirement{
				{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}},
				{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"1", "2"}, MinValues: &least},
				{Key: "team", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
				{Key: CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"spot"}},
			},
			NodeClassRef:           &NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"},
			TerminationGracePeriod: &metav1.Duration{Duration: time.Hour},
			ExpireAfter:            DurationOf(time.Hour),
		},
	}
	before := p.DeepCopy()
	c := p.NewClaim()
	want := &NodeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "web-",
			Labels:       map[string]string{"team": "a", "disk": "ssd", "karpenter.sh/nodepool": "web", "dovetail.sh/simnodeclass": "default"},
			Annotations: map[string]string{
				"note": "x", "karpenter.sh/nodepool-hash": p.Hash(), "karpenter.sh/nodepool-hash-version": NodePoolHashVersion,
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: "web", UID: "u1", BlockOwnerDeletion: new(true)}},
		},
		Spec: NodeClaimSpec{
			Taints: p.Spec.Template.Spec.Taints, StartupTaints: p.Spec.Template.Spec.StartupTaints,
			Requirements: append(append([]Requirement{}, p.Spec.Template.Spec.Requirements...),
				Requirement{Key: "team", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
				Requirement{Key: NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"web"}}),
			NodeClassRef:           p.Spec.Template.Spec.NodeClassRef,
			TerminationGracePeriod: p.Spec.Template.Spec.TerminationGracePeriod,
			ExpireAfter:            p.Spec.Template.Spec.ExpireAfter,
		},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("NewClaim() (-want +got):\n%s", diff)
	}
	c.Labels["x"], c.Annotations["x"] = "y", "y"
	c.Spec.Requirements[0].Values[0], c.Spec.Taints[0].Key, c.Spec.NodeClassRef.Name = "changed", "changed", "changed"
	if diff := cmp.Diff(before, p); diff != "" {
		t.Errorf("the NodePool changes with its claim (-before +after):\n%s", diff)
	}
	empty := (&NodePool{}).NewClaim()
	if empty.Labels == nil || empty.Annotations == nil {
		t.Error("a claim of an empty template has no maps for labels and annotations")
	}
}
