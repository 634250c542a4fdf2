package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/schedule/internal/pack"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// buy buys nodes for the demand, pools of the highest weight first. A class that its
// best pools cannot serve, because a limit is reached, tries the next ones.
func (s *solver) buy(classes []*class) {
	below := map[int32]int64{}
	for _, c := range classes {
		below[c.id] = math.MaxInt64
	}
	for {
		s.refreshOpen()
		tiers := map[int32]tier{}
		top := int64(math.MinInt64)
		for _, c := range classes {
			if s.demand[c.id] == 0 {
				continue
			}
			if t, ok := s.tierOf(c, below[c.id]); ok {
				tiers[c.id] = t
				top = max(top, int64(t.weight))
			}
		}
		if len(tiers) == 0 {
			return
		}
		var now []*class
		for _, c := range classes {
			if t, ok := tiers[c.id]; ok && int64(t.weight) == top {
				if len(s.nodes) > s.existing {
					s.placeOn(c, s.nodes[s.existing:])
				}
				if s.demand[c.id] > 0 {
					now = append(now, c)
				}
				below[c.id] = top
			}
		}
		if len(now) == 0 {
			continue
		}
		lots := s.bundle(s.assign(now, tiers))
		s.packLots(lots)
		if s.ctx.Err() != nil {
			return
		}
	}
}

// bundle joins lots whose pods must share a node into lots of bundles. A lot that must
// be near pods which have their place already is left to a later stage.
func (s *solver) bundle(lots []*lot) []*lot {
	var out, together []*lot
	for _, l := range lots {
		if s.nearHost(l.class) {
			together = append(together, l)
		} else {
			out = append(out, l)
		}
	}
	if len(together) == 0 {
		return lots
	}
	slices.SortStableFunc(together, func(a, b *lot) int { return s.compareSize(a.class, b.class) })
	for len(together) > 0 {
		first := together[0]
		var members, rest []*lot
		for _, l := range together {
			if l == first || s.sameCompany(first, l) {
				members = append(members, l)
			} else {
				rest = append(rest, l)
			}
		}
		together = rest
		if s.bootstraps(first.class) {
			out = append(out, s.bundleAll(members)...)
		} else {
			out = append(out, s.bundleWithHost(members, &out)...)
		}
	}
	return out
}

// sameCompany reports whether two lots want to be near the same pods on one node, in the
// same place.
func (s *solver) sameCompany(a, b *lot) bool {
	if a.place != nil && b.place != nil && a.place.name != b.place.name {
		return false
	}
	for _, r := range a.class.near {
		if s.groups[r.group].key == hostname && slices.ContainsFunc(b.class.near, func(q podRule) bool { return q.group == r.group }) {
			return true
		}
	}
	return false
}

