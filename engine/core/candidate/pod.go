package candidate

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Terminal reports whether a pod has run to its end.
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Terminating reports whether a pod is being deleted.
func Terminating(p *corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() }

// Active reports whether a pod runs and is meant to go on.
func Active(p *corev1.Pod) bool { return !Terminal(p) && !Terminating(p) }

// Daemon reports whether a DaemonSet made a pod.
func Daemon(p *corev1.Pod) bool {
	for i := range p.OwnerReferences {
		if r := &p.OwnerReferences[i]; r.Kind == "DaemonSet" && r.Controller != nil && *r.Controller {
			return true
		}
	}
	return false
}

// Mirror reports whether a pod stands for a file on its node, and cannot be evicted.
func Mirror(p *corev1.Pod) bool {
	if _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return true
	}
	for i := range p.OwnerReferences {
		if r := &p.OwnerReferences[i]; r.Kind == "Node" && r.APIVersion == "v1" {
			return true
		}
	}
	return false
}

// Stays reports whether a pod runs until its machine ends: it tolerates the taint of
// disrupted nodes, or is a mirror pod.
func Stays(p *corev1.Pod) bool {
	return Mirror(p) || len(p.Spec.Tolerations) > 0 && snapshot.Tolerates(p.Spec.Tolerations, []corev1.Taint{karpv1.DisruptedTaint()})
}

// Disposable reports whether a pod may be killed at any time.
func Disposable(p *corev1.Pod) bool { return p.Annotations[v1alpha1.DisposableAnnotation] == "true" }

// returns reports whether a pod that ends is made again under its name.
func returns(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == "StatefulSet" })
}

// unready reports whether a pod says that it is not ready. One that says nothing may be.
func unready(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionFalse
		}
	}
	return false
}

// Evicting a pod costs 1, and more or less by what its annotation and its priority say in
// these units, within these bounds.
const (
	costUnit     = 1 << 27
	priorityUnit = 1 << 25
	maxCost      = 10.0
)

// EvictionCost is what evicting a pod costs, -10 to 10. deletionCost makes Kubernetes' own
// annotation count where the pod has none of Karpenter's. A value that is no number counts
// for nothing.
func EvictionCost(p *corev1.Pod, deletionCost bool) float64 {
	cost := 1.0
	text, ok := p.Annotations[karpv1.DisruptionCostAnnotationKey]
	if !ok && deletionCost {
		text, ok = p.Annotations[corev1.PodDeletionCost]
	}
	if ok {
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			cost += float64(n) / costUnit
		}
	}
	if p.Spec.Priority != nil {
		cost += float64(*p.Spec.Priority) / priorityUnit
	}
	return min(max(cost, -maxCost), maxCost)
}

// Part is the largest part that a pod takes of any resource of its node. Drains evict pods of a
// large part first: they are the hardest to find a place for, and what is small fits into the
// gaps that they leave.
func Part(p *corev1.Pod, node *corev1.Node) float64 {
	part := 0.0
	for name, v := range resources.PodRequests(p) {
		if all := node.Status.Allocatable[name]; !all.IsZero() && name != corev1.ResourcePods {
			part = max(part, float64(v)/float64(resources.Amount(name, all)))
		}
	}
	return part
}
