package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// lot is demand that is ready to be bought for: pods of one class, or a bundle of several
// that belong on one node, and the columns they may go to.
type lot struct {
	class *class
	n     int
	// place is the domain the pods were given; nil if none of their rules look beyond
	// the node. Their counts are booked there already.
	place *place
	cols  *columnSet
	// bundle lists what one unit of the lot consists of; nil for a single pod.
	bundle []placedPods
}

// columnSet is a set of columns that several lots share.
type columnSet struct {
	id   int
	cols bitset
}

// place is one combination of values for the topology keys of a class.
type place struct {
	domains []int32 // by topology key; those of class.zonal tell places apart
	column  int32   // one column there, for its labels
	price   float64 // the least of any column there
	name    string
	cols    bitset
}

// tier is where a class buys: the columns of its best pools.
type tier struct {
	weight int32
	cols   bitset
	id     string
}

// sale is what the pools of one weight sell to a profile.
type sale struct {
	weight int64
	cols   bitset
	// allocs are the allocations among the columns that are open now.
	allocs bitset
	id     string
}

// tierOf finds the pools of the highest weight, below the given one, that can still sell
// a node for a pod of c; preferences narrow the offerings as far as something is left. ok
// is false if there is none.
func (s *solver) tierOf(c *class, below int64) (tier, bool) {
	for _, sale := range s.salesTo(c.profile) {
		if sale.weight < below && sale.allocs.meets(c.fits) {
			return tier{weight: int32(sale.weight), cols: sale.cols, id: sale.id}, true
		}
	}
	return tier{}, false
}

// salesTo lists what a profile can buy: preferred columns before others, then by weight;
// what keeps minValues before what relaxes them.
func (s *solver) salesTo(p *profile) []*sale {
	list, ok := s.sales[p.id]
	if !ok {
		for i, cols := range [...]bitset{p.preferred, p.cols} {
			if i == 1 && sameBits(p.preferred, p.cols) {
				break
			}
			byKind := map[[2]int64]*sale{}
			cols.each(func(k int) {
				col := &s.columns[k]
				key := [2]int64{int64(s.poolOf(col).Weight), 0}
				if col.relaxed {
					key[1] = 1
				}
				if byKind[key] == nil {
					byKind[key] = &sale{weight: key[0], cols: newBits(len(s.columns)), allocs: newBits(len(s.allocs)), id: fmt.Sprint(p.id, "/", i, key)}
				}
				byKind[key].cols.set(k)
			})
			part := make([]*sale, 0, len(byKind))
			for _, sl := range byKind {
				part = append(part, sl)
			}
			slices.SortFunc(part, func(a, b *sale) int {
				return cmp.Or(-cmp.Compare(a.weight, b.weight), cmp.Compare(a.id, b.id))
			})
			list = append(list, part...)
		}
		s.sales[p.id] = list
		s.refreshSales(list)
	}
	return list
}

func (s *solver) refreshSales(list []*sale) {
	for _, sl := range list {
		clear(sl.allocs)
		sl.cols.each(func(k int) {
			if s.open[k] {
				sl.allocs.set(int(s.columns[k].allocID))
			}
		})
	}
}

// refreshOpen notes which columns limits and supply still allow.
func (s *solver) refreshOpen() {
	if s.open == nil {
		s.open = make([]bool, len(s.columns))
	} else if s.planner != nil && s.planner.endless {
		return
	}
	for k := range s.columns {
		s.open[k] = s.limits[s.shops[s.columns[k].shop].pool] == nil && s.columns[k].supply == "" || s.roomFor(int32(k), 1) > 0
	}
	for _, list := range s.sales {
		s.refreshSales(list)
	}
}

