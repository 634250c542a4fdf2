// Package snapshot holds everything a plan is made from, at one moment, as data.
//
// A [Snapshot] is built from Kubernetes objects by [Build] and never changes. Pods
// that a scheduler cannot tell apart share a [Class]; so work on a snapshot grows with
// classes, not with pods. A hypothesis ("without these nodes") is a [Snapshot.Fork]:
// it shares all but the lists it changes.
package snapshot

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Snapshot is one moment of a cluster. Its fields and what they point to must not be
// changed; indexes into Pods, Classes and Selectors stay valid in forks.
type Snapshot struct {
	// Now is the only clock.
	Now time.Time
	// Pools are all usable NodePools, by weight descending, then by name.
	Pools []*Pool
	// Nodes that can take pods, by name. Nodes being deleted are not among them.
	Nodes []*Node
	// Pods are the bound and pending pods, by namespace and name.
	Pods []Pod
	// Pending are the indexes of the pods that need a node, ascending.
	Pending []int32
	// Blocked are pods that no node can help, with the cause. They are not pending.
	Blocked []Blocked
	// Classes of pods; a pod's class is Classes[pod.Class].
	Classes []*Class
	// Selectors are all distinct pod selectors of constraints.
	Selectors []*Selector
	// Daemons are the DaemonSets, by namespace and name.
	Daemons []*Daemon
	// LabelKeys are the node labels that some constraint of a pod or daemon looks at.
	LabelKeys map[string]bool
}

// Pod is a pod of a snapshot.
type Pod struct {
	Key PodKey
	// Class indexes Snapshot.Classes.
	Class int32
	// Daemon is true for pods of DaemonSets and for mirror pods: they are part of a
	// node and never pending.
	Daemon bool
	// Terminating pods still use room but no longer count in spread constraints.
	Terminating bool
	// Disposable pods may be killed at any time: no room is looked for elsewhere.
	Disposable bool
}

// Moves reports whether a pod needs another node when its own goes.
func (p *Pod) Moves() bool { return !p.Daemon && !p.Terminating && !p.Disposable }

// Class is what a scheduler sees of a pod.
type Class struct {
	Namespace string
	// Labels are those that some selector of the snapshot looks at.
	Labels map[string]string
	// Requests include one of resource pods.
	Requests resources.List
	Priority int32
	// Terms are alternatives, any one of which a node must satisfy: required node
	// affinity, node selector and the places of volumes taken together. At least one;
	// an empty set is satisfied by every node.
	Terms []requirements.Set
	// Affinity is the node selector together with the required node affinity, without
	// volumes: what topology spread counts nodes by.
	Affinity []requirements.Set
	// Preferred node affinity, in the pod's order.
	Preferred   []PreferredTerm
	Tolerations []corev1.Toleration
	Spread      []Spread
	// Near and Apart are required pod affinity and anti-affinity, SoftNear and
	// SoftApart the preferred.
	Near, Apart         []PodTerm
	SoftNear, SoftApart []PodTerm
	Ports               []Port
	Volumes             []Volume
	// ProfileKey is equal for classes with equal Terms, Preferred, Tolerations and
	// Ports: those that the same nodes accept, room and other pods apart.
	ProfileKey string
	// Matches are the indexes of the selectors that select pods of this class, ascending.
	Matches []int32
}

// PreferredTerm is a preferred node affinity term.
type PreferredTerm struct {
	Weight int32
	Term   requirements.Set
}

// Spread is a topology spread constraint, with matchLabelKeys folded into the selector.
type Spread struct {
	Key      string
	MaxSkew  int32
	Soft     bool // ScheduleAnyway
	Selector int32
	// MinDomains is 0 if unset.
	MinDomains int32
	// IgnoreAffinity and HonorTaints are the two inclusion policies where they differ
	// from Kubernetes' defaults (Honor, Ignore).
	IgnoreAffinity, HonorTaints bool
	// SelfMatch is true if the class's own pods are counted.
	SelfMatch bool
	// Default is true if the constraint is the scheduler's, not the pod's.
	Default bool
}

// PodTerm is a pod affinity or anti-affinity term, with matchLabelKeys and
// mismatchLabelKeys folded into the selector.
type PodTerm struct {
	Key      string
	Selector int32
	// Weight is 0 for required terms.
	Weight int32
	// SelfMatch is true if the class's own pods are selected.
	SelfMatch bool
}

// Selector selects pods by namespace and label.
type Selector struct {
	// Namespaces are sorted; All means every namespace.
	Namespaces []string
	All        bool
	Labels     labels.Selector
	// Key is equal for equal selectors.
	Key string
}

// Port is a host port.
type Port struct {
	Protocol corev1.Protocol
	Port     int32
	// IP is empty if unspecified.
	IP string
}

