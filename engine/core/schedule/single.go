package schedule

import (
	"cmp"
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
			for s.demand[c.id] > 0 && s.ctx.Err() == nil && s.openFor(c) {
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
	list := s.columnsByPrice(c.profile)
	refused := map[string]bool{}
	for _, k := range list {
		if !s.open[k] || !c.fits.has(int(s.columns[k].allocID)) || s.planner != nil && s.columns[k].price() >= s.planner.ceiling {
			continue
		}
		probe := &node{column: k, kind: s.columnKind(k), room: s.columns[k].alloc, domains: s.domainsOf(k)}
		place := fmt.Sprint(s.columns[k].shop, probe.domains)
		if refused[place] {
			continue
		}
		fresh := make([][]int32, len(s.keys)) // the node's own domains are there once it is
		for i := range fresh {
			fresh[i] = probe.domains[i : i+1]
		}
		group, ok := s.allowedIn(c, probe.domains, fresh)
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
				s.drop(s.nodes[len(s.nodes)-1]) // its daemons are in the way
			}
		}
		refused[place] = true
		if group >= 0 {
			s.blameGroup(c, group)
		}
	}
	return false
}

// columnsByPrice are the columns that accept a profile: pools of the highest weight
// first, then preferred columns, then cheap ones.
func (s *solver) columnsByPrice(p *profile) []int32 {
	if list, ok := s.byPrice[p.id]; ok {
		return list
	}
	var list []int32
	p.cols.each(func(k int) { list = append(list, int32(k)) })
	slices.SortFunc(list, func(a, b int32) int {
		x, y := &s.columns[a], &s.columns[b]
		later := func(k int32) int {
			n := 0
			if s.columns[k].relaxed {
				n += 2
			}
			if !p.preferred.has(int(k)) {
				n++
			}
			return n
		}
		return cmp.Or(
			-cmp.Compare(s.poolOf(x).Weight, s.poolOf(y).Weight),
			cmp.Compare(later(a), later(b)),
			s.compareColumns(a, b),
		)
	})
	s.byPrice[p.id] = list
	return list
}
