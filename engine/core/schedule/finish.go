package schedule

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// menu is what nodes with the same constraints choose from: the columns of one shop that
// accept all their pods.
type menu struct {
	s       *solver
	shop    *shop
	columns []int32
	// sorted makes columns be in the order of price, for those who look at more than the best.
	sorted sync.Once
	// fixed are the labels whose values the pods' places decide.
	fixed map[string]string
	// terms are the node affinity terms that the planned column satisfies.
	terms []requirements.Set
	// plannable are the columns that may be planned: minValues leave other columns to
	// choose from, too.
	plannable bitset
}

// choice is what one node chooses from its menu.
type choice struct {
	menu    *menu
	planned int32
	use     []float64
}

// plan reads the result off the solver.
func (s *solver) plan() Plan {
	p := s.listed()
	p.Bound = s.bound()
	s.explainUnscheduled(&p)
	return p
}

// listed is the plan without its bound and without the pods that have no place.
func (s *solver) listed() Plan {
	var p Plan
	menus := map[string]*menu{}
	order := s.settleNodes(menus)
	index := make([]int, len(s.nodes))
	for i := range index {
		index[i] = -1
	}
	numbers := map[string]int{}
	labels := map[int32]map[string]string{}
	for _, n := range order {
		c := &s.columns[n.column]
		pool := s.poolOf(c)
		numbers[pool.Name]++
		n.name = fmt.Sprintf("%s/%d", pool.Name, numbers[pool.Name])
		it, _ := s.columnType(c)
		if labels[n.column] == nil {
			labels[n.column] = s.labelsOf(c)
		}
		nn := NewNode{
			Name: n.name, Pool: pool.Name, Planned: s.offer(n.column),
			Requests: resources.List{}, Daemons: s.daemons.total[c.daemons], Allocatable: it.Allocatable,
			Labels: labels[n.column], Taints: pool.Taints, StartupTaints: pool.StartupTaints,
			MinValuesRelaxed: c.relaxed, choice: n.choice,
		}
		for _, pp := range n.pods {
			for name, v := range s.classes[pp.class].snap.Requests {
				nn.Requests[name] += v * int64(pp.n)
			}
		}
		p.Cost += nn.Planned.Cost
		p.Bias += nn.Planned.Bias
		index[n.index] = len(p.NewNodes)
		p.NewNodes = append(p.NewNodes, nn)
	}
	s.name(&p, index)
	return p
}

// name gives every placement its pods, in order.
func (s *solver) name(p *Plan, index []int) {
	next := make([]int, len(s.pending))
	n := 0
	for _, pl := range s.placed {
		n += int(pl.n)
	}
	p.Assignments = make([]Assignment, 0, n)
	for _, pl := range s.placed {
		node := s.nodes[pl.node]
		for range pl.n {
			key := s.snap.Pods[s.pending[pl.class][next[pl.class]]].Key
			next[pl.class]++
			p.Assignments = append(p.Assignments, Assignment{Pod: key, Node: node.name, New: node.column >= 0})
			if i := index[node.index]; i >= 0 {
				p.NewNodes[i].Pods = append(p.NewNodes[i].Pods, key)
			}
		}
	}
}

// settleNodes gives every new node with pods its menu and the cheapest column on it,
// drops those without pods, and returns them in the order of the plan.
func (s *solver) settleNodes(menus map[string]*menu) []*node {
	var out []*node
	for _, n := range s.nodes[s.existing:] {
		if len(n.pods) == 0 {
			continue
		}
		s.settle(n, menus)
		out = append(out, n)
	}
	slices.SortStableFunc(out, func(a, b *node) int {
		x, y := &s.columns[a.column], &s.columns[b.column]
		return cmp.Or(
			-cmp.Compare(s.poolOf(x).Weight, s.poolOf(y).Weight), strings.Compare(s.poolOf(x).Name, s.poolOf(y).Name),
			-cmp.Compare(x.price(), y.price()), s.compareColumns(a.column, b.column),
		)
	})
	return out
}

