package schedule

import (
	"slices"
)

// groupState is a group's counts at some moment.
type groupState struct {
	counts, guards []int32
	total          int
}

// add counts a daemon's pod, which is there as soon as its node is.
func (g *groupState) add(d int32) {
	g.counts = stretched(g.counts, d)
	g.counts[d]++
	g.total++
}

// saveCounts remembers the counts of the pods that are bound.
func (s *solver) saveCounts() {
	s.initial = make([]groupState, len(s.groups))
	for i, g := range s.groups {
		s.initial[i] = groupState{slices.Clone(g.counts), slices.Clone(g.guards), g.total}
	}
	for _, n := range s.nodes {
		n.boundCounts = slices.Clone(n.counts)
	}
}

// replay binds the planned pods one after the other, as kube-scheduler would, and checks
// its rules about other pods at each step; a pod that has to wait is tried again after
// the others. The order that works becomes that of the plan. Pods that never pass lose
// their place.
func (s *solver) replay() {
	if !slices.ContainsFunc(s.placed, func(p placement) bool { c := s.classes[p.class]; return c.hostRules || s.zonalRules(c) }) {
		return // no order is wrong
	}
	for i, g := range s.groups {
		if i < len(s.initial) {
			g.counts, g.guards, g.total = slices.Clone(s.initial[i].counts), slices.Clone(s.initial[i].guards), s.initial[i].total
		}
		g.elsewhere = 0
		g.built, g.present, g.hist, g.domains, g.least = false, nil, nil, 0, 0
	}
	for _, p := range s.placed { // the others count what they did before
		n := s.nodes[p.node]
		n.counts = append(n.counts[:0], n.boundCounts...)
	}
	for _, n := range s.nodes[s.existing:] {
		n.counts = append(n.counts[:0], n.boundCounts...)
	}
	waiting := s.placed
	order := make([]placement, 0, len(waiting))
	for len(waiting) > 0 {
		kept := waiting[:0:0]
		for _, p := range waiting {
			c, n := s.classes[p.class], s.nodes[p.node]
			k := s.bindable(c, n, p.n)
			if k > 0 {
				q := p
				q.n = k
				order = append(order, q)
			}
			if k < p.n {
				p.n -= k
				kept = append(kept, p)
			}
		}
		if total(kept) == total(waiting) {
			waiting = kept
			break
		}
		waiting = kept
	}
	for _, p := range waiting {
		s.evict(s.classes[p.class], s.nodes[p.node], p.n)
	}
	s.placed = order
	s.dropEmpty()
}

func total(list []placement) int {
	n := 0
	for _, p := range list {
		n += int(p.n)
	}
	return n
}

// bindable counts as many of k pods of c on n as the rules allow one after the other.
func (s *solver) bindable(c *class, n *node, k int32) int32 {
	free := !s.zonalRules(c) && !c.hostRules
	bound := int32(0)
	for bound < k {
		step := int32(1)
		if free {
			step = k
		} else {
			if _, ok := s.placeAllowed(c, n); !ok {
				break
			}
			if h, _ := s.hostAllows(c, n); h == 0 {
				break
			}
		}
		for _, g := range c.adds {
			s.countPod(n, g, step)
		}
		for _, g := range c.guards {
			s.guard(n, g, step)
		}
		bound += step
	}
	return bound
}

// evict takes k pods of c off n again.
func (s *solver) evict(c *class, n *node, k int32) {
	for r, q := range c.req {
		n.room[r] += float64(k) * q
	}
	for i := range n.pods {
		if n.pods[i].class == c.id {
			n.pods[i].n -= k
		}
	}
	for _, v := range c.shared {
		delete(s.exclusive, v.ID)
	}
	n.pods = slices.DeleteFunc(n.pods, func(p placedPods) bool { return p.n == 0 })
	s.demand[c.id] += int(k)
}
