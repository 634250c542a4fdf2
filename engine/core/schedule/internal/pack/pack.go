// Package pack finds a cheap set of columns (nodes to buy) that hold all items (pods).
//
// It works in the order of the title of a textbook: value, fill, repeat, improve.
// Package relax values the items; the column that yields most value per dollar when
// filled is bought as often as the demand repeats; the demand that is left is valued
// anew. Then the least efficient nodes are taken apart and packed again, a bounded
// number of times. Amounts are float64 that hold integers, so sums are exact.
package pack

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Own is a rule of an item about the node it shares with others: it may join a node
// while the count of Group there is at most Max, itself included if Self.
type Own struct {
	Group, Max int32
	Self       bool
}

// Item is a kind of thing to pack.
type Item struct {
	Count int
	Req   []float64
	Own   []Own
	// Adds are the groups whose count on a node grows with each item; a group that
	// grows by more than one is repeated.
	Adds []int32
	// Guards are the groups that keep others off the item's node, Blocked those that
	// keep the item off a node where one of them is guarded.
	Guards, Blocked []int32
}

func (it *Item) ruled() bool { return len(it.Own)+len(it.Adds)+len(it.Guards)+len(it.Blocked) > 0 }

// cap is how many of the item one node takes by its own rules; 0 means any number.
func (it *Item) cap() int32 {
	c := int32(0)
	for _, o := range it.Own {
		if o.Self && (c == 0 || o.Max < c) {
			c = o.Max
		}
	}
	return c
}

// Column is a kind of node.
type Column struct {
	Alloc []float64
	// Class numbers columns of equal Alloc alike; they are valued together, at the
	// smallest Shadow among them.
	Class int32
	// Price is what one costs; Shadow values it in the relaxation: the regular price
	// of a column whose supply is limited, else Price.
	Price, Shadow float64
}

// Ledger counts what limits allow. A nil Ledger allows everything.
type Ledger interface {
	// Room is how many more of column k may be bought, at most limit.
	Room(k, limit int) int
	// Take buys n of column k; a negative n gives them back.
	Take(k, n int)
}

// Problem is the input of [Solve].
type Problem struct {
	Dims    int
	Items   []Item
	Columns []Column
	// Fits lists for each item the columns, ascending, that hold one of it.
	Fits   [][]int32
	Groups int
	Ledger Ledger
	// Finite says that the ledger may refuse: sets of nodes are then only built up one
	// by one.
	Finite bool
}

// Count is a number of one item.
type Count struct{ Item, N int32 }

// Node is a bought column and what lies on it, by item.
type Node struct {
	Column int32
	Items  []Count
}

// Result of [Solve].
type Result struct {
	Nodes []Node
	// Left is the number of each item that found no place.
	Left []int
	// Bound is a valid lower bound on the cost of holding all items that have a column,
	// at Shadow prices.
	Bound float64
}

// Options bound the work by counts.
type Options struct {
	// DualSteps values the items at the start; Improve is the number of times that
	// nodes are taken apart.
	DualSteps, Improve int
}

type solver struct {
	p *Problem
	value
	rem  []int
	left int
	// kinds are the kinds of items that are left, items those of each kind.
	kinds []int32
	items [][]int32
	// fitBits[k*words+i/64] has bit i%64 set if item i fits column k.
	fitBits []uint64
	words   int
	// scope are the items that are left while nodes are repacked; nil means all.
	scope  []int32
	usable []bool
	// natural is the price of the best node when nothing is forced, until items are
	// valued anew; 0 if not known.
	natural float64
	// One pattern under construction.
	pat            []int32
	room, mu       []float64
	count, guarded []int32
	dirty          []int32
	order          []colBound
	alive          []int32
	cursor         []int // by kind, into items
	dense          []float64
	// byPrice are all columns, cheapest first.
	byPrice []int32
	// ruled are the items with rules of their own, need the number of items under each
	// rule that are left, met what each item meets.
	ruled []int32
	need  []int
	met   [][]uint64
}

type colBound struct {
	k     int32
	bound float64
}

// alphas say how much a large item is preferred to a small one of the same density:
// not at all fills evenly, more leaves the small ones to close gaps.
var alphas = [...]float64{0, 0.15, 0.4}

// Solve packs p.Items.
func Solve(p *Problem, opts Options) Result {
	s := newSolver(p)
	res := Result{Bound: s.revalue(s.rem, opts.DualSteps)}
	nodes, all, left := s.bestCover(res.Bound, opts.Improve > 0 && !p.Finite)
	if opts.Improve > 0 && !p.Finite {
		nodes = s.generate(nodes, all, left, res.Bound)
	}
	res.Left = left
	if s.total(nodes) > res.Bound*(1+nearBound) {
		nodes = s.improve(nodes, opts.Improve)
	}
	if opts.Improve > 0 { // of what costs the same, fewer nodes are better
		nodes = s.dissolve(nodes)
	}
	res.Nodes = nodes
	return res
}