// places lists the combinations of domains that a class can be bought a node in.
func (s *solver) places(c *class, t tier) []*place {
	id := t.id + fmt.Sprint(c.zonal)
	all, ok := s.placesOf[id]
	if !ok {
		byKey := map[string]*place{}
		t.cols.each(func(k int) {
			if s.mustChoose(k, c.zonal) {
				return
			}
			var b strings.Builder
			for _, key := range c.zonal {
				if d := s.columnDomain(key, int32(k)); d >= 0 {
					b.WriteString(s.keys[key].values[d])
				} else {
					b.WriteByte(1)
				}
				b.WriteByte(0)
			}
			p := byKey[b.String()]
			if p == nil {
				p = &place{domains: s.domainsOf(int32(k)), column: int32(k), price: math.Inf(1), name: b.String(), cols: newBits(len(s.columns))}
				byKey[b.String()] = p
				all = append(all, p)
			}
			p.cols.set(k)
			if v := s.unitPrice(k); v < p.price {
				p.price = v
			}
		})
		slices.SortFunc(all, func(a, b *place) int {
			return cmp.Or(cmp.Compare(a.price, b.price), strings.Compare(a.name, b.name))
		})
		s.placesOf[id] = all
	}
	var out []*place
	for _, p := range all {
		if s.placeHolds(c, p) {
			out = append(out, p)
		}
	}
	return out
}

// unitPrice compares columns of different sizes: the price of the column for each part
// of it. CPU and memory weigh as much as they usually cost, at 6 GiB of memory to a core.
func (s *solver) unitPrice(k int) float64 {
	col := &s.columns[k]
	it, _ := s.columnType(col)
	size := float64(it.Allocatable[corev1.ResourceCPU])/1000 + float64(it.Allocatable[corev1.ResourceMemory])/(6<<30)
	if size <= 0 {
		return col.price()
	}
	return col.price() / size
}

func (s *solver) placeHolds(c *class, p *place) bool {
	found := false
	p.cols.each(func(k int) {
		found = found || s.open[k] && c.fits.has(int(s.columns[k].allocID))
	})
	return found
}

// domainsOf are the domains of nodes of a column, by topology key.
func (s *solver) domainsOf(k int32) []int32 {
	out := make([]int32, len(s.keys))
	for i := range out {
		out[i] = s.columnDomain(int32(i), k)
	}
	return out
}

func (s *solver) columnDomain(key, k int32) int32 {
	if s.colDomains[key] == nil {
		l := make([]int32, len(s.columns))
		for i := range l {
			l[i] = -2
		}
		s.colDomains[key] = l
	}
	l := s.colDomains[key]
	if l[k] == -2 {
		l[k] = -1
		if v, ok := s.columnLabel(&s.columns[k], s.keys[key].name); ok {
			l[k] = s.keys[key].value(v)
		}
	}
	return l[k]
}

// assign gives every pod of the classes, which all buy in tier t of their own, a domain,
// and returns what is to be bought. Pods that an existing node in their domain takes are
// placed there; pods without an allowed domain keep their demand.
func (s *solver) assign(classes []*class, tiers map[int32]tier) []*lot {
	var lots []*lot
	type job struct {
		c      *class
		places []*place
		extra  [][]int32
		left   int
		spare  []*node
		lots   map[*place]*lot
	}
	var jobs []*job
	for _, c := range classes {
		t := tiers[c.id]
		if len(c.zonal) == 0 {
			lots = append(lots, &lot{class: c, n: s.demand[c.id], cols: s.columnSet(t.id, t.cols)})
			continue
		}
		j := &job{c: c, places: s.places(c, t), left: s.demand[c.id], lots: map[*place]*lot{}, extra: make([][]int32, len(s.keys))}
		for _, key := range c.zonal {
			for _, p := range s.reachable(c, t) {
				if d := p.domains[key]; d >= 0 && !slices.Contains(j.extra[key], d) {
					j.extra[key] = append(j.extra[key], d)
				}
			}
		}
		for _, n := range s.nodes {
			if s.accepts(c.profile, n) && s.roomAllows(c, n) > 0 {
				j.spare = append(j.spare, n)
			}
		}
		jobs = append(jobs, j)
	}
	for moved := true; moved; {
		moved = false
		for _, j := range jobs {
			for j.left > 0 {
				p := s.choosePlace(j.c, j.places, j.extra)
				if p == nil {
					break
				}
				moved = true
				j.left--
				if s.useSpare(j.c, p, &j.spare) {
					continue
				}
				s.bookPlace(j.c, p, 1)
				l := j.lots[p]
				if l == nil {
					t := tiers[j.c.id]
					l = &lot{class: j.c, place: p, cols: s.columnSet(t.id+fmt.Sprint(j.c.zonal)+p.name, p.cols)}
					j.lots[p] = l
					lots = append(lots, l)
				}
				l.n++
			}
		}
	}
	for _, j := range jobs {
		if j.left > 0 {
			s.blamePlaces(j.c, j.places, j.extra)
		}
	}
	return lots
}