// bundleAll makes one bundle of all pods of the members: they started their own company,
// so one node must hold them. If none does, it takes as many as the most roomy does.
func (s *solver) bundleAll(members []*lot) []*lot {
	cols := members[0].cols.cols.clone()
	for _, m := range members[1:] {
		cols.and(m.cols.cols)
	}
	whole := make([]float64, s.D)
	for _, m := range members {
		for r, q := range m.class.req {
			whole[r] += float64(m.n) * q
		}
	}
	fits, roomiest, most := false, -1, 0
	seen := map[int32]bool{}
	cols.each(func(k int) {
		col := &s.columns[k]
		if !s.open[k] || seen[col.allocID] {
			return
		}
		seen[col.allocID] = true
		if holds(col.alloc, whole) {
			fits = true
			return
		}
		if n := s.fillCount(members, col.alloc, nil); n > most {
			roomiest, most = k, n
		}
	})
	var parts []placedPods
	if fits {
		for _, m := range members {
			parts = append(parts, placedPods{m.class.id, int32(m.n)})
		}
	} else if roomiest >= 0 {
		s.fillCount(members, s.columns[roomiest].alloc, &parts)
	}
	for _, m := range members {
		placed := 0
		for _, p := range parts {
			if p.class == m.class.id {
				placed = int(p.n)
			}
		}
		if m.place != nil && placed < m.n {
			s.bookPlace(m.class, m.place, int32(placed-m.n))
		}
		if placed < m.n {
			s.blame[m.class.id] = append(s.blame[m.class.id], Reason{
				Code: AffinityNodeFull, Key: "kubernetes.io/hostname", Want: fmt.Sprintf("%d pods on one node", s.totalOf(members)), Have: fmt.Sprintf("the largest node holds %d", len(parts)),
			})
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []*lot{{class: members[0].class, n: 1, place: members[0].place, cols: s.columnSet(fmt.Sprint("bundle", len(s.sets)), cols), bundle: parts}}
}

func (s *solver) totalOf(members []*lot) int {
	n := 0
	for _, m := range members {
		n += m.n
	}
	return n
}

// fillCount is how many of the members' pods fit alloc together, smallest first; parts
// gets them by class.
func (s *solver) fillCount(members []*lot, alloc []float64, parts *[]placedPods) int {
	room := slices.Clone(alloc)
	order := slices.Clone(members)
	slices.SortStableFunc(order, func(a, b *lot) int {
		return cmp.Or(-cmp.Compare(a.class.snap.Priority, b.class.snap.Priority), cmp.Compare(a.class.size, b.class.size))
	})
	total := 0
	for _, m := range order {
		n := float64(m.n)
		for r, q := range m.class.req {
			if q > 0 {
				n = min(n, math.Floor(room[r]/q))
			}
		}
		if n < 1 {
			continue
		}
		for r, q := range m.class.req {
			room[r] -= n * q
		}
		total += int(n)
		if parts != nil {
			*parts = append(*parts, placedPods{m.class.id, int32(n)})
		}
	}
	return total
}

// bundleWithHost joins pods with the pods they want to be near, which are bought for in
// the same pass: each of those gets its share of followers.
func (s *solver) bundleWithHost(members []*lot, others *[]*lot) []*lot {
	var out []*lot
	for _, m := range members {
		for i := 0; i < len(*others) && m.n > 0; i++ {
			h := (*others)[i]
			if h.bundle != nil || h.n == 0 || !s.serves(h.class, m.class) || h.place != nil && m.place != nil && h.place.name != m.place.name {
				continue
			}
			cols := h.cols.cols.clone()
			cols.and(m.cols.cols)
			hosts := min(h.n, m.n)
			each := (m.n + hosts - 1) / hosts
			for each > 0 && !s.someHold(cols, h.class, m.class, each) {
				each /= 2
			}
			if each == 0 {
				continue
			}
			hosts = min(hosts, m.n/each)
			h.n -= hosts
			m.n -= hosts * each
			place := h.place
			if place == nil {
				place = m.place
			}
			out = append(out, &lot{
				class: h.class, n: hosts, place: place, cols: s.columnSet(fmt.Sprint("bundle", len(s.sets)), cols),
				bundle: []placedPods{{h.class.id, 1}, {m.class.id, int32(each)}},
			})
		}
		if m.n > 0 && m.place != nil {
			s.bookPlace(m.class, m.place, int32(-m.n))
		}
	}
	return out
}

// serves reports whether a pod of host satisfies all affinity of follower on its node.
func (s *solver) serves(host, follower *class) bool {
	for _, r := range follower.near {
		if s.groups[r.group].key == hostname && !slices.Contains(host.adds, r.group) {
			return false
		}
	}
	return true
}

func (s *solver) someHold(cols bitset, host, follower *class, each int) bool {
	need := slices.Clone(host.req)
	for r, q := range follower.req {
		need[r] += float64(each) * q
	}
	found := false
	cols.each(func(k int) { found = found || s.open[k] && holds(s.columns[k].alloc, need) })
	return found
}

// packLots buys nodes for the lots and places their pods.
func (s *solver) packLots(lots []*lot) {
	lots = slices.DeleteFunc(lots, func(l *lot) bool { return l.n == 0 })
	if len(lots) == 0 {
		return
	}
	p, items, columns := s.problem(lots)
	if len(columns) == 0 {
		for _, l := range lots {
			s.unbook(l, l.n)
		}
		return
	}
	improve := s.opts.ImproveSteps
	if s.planner != nil && s.planner.quick {
		improve = 0
	}
	res := s.pack(p, pack.Options{DualSteps: s.dualSteps(p), Improve: improve})
	s.bounds.add(lots, res.Bound)
	next := make([]int, len(items)) // first lot of each item with pods left
	for _, pn := range res.Nodes {
		n := s.newNode(columns[pn.Column])
		slices.SortStableFunc(pn.Items, func(a, b pack.Count) int {
			return -cmp.Compare(len(p.Items[a.Item].Own), len(p.Items[b.Item].Own))
		})
		for _, c := range pn.Items {
			for left := int(c.N); left > 0; {
				l := items[c.Item][next[c.Item]]
				k := min(left, l.n)
				s.deliver(l, n, k)
				l.n -= k
				left -= k
				if l.n == 0 {
					next[c.Item]++
				}
			}
		}
	}
	for _, l := range lots {
		s.unbook(l, l.n)
	}
	s.dropEmpty()
}

// pack packs, or remembers how it did. What limits and supplies bound depends on more than the
// problem.
func (s *solver) pack(p *pack.Problem, opts pack.Options) pack.Result {
	if s.opts.Memo == nil || p.Finite {
		return pack.Solve(p, opts)
	}
	p.Ledger = nil // it would allow everything
	return s.opts.Memo.packed.Solve(p, opts)
}

// dropEmpty gives back the new nodes that took no pod.
func (s *solver) dropEmpty() {
	for _, n := range s.nodes[s.existing:] {
		if len(n.pods) == 0 && !n.dropped {
			s.drop(n)
		}
	}
}

// drop gives a new node back: it takes no pod any more and does not count in the plan.
func (s *solver) drop(n *node) {
	s.book(n.column, -1)
	for _, gr := range s.groups {
		if gr.built {
			s.removeDomain(gr, n)
		}
	}
	n.dropped, n.room = true, make([]float64, s.D)
}

// deliver puts k units of a lot on a node. What the node does not take after all keeps
// its demand.
func (s *solver) deliver(l *lot, n *node, k int) {
	parts := l.bundle
	if parts == nil {
		parts = []placedPods{{l.class.id, 1}}
	}
	for _, part := range parts {
		c := s.classes[part.class]
		want := int32(k) * part.n
		for want > 0 {
			m := min(want, s.admits(c, n))
			if m <= 0 {
				break
			}
			s.put(c, n, m, l.place != nil)
			s.bounds.pods += int(m)
			want -= m
		}
		if want > 0 && l.place != nil {
			s.bookPlace(c, l.place, -want)
		}
	}
}

// unbook takes back the counts of k units of a lot that was not placed.
func (s *solver) unbook(l *lot, k int) {
	if l.place == nil || k == 0 {
		return
	}
	if l.bundle == nil {
		s.bookPlace(l.class, l.place, int32(-k))
		return
	}
	for _, part := range l.bundle {
		s.bookPlace(s.classes[part.class], l.place, -part.n*int32(k))
	}
}

// newNode buys one node of a column. The ledger has it already.
func (s *solver) newNode(k int32) *node {
	c := &s.columns[k]
	n := &node{
		index: int32(len(s.nodes)), column: k, shop: s.shops[c.shop], kind: s.columnKind(k),
		room: slices.Clone(c.alloc), domains: s.domainsOf(k),
	}
	s.nodes = append(s.nodes, n)
	for _, gr := range s.groups {
		if gr.built {
			s.addDomain(gr, n)
		}
	}
	for _, j := range s.daemons.sets[c.daemons] {
		n.ports = append(n.ports, s.daemons.daemons[j].Class.Ports...)
		for _, g := range s.daemonAdds[j] {
			s.countPod(n, g, 1)
			if gr := s.groups[g]; gr.key != hostname && n.domains[gr.key] >= 0 {
				s.initial[g].add(n.domains[gr.key])
			}
		}
	}
	n.boundCounts = slices.Clone(n.counts)
	return n
}

// dualSteps bounds the first valuation by the size of the problem.
func (s *solver) dualSteps(p *pack.Problem) int {
	work := 1
	for _, f := range p.Fits {
		work += len(f) * p.Dims
	}
	if s.planner != nil {
		return max(30, min(120, 400_000/work))
	}
	return max(60, min(600, 40_000_000/work))
}

// problem turns lots into the packer's items and columns. Lots that differ in nothing
// the packer sees are one item; columns that no node could prefer are left out.
func (s *solver) problem(lots []*lot) (*pack.Problem, [][]*lot, []int32) {
	p := &pack.Problem{Dims: s.D}
	byKey := map[string]int{}
	var items [][]*lot
	for _, l := range lots {
		it := s.item(l)
		key := itemKey(&it, l.cols.id)
		i, ok := byKey[key]
		if !ok {
			i = len(items)
			byKey[key] = i
			items = append(items, nil)
			p.Items = append(p.Items, it)
		}
		items[i] = append(items[i], l)
		p.Items[i].Count += l.n
	}
	columns := s.candidates(lots)
	for _, k := range columns {
		c := &s.columns[k]
		price := max(c.price(), 0)
		p.Finite = p.Finite || c.supply != "" || s.limits[s.shops[c.shop].pool] != nil
		p.Columns = append(p.Columns, pack.Column{Alloc: c.alloc, Class: c.allocID, Price: price, Shadow: s.shadow(k, price)})
	}
	p.Fits = make([][]int32, len(items))
	for i := range items {
		cols := items[i][0].cols.cols
		for j, k := range columns {
			if cols.has(int(k)) && holds(s.columns[k].alloc, p.Items[i].Req) {
				p.Fits[i] = append(p.Fits[i], int32(j))
			}
		}
	}
	p.Groups = len(s.groups) // the host ports made some
	p.Ledger = &ledger{s: s, columns: columns}
	return p, items, columns
}

// ledger lets the packer buy only what limits and supplies allow.
type ledger struct {
	s       *solver
	columns []int32
}

func (l *ledger) Room(k, n int) int { return l.s.roomFor(l.columns[k], n) }
func (l *ledger) Take(k, n int)     { l.s.book(l.columns[k], n) }

// shadow is the regular price of a column whose supply is limited: that of the cheapest
// column without a supply that has as much of everything.
func (s *solver) shadow(k int32, price float64) float64 {
	if s.columns[k].supply == "" {
		return price
	}
	regular := math.Inf(1)
	for i := range s.columns {
		c := &s.columns[i]
		if c.supply == "" && c.price() < regular && holds(c.alloc, s.columns[k].alloc) {
			regular = c.price()
		}
	}
	if math.IsInf(regular, 1) || regular < price {
		return price
	}
	return regular
}

// item is what the packer sees of one unit of a lot.
func (s *solver) item(l *lot) pack.Item {
	if l.bundle == nil {
		it := pack.Item{Req: l.class.req}
		s.addRules(&it, l.class, 1)
		return it
	}
	it := pack.Item{Req: make([]float64, s.D)}
	for _, part := range l.bundle {
		c := s.classes[part.class]
		for r, q := range c.req {
			it.Req[r] += float64(part.n) * q
		}
		s.addRules(&it, c, int(part.n))
	}
	return it
}

// addRules adds the rules about the hostname of n pods of a class. Pods that a spread
// constraint counts but does not bind come after those it binds on each node, so only
// the latter count here.
func (s *solver) addRules(it *pack.Item, c *class, n int) {
	if len(c.snap.Ports) > 0 {
		for _, g := range s.portGroups(c) {
			it.Own = append(it.Own, pack.Own{Group: g, Max: int32(n), Self: true})
			for range n {
				it.Adds = append(it.Adds, g)
			}
		}
	}
	if !c.hostRules {
		return
	}
	owner := false
	for i := range c.spread {
		r := &c.spread[i]
		if s.groups[r.group].key == hostname {
			owner = true
			it.Own = append(it.Own, pack.Own{Group: r.group, Max: r.skew, Self: r.self})
		}
	}
	for _, r := range c.apart {
		if s.groups[r.group].key != hostname {
			continue
		}
		o := pack.Own{Group: r.group, Self: r.self}
		if r.self {
			o.Max = 1
		}
		it.Own = append(it.Own, o)
	}
	for _, g := range c.adds {
		gr := s.groups[g]
		if gr.key == hostname && (gr.kind == apartGroup || gr.kind == spreadGroup && owner) {
			for range n {
				it.Adds = append(it.Adds, g)
			}
		}
	}
	for _, g := range c.guards {
		if s.groups[g].key == hostname {
			it.Guards = append(it.Guards, g)
		}
	}
	for _, g := range c.blocked {
		if s.groups[g].key == hostname {
			it.Blocked = append(it.Blocked, g)
		}
	}
}

// portGroups numbers the host ports of a class as groups of the packer, so that two pods
// with one of them never share a node. Ports that differ in the address only are taken
// for one.
func (s *solver) portGroups(c *class) []int32 {
	var out []int32
	for _, p := range c.snap.Ports {
		key := fmt.Sprint(p.Protocol, "/", p.Port)
		g, ok := s.portGroup[key]
		if !ok {
			g = int32(len(s.groups))
			s.portGroup[key] = g
			s.groups = append(s.groups, &group{id: g, kind: softGroup, key: hostname, filter: -1})
		}
		out = append(out, g)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func itemKey(it *pack.Item, cols int) string {
	var b strings.Builder
	fmt.Fprint(&b, cols, it.Req, it.Own, it.Adds, it.Guards, it.Blocked)
	return b.String()
}

// candidates are the columns that may be worth buying for the lots: of columns that the
// same lots may use, one with no less of anything and no dearer makes the other useless.
func (s *solver) candidates(lots []*lot) []int32 {
	if s.planner != nil {
		return s.planner.candidates(lots)
	}
	return s.worthBuying(lots)
}

func (s *solver) worthBuying(lots []*lot) []int32 {
	var sets []*columnSet
	seen := map[int]bool{}
	need := make([]float64, s.D)
	for _, l := range lots {
		if !seen[l.cols.id] {
			seen[l.cols.id] = true
			sets = append(sets, l.cols)
		}
		for r, q := range l.class.req {
			need[r] = max(need[r], q)
		}
		for _, part := range l.bundle {
			for r, q := range s.classes[part.class].req {
				need[r] = max(need[r], q)
			}
		}
	}
	words := (len(sets) + 63) / 64
	type candidate struct {
		k   int32
		sig []uint64
	}
	type alike struct {
		alloc int32
		sig   string
	}
	cheapest := map[alike]int{}
	var list []candidate
	raw := make([]byte, words*8)
	for k := range s.columns {
		if !s.open[k] {
			continue
		}
		sig := make([]uint64, words)
		used := false
		for j, set := range sets {
			if set.cols.has(k) {
				sig[j/64] |= 1 << (j % 64)
				used = true
			}
		}
		if !used || !daemonsFit(s.columns[k].alloc) {
			continue
		}
		c := candidate{int32(k), sig}
		if s.columns[k].supply != "" {
			list = append(list, c)
			continue
		}
		for i, w := range sig {
			for b := range 8 {
				raw[i*8+b] = byte(w >> (8 * b))
			}
		}
		key := alike{s.columns[k].allocID, string(raw)}
		if i, ok := cheapest[key]; ok {
			if s.dearer(list[i].k, int32(k)) {
				list[i] = c
			}
			continue
		}
		cheapest[key] = len(list)
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b candidate) int {
		if s.dearer(a.k, b.k) {
			return 1
		}
		return -1
	})
	var kept []candidate
	for _, c := range list {
		dominated := false
		for _, d := range kept {
			if s.columns[d.k].supply == "" && covers(d.sig, c.sig) && holdsAll(s.columns[d.k].alloc, s.columns[c.k].alloc, need) && s.samePoolLimits(d.k, c.k) {
				dominated = true
				break
			}
		}
		if !dominated {
			kept = append(kept, c)
		}
	}
	out := make([]int32, len(kept))
	for i, c := range kept {
		out[i] = c.k
	}
	return out
}

// samePoolLimits reports whether d may stand in for c as far as limits go.
func (s *solver) samePoolLimits(d, c int32) bool {
	l := s.limits[s.shops[s.columns[d].shop].pool]
	if l == nil {
		return true
	}
	if s.shops[s.columns[d].shop].pool != s.shops[s.columns[c].shop].pool {
		return false
	}
	dt, _ := s.columnType(&s.columns[d])
	for _, name := range l.names {
		if name != snapshot.NodesResource && float64(dt.Capacity[name]) > s.booked(&s.columns[c], name) {
			return false
		}
	}
	return true
}

// dearer orders columns by price, then by name, so that plans do not depend on the order
// of input.
func (s *solver) dearer(a, b int32) bool {
	return s.compareColumns(a, b) > 0
}

func (s *solver) compareColumns(a, b int32) int {
	x, y := &s.columns[a], &s.columns[b]
	if c := cmp.Compare(x.price(), y.price()); c != 0 {
		return c
	}
	xt, xo := s.columnType(x)
	yt, yo := s.columnType(y)
	return cmp.Or(
		cmp.Compare(xt.Name, yt.Name), cmp.Compare(xo.Zone, yo.Zone), cmp.Compare(xo.CapacityType, yo.CapacityType),
		cmp.Compare(xo.ReservationID, yo.ReservationID), cmp.Compare(s.poolOf(x).Name, s.poolOf(y).Name), cmp.Compare(a, b),
	)
}

func covers(d, c []uint64) bool {
	for i := range c {
		if c[i]&^d[i] != 0 {
			return false
		}
	}
	return true
}

// holdsAll reports whether alloc d is at least c in every resource that is needed.
func holdsAll(d, c, need []float64) bool {
	for r, q := range need {
		if q > 0 && d[r] < c[r] {
			return false
		}
	}
	return true
}