// shrink moves the new nodes to the cheapest columns that hold what is on them.
func (s *solver) shrink() {
	menus := map[string]*menu{}
	for _, n := range s.nodes[s.existing:] {
		if len(n.pods) == 0 || n.dropped {
			continue
		}
		before := n.column
		s.settle(n, menus)
		if n.column == before {
			continue
		}
		for r, a := range s.columns[n.column].alloc {
			n.room[r] = a - n.choice.use[r]
		}
		n.kind = s.columnKind(n.column)
		n.domains = s.domainsOf(n.column)
	}
}

func (s *solver) settle(n *node, menus map[string]*menu) {
	m := s.menuFor(n, menus)
	use := make([]float64, s.D)
	for r := range use {
		use[r] = s.columns[n.column].alloc[r] - n.room[r]
	}
	n.choice = &choice{menu: m, planned: n.column, use: use}
	best := n.column
	s.book(n.column, -1)
	for _, k := range m.columns {
		if s.columns[k].price() > s.columns[best].price() || !holds(s.columns[k].alloc, use) || !m.plannable.has(int(k)) ||
			!n.choice.allows(k) || s.compareColumns(k, best) >= 0 || s.roomFor(k, 1) == 0 {
			continue
		}
		if slices.ContainsFunc(s.besideOf(k), func(o int32) bool { return !slices.Contains(m.columns, o) }) {
			continue
		}
		best = k
	}
	s.book(best, 1)
	n.column, n.choice.planned = best, best
}

// menuFor finds the menu of a node: nodes of one shop whose pods have the same profiles
// and the same fixed labels share one.
func (s *solver) menuFor(n *node, menus map[string]*menu) *menu {
	profiles := map[int32]*profile{}
	fixed := map[string]string{}
	for _, pp := range n.pods {
		c := s.classes[pp.class]
		profiles[c.profile.id] = c.profile
		for _, key := range c.zonal {
			name := s.keys[key].name
			if d := n.domains[key]; d >= 0 {
				fixed[name] = s.keys[key].values[d]
			}
		}
	}
	ids := make([]int, 0, len(profiles))
	for id := range profiles {
		ids = append(ids, int(id))
	}
	slices.Sort(ids)
	col := &s.columns[n.column]
	key := fmt.Sprint(n.shop.index, ids, fixed, col.relaxed, "|", col.supply)
	for _, id := range ids {
		if s.keepsPreference(profiles[int32(id)], n) {
			key += fmt.Sprint("+", id)
		}
	}
	// The terms that the planned column satisfies may differ with the column.
	var terms []requirements.Set
	keep := append(s.besideOf(n.column), n.column)
	for _, id := range ids {
		common := s.commonTerm(profiles[int32(id)], keep)
		for i, t := range profiles[int32(id)].class.Terms {
			if common != nil && t.Equal(common) || common == nil && s.columnMatches(col, []requirements.Set{t}) {
				if len(profiles[int32(id)].class.Terms) > 1 {
					key += fmt.Sprint("/", id, ":", i)
				}
				terms = append(terms, t)
				break
			}
		}
	}
	if m, ok := menus[key]; ok {
		return m
	}
	m := &menu{s: s, shop: n.shop, fixed: fixed, terms: terms}
	cols, plannable := newBits(len(s.columns)), newBits(len(s.columns))
	for k := n.shop.first; k < n.shop.last; k++ {
		cols.set(k)
		plannable.set(k)
	}
	for _, id := range ids {
		p := profiles[int32(id)]
		if s.keepsPreference(p, n) {
			cols.and(p.preferred)
		} else {
			cols.and(p.all)
		}
		plannable.and(p.cols)
	}
	m.plannable = plannable
	for k := n.shop.first; k < n.shop.last; k++ {
		c := &s.columns[k]
		if !cols.has(k) || c.relaxed != col.relaxed || c.supply != col.supply && (c.supply != "" || s.reserved(col)) {
			continue
		}
		ok := true
		for name, v := range fixed {
			if have, _ := s.columnLabel(c, name); have != v {
				ok = false
			}
		}
		for _, t := range terms {
			ok = ok && s.columnMatches(c, []requirements.Set{t})
		}
		if ok {
			m.columns = append(m.columns, int32(k))
		}
	}
	menus[key] = m
	return m
}

