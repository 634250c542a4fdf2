package schedule

import (
	"cmp"
	"math"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// order lists the classes that still have demand, in the order they are placed.
func (s *solver) order() []*class {
	var list []*class
	for _, c := range s.classes {
		if c != nil && s.demand[c.id] > 0 {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, s.compareSize)
	return list
}

// measure gives every class its size: the largest part of any resource that one of its
// pods takes of all there is to take.
func (s *solver) measure() {
	total := make([]float64, s.D)
	for _, n := range s.nodes {
		for r, v := range n.room {
			if v > 0 && v < unlimited/2 {
				total[r] += v
			}
		}
	}
	for i := range s.columns {
		for r, v := range s.columns[i].alloc {
			if v < unlimited/2 {
				total[r] = max(total[r], v)
			}
		}
	}
	for _, c := range s.classes {
		if c == nil {
			continue
		}
		for r, q := range c.req {
			if q > 0 && total[r] > 0 {
				c.size = max(c.size, q/total[r])
			}
		}
	}
}

// useExisting places what fits on the nodes that are there. fullest first, so that the
// emptiest stay free for what needs them, or can go. Affinity to pods that are placed
// later is tried again until nothing moves.
func (s *solver) useExisting() {
	if s.existing == 0 {
		return
	}
	nodes := s.fullestFirst()
	for {
		moved := false
		for _, c := range s.order() {
			moved = s.placeOn(c, nodes) || moved
		}
		if !moved || !s.waiting() {
			return
		}
	}
}

// fullestFirst are the existing nodes in the order in which they take pods; a Planner has
// its own.
func (s *solver) fullestFirst() []*node {
	if s.planner != nil && s.planner.order != nil {
		return s.planner.order
	}
	nodes := slices.Clone(s.nodes[:s.existing])
	slices.SortStableFunc(nodes, func(a, b *node) int {
		if a.existing.InFlight != b.existing.InFlight {
			if a.existing.InFlight {
				return 1
			}
			return -1
		}
		return cmp.Compare(s.freeShare(a), s.freeShare(b))
	})
	return nodes
}

// waiting reports whether a class with affinity to other pods has demand left.
func (s *solver) waiting() bool {
	for _, c := range s.classes {
		if c != nil && s.demand[c.id] > 0 && (len(c.near) > 0 || len(c.spread) > 0) {
			return true
		}
	}
	return false
}

func (s *solver) freeShare(n *node) float64 {
	share := 0.0
	for r, v := range n.room {
		if r < len(s.dims) {
			if a := float64(n.existing.Allocatable[s.dims[r]]); a > 0 {
				share = max(share, v/a)
			}
		}
	}
	return math.Round(share*1e6) / 1e6
}

// placeOn puts as much demand of a class as it can on nodes, which are in order of
// preference, and reports whether any pod was placed.
func (s *solver) placeOn(c *class, nodes []*node) bool {
	var fit []*node
	for _, n := range nodes {
		if s.accepts(c.profile, n) && s.roomAllows(c, n) > 0 {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return false
	}
	if len(c.soft) > 0 || len(c.snap.Preferred) > 0 {
		fit = s.bySoftScore(c, fit)
	}
	before := s.demand[c.id]
	switch {
	case s.nearHost(c):
		s.placeTogether(c, fit)
	case len(c.zonal) > 0 && s.zonalRules(c):
		s.placeByDomain(c, fit)
	case s.spreadsHosts(c):
		s.placeByCount(c, fit)
	default:
		for _, n := range fit {
			for s.demand[c.id] > 0 {
				k := min(s.admits(c, n), int32(min(s.demand[c.id], math.MaxInt32)))
				if k <= 0 {
					break
				}
				s.put(c, n, k, false)
			}
			if s.demand[c.id] == 0 {
				break
			}
		}
	}
	return s.demand[c.id] < before
}

func (s *solver) nearHost(c *class) bool {
	return slices.ContainsFunc(c.near, func(r podRule) bool { return s.groups[r.group].key == hostname })
}

func (s *solver) spreadsHosts(c *class) bool {
	return slices.ContainsFunc(c.spread, func(r spreadRule) bool { return s.groups[r.group].key == hostname })
}

// zonalRules reports whether a class has rules of its own, or is kept away by others', on
// labels other than the hostname.
func (s *solver) zonalRules(c *class) bool {
	other := func(g int32) bool { return s.groups[g].key != hostname }
	return slices.ContainsFunc(c.spread, func(r spreadRule) bool { return other(r.group) }) ||
		slices.ContainsFunc(c.near, func(r podRule) bool { return other(r.group) }) ||
		slices.ContainsFunc(c.apart, func(r podRule) bool { return other(r.group) }) ||
		slices.ContainsFunc(c.blocked, other) || len(c.joint) > 0
}

// placeTogether serves a class that wants to be near pods on one node. If its own pods
// are the first of their kind, they start where most of them fit; and only where all of
// them do, if a new node could hold them together instead.
func (s *solver) placeTogether(c *class, fit []*node) {
	for s.demand[c.id] > 0 {
		var best *node
		most := int32(0)
		first := s.bootstraps(c)
		for _, n := range fit {
			if _, ok := s.placeAllowed(c, n); !ok {
				continue
			}
			k := s.admits(c, n)
			if k <= most {
				continue
			}
			best, most = n, k
			if !first {
				break
			}
		}
		if best == nil {
			return
		}
		if first && int(most) < s.companions(c) && c.profile.cols.any() && !s.startAnyway {
			return
		}
		s.put(c, best, 1, false)
	}
}

// companions is the number of pods without a place that want to be on one node with
// those of c.
func (s *solver) companions(c *class) int {
	n := 0
	for _, o := range s.classes {
		if o == nil {
			continue
		}
		for _, r := range o.near {
			if s.groups[r.group].key == hostname && slices.ContainsFunc(c.near, func(q podRule) bool { return q.group == r.group }) {
				n += s.demand[o.id]
				break
			}
		}
	}
	return n
}

// placeByDomain serves a class one pod at a time, each in the allowed domain with the
// fewest pods that count.
func (s *solver) placeByDomain(c *class, fit []*node) {
	type bucket struct {
		nodes []*node
		next  int
	}
	var buckets []*bucket
	byKey := map[string]*bucket{}
	key := make([]byte, 0, 16)
	for _, n := range fit {
		key = key[:0]
		for _, k := range c.zonal {
			d := n.domains[k]
			key = append(key, byte(d), byte(d>>8), byte(d>>16))
		}
		b := byKey[string(key)]
		if b == nil {
			b = &bucket{}
			byKey[string(key)] = b
			buckets = append(buckets, b)
		}
		b.nodes = append(b.nodes, n)
	}
	for s.demand[c.id] > 0 {
		var best *bucket
		var at *node
		least := int32(math.MaxInt32)
		for _, b := range buckets {
			if b.next == len(b.nodes) {
				continue
			}
			load := s.domainLoad(c, b.nodes[b.next])
			if load >= least {
				continue
			}
			if _, ok := s.placeAllowed(c, b.nodes[b.next]); !ok {
				continue
			}
			n := s.firstAdmitting(c, b.nodes, &b.next)
			if n == nil {
				continue
			}
			best, at, least = b, n, load
		}
		if best == nil {
			return
		}
		s.put(c, at, 1, false)
	}
}

// firstAdmitting finds the first node from *next on that takes a pod of c, and moves
// *next over nodes that have no room left.
func (s *solver) firstAdmitting(c *class, nodes []*node, next *int) *node {
	for i := *next; i < len(nodes); i++ {
		if s.roomAllows(c, nodes[i]) == 0 {
			if i == *next {
				*next++
			}
			continue
		}
		if s.admits(c, nodes[i]) > 0 {
			return nodes[i]
		}
	}
	return nil
}

// domainLoad is the number of pods that count in the domains of n for the class: where
// it is least, a pod does most for an even spread. Affinity wants it large.
func (s *solver) domainLoad(c *class, n *node) int32 {
	load := int32(0)
	for i := range c.spread {
		if gr := s.groups[c.spread[i].group]; gr.key != hostname && n.domains[gr.key] >= 0 {
			load += at(gr.counts, n.domains[gr.key])
		}
	}
	return load
}

// placeByCount serves a class that is spread over hostnames: round after round, the
// nodes with the fewest counted pods get one each.
func (s *solver) placeByCount(c *class, fit []*node) {
	var rule *spreadRule
	for i := range c.spread {
		if s.groups[c.spread[i].group].key == hostname {
			rule = &c.spread[i]
			break
		}
	}
	count := func(n *node) int32 {
		if e := n.entry(rule.group, false); e != nil {
			return e.count
		}
		return 0
	}
	slices.SortStableFunc(fit, func(a, b *node) int { return cmp.Compare(count(a), count(b)) })
	for s.demand[c.id] > 0 && len(fit) > 0 {
		placed := false
		kept := fit[:0]
		level := int32(math.MaxInt32)
		for _, n := range fit {
			level = min(level, count(n))
		}
		for _, n := range fit {
			if s.demand[c.id] == 0 {
				return
			}
			if s.roomAllows(c, n) == 0 {
				continue
			}
			kept = append(kept, n)
			if count(n) > level && rule.self {
				continue
			}
			if _, ok := s.placeAllowed(c, n); ok && s.admits(c, n) > 0 {
				s.put(c, n, 1, false)
				placed = true
			}
		}
		fit = kept
		if !placed {
			// Nothing at the lowest level helps: any node that the rules still allow does.
			for _, n := range fit {
				if _, ok := s.placeAllowed(c, n); ok && s.admits(c, n) > 0 {
					s.put(c, n, 1, false)
					placed = true
					break
				}
			}
			if !placed {
				return
			}
		}
	}
}

// bySoftScore orders nodes by what the preferences of a class, taken together, say of
// them now; equal ones stay in order.
func (s *solver) bySoftScore(c *class, fit []*node) []*node {
	score := make(map[int32]int, len(fit))
	for _, n := range fit {
		v := 0
		if n.existing != nil {
			for _, p := range c.snap.Preferred {
				if snapshot.MatchesLabels(p.Term, n.existing.Labels, n.name) {
					v += int(p.Weight)
				}
			}
		}
		for _, r := range c.soft {
			gr := s.groups[r.group]
			k := int32(0)
			if gr.key == hostname {
				if e := n.entry(r.group, false); e != nil {
					k = e.count
				}
			} else if d := n.domains[gr.key]; d >= 0 {
				k = at(gr.counts, d)
			}
			if r.spread {
				v -= int(min(k, 100))
			} else if k > 0 {
				v += int(r.weight)
			}
		}
		score[n.index] = v
	}
	fit = slices.Clone(fit)
	slices.SortStableFunc(fit, func(a, b *node) int { return -cmp.Compare(score[a.index], score[b.index]) })
	return fit
}
