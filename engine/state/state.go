package state

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Options tune a [Cluster].
type Options struct {
	// Provider has the catalogues. Without one no NodePool can buy anything.
	Provider cloud.Provider
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// DefaultSpread are kube-scheduler's podTopologySpread.defaultConstraints.
	DefaultSpread []corev1.TopologySpreadConstraint
	// NodeOverlays makes NodeOverlays count.
	NodeOverlays bool
	// CatalogTimeout bounds one question for a catalogue. Defaults to 10 s.
	CatalogTimeout time.Duration
	// Settle is how long after a node is initialized the pods that it was bought for are
	// still expected there. Then they are pending again. Defaults to 30 s.
	Settle time.Duration
	// Give up expecting pods on a claim after this time whatever happens. Defaults to
	// 25 min, which is more than a claim has to launch and register.
	GiveUp time.Duration
	// Preemption is how long a pod that kube-scheduler nominated for a running node is left
	// to it, once no pod of lower priority is terminating there. Defaults to 60 s.
	Preemption time.Duration
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.CatalogTimeout, 10 * time.Second}, {&o.Settle, 30 * time.Second}, {&o.GiveUp, 25 * time.Minute}, {&o.Preemption, time.Minute}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	return o
}

// Cluster is what is known of a cluster. All methods may be called at the same time.
// Objects that it is given and that it returns must not be changed.
type Cluster struct {
	opts Options
	// epoch makes revisions of one process differ from those of another.
	epoch string

	// making is held while a snapshot is made; the fields after it are used by who holds it.
	making   sync.Mutex
	memo     snapshot.Memo
	catalogs map[string]priced
	last     *Moment
	made     made

	mu sync.RWMutex
	tables
	pods  map[key]*podState
	nodes map[string]*nodeState
	// machines are what nodes, and claims without one, add to their NodePools: by
	// "node/name" and "claim/name".
	machines map[string]machine
	pools    map[string]*poolState
	// byProvider and byNodeName are claims and nodes under the names that join them.
	claimsByProvider, nodesByProvider, claimsByNode index
	// nominatedFor are unbound pods by the node that their status names.
	nominatedFor map[string]map[key]bool

	marked     map[string]bool
	nominated  map[string]time.Time
	expected   map[snapshot.PodKey]expectation
	expectedOn map[string]map[snapshot.PodKey]bool // by claim
	due        map[key]time.Time                   // when a pod is judged again
	nextDue    time.Time                           // not after the first of due; zero if there is none

	live   ordered[*corev1.Pod] // pods of snapshots
	flying map[key]*podState    // pods that are expected somewhere

	revision     uint64
	wanting      int // pods that need a node
	leavingNodes int
	unsynced     func() string
	listeners    []func(Change)
	told         []Change // changes that listeners are to be told of
}

// tables are the objects.
type tables struct {
	podTable     *table[*corev1.Pod]
	nodeTable    *table[*corev1.Node]
	poolTable    *table[*karpv1.NodePool]
	claimTable   *table[*karpv1.NodeClaim]
	overlays     *table[*karpv1alpha1.NodeOverlay]
	daemonSets   *table[*appsv1.DaemonSet]
	replicaSets  *table[*appsv1.ReplicaSet]
	statefulSets *table[*appsv1.StatefulSet]
	controllers  *table[*corev1.ReplicationController]
	services     *table[*corev1.Service]
	namespaces   *table[*corev1.Namespace]
	limitRanges  *table[*corev1.LimitRange]
	volumes      *table[*corev1.PersistentVolume]
	volumeClaims *table[*corev1.PersistentVolumeClaim]
	classes      *table[*storagev1.StorageClass]
	csiNodes     *table[*storagev1.CSINode]
	budgets      *table[*policyv1.PodDisruptionBudget]
}

func newTables() tables {
	return tables{
		newTable[*corev1.Pod](), newTable[*corev1.Node](), newTable[*karpv1.NodePool](), newTable[*karpv1.NodeClaim](),
		newTable[*karpv1alpha1.NodeOverlay](), newTable[*appsv1.DaemonSet](), newTable[*appsv1.ReplicaSet](), newTable[*appsv1.StatefulSet](),
		newTable[*corev1.ReplicationController](), newTable[*corev1.Service](), newTable[*corev1.Namespace](), newTable[*corev1.LimitRange](),
		newTable[*corev1.PersistentVolume](), newTable[*corev1.PersistentVolumeClaim](), newTable[*storagev1.StorageClass](),
		newTable[*storagev1.CSINode](), newTable[*policyv1.PodDisruptionBudget](),
	}
}

