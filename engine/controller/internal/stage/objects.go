package stage

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// Claim is a NodeClaim of NodePool default that asks for a CPU.
func Claim(name string, change ...func(c *karpv1.NodeClaim)) *karpv1.NodeClaim {
	ref := &karpv1.NodeClassReference{Group: NodeClass.Group, Kind: NodeClass.Kind, Name: "default"}
	c := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{karpv1.NodePoolLabelKey: "default", ref.LabelKey(): ref.Name},
			Annotations: map[string]string{"team": "a"},
		},
		Spec: karpv1.NodeClaimSpec{NodeClassRef: ref, Requirements: []karpv1.Requirement{}},
	}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: Capacity()[corev1.ResourceCPU]}
	for _, f := range change {
		f(c)
	}
	return c
}

// Launched makes a claim one of a launched, registered and initialized machine at time at,
// with the finalizer.
func Launched(at time.Time) func(c *karpv1.NodeClaim) {
	return func(c *karpv1.NodeClaim) {
		c.Finalizers = append(c.Finalizers, karpv1.TerminationFinalizer)
		c.CreationTimestamp = metav1.NewTime(at)
		c.Status.ProviderID, c.Status.NodeName = "stage:///"+c.Name, c.Name
		c.Status.Capacity, c.Status.Allocatable = Capacity(), Capacity()
		w := c.Conditions().At(at)
		w.SetTrue(karpv1.ConditionLaunched)
		w.SetTrue(karpv1.ConditionRegistered)
		w.SetTrue(karpv1.ConditionInitialized)
	}
}

// Node is a ready Node.
func Node(name string, change ...func(n *corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: Capacity(), Allocatable: Capacity(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

// Of makes a Node the registered Node of a claim that is [Launched].
func Of(c *karpv1.NodeClaim) func(n *corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.ProviderID = c.Status.ProviderID
		n.Finalizers = append(n.Finalizers, karpv1.TerminationFinalizer)
		for k, v := range c.Labels {
			n.Labels[k] = v
		}
		n.Labels[karpv1.NodeRegisteredLabelKey], n.Labels[karpv1.NodeInitializedLabelKey] = "true", "true"
		n.OwnerReferences = []metav1.OwnerReference{{APIVersion: karpv1.GroupVersion.String(), Kind: "NodeClaim", Name: c.Name, UID: c.UID, BlockOwnerDeletion: new(true)}}
	}
}

// Pod is a running pod of a ReplicaSet in the namespace default, on a node.
func Pod(name, node string, change ...func(p *corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{"app": name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: "rs", Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range change {
		f(p)
	}
	return p
}
