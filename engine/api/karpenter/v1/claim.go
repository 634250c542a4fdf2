package v1

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NewClaim returns a NodeClaim of the pool's template, which shares nothing with the pool:
// owned by the pool, named after it by the API server, with the drift hash of the template.
// Its requirements are the template's, its labels and the pool. Labels and annotations are
// never nil. Requests are for the caller to add.
func (p *NodePool) NewClaim() *NodeClaim {
	t := p.Spec.Template.DeepCopy()
	c := &NodeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "NodeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: p.Name + "-", Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: GroupVersion.String(), Kind: "NodePool", Name: p.Name, UID: p.UID, BlockOwnerDeletion: new(true),
			}},
		},
		Spec: NodeClaimSpec{
			Taints: t.Spec.Taints, StartupTaints: t.Spec.StartupTaints, Requirements: t.Spec.Requirements,
			NodeClassRef: t.Spec.NodeClassRef, TerminationGracePeriod: t.Spec.TerminationGracePeriod, ExpireAfter: t.Spec.ExpireAfter,
		},
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	in := func(key, value string) {
		c.Spec.Requirements = append(c.Spec.Requirements, Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	rules := DefaultLabelRules()
	for _, key := range slices.Sorted(maps.Keys(t.Labels)) {
		in(key, t.Labels[key])
	}
	for _, r := range t.Spec.Requirements {
		// What the template leaves no choice about is a label of the node, unless the
		// machine brings it.
		if _, ok := c.Labels[r.Key]; !ok && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 &&
			!rules.WellKnown.Has(rules.NormalizeKey(r.Key)) && rules.Refusal(r.Key) == "" {
			c.Labels[r.Key] = r.Values[0]
		}
	}
	in(NodePoolLabelKey, p.Name)
	c.Labels[NodePoolLabelKey] = p.Name
	if ref := c.Spec.NodeClassRef; ref != nil && ref.Group != "" && ref.Kind != "" {
		c.Labels[ref.LabelKey()] = ref.Name
	}
	c.Annotations[NodePoolHashAnnotationKey] = p.Hash()
	c.Annotations[NodePoolHashVersionAnnotationKey] = NodePoolHashVersion
	return c
}
