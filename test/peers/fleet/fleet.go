// Package fleet is a running cluster, on which engines that take nodes away are compared:
// its nodes and pods, what happens to pods whose node goes, and what it all costs.
//
// Every engine starts from a copy of one fleet and changes it through the same few calls.
// A fleet places pods as kube-scheduler does, without knowing what an engine planned.
package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// AppLabel names the Deployment of a pod. All selectors of a fleet are of this label.
const AppLabel = "app"

// TeamLabel is the label and the taint of nodes that are for one team alone.
const TeamLabel = "example.com/team"

// Fleet is a cluster. What its objects hold must not be changed: a change makes another
// object of the same name, so engines see by the pointer what is new.
type Fleet struct {
	Types []*catalog.InstanceType
	Pools []*karpv1.NodePool
	// Nodes and Claims are by name; a node has the name of its claim.
	Nodes  map[string]*corev1.Node
	Claims map[string]*karpv1.NodeClaim
	// Pods are by namespace and name, those without a node included.
	Pods        map[types.NamespacedName]*corev1.Pod
	Budgets     []*policyv1.PodDisruptionBudget
	ReplicaSets []*appsv1.ReplicaSet
	Namespaces  []*corev1.Namespace
	// Evictions counts the pods whose node was taken away.
	Evictions int
	// Start is when every object was made.
	Start time.Time

	types map[string]*catalog.InstanceType
	apps  map[string]*app
	state map[string]*node
	made  int
}

// app is a Deployment.
type app struct {
	name      string
	namespace string
	// arch, zone and team are what its pods' node selector asks for; empty is any.
	arch, zone, team string
	// spread is over zones, apart over nodes.
	spread, apart bool
	requests      resources.List
	// fixed means that a budget forbids every eviction.
	fixed bool
	// byZone counts the pods that have a node.
	byZone map[string]int
	next   int
}

// node is what the scheduler keeps of a node.
type node struct {
	name, arch, zone, team string
	room, free             resources.List
	apps                   map[*app]int
	pods                   map[types.NamespacedName]bool
}

// Clone is a fleet that changes on its own. Objects, being immutable, are shared.
func (f *Fleet) Clone() *Fleet {
	c := *f
	c.Nodes, c.Claims, c.Pods = maps.Clone(f.Nodes), maps.Clone(f.Claims), maps.Clone(f.Pods)
	c.Budgets = slices.Clone(f.Budgets)
	c.apps, c.state = make(map[string]*app, len(f.apps)), make(map[string]*node, len(f.state))
	for name, a := range f.apps {
		b := *a
		b.byZone = maps.Clone(a.byZone)
		c.apps[name] = &b
	}
	for name, n := range f.state {
		m := *n
		m.free, m.pods, m.apps = n.free.Clone(), maps.Clone(n.pods), make(map[*app]int, len(n.apps))
		for a, count := range n.apps {
			m.apps[c.apps[a.name]] = count
		}
		c.state[name] = &m
	}
	return &c
}

