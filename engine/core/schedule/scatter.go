package schedule

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Scatter tries the cluster without the nodes of an open trial of another planner of the same
// snapshot, and with the new nodes of that. But the pods do not go where the trial has them:
// in the order in which drains evict them, each goes to the emptiest node that takes it, as
// kube-scheduler has it. Pods that may have to wait are tried both in their turn and last. As
// after Try, Undo or Apply must follow.
func (p *Planner) Scatter(like *Planner, t *Trial) *Trial {
	s := p.s
	var pods []int32
	for _, i := range t.gone {
		pods = append(pods, p.drained(s.nodes[i])...)
	}
	last := slices.Clone(pods)
	late := func(i int32) int {
		if p.late[s.snap.Pods[i].Key] {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(last, func(a, b int32) int { return cmp.Compare(late(a), late(b)) })
	out := p.scatterAs(like, t, pods)
	if out.Complete && !slices.Equal(pods, last) {
		p.Undo(out)
		out = p.scatterAs(like, t, last)
	}
	return out
}

// scatterAs is Scatter with the pods in an order.
func (p *Planner) scatterAs(like *Planner, t *Trial, pods []int32) *Trial {
	s := p.s
	out := &Trial{Nodes: t.Nodes, gone: t.gone, open: true}
	for _, i := range t.gone {
		out.Moved += p.leave(s.nodes[i])
	}
	p.initial()
	nodes := slices.DeleteFunc(slices.Clone(p.order), func(n *node) bool { return n.dropped })
	for _, n := range like.s.nodes[like.s.existing:] {
		if len(n.pods) > 0 && !n.dropped {
			s.book(n.column, 1)
			nodes = append(nodes, s.newNode(n.column))
			out.New++
		}
	}
	out.Left, out.Complete = s.scatter(pods, nodes)
	return out
}

// drained are the pods that move when a node goes, in the order in which they are evicted.
func (p *Planner) drained(n *node) []int32 {
	s := p.s
	pods := slices.DeleteFunc(slices.Concat(n.existing.Pods, p.guests[n.index]), func(i int32) bool { return !s.snap.Pods[i].Moves() })
	part := make(map[int32]float64, len(pods))
	for _, i := range pods {
		for r, q := range s.classes[s.snap.Pods[i].Class].req {
			if r < len(s.dims) && s.dims[r] != corev1.ResourcePods {
				if all := float64(n.existing.Allocatable[s.dims[r]]); all > 0 {
					part[i] = max(part[i], q/all)
				}
			}
		}
	}
	slices.SortFunc(pods, func(a, b int32) int { return cmp.Or(-cmp.Compare(part[a], part[b]), cmp.Compare(a, b)) })
	return pods
}

// scatter places pods one after the other, each on the emptiest of nodes. left is the first
// without a place.
func (s *solver) scatter(pods []int32, nodes []*node) (left snapshot.PodKey, ok bool) {
	for c := range s.demand {
		s.demand[c] = 0
		s.pending[c] = s.pending[c][:0]
	}
	// Pods that want to be near others wait for those.
	for len(pods) > 0 {
		var later []int32
		for _, i := range pods {
			c := s.classes[s.snap.Pods[i].Class]
			s.demand[c.id] = 1
			s.pending[c.id] = append(s.pending[c.id], i)
			if !slices.ContainsFunc(s.emptiest(c, nodes), func(n *node) bool { return s.placeOn(c, []*node{n}) }) {
				s.demand[c.id] = 0
				s.pending[c.id] = s.pending[c.id][:len(s.pending[c.id])-1]
				later = append(later, i)
			}
		}
		if len(later) == len(pods) {
			return s.snap.Pods[later[0]].Key, false
		}
		pods = later
	}
	return left, true
}

// emptiest are the nodes that may take a pod of a class, in the order of what kube-scheduler
// thinks of them: what its soft rules say counts more than room.
func (s *solver) emptiest(c *class, nodes []*node) []*node {
	type scored struct {
		n     *node
		score float64
	}
	var list []scored
	for _, n := range nodes {
		if s.accepts(c.profile, n) && s.roomAllows(c, n) > 0 {
			list = append(list, scored{n, s.roomy(c, n)})
		}
	}
	slices.SortStableFunc(list, func(a, b scored) int { return -cmp.Compare(a.score, b.score) })
	out := make([]*node, len(list))
	for i := range list {
		out[i] = list[i].n
	}
	if len(c.soft) > 0 || len(c.snap.Preferred) > 0 {
		out = s.bySoftScore(c, out)
	}
	return out
}

// roomy is what LeastAllocated and BalancedAllocation make of a node with one more pod.
func (s *solver) roomy(c *class, n *node) float64 {
	free, parts := 0.0, 0.0
	var used [2]float64
	for r, name := range s.dims {
		i := slices.Index(scoredResources[:], name)
		if i < 0 {
			continue
		}
		var all float64
		if n.existing != nil {
			all = float64(n.existing.Allocatable[name])
		} else {
			all = s.columns[n.column].alloc[r]
		}
		if all <= 0 {
			continue
		}
		used[i] = min(1-(n.room[r]-c.req[r])/all, 1)
		free += 1 - used[i]
		parts++
	}
	if parts == 0 {
		return 0
	}
	return free/parts + 1 - math.Abs(used[0]-used[1])/2
}

var scoredResources = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
