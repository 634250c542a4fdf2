package pack

import (
	"cmp"
	"slices"
)

// maxDissolved bounds the nodes that dissolve looks at, maxHosts the nodes it would
// exchange for a larger one to take an item.
const (
	maxDissolved = 48
	maxHosts     = 256
	maxMoved     = 32 // items on one node
)

// dissolve tries to do without the cheapest nodes: what is on each moves to room that
// others have, or to others that are exchanged for larger ones, if that costs less than
// the node, or as much.
func (s *solver) dissolve(nodes []Node) []Node {
	if len(nodes) < 2 {
		return nodes
	}
	s.sortByPrice()
	room := make([][]float64, len(nodes))
	for i := range nodes {
		room[i] = slices.Clone(s.p.Columns[nodes[i].Column].Alloc)
		for _, c := range nodes[i].Items {
			s.occupy(room[i], c.Item, c.N)
		}
	}
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(s.p.Columns[nodes[a].Column].Price, s.p.Columns[nodes[b].Column].Price)
	})
	for _, victim := range order[:min(len(order), maxDissolved)] {
		s.empty(nodes, room, victim)
	}
	return slices.DeleteFunc(nodes, func(n Node) bool { return n.Column < 0 })
}

func (s *solver) occupy(room []float64, item, n int32) {
	for r, q := range s.p.Items[item].Req {
		room[r] -= float64(n) * q
	}
}

// move is one item going to a node, which becomes of another column.
type move struct {
	node   int
	item   int32
	column int32
	old    Node
	room   []float64
}

// empty moves everything off a node if that does not cost more, and marks it bought no
// more by a negative column.
func (s *solver) empty(nodes []Node, room [][]float64, victim int) {
	budget := s.p.Columns[nodes[victim].Column].Price
	var done []move
	undo := func() {
		for i := len(done) - 1; i >= 0; i-- {
			m := done[i]
			if m.column != m.old.Column {
				s.take(m.column, -1)
				s.take(m.old.Column, 1)
			}
			nodes[m.node], room[m.node] = m.old, m.room
		}
	}
	items := slices.Clone(nodes[victim].Items)
	total := int32(0)
	for _, c := range items {
		total += c.N
	}
	if total > maxMoved {
		return
	}
	slices.SortStableFunc(items, func(a, b Count) int {
		return -cmp.Compare(len(s.p.Items[a.Item].Own), len(s.p.Items[b.Item].Own))
	})
	for _, c := range items {
		for range c.N {
			m, price := s.host(nodes, room, victim, c.Item, budget)
			if m == nil {
				undo()
				return
			}
			budget -= price
			if m.column != m.old.Column {
				s.take(m.old.Column, -1)
				s.take(m.column, 1)
			}
			n := Node{Column: m.column, Items: slices.Clone(m.old.Items)}
			at := slices.IndexFunc(n.Items, func(o Count) bool { return o.Item == c.Item })
			if at < 0 {
				n.Items = append(n.Items, Count{Item: c.Item})
				at = len(n.Items) - 1
			}
			n.Items[at].N++
			fresh := slices.Clone(room[m.node])
			for r, a := range s.p.Columns[m.column].Alloc {
				fresh[r] += a - s.p.Columns[m.old.Column].Alloc[r]
			}
			s.occupy(fresh, c.Item, 1)
			nodes[m.node], room[m.node] = n, fresh
			done = append(done, *m)
		}
	}
	s.take(nodes[victim].Column, -1)
	nodes[victim].Column = -1
}

// host finds a node for one item: the first with room, else the one that is cheapest to
// exchange, for at most budget.
func (s *solver) host(nodes []Node, room [][]float64, victim int, item int32, budget float64) (best *move, price float64) {
	req := s.p.Items[item].Req
	looked := 0
	for t := range nodes {
		if t == victim || nodes[t].Column < 0 || !s.holds(nodes[t].Column, item) {
			continue
		}
		fits := true
		for r, q := range req {
			fits = fits && (q == 0 || q <= room[t][r])
		}
		if !fits && looked >= maxHosts || !s.admitted(&nodes[t], item) {
			continue
		}
		if fits {
			return &move{node: t, item: item, column: nodes[t].Column, old: nodes[t], room: room[t]}, 0
		}
		looked++
		if k, more := s.larger(&nodes[t], room[t], item, budget); k >= 0 && (best == nil || more < price) {
			best, price = &move{node: t, item: item, column: k, old: nodes[t], room: room[t]}, more
		}
	}
	return best, price
}

// admitted reports whether the rules allow one more item on a node.
func (s *solver) admitted(n *Node, item int32) bool {
	if !s.p.Items[item].ruled() {
		return true
	}
	s.reset()
	for _, c := range n.Items {
		s.put(c.Item, c.N)
	}
	return s.allowed(item) > 0
}

// larger finds the cheapest column that holds a node and one more item, for at most
// budget beyond what it costs now; negative if there is none.
func (s *solver) larger(n *Node, room []float64, item int32, budget float64) (column int32, more float64) {
	now := &s.p.Columns[n.Column]
	for _, k := range s.byPrice {
		c := &s.p.Columns[k]
		if c.Price < now.Price {
			continue
		}
		if c.Price > now.Price+budget {
			break
		}
		fits := s.holds(k, item)
		for r, q := range s.p.Items[item].Req {
			fits = fits && room[r]-q+c.Alloc[r]-now.Alloc[r] >= 0
		}
		for _, o := range n.Items {
			fits = fits && s.holds(k, o.Item)
		}
		if fits && (s.p.Ledger == nil || s.p.Ledger.Room(int(k), 1) > 0) {
			return k, c.Price - now.Price
		}
	}
	return -1, 0
}