// Launch adds a node that is ready, as if it had been bought, registered and initialised.
// The offering must be one that the pool may buy.
func (f *Fleet) Launch(name, pool, instanceType, zone string) error {
	it := f.types[instanceType]
	if it == nil {
		return fmt.Errorf("launch %s: no instance type %q", name, instanceType)
	}
	i := slices.IndexFunc(f.Pools, func(p *karpv1.NodePool) bool { return p.Name == pool })
	if i < 0 {
		return fmt.Errorf("launch %s: no NodePool %q", name, pool)
	}
	if f.Nodes[name] != nil {
		return fmt.Errorf("launch %s: there is a node of this name", name)
	}
	p := f.Pools[i]
	if _, ok := f.price(it, p, zone); !ok {
		return fmt.Errorf("launch %s: NodePool %s may not buy %s in %s", name, pool, instanceType, zone)
	}
	ref := p.Spec.Template.Spec.NodeClassRef
	labels := map[string]string{
		corev1.LabelHostname:           name,
		corev1.LabelTopologyZone:       zone,
		corev1.LabelInstanceTypeStable: it.Name,
		corev1.LabelOSStable:           string(corev1.Linux),
		karpv1.CapacityTypeLabelKey:    catalog.OnDemand,
		karpv1.NodePoolLabelKey:        pool,
		karpv1.NodeRegisteredLabelKey:  "true",
		karpv1.NodeInitializedLabelKey: "true",
		ref.LabelKey():                 ref.Name,
	}
	for key, r := range it.Requirements {
		if v, ok := r.IsSingle(); ok {
			labels[key] = v
		}
	}
	maps.Copy(labels, p.Spec.Template.Labels)
	at := metav1.NewTime(f.Start)
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("claim-" + name), Labels: labels, CreationTimestamp: at,
		Annotations: map[string]string{
			karpv1.NodePoolHashAnnotationKey:        p.Hash(),
			karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion,
		},
	}}
	claim.Spec.NodeClassRef, claim.Spec.Taints = ref, p.Spec.Template.Spec.Taints
	claim.Spec.Requirements = append(slices.Clone(p.Spec.Template.Spec.Requirements),
		karpv1.Requirement{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{pool}})
	claim.Status.NodeName, claim.Status.ProviderID = name, "fleet:///"+name
	claim.Status.Capacity, claim.Status.Allocatable = it.Capacity.Quantities(), it.Allocatable.Quantities()
	for _, c := range []string{
		karpv1.ConditionLaunched, karpv1.ConditionRegistered, karpv1.ConditionInitialized,
		karpv1.ConditionConsolidatable, karpv1.ConditionReady,
	} {
		claim.Status.Conditions = append(claim.Status.Conditions,
			metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: c, LastTransitionTime: at})
	}
	f.Claims[name] = claim
	f.Nodes[name] = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: labels, CreationTimestamp: at},
		Spec:       corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: p.Spec.Template.Spec.Taints},
		Status: corev1.NodeStatus{
			Capacity: it.Capacity.Quantities(), Allocatable: it.Allocatable.Quantities(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	f.state[name] = &node{
		name: name, zone: zone, arch: labels[corev1.LabelArchStable], team: labels[TeamLabel],
		room: it.Allocatable, free: it.Allocatable.Clone(), apps: map[*app]int{}, pods: map[types.NamespacedName]bool{},
	}
	return nil
}

// Remove takes a node away. Its pods are evicted: each is gone, and its Deployment has
// another one that needs a node. A pod that must not be evicted is an error.
func (f *Fleet) Remove(name string) error {
	n := f.state[name]
	if n == nil {
		return fmt.Errorf("remove node %q: there is no such node", name)
	}
	keys := slices.SortedFunc(maps.Keys(n.pods), compareKeys)
	for _, key := range keys {
		if why := f.fixed(f.Pods[key]); why != "" {
			return fmt.Errorf("remove node %s: pod %s must not be evicted: %s", name, key, why)
		}
	}
	for _, key := range keys {
		a := f.apps[f.Pods[key].Labels[AppLabel]]
		a.byZone[n.zone]--
		delete(f.Pods, key)
		f.add(a, false)
		f.Evictions++
	}
	delete(f.Nodes, name)
	delete(f.Claims, name)
	delete(f.state, name)
	return nil
}

// fixed says why a pod must stay where it is; empty if it need not.
func (f *Fleet) fixed(p *corev1.Pod) string {
	switch {
	case p.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true":
		return karpv1.DoNotDisruptAnnotationKey
	case f.apps[p.Labels[AppLabel]].fixed:
		return "its PodDisruptionBudget allows none"
	}
	return ""
}

// add makes a pod of a Deployment, which has no node yet.
func (f *Fleet) add(a *app, keep bool) *corev1.Pod {
	a.next++
	f.made++
	p := a.pod(fmt.Sprintf("%s-%05d", a.name, a.next), f.made, f.Start)
	if keep {
		p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
	}
	f.Pods[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	return p
}

// Pending are the pods without a node, by namespace and name.
func (f *Fleet) Pending() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range f.Pods {
		if p.Spec.NodeName == "" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, comparePods)
	return out
}

// price is what the pool pays for the type in the zone; ok is false if it may not buy it.
func (f *Fleet) price(it *catalog.InstanceType, p *karpv1.NodePool, zone string) (price catalog.Price, ok bool) {
	w := work.Work{Pool: p}
	for i := range it.Offerings {
		if o := &it.Offerings[i]; o.Zone == zone && !o.Unavailable && o.CapacityType == catalog.OnDemand && w.Admits(it, o) {
			return o.Price, true
		}
	}
	return 0, false
}

// Cost is what all nodes cost per hour.
func (f *Fleet) Cost() catalog.Price {
	sum := catalog.Price(0)
	for _, n := range f.Nodes {
		it := f.types[n.Labels[corev1.LabelInstanceTypeStable]]
		for i := range it.Offerings {
			if o := &it.Offerings[i]; o.Zone == n.Labels[corev1.LabelTopologyZone] && o.CapacityType == n.Labels[karpv1.CapacityTypeLabelKey] {
				sum += o.Price
				break
			}
		}
	}
	return sum
}

// Use is the share of the nodes' CPU that pods request.
func (f *Fleet) Use() float64 {
	var used, all float64
	for _, n := range f.state {
		all += float64(n.room[corev1.ResourceCPU])
		used += float64(n.room[corev1.ResourceCPU] - n.free[corev1.ResourceCPU])
	}
	return used / all
}

// Check returns an error for every node that holds more than it has room for, every pod
// on a node that its constraints forbid and every Deployment that has lost a pod since
// the fleet was like before. Spread counts when a pod is placed, as in Kubernetes, so it
// is not among them.
func (f *Fleet) Check(before *Fleet) error {
	var errs []error
	used := map[string]resources.List{}
	apart := map[string]types.NamespacedName{}
	count := map[string]int{}
	for key, p := range f.Pods {
		a := f.apps[p.Labels[AppLabel]]
		count[a.name]++
		if p.Spec.NodeName == "" {
			continue
		}
		n := f.Nodes[p.Spec.NodeName]
		if n == nil {
			errs = append(errs, fmt.Errorf("pod %s: node %s does not exist", key, p.Spec.NodeName))
			continue
		}
		if used[n.Name] == nil {
			used[n.Name] = resources.List{}
		}
		used[n.Name].AddTo(work.Requests(p))
		for k, v := range p.Spec.NodeSelector {
			if n.Labels[k] != v {
				errs = append(errs, fmt.Errorf("pod %s: node %s has %s=%s, want %s", key, n.Name, k, n.Labels[k], v))
			}
		}
		if len(n.Spec.Taints) > 0 && len(p.Spec.Tolerations) == 0 {
			errs = append(errs, fmt.Errorf("pod %s: does not tolerate the taint of node %s", key, n.Name))
		}
		if a.apart {
			if other, ok := apart[a.name+" "+n.Name]; ok {
				errs = append(errs, fmt.Errorf("pod %s: shares node %s with %s", key, n.Name, other))
			}
			apart[a.name+" "+n.Name] = key
		}
	}
	for name, u := range used {
		if room := f.types[f.Nodes[name].Labels[corev1.LabelInstanceTypeStable]].Allocatable; !u.FitsIn(room) {
			errs = append(errs, fmt.Errorf("node %s: its pods need %v, there is room for %v", name, u, room))
		}
	}
	had := map[string]int{}
	for _, p := range before.Pods {
		had[p.Labels[AppLabel]]++
	}
	for name, n := range had {
		if count[name] != n {
			errs = append(errs, fmt.Errorf("deployment %s: has %d pods, had %d", name, count[name], n))
		}
	}
	for key, p := range before.Pods {
		if before.fixed(p) != "" && (f.Pods[key] == nil || f.Pods[key].Spec.NodeName != p.Spec.NodeName) {
			errs = append(errs, fmt.Errorf("pod %s: was evicted and must not be", key))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(errs) > 10 {
		errs = append(errs[:10], fmt.Errorf("and %d more", len(errs)-10))
	}
	return errors.Join(errs...)
}

func comparePods(a, b *corev1.Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