// nearBound is the excess over the bound that is not worth improving.
const nearBound = 0.005

func newSolver(p *Problem) *solver {
	n := len(p.Items)
	s := &solver{
		p: p, rem: make([]int, n), usable: make([]bool, len(p.Columns)),
		pat: make([]int32, n), room: make([]float64, p.Dims), mu: make([]float64, p.Dims),
		count: make([]int32, p.Groups), guarded: make([]int32, p.Groups), need: make([]int, p.Groups),
	}
	s.words = (n + 63) / 64
	s.fitBits = make([]uint64, s.words*len(p.Columns))
	for i := range p.Items {
		s.rem[i] = p.Items[i].Count
		if len(p.Items[i].Own) > 0 && len(p.Fits[i]) > 0 {
			s.ruled = append(s.ruled, int32(i))
		}
		for _, k := range p.Fits[i] {
			s.fitBits[int(k)*s.words+i/64] |= 1 << (i % 64)
		}
		if len(p.Fits[i]) > 0 {
			s.left += s.rem[i]
		}
	}
	for k := range p.Columns {
		s.usable[k] = true
	}
	s.value = newValue(p)
	s.items, s.cursor = make([][]int32, len(s.members)), make([]int, len(s.members))
	s.dense = make([]float64, len(s.rel.Price))
	s.listItems()
	return s
}

// listItems makes kinds and items anew, without what is used up.
func (s *solver) listItems() {
	s.kinds, s.natural = s.kinds[:0], 0
	for kind, members := range s.members {
		list := s.items[kind][:0]
		for _, i := range members {
			if s.rem[i] > 0 {
				list = append(list, i)
			}
		}
		if s.items[kind] = list; len(list) > 0 {
			s.kinds = append(s.kinds, int32(kind))
		}
	}
}

// listScope is listItems for the items of scope.
func (s *solver) listScope() {
	for _, kind := range s.kinds {
		s.items[kind] = s.items[kind][:0]
	}
	s.kinds, s.natural = s.kinds[:0], 0
	for _, i := range s.scope {
		kind := s.kind[i]
		if len(s.items[kind]) == 0 {
			s.kinds = append(s.kinds, kind)
		}
		s.items[kind] = append(s.items[kind], i)
	}
	slices.Sort(s.kinds)
}

// holds reports whether column k holds one of item i.
func (s *solver) holds(k, i int32) bool {
	return s.fitBits[int(k)*s.words+int(i)/64]>>(i%64)&1 != 0
}

// pace is how a cover goes about it: it values the demand anew when no more than keep of
// it is left since the last time, and buys at most part of what is left of one pattern.
type pace struct{ keep, part float64 }

// paces are tried one after the other, since which one does best is chance; a good result
// ends it.
var paces = [...]pace{{0.9, 0.3}, {0.9, 0.05}}

// bestCover covers the demand at several paces, or just one, and returns the cheapest set
// of nodes, the nodes of all sets, and what is left over.
func (s *solver) bestCover(bound float64, several bool) (best, all []Node, left []int) {
	demand, total, dual := slices.Clone(s.rem), s.left, s.dual
	for i, pace := range paces {
		if i > 0 {
			if !several || s.total(best) <= bound*(1+goodEnough) || len(s.ruled) > 0 {
				break
			}
			copy(s.rem, demand)
			s.left = total
		}
		s.dual = dual.Clone()
		s.revalue(demand, 0)
		s.listItems()
		nodes := s.cover(nil, pace)
		s.resize(nodes)
		all = append(all, nodes...)
		if i == 0 || s.total(nodes) < s.total(best) {
			best, left = nodes, slices.Clone(s.rem)
		}
	}
	s.dual = dual
	s.revalue(demand, 0)
	return best, all, left
}

// cover buys columns until the demand is met or nothing more may be bought.
func (s *solver) cover(nodes []Node, p pace) []Node {
	last := s.left
	for s.left > 0 {
		if float64(s.left) < p.keep*float64(last) {
			s.revalue(s.rem, s.reviseSteps(len(s.ruled) > 0))
			s.listItems()
			last = s.left
		}
		pat, k := s.bestPattern()
		if k < 0 || len(pat) == 0 {
			break
		}
		pods := 0
		copies := math.MaxInt
		for _, c := range pat {
			pods += int(c.N)
			copies = min(copies, s.rem[c.Item]/int(c.N))
		}
		copies = max(1, min(copies, int(p.part*float64(s.left))/pods))
		copies = s.reserve(int(k), copies)
		if copies == 0 {
			s.usable[k] = false
			continue
		}
		for range copies {
			nodes = append(nodes, Node{Column: k, Items: pat})
		}
		for _, c := range pat {
			s.rem[c.Item] -= copies * int(c.N)
			s.left -= copies * int(c.N)
		}
	}
	return nodes
}