// keepsPreference reports whether a node satisfies the preferences of a profile, so that
// what it may be bought as instead must, too. minValues come before preferences.
func (s *solver) keepsPreference(p *profile, n *node) bool {
	return n.shop.minValues == nil && p.preferred.has(int(n.column))
}

// besideOf are the columns of the types that minValues keep beside a column's own.
func (s *solver) besideOf(k int32) []int32 {
	c := &s.columns[k]
	if c.beside == nil || c.relaxed {
		return nil
	}
	_, of := s.columnType(c)
	var out []int32
	sh := s.shops[c.shop]
	for i := sh.first; i < sh.last; i++ {
		o := &s.columns[i]
		if o.relaxed || o.supply != "" || !slices.Contains(c.beside, o.typ) {
			continue
		}
		if _, oo := s.columnType(o); oo.Zone == of.Zone && oo.CapacityType == of.CapacityType {
			out = append(out, int32(i))
		}
	}
	return out
}

// allows reports whether a column may stand in for the planned one: it is no larger in
// what the pool limits, since that was booked for the planned type, and not of a capacity
// type that a launch would take instead although it is not cheaper. Launches take
// reserved capacity before spot, and spot before on-demand.
func (c *choice) allows(k int32) bool {
	if k == c.planned {
		return true
	}
	s := c.menu.s
	_, planned := s.columnType(&s.columns[c.planned])
	_, other := s.columnType(&s.columns[k])
	if other.CapacityType != planned.CapacityType && planned.CapacityType == catalog.OnDemand && s.compareColumns(k, c.planned) > 0 {
		return false
	}
	return s.samePoolLimits(k, c.planned) && s.sameDaemons(&s.columns[k], &s.columns[c.planned])
}

// sameDaemons reports whether two columns run the same daemons, as far as constraints of
// pods look at them.
func (s *solver) sameDaemons(a, b *column) bool {
	if a.daemons == b.daemons {
		return true
	}
	for _, set := range [...][]int{s.daemons.sets[a.daemons], s.daemons.sets[b.daemons]} {
		for _, d := range set {
			if len(s.daemonAdds[d]) > 0 {
				return false
			}
		}
	}
	return true
}

// reserved reports whether a column is a unit of a capacity reservation.
func (s *solver) reserved(c *column) bool {
	_, of := s.columnType(c)
	return of.ReservationID != ""
}

func (c *choice) each(f func(k int32) bool) {
	types := map[int32]bool{}
	s := c.menu.s
	c.menu.sorted.Do(func() { slices.SortFunc(c.menu.columns, s.compareColumns) })
	for _, k := range c.menu.columns {
		col := &s.columns[k]
		if !holds(col.whole, c.use) || !c.allows(k) {
			continue
		}
		if !types[col.typ] {
			if len(types) == s.opts.MaxAlternatives {
				continue
			}
			types[col.typ] = true
		}
		if !f(k) {
			return
		}
	}
}

func (c *choice) offers() []Offer {
	var out []Offer
	type offering struct{ typ, offering int32 }
	seen := make(map[offering]bool, len(c.menu.columns))
	c.each(func(k int32) bool {
		col := &c.menu.s.columns[k]
		if id := (offering{col.typ, col.offering}); !seen[id] { // a commitment's price and the regular one are the same offering
			seen[id] = true
			out = append(out, c.menu.s.offer(k))
		}
		return true
	})
	return out
}

