package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// spreadDefaults gives pods without spread constraints those of kube-scheduler's
// configuration, with the selector that kube-scheduler derives: of all Services that
// select the pod and of its controller.
type spreadDefaults struct {
	constraints []corev1.TopologySpreadConstraint
	services    map[string][]*corev1.Service
	owners      map[string]*metav1.LabelSelector // kind/namespace/name
	inputs      []any                            // everything that the constraints of a pod depend on besides the pod
}

func newSpreadDefaults(objs *Objects, constraints []corev1.TopologySpreadConstraint) *spreadDefaults {
	d := &spreadDefaults{constraints: constraints}
	if len(constraints) == 0 {
		return d
	}
	d.services, d.owners = map[string][]*corev1.Service{}, map[string]*metav1.LabelSelector{}
	for i := range constraints {
		d.inputs = append(d.inputs, &constraints[i])
	}
	for _, s := range objs.Services {
		d.inputs = append(d.inputs, s)
		if len(s.Spec.Selector) > 0 {
			d.services[s.Namespace] = append(d.services[s.Namespace], s)
		}
	}
	for _, o := range objs.ReplicaSets {
		d.inputs = append(d.inputs, o)
		d.owners["ReplicaSet/"+o.Namespace+"/"+o.Name] = o.Spec.Selector
	}
	for _, o := range objs.StatefulSets {
		d.inputs = append(d.inputs, o)
		d.owners["StatefulSet/"+o.Namespace+"/"+o.Name] = o.Spec.Selector
	}
	for _, o := range objs.ReplicationControllers {
		d.inputs = append(d.inputs, o)
		d.owners["ReplicationController/"+o.Namespace+"/"+o.Name] = &metav1.LabelSelector{MatchLabels: o.Spec.Selector}
	}
	return d
}

func (d *spreadDefaults) note(c *classer) {
	for _, list := range d.services {
		for _, s := range list {
			for k := range s.Spec.Selector {
				c.labelKeys[k] = true
			}
		}
	}
	for _, s := range d.owners {
		c.noteSelector(s)
	}
}

// of returns the constraints in force for pod, and whether they are the defaults.
func (d *spreadDefaults) of(pod *corev1.Pod) ([]corev1.TopologySpreadConstraint, bool) {
	if len(pod.Spec.TopologySpreadConstraints) > 0 || len(d.constraints) == 0 {
		return pod.Spec.TopologySpreadConstraints, false
	}
	merged := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, s := range d.services[pod.Namespace] {
		if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			for k, v := range s.Spec.Selector {
				merged.MatchLabels[k] = v
			}
		}
	}
	for i := range pod.OwnerReferences {
		o := &pod.OwnerReferences[i]
		if o.Controller == nil || !*o.Controller {
			continue
		}
		if s := d.owners[o.Kind+"/"+pod.Namespace+"/"+o.Name]; s != nil {
			for k, v := range s.MatchLabels {
				merged.MatchLabels[k] = v
			}
			merged.MatchExpressions = append(merged.MatchExpressions, s.MatchExpressions...)
		}
	}
	if len(merged.MatchLabels) == 0 && len(merged.MatchExpressions) == 0 {
		return nil, false
	}
	out := make([]corev1.TopologySpreadConstraint, len(d.constraints))
	for i, c := range d.constraints {
		c.LabelSelector = merged
		out[i] = c
	}
	return out, true
}

// disruptionBudgets finds the pods that PodDisruptionBudgets never let go.
type disruptionBudgets struct {
	byNamespace map[string][]disruptionBudget
}

type disruptionBudget struct {
	selector labels.Selector
	never    bool
}

func newDisruptionBudgets(list []*policyv1.PodDisruptionBudget) *disruptionBudgets {
	d := &disruptionBudgets{byNamespace: map[string][]disruptionBudget{}}
	for _, b := range list {
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue
		}
		zero := func(v *intstr.IntOrString, texts ...string) bool {
			if v == nil {
				return false
			}
			for _, t := range texts {
				if v.String() == t {
					return true
				}
			}
			return false
		}
		d.byNamespace[b.Namespace] = append(d.byNamespace[b.Namespace], disruptionBudget{
			selector: sel, never: zero(b.Spec.MaxUnavailable, "0", "0%") || zero(b.Spec.MinAvailable, "100%"),
		})
	}
	return d
}

// block reports whether p can never be evicted: a budget of zero, or more than one
// budget, which the eviction API refuses.
func (d *disruptionBudgets) block(p *corev1.Pod) bool {
	n := 0
	for _, b := range d.byNamespace[p.Namespace] {
		if b.selector.Matches(labels.Set(p.Labels)) {
			if n++; b.never || n > 1 {
				return true
			}
		}
	}
	return false
}
