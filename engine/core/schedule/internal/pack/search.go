package pack

import (
	"cmp"
	"slices"
)

// search looks for a pattern of column k worth more than incumbent, by branch and bound
// over how many of each item it takes, best density first. It gives up after a number
// of steps. Items with rules are left out.
type search struct {
	s      *solver
	items  []int32
	weight []float64
	// rest[j] is the best density among items[j:], by which what is left of a node's
	// resources, at their prices, bounds what can still be gained.
	rest   []float64
	lambda []float64
	room   []float64
	take   []int32
	best   []int32
	value  float64
	steps  int
}

// searchSteps bounds one search.
const searchSteps = 1500

func (s *solver) search(k int32, incumbent float64) ([]Count, float64) {
	t := &search{s: s, lambda: s.lambda(k), room: slices.Clone(s.p.Columns[k].Alloc), value: incumbent * (1 + 1e-9), steps: searchSteps}
	type dense struct {
		item    int32
		density float64
	}
	var list []dense
	for _, kind := range s.kinds {
		i := s.items[kind][0]
		if s.rem[i] == 0 || s.p.Items[i].ruled() || !s.holds(k, i) {
			continue
		}
		cost := 1e-12
		for r, q := range s.p.Items[i].Req {
			cost += q * t.lambda[r]
		}
		list = append(list, dense{i, s.weight[0][kind] / cost})
	}
	slices.SortFunc(list, func(a, b dense) int {
		return cmp.Or(-cmp.Compare(a.density, b.density), cmp.Compare(a.item, b.item))
	})
	for _, d := range list {
		t.items = append(t.items, d.item)
		t.weight = append(t.weight, s.weight[0][s.kind[d.item]])
		t.rest = append(t.rest, d.density)
	}
	t.take = make([]int32, len(list))
	t.branch(0, 0)
	if t.best == nil {
		return nil, 0
	}
	var out []Count
	for j, n := range t.best {
		if n > 0 {
			out = append(out, Count{t.items[j], n})
		}
	}
	return out, t.value
}

func (t *search) branch(j int, value float64) {
	if value > t.value {
		t.value = value * (1 + 1e-9)
		t.best = slices.Clone(t.take)
	}
	if j == len(t.items) || t.steps <= 0 {
		return
	}
	left := 0.0
	for r, v := range t.room {
		left += v * t.lambda[r]
	}
	if value+left*t.rest[j] <= t.value {
		return
	}
	t.steps--
	req := t.s.p.Items[t.items[j]].Req
	most := int32(t.s.rem[t.items[j]])
	for r, q := range req {
		if q > 0 {
			most = min(most, int32(min(t.room[r]/q, 1e6)))
		}
	}
	for n := most; n >= 0 && t.steps > 0; n-- {
		for r, q := range req {
			t.room[r] -= float64(n) * q
		}
		t.take[j] = n
		t.branch(j+1, value+float64(n)*t.weight[j])
		t.take[j] = 0
		for r, q := range req {
			t.room[r] += float64(n) * q
		}
	}
}