// Change tells that something changed that decisions rest on.
type Change struct {
	// Key names what changed; equal changes have equal keys.
	Key string
	// Provision is true if pods that need a node may get one by a plan made now: a pod came
	// to need one, or there are some and something changed that might let them have one.
	Provision bool
}

// New returns a cluster of which nothing is known. It is not synced before it watches.
func New(opts Options) *Cluster {
	opts = opts.withDefaults()
	return &Cluster{
		opts: opts, epoch: strconv.FormatInt(opts.Now().UnixMilli(), 36), catalogs: map[string]priced{},
		tables: newTables(), pods: map[key]*podState{}, nodes: map[string]*nodeState{}, machines: map[string]machine{}, pools: map[string]*poolState{},
		claimsByProvider: index{}, nodesByProvider: index{}, claimsByNode: index{}, nominatedFor: map[string]map[key]bool{},
		marked: map[string]bool{}, nominated: map[string]time.Time{}, expected: map[snapshot.PodKey]expectation{}, expectedOn: map[string]map[snapshot.PodKey]bool{},
		due: map[key]time.Time{}, live: newOrdered[*corev1.Pod](), flying: map[key]*podState{},
		unsynced: func() string { return "nothing is watched yet" },
	}
}

// Synced reports whether everything that existed when watching began is known. Claims
// that have not launched do not hold it up.
func (c *Cluster) Synced() bool { return c.Unsynced() == "" }

// Unsynced says what is not known yet, or "".
func (c *Cluster) Unsynced() string {
	c.mu.RLock()
	f := c.unsynced
	c.mu.RUnlock()
	return f()
}

// AssumeSynced is for clusters that are told of all objects by [Cluster.Update].
func (c *Cluster) AssumeSynced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsynced = func() string { return "" }
}

// OnChange calls f after changes, one at a time for each call of a method that changed
// something. f must not wait; it may call methods of the cluster.
func (c *Cluster) OnChange(f func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, f)
}

// unlock ends a change and tells of it.
func (c *Cluster) unlock() {
	told, listeners := c.told, c.listeners
	c.told = nil
	c.mu.Unlock()
	for _, ch := range told {
		for _, f := range listeners {
			f(ch)
		}
	}
}

// changed notes a change of what snapshots hold.
func (c *Cluster) changed(kind string, k key, provision bool) {
	c.revision++
	c.tell(kind+"/"+k.Namespace+"/"+k.Name, provision)
}

func (c *Cluster) tell(name string, provision bool) {
	ch := Change{Key: name, Provision: provision}
	if !slices.Contains(c.told[max(0, len(c.told)-8):], ch) {
		c.told = append(c.told, ch)
	}
}

// Update tells of an object that a caller has created, changed or read. What is older than
// what is known is ignored, and so are objects that are known to be gone, and kinds that
// no snapshot holds. The object is copied.
func (c *Cluster) Update(o client.Object) {
	c.update(o.DeepCopyObject().(client.Object), false)
}

func (c *Cluster) update(o client.Object, seen bool) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.unlock()
	switch o := o.(type) {
	case *corev1.Pod:
		c.updatePod(o, seen, now)
	case *corev1.Node:
		c.updateNode(o, seen, now)
	case *karpv1.NodeClaim:
		c.updateClaim(o, seen, now)
	case *karpv1.NodePool:
		c.updatePool(o, seen, now)
	case *karpv1alpha1.NodeOverlay:
		put(c, c.overlays, "NodeOverlay", o, seen, now)
	case *appsv1.DaemonSet:
		put(c, c.daemonSets, "DaemonSet", o, seen, now)
	case *appsv1.ReplicaSet:
		put(c, c.replicaSets, "ReplicaSet", o, seen, now)
	case *appsv1.StatefulSet:
		put(c, c.statefulSets, "StatefulSet", o, seen, now)
	case *corev1.ReplicationController:
		put(c, c.controllers, "ReplicationController", o, seen, now)
	case *corev1.Service:
		put(c, c.services, "Service", o, seen, now)
	case *corev1.Namespace:
		put(c, c.namespaces, "Namespace", o, seen, now)
	case *corev1.LimitRange:
		put(c, c.limitRanges, "LimitRange", o, seen, now)
	case *corev1.PersistentVolume:
		put(c, c.volumes, "PersistentVolume", o, seen, now)
	case *corev1.PersistentVolumeClaim:
		put(c, c.volumeClaims, "PersistentVolumeClaim", o, seen, now)
	case *storagev1.StorageClass:
		put(c, c.classes, "StorageClass", o, seen, now)
	case *storagev1.CSINode:
		put(c, c.csiNodes, "CSINode", o, seen, now)
	case *policyv1.PodDisruptionBudget:
		put(c, c.budgets, "PodDisruptionBudget", o, seen, now)
	}
}

