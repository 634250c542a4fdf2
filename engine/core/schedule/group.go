package schedule

import (
	"math"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// entry is the node's count of a hostname group; make adds one that is missing.
func (n *node) entry(g int32, make bool) *groupCount {
	for i := range n.counts {
		if n.counts[i].group == g {
			return &n.counts[i]
		}
	}
	if !make {
		return nil
	}
	n.counts = append(n.counts, groupCount{group: g})
	return &n.counts[len(n.counts)-1]
}

// countPod adds k pods of a group on a node; negative k takes them away.
func (s *solver) countPod(n *node, g, k int32) {
	gr := s.groups[g]
	if gr.kind == spreadGroup && !s.counted(s.filters[gr.filter], n) {
		return
	}
	if gr.key == hostname {
		e := n.entry(g, true)
		if gr.built {
			gr.move(e.count, e.count+k)
		}
		e.count += k
		gr.total += int(k)
		return
	}
	if d := n.domains[gr.key]; d >= 0 {
		gr.add(d, k)
	} else if gr.kind == jointGroup {
		gr.elsewhere += k
	}
}

// joins reports whether a pod that shares an unbound volume may be in domain d: anywhere
// if it is the first, or if the first is on a node without the label, which leaves the
// volume without a zone; else where the others are.
func (gr *group) joins(d int32) bool {
	return gr.elsewhere > 0 || gr.total == 0 || d >= 0 && at(gr.counts, d) > 0
}

// add counts k pods in domain d of a group that is not about hostnames.
func (gr *group) add(d, k int32) {
	gr.counts = stretched(gr.counts, d)
	gr.counts[d] += k
	gr.total += int(k)
}

func stretched(l []int32, d int32) []int32 {
	for int(d) >= len(l) {
		l = append(l, 0)
	}
	return l
}

func at(l []int32, d int32) int32 {
	if int(d) < len(l) {
		return l[d]
	}
	return 0
}

// guard adds k pods that own the anti-affinity term of a group.
func (s *solver) guard(n *node, g, k int32) {
	gr := s.groups[g]
	if gr.key == hostname {
		n.entry(g, true).guards += k
	} else if d := n.domains[gr.key]; d >= 0 {
		gr.guards = stretched(gr.guards, d)
		gr.guards[d] += k
	}
}

// move keeps the histogram of a hostname spread group when a node's count changes.
func (gr *group) move(from, to int32) {
	gr.hist = stretched(gr.hist, max(from, to))
	gr.hist[from]--
	gr.hist[to]++
	gr.least = min(gr.least, to)
	gr.raise()
}

// prepare counts the domains of a spread group: those of the nodes it counts.
func (s *solver) prepare(gr *group) {
	if gr.built || gr.kind != spreadGroup {
		return
	}
	gr.built = true
	gr.hist = []int32{0}
	for _, n := range s.nodes {
		if !n.dropped {
			s.addDomain(gr, n)
		}
	}
}

// addDomain tells a spread group of a node.
func (s *solver) addDomain(gr *group, n *node) {
	if !s.counted(s.filters[gr.filter], n) {
		return
	}
	if gr.key != hostname {
		if d := n.domains[gr.key]; d >= 0 {
			gr.present = stretched(gr.present, d)
			gr.present[d]++
		}
		return
	}
	c := int32(0)
	if e := n.entry(gr.id, false); e != nil {
		c = e.count
	}
	gr.hist = stretched(gr.hist, c)
	gr.hist[c]++
	gr.domains++
	if gr.domains == 1 || c < gr.least {
		gr.least = c
	}
}

// removeDomain takes a node back that a spread group was told of.
func (s *solver) removeDomain(gr *group, n *node) {
	if !s.counted(s.filters[gr.filter], n) {
		return
	}
	if gr.key != hostname {
		if d := n.domains[gr.key]; d >= 0 {
			gr.present[d]--
		}
		return
	}
	c := int32(0)
	if e := n.entry(gr.id, false); e != nil {
		c = e.count
	}
	gr.hist[c]--
	gr.domains--
	gr.raise()
}

// raise moves least up to the smallest count that a node has.
func (gr *group) raise() {
	for int(gr.least) < len(gr.hist)-1 && gr.hist[gr.least] == 0 {
		gr.least++
	}
}

// smallest is the least count over a spread group's domains: zero if there are fewer
// than minDomains of them. extra are domains that count though no node has them yet.
func (s *solver) smallest(gr *group, minDomains int32, extra []int32) int32 {
	s.prepare(gr)
	if gr.key == hostname {
		if gr.domains < max(minDomains, 1) {
			return 0
		}
		return gr.least
	}
	least, n := int32(math.MaxInt32), int32(0)
	for d, p := range gr.present {
		if p > 0 {
			n++
			least = min(least, at(gr.counts, int32(d)))
		}
	}
	for _, d := range extra {
		if at(gr.present, d) == 0 {
			n++
			least = min(least, at(gr.counts, d))
		}
	}
	if n < max(minDomains, 1) {
		return 0
	}
	return least
}

// bootstraps reports whether a pod of a class is the first of those it wants to be near,
// so that it may go anywhere.
func (s *solver) bootstraps(c *class) bool {
	if !c.nearAll {
		return false
	}
	for _, r := range c.near {
		if s.groups[r.group].total > 0 {
			return false
		}
	}
	return true
}

// placeAllowed reports whether the rules of a class that look at labels other than the
// hostname allow a pod of it on n now. The failing group is returned for the reason.
func (s *solver) placeAllowed(c *class, n *node) (int32, bool) {
	return s.allowedIn(c, n.domains, nil)
}

// allowedIn is placeAllowed for any domains, by topology key. extra are, by topology key
// too, domains that count for spread although no node has them yet; nil if there are none.
func (s *solver) allowedIn(c *class, domains []int32, extra [][]int32) (int32, bool) {
	for i := range c.spread {
		r := &c.spread[i]
		gr := s.groups[r.group]
		if gr.key == hostname {
			continue
		}
		d := domains[gr.key]
		if d < 0 {
			return r.group, false
		}
		add := int32(0)
		if r.self {
			add = 1
		}
		var more []int32
		if extra != nil {
			more = extra[gr.key]
		}
		if at(gr.counts, d)+add-s.smallest(gr, r.minDomains, more) > r.skew {
			return r.group, false
		}
	}
	if len(c.near) > 0 {
		first := s.bootstraps(c)
		for _, r := range c.near {
			gr := s.groups[r.group]
			if gr.key == hostname {
				continue
			}
			if d := domains[gr.key]; d < 0 || !first && at(gr.counts, d) == 0 {
				return r.group, false
			}
		}
	}
	for _, g := range c.joint {
		gr := s.groups[g]
		if !gr.joins(domains[gr.key]) {
			return g, false
		}
	}
	for _, r := range c.apart {
		if gr := s.groups[r.group]; gr.key != hostname {
			if d := domains[gr.key]; d >= 0 && at(gr.counts, d) > 0 {
				return r.group, false
			}
		}
	}
	for _, g := range c.blocked {
		if gr := s.groups[g]; gr.key != hostname {
			if d := domains[gr.key]; d >= 0 && at(gr.guards, d) > 0 {
				return g, false
			}
		}
	}
	return -1, true
}

// hostAllows is how many pods of a class the rules about the hostname allow on n now.
// The failing group is returned for the reason.
func (s *solver) hostAllows(c *class, n *node) (int32, int32) {
	if !c.hostRules {
		return math.MaxInt32, -1
	}
	most := int32(math.MaxInt32)
	count := func(g int32) int32 {
		if e := n.entry(g, false); e != nil {
			return e.count
		}
		return 0
	}
	for i := range c.spread {
		r := &c.spread[i]
		gr := s.groups[r.group]
		if gr.key != hostname {
			continue
		}
		free := r.skew + s.smallest(gr, r.minDomains, nil) - count(r.group)
		if r.self {
			most = min(most, free)
		} else if free < 0 {
			most = 0
		}
		if most <= 0 {
			return 0, r.group
		}
	}
	for _, r := range c.near {
		// Of the first pod of its kind only the groups of other labels may know yet.
		gr := s.groups[r.group]
		if gr.key == hostname && count(r.group) == 0 && (gr.total > 0 || !c.nearAll) {
			return 0, r.group
		}
	}
	for _, r := range c.apart {
		if s.groups[r.group].key != hostname {
			continue
		}
		if count(r.group) > 0 {
			return 0, r.group
		}
		if r.self {
			most = min(most, 1)
		}
	}
	for _, g := range c.blocked {
		if s.groups[g].key == hostname {
			if e := n.entry(g, false); e != nil && e.guards > 0 {
				return 0, g
			}
		}
	}
	return most, -1
}

// roomAllows is how many pods of a class a node has room, ports and attachments for.
func (s *solver) roomAllows(c *class, n *node) int32 {
	most := int32(math.MaxInt32)
	saved := 0
	if len(c.shared) > 0 {
		for _, v := range c.shared {
			if v.Exclusive && s.exclusive[v.ID] {
				return 0
			}
			if n.attached[v.Driver+"\x00"+v.ID] {
				saved++
			}
		}
		most = 1 // the second of them needs fewer attachments: one at a time
	}
	for r, q := range c.req {
		if q <= 0 {
			continue
		}
		if saved > 0 && r >= len(s.dims) {
			q -= float64(s.attachedOf(c, n, s.drivers[r-len(s.dims)]))
			if q <= 0 {
				continue
			}
		}
		if q > n.room[r] {
			return 0
		}
		most = min(most, int32(min(n.room[r]/q, math.MaxInt32)))
	}
	if len(c.snap.Ports) > 0 {
		if portsConflict(n.ports, c.snap.Ports) {
			return 0
		}
		most = 1
	}
	if c.takesFree {
		if _, ok := s.freeVolumes(c, n); !ok {
			return 0
		}
		most = 1
	}
	return most
}

// freeVolumes finds a volume for each claim of c that takes one nobody has, reachable
// from n.
func (s *solver) freeVolumes(c *class, n *node) (names []string, ok bool) {
	for _, v := range c.snap.Volumes {
		if v.Free == nil {
			continue
		}
		found, made := "", v.Made != nil && s.reaches(v.Made, n)
		bound := s.claimed[v.ID]
		for _, f := range v.Free {
			if v.Shared && bound != "" { // by another pod that uses the claim
				if f.Name == bound && s.reaches(f.Places, n) {
					found = bound
				}
				continue
			}
			if found == "" && !s.volumeUsed[f.Name] && !slices.Contains(names, f.Name) && s.reaches(f.Places, n) {
				found = f.Name
			}
		}
		if found == "" && !made {
			return nil, false
		}
		names = append(names, found)
	}
	return names, true
}

// reaches reports whether a node is one of the places.
func (s *solver) reaches(places []requirements.Set, n *node) bool {
	if n.existing != nil {
		return snapshot.MatchesNode(places, n.existing)
	}
	return s.columnMatches(&s.columns[n.column], places)
}

func (s *solver) attachedOf(c *class, n *node, driver string) int {
	k := 0
	for _, v := range c.shared {
		if v.Driver == driver && n.attached[v.Driver+"\x00"+v.ID] {
			k++
		}
	}
	return k
}

// admits is how many pods of a class n takes now by all rules but those of placeAllowed.
func (s *solver) admits(c *class, n *node) int32 {
	if !s.accepts(c.profile, n) || n.column >= 0 && s.mustChoose(int(n.column), c.zonal) {
		return 0
	}
	most := s.roomAllows(c, n)
	if most > 0 && c.hostRules {
		h, _ := s.hostAllows(c, n)
		most = min(most, h)
	}
	return most
}

// put places k pods of a class on n. booked pods are counted in their domains already.
func (s *solver) put(c *class, n *node, k int32, booked bool) {
	s.take(c, n, k)
	for _, g := range c.adds {
		if !booked || s.groups[g].key == hostname || s.groups[g].kind == softGroup {
			s.countPod(n, g, k)
		}
	}
	for _, g := range c.guards {
		if !booked || s.groups[g].key == hostname {
			s.guard(n, g, k)
		}
	}
	s.placed = append(s.placed, placement{class: c.id, node: n.index, n: k})
	s.demand[c.id] -= int(k)
}

// take uses the room, ports and volumes of k pods.
func (s *solver) take(c *class, n *node, k int32) {
	if c.takesFree {
		names, _ := s.freeVolumes(c, n)
		i := 0
		for _, v := range c.snap.Volumes {
			if v.Free != nil && i < len(names) {
				if names[i] == "" {
					i++
					continue // the claim gets a volume made for it
				}
				s.volumeUsed[names[i]] = true
				if v.Shared {
					s.claimed[v.ID] = names[i]
				}
				i++
			}
		}
	}
	for r, q := range c.req {
		n.room[r] -= float64(k) * q
	}
	for _, v := range c.snap.Volumes {
		if v.Exclusive && v.Shared {
			s.exclusive[v.ID] = true
		}
		if v.Shared && !n.attach(v) {
			for i, d := range s.drivers {
				if d == v.Driver {
					n.room[len(s.dims)+i]++
				}
			}
		}
	}
	if len(c.snap.Ports) > 0 {
		n.ports = append(n.ports[:len(n.ports):len(n.ports)], c.snap.Ports...)
	}
	for i := range n.pods {
		if n.pods[i].class == c.id {
			n.pods[i].n += k
			return
		}
	}
	n.pods = append(n.pods, placedPods{c.id, k})
}

// keyName is the label that a group is about.
func (s *solver) keyName(gr *group) string {
	if gr.key == hostname {
		return "kubernetes.io/hostname"
	}
	return s.keys[gr.key].name
}