// reachable are the places whose domains count for the spread of a class: those that its
// node affinity allows, wherever its volumes are.
func (s *solver) reachable(c *class, t tier) []*place {
	if len(c.snap.Spread) == 0 || len(c.snap.Volumes) == 0 {
		return s.places(c, t)
	}
	id := t.id + "/affinity/" + fmt.Sprint(c.id, c.zonal)
	cols := newBits(len(s.columns))
	for k := range s.columns {
		col := &s.columns[k]
		if s.poolOf(col).Weight == t.weight && s.columnMatches(col, c.snap.Affinity) {
			cols.set(k)
		}
	}
	return s.places(c, tier{weight: t.weight, cols: cols, id: id})
}

func (s *solver) columnSet(id string, cols bitset) *columnSet {
	set := s.sets[id]
	if set == nil {
		set = &columnSet{id: len(s.sets), cols: cols}
		s.sets[id] = set
	}
	return set
}

// choosePlace returns the allowed place with the fewest pods that count, the cheapest
// among equals; nil if none is allowed.
func (s *solver) choosePlace(c *class, places []*place, extra [][]int32) *place {
	var best *place
	least := int64(math.MaxInt64)
	for _, p := range places {
		load := s.placeLoad(c, p)
		if load >= least {
			continue
		}
		if _, ok := s.allowedIn(c, p.domains, extra); ok {
			best, least = p, load
		}
	}
	return best
}

// placeLoad ranks places: even spread first, then where fewest pods of the class's
// groups are.
func (s *solver) placeLoad(c *class, p *place) int64 {
	load := int64(0)
	for _, key := range c.zonal {
		d := p.domains[key]
		if d < 0 {
			continue
		}
		for j := range c.spread {
			if gr := s.groups[c.spread[j].group]; gr.key == key {
				load += int64(at(gr.counts, d)) << 20
			}
		}
		for _, g := range c.adds {
			if gr := s.groups[g]; gr.key == key && gr.kind == spreadGroup {
				load += int64(at(gr.counts, d))
			}
		}
	}
	return load
}

// bookPlace counts k pods of a class in a place; negative k takes them back.
func (s *solver) bookPlace(c *class, p *place, k int32) {
	col := &node{column: p.column, kind: s.columnKind(p.column), domains: p.domains}
	for _, g := range c.adds {
		gr := s.groups[g]
		if gr.key == hostname || gr.kind == softGroup {
			continue
		}
		if d := col.domains[gr.key]; d >= 0 && (gr.kind != spreadGroup || s.counted(s.filters[gr.filter], col)) {
			gr.add(d, k)
		}
	}
	for _, g := range c.guards {
		if gr := s.groups[g]; gr.key != hostname {
			if d := col.domains[gr.key]; d >= 0 {
				gr.guards = stretched(gr.guards, d)
				gr.guards[d] += k
			}
		}
	}
}

// useSpare places one pod on an existing node of the place, if one takes it.
func (s *solver) useSpare(c *class, p *place, spare *[]*node) bool {
	kept := (*spare)[:0]
	done := false
	for _, n := range *spare {
		if s.roomAllows(c, n) == 0 {
			continue
		}
		kept = append(kept, n)
		if done || !s.inPlace(c, p, n) || s.admits(c, n) == 0 {
			continue
		}
		if _, ok := s.placeAllowed(c, n); ok {
			s.put(c, n, 1, false)
			done = true
		}
	}
	*spare = kept
	return done
}

func (s *solver) inPlace(c *class, p *place, n *node) bool {
	for _, key := range c.zonal {
		if n.domains[key] != p.domains[key] {
			return false
		}
	}
	return true
}

// columnKind numbers the new nodes of a column for filters: all columns of a shop that
// agree in the labels of their offering are one kind only if constraints see no other
// difference, so each column is its own.
func (s *solver) columnKind(k int32) int32 {
	if s.colKinds == nil {
		s.colKinds = make([]int32, len(s.columns))
	}
	if s.colKinds[k] == 0 {
		s.colKinds[k] = s.kind(fmt.Sprint("column ", k)) + 1
	}
	return s.colKinds[k] - 1
}
