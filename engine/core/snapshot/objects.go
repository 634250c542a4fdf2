package snapshot

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// Objects are the Kubernetes objects a snapshot is built from. Their order does not
// matter, and they are not changed. Pods include bound ones; a pod without
// spec.nodeName that is neither terminal nor owned by a DaemonSet is pending, unless
// Options expect it somewhere.
type Objects struct {
	Pods                   []*corev1.Pod
	Nodes                  []*corev1.Node
	NodePools              []*karpv1.NodePool
	NodeClaims             []*karpv1.NodeClaim
	NodeOverlays           []*karpv1alpha1.NodeOverlay
	DaemonSets             []*appsv1.DaemonSet
	ReplicaSets            []*appsv1.ReplicaSet
	StatefulSets           []*appsv1.StatefulSet
	ReplicationControllers []*corev1.ReplicationController
	Services               []*corev1.Service
	Namespaces             []*corev1.Namespace
	LimitRanges            []*corev1.LimitRange
	PersistentVolumes      []*corev1.PersistentVolume
	PersistentVolumeClaims []*corev1.PersistentVolumeClaim
	StorageClasses         []*storagev1.StorageClass
	CSINodes               []*storagev1.CSINode
	PodDisruptionBudgets   []*policyv1.PodDisruptionBudget
}

// Options tune [Build]. The zero value has no catalogue, so no node can be bought.
type Options struct {
	// Now is the snapshot's only clock.
	Now time.Time
	// Catalog is what every NodePool may buy, unless PoolCatalogs names another for it.
	Catalog *catalog.Catalog
	// PoolCatalogs overrides Catalog by NodePool name.
	PoolCatalogs map[string]*catalog.Catalog
	// DefaultSpread are kube-scheduler's podTopologySpread.defaultConstraints.
	DefaultSpread []corev1.TopologySpreadConstraint
	// AssumeReady treats NodePools without a Ready condition as ready, for planning
	// from files.
	AssumeReady bool
	// Unusable says of NodePools, by name, why they buy nothing now.
	Unusable map[string]string
	// Leaving are NodeClaims, by name, that are as good as deleted.
	Leaving map[string]bool
	// Expected are pods without a node that are planned onto one: a node of the snapshot,
	// or a NodeClaim whose node is not there yet. They count as bound to it. Where there is
	// no such node, they are pending whatever else their status says.
	Expected map[PodKey]string
	// Sorted says that the pods are in the order of namespaces and names, and no two have
	// one name.
	Sorted bool
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// Problem is an object, or a part of one, that the snapshot had to leave out.
type Problem struct {
	// Kind, Namespace and Name are the object's; Namespace may be empty.
	Kind, Namespace, Name string
	// Field is the path inside the object, such as "spec.limits[cpu]".
	Field string
	// Message says what is wrong and what is allowed.
	Message string
}

func (p Problem) String() string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + p.Name
	}
	s := p.Kind + " " + name + ": "
	if p.Field != "" {
		s += p.Field + ": "
	}
	return s + p.Message
}

// Build makes a Snapshot. What cannot be used is left out and named in the problems;
// everything else still counts.
func Build(objs Objects, opts Options) (*Snapshot, []Problem) {
	return build(objs, opts, &Memo{build: 1})
}