func (s *solver) reserve(k, n int) int {
	if s.p.Ledger == nil {
		return n
	}
	n = s.p.Ledger.Room(k, n)
	if n > 0 {
		s.p.Ledger.Take(k, n)
	}
	return n
}

// maxTried bounds the columns that are filled to find the best pattern, forcedTried
// those where the nodes are forced and only their size is open.
const (
	maxTried    = 24
	forcedTried = 6
)

// bestPattern fills the promising columns and returns the pattern of most value per
// dollar; k is negative if nothing fits any more.
//
// If some item's rules force many nodes, every pattern includes it, and nodes are chosen
// about as large as it takes to spread everything that is left over them: so no nodes
// are needed beyond those that are forced. Where the best column is smaller than that
// anyway, it is taken. Items that are larger than such a node come first.
func (s *solver) bestPattern() (best []Count, k int32) {
	force, budget, last := s.forced()
	if force < 0 {
		return s.bestOf(-1, -1, 0)
	}
	if last {
		if best, k = s.holdingAll(force, budget); k >= 0 {
			return best, k
		}
	}
	if s.natural == 0 {
		best, k = s.bestOf(force, -1, 0)
		if k < 0 {
			return nil, k
		}
		s.natural = s.p.Columns[k].Price
		if s.natural <= budget {
			return best, k
		}
	}
	if s.natural <= budget {
		return s.bestOf(force, -1, 0)
	}
	if large := s.largest(force, 0.7*budget); large >= 0 {
		if best, k = s.bestOf(force, large, 0); k >= 0 {
			return best, k
		}
	}
	return s.bestOf(force, -1, budget)
}

// holdingAll finds the cheapest column that holds everything which can share a node with
// force, all of it worth value; k is negative if there is none.
func (s *solver) holdingAll(force int32, value float64) (best []Count, k int32) {
	s.sortByPrice()
	tried := 0
	for _, k := range s.byPrice {
		price := s.p.Columns[k].Price
		if price < 0.9*value || !s.usable[k] || !s.holds(k, force) {
			continue
		}
		if price > 2*value || tried == maxTried {
			break
		}
		tried++
		if s.fill(k, force, -1, 0) >= value*(1-1e-9) {
			return s.pattern(nil), k
		}
	}
	return nil, -1
}

// largest finds the item of most value, more than least, that can share a node with
// force; -1 if there is none.
func (s *solver) largest(force int32, least float64) int32 {
	best := int32(-1)
	near := s.meets(force)
	for _, kind := range s.kinds {
		if s.weight[0][kind] <= least {
			continue
		}
		for _, i := range s.items[kind] {
			if s.rem[i] > 0 && i != force && near[i/64]>>(i%64)&1 != 0 {
				best, least = i, s.weight[0][kind]
				break
			}
		}
	}
	return best
}

// bestOf is bestPattern for nodes that hold two given items, unless they are negative,
// and cost about the budget; 0 means any price.
func (s *solver) bestOf(force, second int32, budget float64) (best []Count, k int32) {
	s.rank(force, second, budget)
	bestRatio, tried := 0.0, 0
	k = -1
	limit, variants := maxTried, len(alphas)
	if force >= 0 {
		limit, variants = forcedTried, 1
	}
	for _, c := range s.order {
		if c.bound <= bestRatio || tried >= limit {
			break
		}
		tried++
		price := max(s.p.Columns[c.k].Price, 1e-6)
		for a := range variants {
			ratio := s.fill(c.k, force, second, a) / price * suits(price, budget)
			if ratio > bestRatio*(1+1e-9) {
				bestRatio, k = ratio, c.k
				best = s.pattern(best)
			}
		}
	}
	return best[:len(best):len(best)], k
}

// suits is how well a price suits a budget: 1 for a little above it, since no node is
// filled without a gap, and less the farther away.
func suits(price, budget float64) float64 {
	if budget <= 0 {
		return 1
	}
	x := price / budget
	switch {
	case x > 1.3:
		return 1.3 / x
	case x < 0.9:
		return math.Sqrt(x / 0.9)
	}
	return 1
}

