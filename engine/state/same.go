package state

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// The functions of this file report whether two versions of an object are equal in all
// that decisions rest on. Most changes of a busy cluster are not.

func same(a, b client.Object) bool {
	x, y := a.DeepCopyObject().(client.Object), b.DeepCopyObject().(client.Object)
	for _, o := range []client.Object{x, y} {
		o.SetResourceVersion("")
		o.SetManagedFields(nil)
	}
	return equality.Semantic.DeepEqual(x, y)
}

func sameMeta(a, b client.Object) bool {
	return a.GetUID() == b.GetUID() && (a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil) &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations()) &&
		equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
}

func samePod(a, b *corev1.Pod) bool {
	return sameMeta(a, b) && a.Status.Phase == b.Status.Phase && a.Status.NominatedNodeName == b.Status.NominatedNodeName &&
		a.Status.Resize == b.Status.Resize && unschedulable(a) == unschedulable(b) &&
		a.Status.StartTime.Equal(b.Status.StartTime) &&
		equality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		slices.EqualFunc(a.Status.ContainerStatuses, b.Status.ContainerStatuses, func(x, y corev1.ContainerStatus) bool {
			return x.Name == y.Name && equality.Semantic.DeepEqual(x.AllocatedResources, y.AllocatedResources) && equality.Semantic.DeepEqual(x.Resources, y.Resources)
		})
}

func sameNode(a, b *corev1.Node) bool {
	return sameMeta(a, b) && equality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		equality.Semantic.DeepEqual(a.Status.Capacity, b.Status.Capacity) && equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
}

func sameClaim(a, b *karpv1.NodeClaim) bool {
	return sameMeta(a, b) && equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Status, b.Status)
}

// samePool leaves out the sums that the counter writes.
func samePool(a, b *karpv1.NodePool) bool {
	return sameMeta(a, b) && equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Status.Conditions, b.Status.Conditions)
}