// Conflicts reports whether two pods with these ports cannot share a node.
func (p Port) Conflicts(o Port) bool {
	return p.Protocol == o.Protocol && p.Port == o.Port && (p.IP == "" || o.IP == "" || p.IP == o.IP)
}

// Volume is a volume that counts towards a driver's attach limit.
type Volume struct {
	Driver string
	// ID identifies the volume within the driver: attached to one node once, however
	// many of its pods use it.
	ID string
	// Exclusive volumes (ReadWriteOncePod) are used by one pod at a time.
	Exclusive bool
	// Shared is true if several pods of the snapshot use it.
	Shared bool
	// Unbound volumes do not exist yet: the first pod that uses one fixes its zone.
	Unbound bool
	// Free are the existing volumes of which a claim that is bound to none takes one, in
	// the order it tries them. Made are the nodes for which one is made if none of Free
	// can be reached; nil means none is made.
	Free []FreeVolume
	Made []requirements.Set
}

// FreeVolume is a PersistentVolume that no claim has, and the nodes that reach it.
type FreeVolume struct {
	Name   string
	Places []requirements.Set
}

// Daemon is a DaemonSet: what each of its pods adds to a node.
type Daemon struct {
	Key   PodKey
	Class *Class
}

// Pool is a NodePool with what it may buy.
type Pool struct {
	Name   string
	Weight int32
	Object *karpv1.NodePool
	// Requirements are the template's, with its labels and the labels every node of
	// the pool gets.
	Requirements requirements.Set
	// Taints must be tolerated; StartupTaints are gone before pods bind.
	Taints, StartupTaints []corev1.Taint
	// Limits is nil if there are none. Key "nodes" limits the number of nodes.
	Limits resources.List
	// Usage is what the pool's nodes and claims use of Limits, with key "nodes".
	Usage resources.List
	// Catalog is what the pool may buy, NodeOverlays applied. Nil means nothing.
	Catalog *catalog.Catalog
	// Unusable says why the pool buys nothing now; empty if it does.
	Unusable string
}

// Node is an existing node, or a NodeClaim whose node is not there yet.
type Node struct {
	Name string
	// Claim and Pool name the NodeClaim and NodePool; empty if unmanaged.
	Claim, Pool string
	Labels      map[string]string
	// Taints that keep pods off: startup and ephemeral taints of an uninitialised node
	// are left out, spec.unschedulable is included.
	Taints []corev1.Taint
	// Allocatable is what pods and daemons may use, Used what the pods on the node
	// request, DaemonReserve what DaemonSets still need here.
	Allocatable, Used, DaemonReserve resources.List
	// Capacity counts towards the pool's limits.
	Capacity resources.List
	// Missing are the indexes of the daemons that will run here but do not yet.
	Missing []int32
	// Pods are the indexes of the pods bound to the node, ascending.
	Pods []int32
	// AttachLimits is the number of volumes per driver; a missing driver is unlimited.
	AttachLimits map[string]int64
	// Initialized is true for unmanaged nodes; InFlight means there is no Node yet.
	Initialized, InFlight bool
}

// Blocked is a pod that cannot be scheduled whatever nodes there are.
type Blocked struct {
	Pod PodKey
	// Key is the object or field at fault; Message says what is wrong.
	Key, Message string
	// Invalid is true if the pod itself cannot be read, false if it waits for something.
	Invalid bool
}

// Fork returns a snapshot without the named nodes, whose pods (but for daemons) are
// pending again. It shares everything else with s, which it leaves as it is.
func (s *Snapshot) Fork(without map[string]bool) *Snapshot {
	f := *s
	f.Nodes = make([]*Node, 0, len(s.Nodes))
	f.Pending = append(make([]int32, 0, len(s.Pending)+64), s.Pending...)
	freed := map[string]bool{}
	for _, n := range s.Nodes {
		if !without[n.Name] {
			f.Nodes = append(f.Nodes, n)
			continue
		}
		freed[n.Pool] = true
		for _, p := range n.Pods {
			if s.Pods[p].Moves() {
				f.Pending = append(f.Pending, p)
			}
		}
	}
	sortIndexes(f.Pending)
	f.Pools = make([]*Pool, len(s.Pools))
	for i, p := range s.Pools {
		if freed[p.Name] && p.Limits != nil {
			q := *p
			q.Usage = p.Usage.Clone()
			for _, n := range s.Nodes {
				if without[n.Name] && n.Pool == p.Name {
					q.Usage.SubFrom(n.Capacity)
					q.Usage[NodesResource]--
				}
			}
			p = &q
		}
		f.Pools[i] = p
	}
	return &f
}

// NodesResource is the key of the number of nodes in a pool's limits and usage.
const NodesResource corev1.ResourceName = "nodes"