// forced finds the rule that forces the most nodes, an item under it, and the value that
// each of these nodes has to take if everything that can lie on them is spread over them.
// The item is -1 if there is none. last is true if one node is left to take it all.
func (s *solver) forced() (item int32, budget float64, last bool) {
	clear(s.need)
	list := s.ruled
	if s.scope != nil {
		list = s.scope
	}
	var rule Own
	most := 0
	for _, i := range list {
		for _, o := range s.p.Items[i].Own {
			if !o.Self || s.rem[i] == 0 {
				continue
			}
			s.need[o.Group] += s.rem[i]
			if n := (s.need[o.Group] + int(o.Max) - 1) / int(o.Max); n > most {
				most, rule = n, o
			}
		}
	}
	if most == 0 {
		return -1, 0, false
	}
	owns := func(i int32) bool { return slices.Contains(s.p.Items[i].Own, rule) }
	item = -1
	for _, i := range list {
		if s.rem[i] > 0 && owns(i) && (item < 0 || s.rem[i] > s.rem[item]) {
			item = i
		}
	}
	near := s.meets(item)
	nodes, value := 0, 0.0
	for w, word := range near {
		for word != 0 {
			i := int32(w*64 + bits.TrailingZeros64(word))
			word &= word - 1
			if n := s.rem[i]; n > 0 {
				value += float64(n) * s.weight[0][s.kind[i]]
				if len(s.p.Items[i].Own) > 0 && owns(i) {
					nodes += n
				}
			}
		}
	}
	n := math.Ceil(float64(nodes) / float64(rule.Max))
	return item, value / n, n == 1
}

// meets is the set of items that fit some column which i fits.
func (s *solver) meets(i int32) []uint64 {
	if s.met == nil {
		s.met = make([][]uint64, len(s.p.Items))
	}
	if s.met[i] == nil {
		set := make([]uint64, s.words)
		for _, k := range s.p.Fits[i] {
			for w, word := range s.fitBits[int(k)*s.words : (int(k)+1)*s.words] {
				set[w] |= word
			}
		}
		s.met[i] = set
	}
	return s.met[i]
}

// rank orders the usable columns by the best value per dollar they could reach.
func (s *solver) rank(force, second int32, budget float64) {
	s.order = s.order[:0]
	total := 0.0
	s.kinds = slices.DeleteFunc(s.kinds, func(kind int32) bool {
		n := 0
		for _, i := range s.items[kind] {
			n += s.rem[i]
		}
		total += float64(n) * s.weight[0][kind]
		if n == 0 {
			s.items[kind] = s.items[kind][:0]
		}
		return n == 0
	})
	top := 0.0
	clear(s.dense)
	for k := range s.p.Columns {
		if !s.usable[k] || force >= 0 && !s.holds(int32(k), force) || second >= 0 && !s.holds(int32(k), second) {
			continue
		}
		c := &s.p.Columns[k]
		price := max(c.Price, 1e-6)
		fit := suits(price, budget)
		if fit < 0.5 {
			continue
		}
		density := s.density(s.class[k])
		if density <= 0 {
			continue
		}
		bound := min(density*c.Shadow, total) / price * fit
		top = max(top, bound)
		s.order = append(s.order, colBound{int32(k), bound})
	}
	s.order = slices.DeleteFunc(s.order, func(c colBound) bool { return c.bound < top*0.5 })
	slices.SortFunc(s.order, func(a, b colBound) int {
		return cmp.Or(-cmp.Compare(a.bound, b.bound), cmp.Compare(s.p.Columns[a.k].Price, s.p.Columns[b.k].Price), cmp.Compare(a.k, b.k))
	})
}

// density is the most value per dollar of shadow price that a kind of item which is left
// has on columns of a class.
func (s *solver) density(class int32) float64 {
	if s.dense[class] > 0 {
		return s.dense[class]
	}
	best := 0.0
	D := s.p.Dims
	lambda := s.dual.Lambda[int(class)*D : int(class)*D+D]
	for _, kind := range s.kinds {
		if !s.onClass(class, kind) {
			continue
		}
		cost := 0.0
		for r, q := range s.rel.Req[int(kind)*D : (int(kind)+1)*D] {
			cost += q * lambda[r]
		}
		if v := s.weight[0][kind]; v > best*cost {
			best = 1
			if cost > 0 {
				best = v / cost
			}
		}
	}
	s.dense[class] = best
	return best
}

