// Package binder is kube-scheduler for a simulation: it binds pods to nodes of a snapshot,
// one after the other, by kube-scheduler's filters and the scores of its default profile.
//
// It decides by the present state of nodes and pods alone, as kube-scheduler does, and so
// not always as the plan did that a node was bought by. It does not preempt.
package binder

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Pod is a pod that waits.
type Pod struct {
	Key snapshot.PodKey
	// Nominated is the node that it is expected on, which is tried first; empty if there is
	// none. The snapshot counts the pod on that node already. As for kube-scheduler, it takes
	// room there, but is not there yet for the rules of other pods.
	Nominated string
	// Since orders pods of one priority.
	Since int64
}

// Binding is a pod that got a node.
type Binding struct {
	Pod  snapshot.PodKey
	Node string
}

// Bind binds what it can of waiting, in order of priority and time. Pods that the snapshot
// does not know are passed over. It is pure: equal arguments give equal bindings.
func Bind(snap *snapshot.Snapshot, waiting []Pod) []Binding {
	if len(waiting) == 0 {
		return nil
	}
	b := newBoard(snap)
	type turn struct {
		Pod
		index int32
		class *snapshot.Class
	}
	queue := make([]turn, 0, len(waiting))
	for _, p := range waiting {
		i, ok := slices.BinarySearchFunc(snap.Pods, p.Key, func(have snapshot.Pod, want snapshot.PodKey) int {
			return cmp.Or(cmp.Compare(have.Key.Namespace, want.Namespace), cmp.Compare(have.Key.Name, want.Name))
		})
		if ok {
			queue = append(queue, turn{p, int32(i), snap.Classes[snap.Pods[i].Class]})
		}
	}
	slices.SortStableFunc(queue, func(x, y turn) int {
		return cmp.Or(-cmp.Compare(x.class.Priority, y.class.Priority), cmp.Compare(x.Since, y.Since),
			cmp.Compare(x.Key.Namespace, y.Key.Namespace), cmp.Compare(x.Key.Name, y.Key.Name))
	})
	for _, t := range queue {
		if from := b.byName[t.Nominated]; from != nil {
			from.classes[snap.Pods[t.index].Class]--
		}
	}
	var out []Binding
	// A class that found no node finds none until another pod changes what its rules count.
	failed := map[int32]int{}
	for _, t := range queue {
		class := snap.Pods[t.index].Class
		from := b.byName[t.Nominated]
		if n, again := failed[class]; again && from == nil && (n == len(out) || !relative(t.class)) {
			continue
		}
		m := b.place(t.class, class, from)
		if m == nil {
			if from == nil {
				failed[class] = len(out)
			}
			continue
		}
		out = append(out, Binding{t.Key, m.node.Name})
	}
	return out
}

// board is the state of the nodes while pods are bound.
type board struct {
	snap   *snapshot.Snapshot
	nodes  []*machine // all that exist
	byName map[string]*machine
	counts map[counted]map[string]int
	owners map[counted]map[string]int
	totals map[int32]int
	spread map[spreadOf]*spreadState
	// apart are the required anti-affinity terms of all classes.
	apart []counted
}

// machine is a node with what is free on it.
type machine struct {
	node *snapshot.Node
	// open is false for a node that takes no pods yet.
	open    bool
	free    map[corev1.ResourceName]int64
	classes map[int32]int
	ports   []snapshot.Port
	// attached are the volumes by driver; nil until somebody asks.
	attached map[string]map[string]bool
}

func newBoard(snap *snapshot.Snapshot) *board {
	b := &board{
		snap: snap, byName: make(map[string]*machine, len(snap.Nodes)), counts: map[counted]map[string]int{}, owners: map[counted]map[string]int{},
		totals: map[int32]int{}, spread: map[spreadOf]*spreadState{},
	}
	for _, class := range snap.Classes {
		for _, t := range class.Apart {
			if c := (counted{t.Selector, t.Key}); !slices.Contains(b.apart, c) {
				b.apart = append(b.apart, c)
			}
		}
	}
	for _, n := range snap.Nodes {
		if n.InFlight {
			continue
		}
		m := &machine{node: n, open: n.Initialized, free: make(map[corev1.ResourceName]int64, len(n.Allocatable)), classes: map[int32]int{}}
		for name, v := range n.Allocatable {
			m.free[name] = v - n.Used[name] - n.DaemonReserve[name]
		}
		for _, i := range n.Pods {
			class := snap.Pods[i].Class
			m.classes[class]++
			m.ports = append(m.ports, snap.Classes[class].Ports...)
		}
		for _, d := range n.Missing {
			m.ports = append(m.ports, snap.Daemons[d].Class.Ports...)
		}
		b.nodes = append(b.nodes, m)
		b.byName[n.Name] = m
	}
	return b
}

// place finds a node for a pod of class and puts it there. from is the node on which room is
// kept for it; nil if there is none.
func (b *board) place(class *snapshot.Class, id int32, from *machine) *machine {
	if from != nil {
		from.take(class, -1)
		if from.open && b.fits(class, id, from) {
			b.put(from, class, id)
			return from
		}
	}
	var fit []*machine
	for _, m := range b.nodes {
		if m.open && b.fits(class, id, m) {
			fit = append(fit, m)
		}
	}
	best := b.best(class, id, fit)
	switch {
	case best != nil:
		b.put(best, class, id)
	case from != nil:
		from.take(class, 1) // it goes on waiting for that node
	}
	return best
}

// put adds a pod of a class to a node.
func (b *board) put(m *machine, class *snapshot.Class, id int32) {
	m.take(class, 1)
	m.classes[id]++
	b.note(m, class)
}

// take takes the room and ports of a pod, or gives them back if by is -1.
func (m *machine) take(class *snapshot.Class, by int) {
	for name, v := range class.Requests {
		m.free[name] -= int64(by) * v
	}
	if by > 0 {
		m.ports = append(m.ports, class.Ports...)
	} else {
		for _, p := range class.Ports {
			if i := slices.Index(m.ports, p); i >= 0 {
				m.ports = slices.Delete(m.ports, i, i+1)
			}
		}
	}
	if len(class.Volumes) > 0 {
		m.attached = nil
	}
}
