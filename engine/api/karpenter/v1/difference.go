package v1

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Difference is a field of a NodePool's template that a NodeClaim was made without.
//
// +kubebuilder:object:generate=false
type Difference struct {
	// Field is the path in the NodePool, such as spec.template.spec.taints.
	Field string
	// Old is the claim's value, New the template's; "" is none.
	Old, New string
}

// String is for people: "spec.template.spec.expireAfter: 720h -> Never".
func (d Difference) String() string {
	or := func(v string) string {
		if v == "" {
			return "none"
		}
		return v
	}
	return fmt.Sprintf("%s: %s -> %s", d.Field, or(d.Old), or(d.New))
}

// Differences are the fields that [NodePool.Hash] covers in which a claim of the pool is not
// what the template asks for, in a fixed order. They explain a hash that differs, and do not
// replace it: a claim has labels and annotations from elsewhere too, so those that the
// template has lost are told only where nothing else is likely to have set them.
func (p *NodePool) Differences(c *NodeClaim) []Difference {
	t := &p.Spec.Template
	var out []Difference
	add := func(field, old, new string) {
		if old != new {
			out = append(out, Difference{"spec.template." + field, old, new})
		}
	}
	texts := func(field string, old, new map[string]string) {
		keys := maps.Clone(old)
		if keys == nil {
			keys = map[string]string{}
		}
		maps.Copy(keys, new)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			add(field+"["+key+"]", quoted(old, key), quoted(new, key))
		}
	}
	texts("metadata.labels", c.templateLabels(t), t.Labels)
	texts("metadata.annotations", c.templateAnnotations(t), t.Annotations)
	add("spec.taints", taintsText(c.Spec.Taints), taintsText(t.Spec.Taints))
	add("spec.startupTaints", taintsText(c.Spec.StartupTaints), taintsText(t.Spec.StartupTaints))
	add("spec.nodeClassRef", refText(c.Spec.NodeClassRef), refText(t.Spec.NodeClassRef))
	var old, new string
	if g := c.Spec.TerminationGracePeriod; g != nil {
		old = g.Duration.String()
	}
	if g := t.Spec.TerminationGracePeriod; g != nil {
		new = g.Duration.String()
	}
	add("spec.terminationGracePeriod", old, new)
	if !c.Spec.ExpireAfter.Equal(t.Spec.ExpireAfter) {
		add("spec.expireAfter", c.Spec.ExpireAfter.String(), t.Spec.ExpireAfter.String())
	}
	return out
}

// templateLabels are the claim's labels that come from a template: those that t has, and
// those that it pins and that neither a requirement of t nor the machine accounts for.
func (c *NodeClaim) templateLabels(t *NodeClaimTemplate) map[string]string {
	out := map[string]string{}
	for key := range t.Labels {
		if v, ok := c.Labels[key]; ok {
			out[key] = v
		}
	}
	rules := DefaultLabelRules()
	chosen := map[string]bool{}
	for _, r := range t.Spec.Requirements {
		chosen[r.Key] = true
	}
	for _, r := range c.Spec.Requirements {
		v, labelled := c.Labels[r.Key]
		pinned := r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 && labelled && v == r.Values[0]
		if pinned && !chosen[r.Key] && !rules.WellKnown.Has(rules.NormalizeKey(r.Key)) && !c.foreign(r.Key) {
			out[r.Key] = v
		}
	}
	return out
}

// templateAnnotations are the claim's annotations without those that controllers, clouds
// and kubectl set.
func (c *NodeClaim) templateAnnotations(t *NodeClaimTemplate) map[string]string {
	out := map[string]string{}
	for key, v := range c.Annotations {
		if _, ok := t.Annotations[key]; ok || !c.foreign(key) {
			out[key] = v
		}
	}
	return out
}

// foreign reports whether a key belongs to a controller or to the cloud.
func (c *NodeClaim) foreign(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	owners := []string{Group, "dovetail.sh", "kubectl.kubernetes.io"}
	if c.Spec.NodeClassRef != nil {
		owners = append(owners, c.Spec.NodeClassRef.Group)
	}
	return slices.ContainsFunc(owners, func(o string) bool { return domain == o || strings.HasSuffix(domain, "."+o) })
}

func quoted(m map[string]string, key string) string {
	if v, ok := m[key]; ok {
		return fmt.Sprintf("%q", v)
	}
	return ""
}

func taintsText(taints []corev1.Taint) string {
	out := make([]string, len(taints))
	for i := range taints {
		out[i] = taints[i].ToString()
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func refText(r *NodeClassReference) string {
	if r == nil || *r == (NodeClassReference{}) {
		return ""
	}
	return r.Kind + "." + r.Group + "/" + r.Name
}
