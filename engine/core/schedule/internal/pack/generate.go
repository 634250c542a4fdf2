package pack

import (
	"cmp"
	"math"
	"slices"
)

// The set of whole patterns of least cost is a linear program with a variable per
// pattern, too many to write down; generate solves it by column generation (Gilmore and
// Gomory, 1961): with the prices of a restricted program it looks for patterns that are
// worth more than they cost, until it finds none. What a pattern is worth there, gaps
// included, is what an item really costs, unlike in the relaxation that package relax
// solves.

// The work is bounded: maxItems rows, maxPivots steps, perRound patterns added at once,
// and fillWork items looked at per fill, all fills together. Of the columns, those that
// gave the most last time are tried first, again first at a time.
const (
	maxItems  = 256
	maxPivots = 600
	perRound  = 8
	seeds     = 4
	first     = 16
	fillWork  = 250_000
	// goodEnough is the excess over the bound below which nothing is generated.
	goodEnough = 0.015
	// minGain is how much more than its price a new pattern must be worth.
	minGain = 1e-3
)

type master struct {
	rows  []int32 // items
	rowOf []int32 // by item; -1 if not a row
	basis []int   // pattern per row
	inv   []float64
	x     []float64
	pool  []Node
	price []float64
	dual  []float64
	// gain is what each column's last fill was worth beyond its price, fills how many
	// more may be tried.
	gain  []float64
	fills int
	seed  int
	round int
	pi    []float64 // the relaxation's values, by row
}

// generate returns a cheaper set of nodes for the demand that nodes hold, or nodes. all
// are nodes whose patterns it starts from.
func (s *solver) generate(nodes, all []Node, left []int, bound float64) []Node {
	if s.total(nodes) <= bound*(1+goodEnough) {
		return nodes
	}
	demand := make([]int, len(s.p.Items))
	for i := range s.p.Items {
		if len(s.p.Fits[i]) > 0 {
			demand[i] = s.p.Items[i].Count - left[i]
		}
	}
	m := s.newMaster(all, demand)
	if m == nil {
		return nodes
	}
	before := [len(alphas)][]float64{}
	for a := range alphas {
		before[a] = slices.Clone(s.weight[a])
	}
	s.rem = slices.Clone(demand)
	s.listItems()
	for range maxPivots {
		m.setDual()
		enter := m.cheapest()
		if enter < 0 {
			for range 3 {
				if enter = s.newPatterns(m); enter >= 0 {
					break
				}
			}
			if enter < 0 {
				break
			}
		}
		if !m.pivot(enter) {
			break
		}
	}
	fresh := s.round(m, demand)
	for a := range alphas {
		copy(s.weight[a], before[a])
	}
	if s.left == 0 && s.total(fresh) < s.total(nodes)*(1-1e-9) {
		nodes = fresh
	}
	s.rem = left
	return nodes
}

func (s *solver) total(nodes []Node) float64 {
	t := 0.0
	for i := range nodes {
		t += s.p.Columns[nodes[i].Column].Price
	}
	return t
}