// fill makes s.pat a pattern for column k out of s.rem and returns its value. force, if
// not negative, comes first, as often as its rules allow, and then one of second. The
// value is negative if they do not fit.
func (s *solver) fill(k, force, second int32, a int) float64 {
	p := s.p
	D := p.Dims
	alloc := p.Columns[k].Alloc
	lambda := s.lambda(k)
	copy(s.room, alloc)
	s.reset()
	value := 0.0
	if force >= 0 {
		n := min(int32(s.rem[force]), max(p.Items[force].cap(), 1), s.fits(force), s.allowed(force))
		if n < 1 {
			return -1
		}
		s.put(force, n)
		value += float64(n) * s.weight[0][s.kind[force]]
	}
	if second >= 0 {
		if s.rem[second] <= int(s.pat[second]) || s.fits(second) < 1 || s.allowed(second) < 1 {
			return -1
		}
		s.put(second, 1)
		value += s.weight[0][s.kind[second]]
	}
	class := s.class[k]
	s.alive = s.alive[:0]
	for _, kind := range s.kinds {
		if s.onClass(class, kind) {
			s.alive = append(s.alive, kind)
			s.cursor[kind] = 0
		}
	}
	weight := s.weight[a]
	for len(s.alive) > 0 {
		for r := range s.mu {
			switch {
			case s.room[r] > 0:
				s.mu[r] = lambda[r] * alloc[r] / s.room[r]
			default:
				s.mu[r] = math.MaxFloat64 / 1e9
			}
		}
		best, at := -1.0, -1
		kept := 0
		for _, kind := range s.alive {
			req := s.rel.Req[int(kind)*D : (int(kind)+1)*D]
			cost, ok := 1e-12, true
			for r, q := range req {
				if q > s.room[r] && q > 0 {
					ok = false
					break
				}
				cost += q * s.mu[r]
			}
			if !ok {
				continue // room only shrinks: never again on this node
			}
			s.alive[kept] = kind
			if v := weight[kind] / cost; v > best {
				best, at = v, kept
			}
			kept++
		}
		s.alive = s.alive[:kept]
		if at < 0 {
			break
		}
		kind := s.alive[at]
		i := s.next(k, kind)
		if i < 0 {
			s.alive = slices.Delete(s.alive, at, at+1)
			continue
		}
		n := min(int32(s.rem[i])-s.pat[i], max(1, s.fits(i)/8))
		if p.Items[i].ruled() {
			n = min(n, s.allowed(i))
		}
		s.put(i, n)
		value += float64(n) * s.weight[0][kind]
	}
	return value
}

// next is the first item of a kind that the pattern for column k can still take; -1 if
// there is none. What it cannot take now, it never can.
func (s *solver) next(k, kind int32) int32 {
	list := s.items[kind]
	for s.cursor[kind] < len(list) {
		i := list[s.cursor[kind]]
		if s.rem[i] > int(s.pat[i]) && s.holds(k, i) && (!s.p.Items[i].ruled() || s.allowed(i) > 0) {
			return i
		}
		s.cursor[kind]++
	}
	return -1
}

func (s *solver) reset() {
	for _, i := range s.dirty {
		s.pat[i] = 0
		it := &s.p.Items[i]
		for _, g := range it.Adds {
			s.count[g] = 0
		}
		for _, g := range it.Guards {
			s.guarded[g] = 0
		}
	}
	s.dirty = s.dirty[:0]
}

// fits is how many of item i the room left holds.
func (s *solver) fits(i int32) int32 {
	n := int32(math.MaxInt32)
	for r, q := range s.p.Items[i].Req {
		if q > 0 {
			n = min(n, int32(min(s.room[r]/q, 1e9)))
		}
	}
	return n
}

// allowed is how many of item i the rules admit to the pattern as it is.
func (s *solver) allowed(i int32) int32 {
	it := &s.p.Items[i]
	for _, g := range it.Blocked {
		if s.guarded[g] > 0 {
			return 0
		}
	}
	n := int32(math.MaxInt32)
	for _, o := range it.Own {
		if o.Self {
			n = min(n, o.Max-s.count[o.Group])
		} else if s.count[o.Group] > o.Max {
			return 0
		}
	}
	return max(n, 0)
}

func (s *solver) put(i, n int32) {
	if s.pat[i] == 0 {
		s.dirty = append(s.dirty, i)
	}
	s.pat[i] += n
	it := &s.p.Items[i]
	for r, q := range it.Req {
		s.room[r] -= float64(n) * q
	}
	for _, g := range it.Adds {
		s.count[g] += n
	}
	for _, g := range it.Guards {
		s.guarded[g] += n
	}
}

// pattern copies s.pat, in the order in which its items were put.
func (s *solver) pattern(into []Count) []Count {
	into = into[:0]
	for _, i := range s.dirty {
		into = append(into, Count{i, s.pat[i]})
	}
	return into
}
