package bound

import "math"

// mix finds the fractional mix of pods worth most on one kind of node: a linear
// program with a row per resource, solved by the tableau simplex method.
type mix struct {
	// classes are the indices of the classes of which one pod fits.
	classes []int
	// need[r][i] is what classes[i] needs of resource r, as a share of the node.
	need [][]float64
	all  int
}

func newMix(n Node, classes []Class) *mix {
	m := &mix{all: len(classes)}
	for c := range classes {
		if fits(classes[c].Need, n.Room) {
			m.classes = append(m.classes, c)
		}
	}
	for r, room := range n.Room {
		if room <= 0 {
			continue
		}
		row := make([]float64, len(m.classes))
		used := false
		for i, c := range m.classes {
			row[i] = max(0, float64(classes[c].Need[r])/float64(room))
			used = used || row[i] > 0
		}
		if used {
			m.need = append(m.need, row)
		}
	}
	return m
}

// best returns the mix (pods of each class, dense over all classes) and an upper
// bound of what any mix is worth. The bound is proved by the shadow prices of the
// resources and does not depend on the mix being the best one.
func (m *mix) best(values []float64) (pods []float64, worth float64) {
	rows, cols := len(m.need), len(m.classes)
	width := cols + rows + 1 // structural, slack, right-hand side
	t := make([][]float64, rows+1)
	basis := make([]int, rows)
	for r := range rows {
		t[r] = make([]float64, width)
		copy(t[r], m.need[r])
		t[r][cols+r], t[r][width-1] = 1, 1
		basis[r] = cols + r
	}
	objective := make([]float64, width)
	for i, c := range m.classes {
		objective[i] = values[c]
	}
	t[rows] = objective

	const dantzig = 200
	for step := 0; step < 10000; step++ {
		enter := -1
		for j := range cols + rows {
			if objective[j] <= tiny*tiny || enter >= 0 && objective[j] <= objective[enter] {
				continue
			}
			enter = j
			if step > dantzig {
				break // Bland's rule: no cycling
			}
		}
		if enter < 0 {
			break
		}
		leave, ratio := -1, math.Inf(1)
		for r := range rows {
			if t[r][enter] <= tiny {
				continue
			}
			q := t[r][width-1] / t[r][enter]
			if q < ratio || q == ratio && basis[r] < basis[leave] {
				leave, ratio = r, q
			}
		}
		if leave < 0 {
			break
		}
		pivot(t, leave, enter)
		basis[leave] = enter
	}

	pods = make([]float64, m.all)
	for r, b := range basis {
		if b < cols {
			pods[m.classes[b]] = max(0, t[r][width-1])
		}
	}
	// The shadow price of a resource is minus the reduced cost of its slack. Raise all
	// of them until they pay for every class; the node's resources then pay for any mix.
	price := 0.0
	shadow := make([]float64, rows)
	for r := range rows {
		shadow[r] = max(0, -objective[cols+r])
		price += shadow[r]
	}
	raise := 0.0
	for i, c := range m.classes {
		if values[c] <= 0 {
			continue
		}
		paid := 0.0
		for r := range rows {
			paid += shadow[r] * m.need[r][i]
		}
		if paid <= 0 {
			return pods, math.Inf(1) // nothing proved
		}
		raise = max(raise, values[c]/paid)
	}
	return pods, price * raise
}

// pivot makes column enter the unit vector of row leave.
func pivot(t [][]float64, leave, enter int) {
	p := t[leave]
	inv := 1 / p[enter]
	for j := range p {
		p[j] *= inv
	}
	p[enter] = 1
	for r := range t {
		f := t[r][enter]
		if r == leave || f == 0 {
			continue
		}
		row := t[r]
		for j := range row {
			row[j] -= f * p[j]
		}
		row[enter] = 0
	}
}