// Remove tells that an object is gone for good: that of its UID, or if it has none that of
// its name.
func (c *Cluster) Remove(o client.Object) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.unlock()
	switch o := o.(type) {
	case *corev1.Pod:
		c.removePod(o, now)
	case *corev1.Node:
		c.removeNode(o, now)
	case *karpv1.NodeClaim:
		c.removeClaim(o, now)
	case *karpv1.NodePool:
		c.removePool(o, now)
	case *karpv1alpha1.NodeOverlay:
		drop(c, c.overlays, "NodeOverlay", o, now)
	case *appsv1.DaemonSet:
		drop(c, c.daemonSets, "DaemonSet", o, now)
	case *appsv1.ReplicaSet:
		drop(c, c.replicaSets, "ReplicaSet", o, now)
	case *appsv1.StatefulSet:
		drop(c, c.statefulSets, "StatefulSet", o, now)
	case *corev1.ReplicationController:
		drop(c, c.controllers, "ReplicationController", o, now)
	case *corev1.Service:
		drop(c, c.services, "Service", o, now)
	case *corev1.Namespace:
		drop(c, c.namespaces, "Namespace", o, now)
	case *corev1.LimitRange:
		drop(c, c.limitRanges, "LimitRange", o, now)
	case *corev1.PersistentVolume:
		drop(c, c.volumes, "PersistentVolume", o, now)
	case *corev1.PersistentVolumeClaim:
		drop(c, c.volumeClaims, "PersistentVolumeClaim", o, now)
	case *storagev1.StorageClass:
		drop(c, c.classes, "StorageClass", o, now)
	case *storagev1.CSINode:
		drop(c, c.csiNodes, "CSINode", o, now)
	case *policyv1.PodDisruptionBudget:
		drop(c, c.budgets, "PodDisruptionBudget", o, now)
	}
}

// put keeps an object that nothing is derived from.
func put[T client.Object](c *Cluster, t *table[T], kind string, o T, seen bool, now time.Time) {
	before, had := t.by[keyOf(o)]
	if _, taken := t.put(o, seen, now); taken && !(had && same(before, o)) {
		c.changed(kind, keyOf(o), helps(kind) && c.wants())
	}
}

// wants reports whether pods need a node, or will soon.
func (c *Cluster) wants() bool { return c.wanting > 0 || c.leavingNodes > 0 }

// helps reports whether a change of an object of this kind can let a pod have a node that
// could have none before.
func helps(kind string) bool {
	switch kind {
	case "ReplicaSet", "StatefulSet", "ReplicationController", "Service", "LimitRange":
		return false
	}
	return true
}

func drop[T client.Object](c *Cluster, t *table[T], kind string, o T, now time.Time) {
	if _, dropped := t.drop(o, now); dropped {
		c.changed(kind, keyOf(o), helps(kind) && c.wants())
	}
}

// Pod returns a pod, or nil.
func (c *Cluster) Pod(k snapshot.PodKey) *corev1.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.podTable.by[key{Namespace: k.Namespace, Name: k.Name}]
}

// Namespace returns a namespace, or nil.
func (c *Cluster) Namespace(name string) *corev1.Namespace { return get(c, c.namespaces, name) }

// Node returns a node, or nil.
func (c *Cluster) Node(name string) *corev1.Node { return get(c, c.nodeTable, name) }

// Claim returns a NodeClaim, or nil.
func (c *Cluster) Claim(name string) *karpv1.NodeClaim { return get(c, c.claimTable, name) }

// Pool returns a NodePool, or nil.
func (c *Cluster) Pool(name string) *karpv1.NodePool { return get(c, c.poolTable, name) }

func get[T client.Object](c *Cluster, t *table[T], name string) T {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return t.by[types.NamespacedName{Name: name}]
}

// Claims are the NodeClaims by name. The list must not be changed.
func (c *Cluster) Claims() []*karpv1.NodeClaim { return list(c, c.claimTable) }

// Pools are the NodePools by name. The list must not be changed.
func (c *Cluster) Pools() []*karpv1.NodePool { return list(c, c.poolTable) }

// Pods are the pods by namespace and name, those that have ended included. The list must
// not be changed.
func (c *Cluster) Pods() []*corev1.Pod { return list(c, c.podTable) }

// Nodes are the nodes by name. The list must not be changed.
func (c *Cluster) Nodes() []*corev1.Node { return list(c, c.nodeTable) }

func list[T client.Object](c *Cluster, t *table[T]) []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return t.list()
}

// Revision counts the changes of what snapshots hold.
func (c *Cluster) Revision() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision
}

func (c *Cluster) revisionText(catalogs uint64) string {
	return fmt.Sprintf("%s-%d.%d", c.epoch, c.revision, catalogs)
}
