package relax

import "math"

// commonPrices are prices per unit of each resource that make no column worth more than
// it costs and all items together worth as much as possible: the optimum of the coarser
// relaxation that forgets which item fits which column,
//
//	max demand·y  subject to  alloc(k)·y <= price(k) for all k, y >= 0.
//
// It is solved through its dual, min price·x with sum alloc(k)·x(k) >= demand, by the
// revised simplex method: the basis has only as many rows as there are resources.
func commonPrices(p *Problem, demand []float64) []float64 {
	D, K := p.Dims, p.Columns()
	// Rows are scaled to a demand of one; resources nobody asks for drop out.
	rows := make([]int, 0, D)
	for r, d := range demand {
		if d > 0 {
			rows = append(rows, r)
		}
	}
	m := len(rows)
	y := make([]float64, D)
	if m == 0 || K == 0 {
		return y
	}
	dearest := 0.0
	for _, c := range p.Price {
		dearest = max(dearest, c)
	}
	// Column j < K is a column of the problem, K <= j < K+m the surplus of a row, and the
	// rest artificial: so dear that they leave the basis if they can.
	entry := func(j, i int) float64 {
		switch {
		case j < K:
			return p.Alloc[j*D+rows[i]] / demand[rows[i]]
		case j < K+m:
			if j-K == i {
				return -1
			}
			return 0
		}
		if j-K-m == i {
			return 1
		}
		return 0
	}
	big := 0.0 // the cost of meeting one row with one column alone, at the worst
	for i := range rows {
		best := math.Inf(1)
		for k := range K {
			if a := entry(k, i); a > 0 {
				best = min(best, p.Price[k]/a)
			}
		}
		if !math.IsInf(best, 1) {
			big = max(big, best)
		}
	}
	big = big*10 + dearest + 1
	basis := make([]int, m)
	inv := make([]float64, m*m)
	x := make([]float64, m)
	for i := range m {
		basis[i], inv[i*m+i], x[i] = K+m+i, 1, 1
	}
	price := func(j int) float64 {
		switch {
		case j < K:
			return p.Price[j]
		case j < K+m:
			return 0
		}
		return big
	}
	dual, dir := make([]float64, m), make([]float64, m)
	for range 50 * (m + 1) {
		for i := range m {
			dual[i] = 0
			for b := range m {
				dual[i] += price(basis[b]) * inv[b*m+i]
			}
		}
		enter, worst := -1, -1e-9*(1+dearest)
		for j := range K + m {
			reduced := price(j)
			for i := range m {
				reduced -= dual[i] * entry(j, i)
			}
			if reduced < worst {
				enter, worst = j, reduced
			}
		}
		if enter < 0 {
			break
		}
		leave, ratio := -1, math.Inf(1)
		for b := range m {
			dir[b] = 0
			for i := range m {
				dir[b] += inv[b*m+i] * entry(enter, i)
			}
			if dir[b] > 1e-12 && x[b]/dir[b] < ratio {
				leave, ratio = b, x[b]/dir[b]
			}
		}
		if leave < 0 {
			break
		}
		pivot := dir[leave]
		for i := range m {
			inv[leave*m+i] /= pivot
		}
		x[leave] = ratio
		for b := range m {
			if b == leave {
				continue
			}
			for i := range m {
				inv[b*m+i] -= dir[b] * inv[leave*m+i]
			}
			x[b] = max(0, x[b]-dir[b]*ratio)
		}
		basis[leave] = enter
	}
	for i, r := range rows {
		y[r] = max(0, dual[i]) / demand[r]
	}
	return y
}