// newMaster starts from one pattern per item, filled with that item alone.
func (s *solver) newMaster(nodes []Node, demand []int) *master {
	m := &master{rowOf: make([]int32, len(demand))}
	for i, n := range demand {
		m.rowOf[i] = -1
		if n > 0 {
			m.rowOf[i] = int32(len(m.rows))
			m.rows = append(m.rows, int32(i))
		}
	}
	n := len(m.rows)
	if n < 2 || n > maxItems || len(nodes) < 4 || len(s.members) < len(s.p.Items) {
		return nil
	}
	m.gain, m.fills = make([]float64, len(s.p.Columns)), fillWork/n
	m.basis, m.inv, m.x, m.dual = make([]int, n), make([]float64, n*n), make([]float64, n), make([]float64, n)
	m.pi = make([]float64, n)
	for r, i := range m.rows {
		m.pi[r] = s.weight[0][s.kind[i]]
		best, count, column := math.Inf(1), 0.0, int32(-1)
		for _, k := range s.p.Fits[i] {
			c := math.Inf(1)
			for d, q := range s.p.Items[i].Req {
				if q > 0 {
					c = min(c, math.Floor(s.p.Columns[k].Alloc[d]/q))
				}
			}
			if limit := s.p.Items[i].cap(); limit > 0 {
				c = min(c, float64(limit))
			}
			c = min(c, float64(demand[i]))
			if v := s.p.Columns[k].Price / c; v < best {
				best, count, column = v, c, k
			}
		}
		if column < 0 || count < 1 {
			return nil
		}
		m.basis[r] = m.add(s, Node{Column: column, Items: []Count{{i, int32(count)}}})
		m.inv[r*n+r] = 1 / count
		// Demands that are not quite whole keep the basis from standing still at a corner
		// where several patterns could leave.
		m.x[r] = float64(demand[i]) * (1 + 1e-4*float64((r*7919)%101+1)/101) / count
	}
	for i := range nodes {
		if i == 0 || nodes[i].Column != nodes[i-1].Column || &nodes[i].Items[0] != &nodes[i-1].Items[0] {
			m.add(s, nodes[i])
		}
	}
	return m
}

func (m *master) add(s *solver, n Node) int {
	m.pool = append(m.pool, n)
	m.price = append(m.price, s.p.Columns[n.Column].Price)
	return len(m.pool) - 1
}

// setDual makes dual what one more of each item costs.
func (m *master) setDual() {
	n := len(m.rows)
	clear(m.dual)
	for b, p := range m.basis {
		c := m.price[p]
		for i, v := range m.inv[b*n : (b+1)*n] {
			m.dual[i] += c * v
		}
	}
}

// worth is what a pattern's items cost by the dual.
func (m *master) worth(items []Count) float64 {
	w := 0.0
	for _, c := range items {
		if r := m.rowOf[c.Item]; r >= 0 {
			w += float64(c.N) * m.dual[r]
		}
	}
	return w
}

// worth is master.worth of the pattern under construction.
func (s *solver) worth(m *master) float64 {
	w := 0.0
	for _, i := range s.dirty {
		if r := m.rowOf[i]; r >= 0 {
			w += float64(s.pat[i]) * m.dual[r]
		}
	}
	return w
}

// tolerance is how much more than its price a pattern must be worth to enter.
const tolerance = 1e-7

func (m *master) cheapest() int {
	best, at := -tolerance, -1
	for p := range m.pool {
		if d := (m.price[p] - m.worth(m.pool[p].Items)) / max(m.price[p], 1e-9); d < best {
			best, at = d, p
		}
	}
	return at
}

// newPatterns fills columns at the dual's values, adds the patterns that are worth more
// than they cost, and returns the best; -1 if there is none, or no fill is left.
func (s *solver) newPatterns(m *master) int {
	// The program's prices jump from step to step; blended with the relaxation's they
	// lead to useful patterns sooner (Wentges, 1997).
	calm := [...]float64{0.7, 0.4, 0}[m.round%3]
	m.round++
	for r, i := range m.rows {
		s.set(s.kind[i], max(calm*m.pi[r]+(1-calm)*m.dual[r], 1e-9))
	}
	order := make([]int32, len(s.p.Columns))
	for k := range order {
		order[k] = int32(k)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return -cmp.Compare(m.gain[a], m.gain[b]) })
	var found []int32
	var patterns [][]Count
	for n, k := range order {
		if n >= first && len(found) > 0 || m.fills <= 0 {
			break
		}
		price := max(s.p.Columns[k].Price, 1e-9)
		m.gain[k] = -1
		var items []Count
		try := func(seed int32, a int) {
			m.fills--
			if s.fill(k, seed, -1, a) <= 0 {
				return
			}
			if v := s.worth(m)/price - 1; v > m.gain[k] {
				if m.gain[k] = v; v > minGain {
					items = s.pattern(nil)
				}
			}
		}
		for a := range alphas {
			try(-1, a)
		}
		// Starting from one item or another leads to other fills.
		for range min(seeds, len(m.rows)) {
			m.seed++
			if i := m.rows[m.seed%len(m.rows)]; s.holds(k, i) {
				try(i, m.seed%len(alphas))
			}
		}
		if m.gain[k] > -0.1 && m.gain[k] < 0.02 {
			m.fills -= searchSteps / 200
			if c, _ := s.search(k, (1+m.gain[k])*price); c != nil {
				if v := m.worth(c)/price - 1; v > m.gain[k] {
					if m.gain[k] = v; v > minGain {
						items = c
					}
				}
			}
		}
		if items != nil {
			found = append(found, int32(len(patterns)))
			patterns = append(patterns, items)
			order[len(patterns)-1] = k
		}
	}
	slices.SortStableFunc(found, func(a, b int32) int { return -cmp.Compare(m.gain[order[a]], m.gain[order[b]]) })
	best := -1
	for _, f := range found[:min(len(found), perRound)] {
		if p := m.add(s, Node{Column: order[f], Items: patterns[f]}); best < 0 {
			best = p
		}
	}
	return best
}