// kind identifies c among the choices of its plan.
func (c *choice) kind() any {
	type kind struct {
		menu    *menu
		planned int32
		use     string
	}
	use := make([]byte, 0, 8*len(c.use))
	for _, u := range c.use {
		use = binary.LittleEndian.AppendUint64(use, math.Float64bits(u))
	}
	return kind{c.menu, c.planned, string(use)}
}

func (c *choice) requirements() requirements.Set {
	s := c.menu.s
	pool := s.snap.Pools[c.menu.shop.pool]
	set := pool.Requirements.Clone()
	delete(set, karpv1.NodeRegisteredLabelKey)
	delete(set, karpv1.NodeInitializedLabelKey)
	for _, t := range c.menu.terms {
		for key, r := range t {
			if key != requirements.FieldName && key != corev1.LabelHostname && (!r.AllowsAbsent() || set.Has(key)) {
				set.Add(r)
			}
		}
	}
	for key, v := range c.menu.fixed {
		set.Add(requirements.In(key, v))
	}
	for key, v := range c.menu.shop.chosen {
		set.Add(requirements.In(key, v))
	}
	values := map[string]map[string]bool{corev1.LabelInstanceTypeStable: {}, corev1.LabelTopologyZone: {}, karpv1.CapacityTypeLabelKey: {}}
	reservations := map[string]bool{}
	c.each(func(k int32) bool {
		o := s.offer(k)
		values[corev1.LabelInstanceTypeStable][o.InstanceType] = true
		values[corev1.LabelTopologyZone][o.Zone] = true
		values[karpv1.CapacityTypeLabelKey][o.CapacityType] = true
		if o.ReservationID != "" {
			reservations[o.ReservationID] = true
		}
		return true
	})
	for key, vs := range values {
		n := set.Get(key).MinValues()
		r := requirements.In(key, sortedKeys(vs)...)
		if set.Has(key) {
			r = set[key].Intersect(r)
		}
		set[key] = r.WithMinValues(n)
	}
	if len(reservations) > 0 && s.columns[c.planned].supply != "" {
		set.Add(requirements.In(catalog.ReservationIDLabel, sortedKeys(reservations)...))
	}
	if s.columns[c.planned].relaxed {
		for key, n := range minValuesOf(pool) {
			if have := c.distinct(key); have < n {
				set[key] = set[key].WithMinValues(max(have, 1))
			}
		}
	}
	return set
}

// distinct is the number of values of a label among the alternatives.
func (c *choice) distinct(key string) int {
	s := c.menu.s
	values := map[string]bool{}
	c.each(func(k int32) bool {
		if v, ok := s.columnLabel(&s.columns[k], key); ok {
			values[v] = true
		}
		return true
	})
	return len(values)
}

func (s *solver) offer(k int32) Offer {
	c := &s.columns[k]
	it, of := s.columnType(c)
	return Offer{InstanceType: it.Name, Zone: of.Zone, CapacityType: of.CapacityType, ReservationID: of.ReservationID, Cost: c.cost, Bias: c.bias}
}

// labelsOf are the labels that are certain for nodes of a column.
func (s *solver) labelsOf(c *column) map[string]string {
	it, of := s.columnType(c)
	out := map[string]string{}
	for key, r := range it.Requirements {
		if v, ok := r.IsSingle(); ok {
			out[key] = v
		}
	}
	for key, v := range s.shops[c.shop].labels {
		out[key] = v
	}
	for key, r := range of.Requirements {
		if v, ok := r.IsSingle(); ok {
			out[key] = v
		}
	}
	out[corev1.LabelInstanceTypeStable] = it.Name
	out[corev1.LabelTopologyZone] = of.Zone
	out[karpv1.CapacityTypeLabelKey] = of.CapacityType
	if of.ReservationID != "" {
		out[catalog.ReservationIDLabel] = of.ReservationID
	}
	return out
}
