package schedule

import (
	"fmt"
	"slices"
)

// serveSingly tries the pods that have no place yet one class after the other: on any
// node there is or will be, then on a new node of the cheapest offering that the rules
// allow. A pod placed may make room in the rules for another, so it goes on until
// nothing moves.
func (s *solver) serveSingly() {
	s.startAnyway = true
	for moved := true; moved; {
		moved = false
		for _, c := range s.order() {
			if s.placeOn(c, s.nodes) {
				moved = true
			}
			for s.demand[c.id] > 0 && s.openFor(c) {
				moved = true
			}
		}
		if s.ctx.Err() != nil {
			return
		}
	}
}

// openFor buys the cheapest node that takes a pod of c by all rules, from the best pools
// first, and places what it can there. It reports whether a pod was placed.
func (s *solver) openFor(c *class) bool {
	s.refreshOpen()
	var list []int32
	c.profile.cols.each(func(k int) {
		if s.open[k] && c.fits.has(int(s.columns[k].allocID)) {
			list = append(list, int32(k))
		}
	})
	slices.SortFunc(list, func(a, b int32) int {
		x, y := &s.columns[a], &s.columns[b]
		if wx, wy := s.poolOf(x).Weight, s.poolOf(y).Weight; wx != wy {
			return int(wy - wx)
		}
		if x.relaxed != y.relaxed {
			if y.relaxed {
				return -1
			}
			return 1
		}
		if px, py := c.profile.preferred.has(int(a)), c.profile.preferred.has(int(b)); px != py {
			if px {
				return -1
			}
			return 1
		}
		return s.compareColumns(a, b)
	})
	refused := map[string]bool{}
	for _, k := range list {
		probe := &node{column: k, kind: s.columnKind(k), room: s.columns[k].alloc, domains: make([]int32, len(s.keys))}
		for i := range s.keys {
			probe.domains[i] = s.columnDomain(int32(i), k)
		}
		place := fmt.Sprint(s.columns[k].shop, probe.domains)
		if refused[place] {
			continue
		}
		group, ok := s.placeAllows(c, probe, probe.domains)
		if ok && s.mustChoose(int(k), c.zonal) {
			ok = false
		}
		if ok {
			var n int32
			if n, group = s.hostAllows(c, probe); n > 0 && s.admits(c, probe) > 0 {
				s.book(k, 1)
				if s.placeOn(c, []*node{s.newNode(k)}) {
					return true
				}
				s.book(k, -1) // its daemons are in the way
				bought := s.nodes[len(s.nodes)-1]
				bought.dropped, bought.room = true, make([]float64, s.D)
			}
		}
		refused[place] = true
		if group >= 0 {
			s.blameGroup(c, group)
		}
	}
	return false
}
