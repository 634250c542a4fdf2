package work

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/test/peers/bound"
)

// Outcome is what an engine made of a work.
type Outcome struct {
	Engine string
	// Build is the time to make the engine's own model of the objects, Solve the time
	// to place the pods.
	Build, Solve time.Duration
	// New are the nodes to buy, Existing the pods put on nodes that are there.
	New      []Node
	Existing map[string][]*corev1.Pod
	// Unscheduled pods got no node. Why is the engine's reason for the first of them by
	// name.
	Unscheduled []*corev1.Pod
	Why         string
	// OwnBound is the engine's own claim of a lower bound; 0 if it makes none.
	OwnBound catalog.Price
}

// Node is a node to buy.
type Node struct {
	// InstanceType, Zone and CapacityType name the cheapest offering the engine would
	// launch.
	InstanceType, Zone, CapacityType string
	Pods                             []*corev1.Pod
}

// Check returns an error for every pod that is not exactly once in o, every node whose
// pods need more than it has, every offering that w's pool may not buy, and a bound
// that the plan itself disproves.
func (w *Work) Check(o *Outcome) error {
	var errs []error
	seen := make(map[*corev1.Pod]int, len(w.Pods))
	types := make(map[string]*catalog.InstanceType, len(w.Types))
	for _, it := range w.Types {
		types[it.Name] = it
	}
	fill := func(node string, room resources.List, pods []*corev1.Pod) {
		used := resources.List{}
		for _, p := range pods {
			seen[p]++
			used.AddTo(Requests(p))
		}
		if !used.FitsIn(room) {
			errs = append(errs, fmt.Errorf("%s: its %d pods need %v, there is room for %v", node, len(pods), used, room))
		}
	}
	for i, n := range o.New {
		name := fmt.Sprintf("new node %d (%s)", i, n.InstanceType)
		it := types[n.InstanceType]
		if it == nil {
			errs = append(errs, fmt.Errorf("%s: no such type", name))
			continue
		}
		if len(n.Pods) == 0 {
			errs = append(errs, fmt.Errorf("%s: has no pods", name))
		}
		if _, ok := w.price(it, n); !ok {
			errs = append(errs, fmt.Errorf("%s: offering %s/%s is not for sale in the pool", name, n.Zone, n.CapacityType))
		}
		fill(name, it.Allocatable, n.Pods)
	}
	room := map[string]resources.List{}
	for _, n := range w.Nodes {
		free, err := resources.FromQuantities(n.Status.Allocatable)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
		}
		room[n.Name] = free
	}
	for _, p := range w.Bound {
		room[p.Spec.NodeName].SubFrom(Requests(p))
	}
	for _, name := range slices.Sorted(maps.Keys(o.Existing)) {
		free, ok := room[name]
		if !ok {
			errs = append(errs, fmt.Errorf("node %s: does not exist", name))
			continue
		}
		fill("node "+name, free, o.Existing[name])
	}
	for _, p := range o.Unscheduled {
		seen[p]++
	}
	for _, p := range w.Pods {
		if n := seen[p]; n != 1 {
			errs = append(errs, fmt.Errorf("pod %s: is placed %d times, want once", p.Name, n))
		}
		delete(seen, p)
	}
	if len(seen) > 0 {
		errs = append(errs, fmt.Errorf("%d pods in the outcome are not of the work", len(seen)))
	}
	if cost := w.Cost(o); o.OwnBound > cost {
		errs = append(errs, fmt.Errorf("its own bound is %v $/h, above its cost of %v", o.OwnBound.Dollars(), cost.Dollars()))
	}
	if len(errs) > 10 {
		errs = append(errs[:10], fmt.Errorf("and %d more", len(errs)-10))
	}
	return errors.Join(errs...)
}

func (w *Work) price(it *catalog.InstanceType, n Node) (catalog.Price, bool) {
	for i := range it.Offerings {
		of := &it.Offerings[i]
		if of.Zone == n.Zone && of.CapacityType == n.CapacityType && !of.Unavailable && w.Admits(it, of) {
			return of.Price, true
		}
	}
	return 0, false
}

// Cost is what the new nodes of o cost per hour at list price. Offerings that are not
// for sale cost nothing; [Work.Check] names them.
func (w *Work) Cost(o *Outcome) catalog.Price {
	types := make(map[string]*catalog.InstanceType, len(w.Types))
	for _, it := range w.Types {
		types[it.Name] = it
	}
	sum := catalog.Price(0)
	for _, n := range o.New {
		if it := types[n.InstanceType]; it != nil {
			price, _ := w.price(it, n)
			sum += price
		}
	}
	return sum
}

// Placed are the pods that o puts on new nodes.
func (o *Outcome) Placed() []*corev1.Pod {
	var out []*corev1.Pod
	for _, n := range o.New {
		out = append(out, n.Pods...)
	}
	return out
}

// Requests are what the scheduler counts for a generated pod: one container.
func Requests(p *corev1.Pod) resources.List {
	out := resources.List{corev1.ResourcePods: 1}
	for name, q := range p.Spec.Containers[0].Resources.Requests {
		out[name] = resources.Amount(name, q)
	}
	return out
}

// ClassBound is the price per hour, in US dollars, below which no set of new nodes
// holds the pods. Besides requests it knows that pods with anti-affinity to each other
// on one host need a node each. Zones, spread and pod affinity are left out, so the
// bound is valid for every work.
func (w *Work) ClassBound(pods []*corev1.Pod) bound.Result {
	keys := map[string]bool{}
	counts := map[string]*bound.Class{}
	needs := make([]map[string]int64, len(pods))
	for i, p := range pods {
		needs[i] = map[string]int64{}
		for name, v := range Requests(p) {
			if v > 0 {
				needs[i][string(name)] = v
			}
		}
		if group, ok := apartFromItself(p); ok {
			needs[i][apart+group] = 1
		}
		for k := range needs[i] {
			keys[k] = true
		}
	}
	dims := slices.Sorted(maps.Keys(keys))
	for _, need := range needs {
		c := bound.Class{Count: 1}
		for _, d := range dims {
			c.Need = append(c.Need, need[d])
		}
		key := fmt.Sprint(c.Need)
		if have := counts[key]; have != nil {
			have.Count++
			continue
		}
		counts[key] = &c
	}
	var classes []bound.Class
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		classes = append(classes, *counts[key])
	}
	var nodes []bound.Node
	for _, it := range w.Types {
		price, ok := w.cheapest(it)
		if !ok {
			continue
		}
		n := bound.Node{Price: price.Dollars()}
		for _, d := range dims {
			room := it.Allocatable[corev1.ResourceName(d)]
			if len(d) > len(apart) && d[:len(apart)] == apart {
				room = 1
			}
			n.Room = append(n.Room, room)
		}
		nodes = append(nodes, n)
	}
	return bound.Solve(nodes, classes)
}

// apart starts the names of the resources that stand for anti-affinity: every node has
// one of each.
const apart = "apart: "

func apartFromItself(p *corev1.Pod) (group string, ok bool) {
	if p.Spec.Affinity == nil || p.Spec.Affinity.PodAntiAffinity == nil {
		return "", false
	}
	for _, t := range p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if t.TopologyKey != corev1.LabelHostname || len(t.Namespaces) > 0 || t.NamespaceSelector != nil {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		if err == nil && s.Matches(labels.Set(p.Labels)) {
			return p.Namespace + " " + s.String(), true
		}
	}
	return "", false
}
