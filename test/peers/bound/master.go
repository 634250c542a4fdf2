package bound

import (
	"math"
	"slices"
)

// master buys mixes so that every class is held, by the revised simplex method with a
// dense inverse of the basis: min Σ price·x, A·x ≥ counts, x ≥ 0.
type master struct {
	counts  []float64
	columns []column
	basis   []int
	inBasis []bool
	inverse [][]float64
	x       []float64
	pivots  int
	checked int
}

// column is a mix of pods on one node.
type column struct {
	class []int
	pods  []float64
	price float64
}

func newMaster(nodes []Node, classes []Class) *master {
	m := &master{}
	for c, cl := range classes {
		m.counts = append(m.counts, float64(cl.Count))
		// Start with nodes of one class each, of the kind that is cheapest per pod.
		best, pods, price := math.Inf(1), 0.0, 0.0
		for _, n := range nodes {
			if !fits(cl.Need, n.Room) {
				continue
			}
			if k := perNode(cl.Need, n.Room); n.Price/k < best {
				best, pods, price = n.Price/k, k, n.Price
			}
		}
		m.columns = append(m.columns, column{class: []int{c}, pods: []float64{pods}, price: price})
	}
	for c := range classes {
		// Surplus: holding more than is there costs nothing.
		m.columns = append(m.columns, column{class: []int{c}, pods: []float64{-1}})
	}
	m.inBasis = make([]bool, len(m.columns))
	for c := range classes {
		m.basis = append(m.basis, c)
		m.inBasis[c] = true
	}
	m.refactor()
	m.checked = len(m.columns)
	return m
}

// add makes a mix available.
func (m *master) add(pods []float64, price float64) {
	col := column{price: price}
	for c, k := range pods {
		if k > tiny {
			col.class = append(col.class, c)
			col.pods = append(col.pods, k)
		}
	}
	m.columns = append(m.columns, col)
	m.inBasis = append(m.inBasis, false)
}

// grown reports whether columns were added since the last call.
func (m *master) grown() bool {
	grown := len(m.columns) > m.checked
	m.checked = len(m.columns)
	return grown
}

func (m *master) cost() float64 {
	sum := 0.0
	for i, b := range m.basis {
		sum += m.columns[b].price * m.x[i]
	}
	return sum
}

// optimise pivots until no column is worth more than its price, and returns what a pod
// of each class is worth. Values are never negative.
func (m *master) optimise() []float64 {
	n := len(m.counts)
	values := make([]float64, n)
	direction := make([]float64, n)
	stalled := 0
	for step := 0; step < 200000; step++ {
		for c := range values {
			values[c] = 0
		}
		for i, b := range m.basis {
			if p := m.columns[b].price; p != 0 {
				for c, v := range m.inverse[i] {
					values[c] += p * v
				}
			}
		}
		enter, most := -1, tiny
		for j, col := range m.columns {
			if m.inBasis[j] {
				continue
			}
			gain := -col.price
			for k, c := range col.class {
				gain += values[c] * col.pods[k]
			}
			if gain = gain / max(col.price, tiny); col.price == 0 {
				gain = -values[col.class[0]]
			}
			if gain > most {
				enter, most = j, gain
				if stalled > 50 {
					break // Bland's rule: no cycling
				}
			}
		}
		if enter < 0 {
			break
		}
		col := m.columns[enter]
		for i := range direction {
			direction[i] = 0
			for k, c := range col.class {
				direction[i] += m.inverse[i][c] * col.pods[k]
			}
		}
		leave, ratio := -1, math.Inf(1)
		for i, d := range direction {
			if d <= tiny {
				continue
			}
			if q := m.x[i] / d; q < ratio-1e-12 || q <= ratio+1e-12 && leave >= 0 && m.basis[i] < m.basis[leave] {
				leave, ratio = i, min(ratio, q)
			}
		}
		if leave < 0 {
			break // cannot happen: prices are not negative
		}
		if ratio > 1e-12 {
			stalled = 0
		} else {
			stalled++
		}
		m.exchange(leave, enter, direction)
	}
	for c := range values {
		values[c] = max(0, values[c])
	}
	return slices.Clone(values)
}

func (m *master) exchange(leave, enter int, direction []float64) {
	m.inBasis[m.basis[leave]] = false
	m.inBasis[enter] = true
	m.basis[leave] = enter
	m.pivots++
	if m.pivots%100 == 0 {
		m.refactor()
		return
	}
	p := m.inverse[leave]
	inv := 1 / direction[leave]
	for c := range p {
		p[c] *= inv
	}
	m.x[leave] *= inv
	for i, d := range direction {
		if i == leave || d == 0 {
			continue
		}
		row := m.inverse[i]
		for c := range row {
			row[c] -= d * p[c]
		}
		m.x[i] = max(0, m.x[i]-d*m.x[leave])
	}
}

// refactor computes the inverse of the basis anew, so that rounding does not add up.
func (m *master) refactor() {
	n := len(m.counts)
	work := make([][]float64, n) // [basis | identity]
	for c := range n {
		work[c] = make([]float64, 2*n)
		work[c][n+c] = 1
	}
	for i, b := range m.basis {
		col := m.columns[b]
		for k, c := range col.class {
			work[c][i] = col.pods[k]
		}
	}
	for i := range n {
		best := i
		for r := i + 1; r < n; r++ {
			if math.Abs(work[r][i]) > math.Abs(work[best][i]) {
				best = r
			}
		}
		work[i], work[best] = work[best], work[i]
		pivot(work, i, i)
	}
	m.inverse = make([][]float64, n)
	m.x = make([]float64, n)
	for i := range n {
		m.inverse[i] = work[i][n:]
		for c, v := range m.inverse[i] {
			m.x[i] += v * m.counts[c]
		}
		m.x[i] = max(0, m.x[i])
	}
}
