package pack

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// maxIdle is the number of vain attempts after which the search for something cheaper
// ends.
const maxIdle = 64

// improve takes nodes apart, a few at a time, packs what was on them again and keeps
// what is cheaper. It changes neither the demand nor what is left over.
func (s *solver) improve(nodes []Node, steps int) []Node {
	left := slices.Clone(s.rem)
	defer func() { s.rem = left }()
	if len(nodes) == 0 || steps <= 0 {
		return nodes
	}
	s.rem = make([]int, len(left))
	for k := range s.usable {
		s.usable[k] = true
	}
	rng := rand.New(rand.NewPCG(uint64(len(nodes)), uint64(len(s.p.Items))))
	plain := [len(alphas)][]float64{}
	for a := range alphas {
		plain[a] = slices.Clone(s.weight[a])
	}
	idle := 0
	for step := 0; step < steps && idle < maxIdle; step++ {
		if step%32 == 0 {
			s.sortByWaste(nodes, plain[0])
		}
		picked := pick(rng, len(nodes), step)
		for a := range alphas {
			copy(s.weight[a], plain[a])
		}
		if step%3 != 0 {
			s.disturb(rng, nodes, picked)
		}
		fresh, ok := s.repack(nodes, picked)
		if !ok {
			idle++
			continue
		}
		idle = 0
		for _, i := range picked {
			nodes[i].Column = -1
		}
		nodes = slices.DeleteFunc(nodes, func(n Node) bool { return n.Column < 0 })
		nodes = append(nodes, fresh...)
	}
	for a := range alphas {
		copy(s.weight[a], plain[a])
	}
	return nodes
}

// pick chooses nodes to take apart, wasteful ones (which come first) rather than others.
func pick(rng *rand.Rand, n, step int) []int {
	size := min(n, 1+rng.IntN(8))
	picked := make([]int, 0, size)
	picked = append(picked, step%min(n, 32))
	for len(picked) < size {
		u := rng.Float64()
		i := int(float64(n) * u * u)
		if slices.Contains(picked, i) {
			size-- // rather a smaller set than a long search
			continue
		}
		picked = append(picked, i)
	}
	return picked
}

// disturb changes the values of what is on the picked nodes a little, so that the same
// nodes taken apart twice are packed differently.
func (s *solver) disturb(rng *rand.Rand, nodes []Node, picked []int) {
	seen := map[int32]bool{}
	for _, i := range picked {
		for _, c := range nodes[i].Items {
			kind := s.kind[c.Item]
			if seen[kind] {
				continue
			}
			seen[kind] = true
			f := 0.7 + 0.6*rng.Float64()
			for a := range alphas {
				s.weight[a][kind] *= f
			}
		}
	}
}

// repack packs what is on the picked nodes again. ok means that fresh holds all of it
// and costs less, or as much on fewer nodes; the ledger then counts fresh.
func (s *solver) repack(nodes []Node, picked []int) (fresh []Node, ok bool) {
	before := 0.0
	s.scope, s.left = s.scope[:0], 0
	for _, i := range picked {
		n := &nodes[i]
		before += s.p.Columns[n.Column].Price
		s.take(n.Column, -1)
		for _, c := range n.Items {
			if s.rem[c.Item] == 0 {
				s.scope = append(s.scope, c.Item)
			}
			s.rem[c.Item] += int(c.N)
			s.left += int(c.N)
		}
	}
	slices.Sort(s.scope)
	s.listScope()
	fresh = s.cover(nil, pace{0, 0.3})
	complete := s.left == 0
	for _, i := range s.scope {
		s.rem[i] = 0
	}
	s.scope = nil
	if complete {
		s.resize(fresh)
		after := 0.0
		for i := range fresh {
			after += s.p.Columns[fresh[i].Column].Price
		}
		eps := 1e-9 * max(before, 1e-6)
		if after < before-eps || after <= before+eps && len(fresh) < len(picked) {
			return fresh, true
		}
	}
	for i := range fresh {
		s.take(fresh[i].Column, -1)
	}
	for _, i := range picked {
		s.take(nodes[i].Column, 1)
	}
	for k := range s.usable {
		s.usable[k] = true
	}
	return nil, false
}

func (s *solver) take(k int32, n int) {
	if s.p.Ledger != nil {
		s.p.Ledger.Take(int(k), n)
	}
}

// resize moves every node to the cheapest column that holds what is on it.
func (s *solver) resize(nodes []Node) {
	s.sortByPrice()
	use := make([]float64, s.p.Dims)
	for i := range nodes {
		n := &nodes[i]
		clear(use)
		for _, c := range n.Items {
			for r, q := range s.p.Items[c.Item].Req {
				use[r] += float64(c.N) * q
			}
		}
		for _, k := range s.byPrice {
			if s.p.Columns[k].Price >= s.p.Columns[n.Column].Price {
				break
			}
			if !s.carries(k, n.Items, use) {
				continue
			}
			s.take(n.Column, -1)
			if s.reserve(int(k), 1) == 1 {
				n.Column = k
				break
			}
			s.take(n.Column, 1)
		}
	}
}

// sortByPrice makes byPrice.
func (s *solver) sortByPrice() {
	if len(s.byPrice) > 0 {
		return
	}
	s.byPrice = make([]int32, len(s.p.Columns))
	for k := range s.byPrice {
		s.byPrice[k] = int32(k)
	}
	slices.SortStableFunc(s.byPrice, func(a, b int32) int {
		return cmp.Compare(s.p.Columns[a].Price, s.p.Columns[b].Price)
	})
}

func (s *solver) carries(k int32, items []Count, use []float64) bool {
	for r, a := range s.p.Columns[k].Alloc {
		if use[r] > a {
			return false
		}
	}
	for _, c := range items {
		if !s.holds(k, c.Item) {
			return false
		}
	}
	return true
}

// sortByWaste puts first the nodes that cost most beyond the value of what is on them.
func (s *solver) sortByWaste(nodes []Node, value []float64) {
	waste := func(n *Node) float64 {
		w := s.p.Columns[n.Column].Price
		for _, c := range n.Items {
			w -= float64(c.N) * value[s.kind[c.Item]]
		}
		return math.Round(w*1e6) / 1e6
	}
	type wasted struct {
		waste float64
		node  Node
	}
	list := make([]wasted, len(nodes))
	for i := range nodes {
		list[i] = wasted{waste(&nodes[i]), nodes[i]}
	}
	slices.SortStableFunc(list, func(a, b wasted) int { return -cmp.Compare(a.waste, b.waste) })
	for i := range list {
		nodes[i] = list[i].node
	}
}