// pivot brings a pattern into the basis; false if it cannot.
func (m *master) pivot(enter int) bool {
	n := len(m.rows)
	dir := make([]float64, n)
	for _, c := range m.pool[enter].Items {
		if r := m.rowOf[c.Item]; r >= 0 {
			for b := range dir {
				dir[b] += float64(c.N) * m.inv[b*n+int(r)]
			}
		}
	}
	leave, ratio := -1, math.Inf(1)
	for b, d := range dir {
		if d > 1e-9 && m.x[b]/d < ratio {
			leave, ratio = b, m.x[b]/d
		}
	}
	if leave < 0 {
		return false
	}
	row := m.inv[leave*n : (leave+1)*n]
	for i := range row {
		row[i] /= dir[leave]
	}
	for b, d := range dir {
		if b == leave || d == 0 {
			continue
		}
		for i, v := range row {
			m.inv[b*n+i] -= d * v
		}
		m.x[b] = max(0, m.x[b]-d*ratio)
	}
	m.x[leave] = ratio
	m.basis[leave] = enter
	return true
}

// round buys the whole part of every pattern in the basis, most used first, and packs
// what is left one by one.
func (s *solver) round(m *master, demand []int) []Node {
	order := make([]int, len(m.basis))
	for b := range order {
		order[b] = b
	}
	slices.SortStableFunc(order, func(a, b int) int { return -cmp.Compare(m.x[a], m.x[b]) })
	copy(s.rem, demand)
	s.left = 0
	for _, n := range demand {
		s.left += n
	}
	var nodes []Node
	for _, b := range order {
		p := m.pool[m.basis[b]]
		for range int(m.x[b] + 1e-6) {
			fits := true
			for _, c := range p.Items {
				fits = fits && s.rem[c.Item] >= int(c.N)
			}
			if !fits {
				break
			}
			nodes = append(nodes, p)
			for _, c := range p.Items {
				s.rem[c.Item] -= int(c.N)
				s.left -= int(c.N)
			}
		}
	}
	// Of a pattern that is used for more than half a node more, one more is bought with
	// what is left of its items.
	for _, b := range order {
		p := m.pool[m.basis[b]]
		if _, part := math.Modf(m.x[b]); part < 0.5 {
			continue
		}
		var items []Count
		value, whole := 0.0, 0.0
		for _, c := range p.Items {
			n := min(c.N, int32(s.rem[c.Item]))
			value += float64(n) * s.weight[0][s.kind[c.Item]]
			whole += float64(c.N) * s.weight[0][s.kind[c.Item]]
			if n > 0 {
				items = append(items, Count{c.Item, n})
			}
		}
		if value < 0.9*whole {
			continue
		}
		nodes = append(nodes, Node{Column: p.Column, Items: items})
		for _, c := range items {
			s.rem[c.Item] -= int(c.N)
			s.left -= int(c.N)
		}
	}
	s.listItems()
	nodes = s.cover(nodes, pace{0, 0.3})
	s.resize(nodes)
	return nodes
}
