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
	// byColumn are the items that fit each column and are not used up.
	byColumn [][]int32
	// fitBits[k*words+i/64] has bit i%64 set if item i fits column k.
	fitBits []uint64
	words   int
	// scope limits fills to these items while nodes are repacked; nil means all.
	scope  []int32
	usable []bool
	// One pattern under construction.
	pat            []int32
	room, mu       []float64
	count, guarded []int32
	dirty          []int32
	order          []colBound
	alive          []int32
	// byPrice are all columns, cheapest first.
	byPrice []int32
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
	nodes := s.cover(nil, true)
	left := slices.Clone(s.rem)
	s.resize(nodes)
	if opts.Improve > 0 && !p.Finite {
		nodes = s.generate(nodes, left, res.Bound)
	}
	res.Left = left
	if s.total(nodes) > res.Bound*(1+nearBound) {
		nodes = s.improve(nodes, opts.Improve)
	}
	res.Nodes = nodes
	return res
}

// nearBound is the excess over the bound that is not worth improving.
const nearBound = 0.005

func newSolver(p *Problem) *solver {
	n := len(p.Items)
	s := &solver{
		p: p, rem: make([]int, n), byColumn: make([][]int32, len(p.Columns)), usable: make([]bool, len(p.Columns)),
		pat: make([]int32, n), room: make([]float64, p.Dims), mu: make([]float64, p.Dims),
		count: make([]int32, p.Groups), guarded: make([]int32, p.Groups),
	}
	s.words = (n + 63) / 64
	s.fitBits = make([]uint64, s.words*len(p.Columns))
	for i := range p.Items {
		s.rem[i] = p.Items[i].Count
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
	s.listItems()
	s.value = newValue(p)
	return s
}

// listItems makes byColumn anew, without items that are used up.
func (s *solver) listItems() {
	for k := range s.byColumn {
		s.byColumn[k] = s.byColumn[k][:0]
	}
	for i, n := range s.rem {
		if n > 0 {
			for _, k := range s.p.Fits[i] {
				s.byColumn[k] = append(s.byColumn[k], int32(i))
			}
		}
	}
}

// holds reports whether column k holds one of item i.
func (s *solver) holds(k, i int32) bool {
	return s.fitBits[int(k)*s.words+int(i)/64]>>(i%64)&1 != 0
}

// candidates are the items that a fill of column k may take.
func (s *solver) candidates(k int32) []int32 {
	if s.scope != nil {
		return s.scope
	}
	return s.byColumn[k]
}

// cover buys columns until the demand is met or nothing more may be bought. With revalue
// the demand that is left is valued anew from time to time.
func (s *solver) cover(nodes []Node, revalue bool) []Node {
	last := s.left
	for s.left > 0 {
		if revalue && s.left < last*9/10 {
			s.revalue(s.rem, s.reviseSteps())
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
		copies = max(1, min(copies, s.left*3/10/pods))
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

// maxTried bounds the columns that are filled to find the best pattern.
const maxTried = 24

// bestPattern fills the promising columns and returns the pattern of most value per
// dollar; k is negative if nothing fits any more.
//
// If some item's rules force many nodes, every pattern includes it, and nodes are chosen
// about as large as it takes to spread everything that is left over them: so no nodes
// are needed beyond those that are forced. Where the best column is smaller than that
// anyway, it is taken.
func (s *solver) bestPattern() (best []Count, k int32) {
	force, budget := s.forced()
	best, k = s.bestOf(force, 0)
	if force >= 0 && k >= 0 && s.p.Columns[k].Price > budget {
		best, k = s.bestOf(force, budget)
	}
	return best[:len(best):len(best)], k
}

// bestOf is bestPattern for nodes of about the budget's price; 0 means of any.
func (s *solver) bestOf(force int32, budget float64) (best []Count, k int32) {
	s.rank(force, budget)
	bestRatio, tried := -1.0, 0
	k = -1
	for _, c := range s.order {
		if c.bound <= bestRatio || tried >= maxTried {
			break
		}
		tried++
		price := max(s.p.Columns[c.k].Price, 1e-6)
		for a := range alphas {
			ratio := s.fill(c.k, force, a) / price * suits(price, budget)
			if ratio > bestRatio*(1+1e-9) {
				bestRatio, k = ratio, c.k
				best = s.pattern(best)
			}
		}
	}
	return best, k
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

// forced finds the item whose rules force the most nodes, and the value that each of
// these nodes has to take if everything that is left is spread over them. The item is
// -1 if there is none.
func (s *solver) forced() (item int32, budget float64) {
	item, most, value := int32(-1), 0, 0.0
	consider := func(i int32) {
		n := s.rem[i]
		if n == 0 || len(s.p.Fits[i]) == 0 {
			return
		}
		value += float64(n) * s.weight[0][i]
		if c := int(s.p.Items[i].cap()); c > 0 {
			if need := (n + c - 1) / c; need > most {
				item, most = i, need
			}
		}
	}
	if s.scope != nil {
		for _, i := range s.scope {
			consider(i)
		}
	} else {
		for i := range s.rem {
			consider(int32(i))
		}
	}
	if most == 0 {
		return -1, 0
	}
	return item, value / float64(most)
}

// rank orders the usable columns by the best value per dollar they could reach.
func (s *solver) rank(force int32, budget float64) {
	s.order = s.order[:0]
	total := 0.0
	if s.scope != nil {
		for _, i := range s.scope {
			total += float64(s.rem[i]) * s.weight[0][i]
		}
	} else {
		for i, n := range s.rem {
			if n > 0 {
				total += float64(n) * s.weight[0][i]
			}
		}
	}
	top := 0.0
	for k := range s.p.Columns {
		if !s.usable[k] || force >= 0 && !s.holds(int32(k), force) {
			continue
		}
		density := s.density(int32(k))
		if density <= 0 {
			continue
		}
		c := &s.p.Columns[k]
		price := max(c.Price, 1e-6)
		bound := min(density*c.Shadow, total) / price * suits(price, budget)
		top = max(top, bound)
		s.order = append(s.order, colBound{int32(k), bound})
	}
	s.order = slices.DeleteFunc(s.order, func(c colBound) bool { return c.bound < top*0.5 })
	slices.SortFunc(s.order, func(a, b colBound) int {
		return cmp.Or(-cmp.Compare(a.bound, b.bound), cmp.Compare(s.p.Columns[a.k].Price, s.p.Columns[b.k].Price), cmp.Compare(a.k, b.k))
	})
}

// density is the most value per dollar of shadow price that an item which is left has on
// column k.
func (s *solver) density(k int32) float64 {
	if s.scope == nil {
		return s.bestDensity(k, s.rem)
	}
	best := 0.0
	lambda := s.lambda(k)
	for _, i := range s.scope {
		if s.rem[i] == 0 || !s.holds(k, i) {
			continue
		}
		cost := 0.0
		for r, q := range s.p.Items[i].Req {
			cost += q * lambda[r]
		}
		if v := s.weight[0][i]; v > best*cost {
			best = 1
			if cost > 0 {
				best = v / cost
			}
		}
	}
	return best
}

// fill makes s.pat a pattern for column k out of s.rem and returns its value. force, if
// not negative, comes first, as often as its rules allow.
func (s *solver) fill(k, force int32, a int) float64 {
	p := s.p
	alloc := p.Columns[k].Alloc
	lambda := s.lambda(k)
	copy(s.room, alloc)
	s.reset()
	value := 0.0
	if force >= 0 {
		n := min(int32(s.rem[force]), max(p.Items[force].cap(), 1), s.fits(force))
		if n < 1 {
			return -1
		}
		s.put(force, n)
		value += float64(n) * s.weight[0][force]
	}
	s.alive = s.alive[:0]
	for _, i := range s.candidates(k) {
		if s.rem[i] > int(s.pat[i]) && (s.scope == nil || s.holds(k, i)) {
			s.alive = append(s.alive, i)
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
		for _, i := range s.alive {
			req := p.Items[i].Req
			cost, ok := 1e-12, true
			for r, q := range req {
				if q > s.room[r] && q > 0 {
					ok = false
					break
				}
				cost += q * s.mu[r]
			}
			if !ok || s.rem[i] <= int(s.pat[i]) {
				continue // room only shrinks: never again on this node
			}
			if p.Items[i].ruled() && s.allowed(i) == 0 {
				continue
			}
			s.alive[kept] = i
			if v := weight[i] / cost; v > best {
				best, at = v, kept
			}
			kept++
		}
		s.alive = s.alive[:kept]
		if at < 0 {
			break
		}
		i := s.alive[at]
		n := min(int32(s.rem[i])-s.pat[i], max(1, s.fits(i)/8))
		if p.Items[i].ruled() {
			n = min(n, s.allowed(i))
		}
		s.put(i, n)
		value += float64(n) * s.weight[0][i]
	}
	return value
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
