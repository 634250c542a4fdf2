package schedule

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// A shop is a NodePool with one value chosen for every label that the pool leaves open
// and some pod looks at. So all nodes of a shop carry the same labels but for those of
// their offering, and whether a pod accepts a column is one bit.
type shop struct {
	index  int
	pool   int // in snap.Pools
	labels map[string]string
	// chosen are the labels for which the shop chose a value.
	chosen map[string]string
	// minValues are the pool's, by label.
	minValues map[string]int
	// first and last bound the shop's columns.
	first, last int
}

// column is an offering in a shop.
type column struct {
	shop     int32
	typ      int32 // in the pool's catalogue
	offering int32
	// alloc is what a node of it has for pods, daemons subtracted; shared between
	// columns that are alike in it.
	alloc   []float64
	allocID int32
	// whole is alloc before minValues narrowed it, beside are the types that they keep
	// with the column's own.
	whole   []float64
	beside  []int32
	daemons int32 // index of the set of daemons
	// relaxed columns ignore their pool's minValues, for pods that cannot have them.
	relaxed    bool
	cost, bias catalog.Price
	// supply names the reservation or commitment that the column takes a unit of.
	supply string
	deny   string
}

func (c *column) price() float64 { return float64(c.cost + c.bias) }

// limit is what a pool may still buy.
type limit struct {
	names     []corev1.ResourceName
	remaining []float64
}

// maxShops bounds the combinations of open labels per pool.
const maxShops = 64

func (s *solver) compileShops() {
	s.limits = make([]*limit, len(s.snap.Pools))
	daemonSets := s.daemonSets()
	for i, p := range s.snap.Pools {
		if p.Limits != nil {
			l := &limit{}
			for _, name := range p.Limits.Names() {
				l.names = append(l.names, name)
				l.remaining = append(l.remaining, float64(p.Limits[name]-p.Usage[name]))
			}
			s.limits[i] = l
		}
		if p.Unusable != "" {
			continue
		}
		for _, choice := range s.openLabels(p) {
			s.openShop(i, p, choice)
		}
	}
	for _, p := range s.profiles {
		p.cols = s.columnsFor(p.class)
	}
	daemonSets.subtract(s)
	for _, p := range s.profiles {
		if len(p.class.Ports) > 0 {
			daemonSets.closePorts(s, p)
		}
	}
	for i := range s.columns {
		s.columns[i].whole = s.columns[i].alloc
	}
	for _, p := range s.profiles {
		p.all = p.cols.clone()
	}
	for _, sh := range s.shops {
		s.keepChoice(sh)
	}
	s.units = maps.Clone(s.supply)
	for _, p := range s.profiles {
		p.preferred = s.prefer(p)
	}
	for _, c := range s.classes {
		if c == nil {
			continue
		}
		c.fits = newBits(len(s.allocs))
		for id, a := range s.allocs {
			if daemonsFit(a) && holds(a, c.req) {
				c.fits.set(id)
			}
		}
	}
}

// fixedByOffering are the labels whose values an offering decides.
func fixedByOffering(key string) bool {
	return key == corev1.LabelTopologyZone || key == karpv1.CapacityTypeLabelKey || key == catalog.ReservationIDLabel
}

// openLabels lists the ways to choose a value for each label that some pod looks at and
// the pool leaves open. There is at least one, which may be empty.
func (s *solver) openLabels(p *snapshot.Pool) []map[string]string {
	choices := []map[string]string{{}}
	for _, key := range sortedKeys(s.snap.LabelKeys) {
		if fixedByOffering(key) || key == corev1.LabelHostname || key == requirements.FieldName {
			continue
		}
		want := p.Requirements.Get(key)
		if _, single := want.IsSingle(); single || want.IsEmpty() {
			continue
		}
		values := map[string]bool{}
		onTypes := false
		for _, t := range p.Catalog.Types() {
			r, ok := t.Requirements[key]
			if !ok {
				continue
			}
			onTypes = true
			if _, single := r.IsSingle(); single || r.Complement() {
				continue
			}
			for _, v := range r.Values() {
				if want.Has(v) {
					values[v] = true
				}
			}
		}
		if !onTypes && p.Requirements.Has(key) {
			if want.Complement() {
				for _, v := range s.mentioned(want) {
					values[v] = true
				}
				if v := someValue(want); len(values) == 0 && v != "" {
					values[v] = true
				}
			} else {
				for _, v := range want.Values() {
					values[v] = true
				}
			}
		}
		if len(values) == 0 {
			continue
		}
		var next []map[string]string
		for _, c := range choices {
			for _, v := range sortedKeys(values) {
				if len(next) == maxShops {
					break
				}
				m := map[string]string{key: v}
				for k, w := range c {
					m[k] = w
				}
				next = append(next, m)
			}
		}
		choices = next
	}
	return choices
}

// mentioned are values that pods ask of a label, one at least for each way of asking, as
// far as want allows them.
func (s *solver) mentioned(want requirements.Requirement) []string {
	values := map[string]bool{}
	look := func(set requirements.Set) {
		r, ok := set[want.Key()]
		if !ok {
			return
		}
		both := want.Intersect(r)
		if both.Complement() {
			if v := someValue(both); v != "" {
				values[v] = true
			}
			return
		}
		for _, v := range both.Values() {
			values[v] = true
		}
	}
	for _, p := range s.profiles {
		for _, t := range p.class.Terms {
			look(t)
		}
		for _, t := range p.class.Preferred {
			look(t.Term)
		}
	}
	return sortedKeys(values)
}

// someValue is a value that a requirement without listed values allows: the least
// number within bounds, else a word.
func someValue(r requirements.Requirement) string {
	if gte, lte := r.Bounds(); gte != nil || lte != nil {
		n := int64(0)
		if gte != nil {
			n = *gte
		} else if *lte < 0 {
			n = *lte
		}
		for range 1000 {
			if v := fmt.Sprint(n); r.Has(v) {
				return v
			}
			n++
		}
		return ""
	}
	for _, v := range []string{"true", "yes", "any", "default"} {
		if r.Has(v) {
			return v
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// openShop adds the columns of a pool under a choice of open labels.
func (s *solver) openShop(pool int, p *snapshot.Pool, choice map[string]string) {
	sh := &shop{index: len(s.shops), pool: pool, labels: p.Labels(), chosen: choice, minValues: minValuesOf(p), first: len(s.columns)}
	want := p.Requirements.Clone()
	for k, v := range choice {
		sh.labels[k] = v
		want.Add(requirements.In(k, v))
	}
	choosy := sh.minValues != nil
	types := p.Catalog.Types()
	for _, sold := range p.Catalog.Sold(want) {
		it := &types[sold.Type]
		of, o := &it.Offerings[sold.Offering], int(sold.Offering)
		c := column{shop: int32(sh.index), typ: sold.Type, offering: sold.Offering, cost: of.Price}
		if s.opts.Costs != nil {
			c.cost, c.bias, c.deny = s.opts.Costs.Cost(p.Name, it, o)
		}
		if c.deny != "" {
			continue
		}
		if of.ReservationID != "" {
			c.supply = "reservation/" + of.ReservationID
			if n, ok := s.supply[c.supply]; !ok || of.ReservationCapacity < n {
				s.supply[c.supply] = of.ReservationCapacity
			}
		}
		s.columns = append(s.columns, c)
		if choosy && s.opts.MinValues == BestEffort {
			c.relaxed = true
			s.columns = append(s.columns, c)
		}
		if s.opts.Costs != nil {
			if id, cost, ok := s.opts.Costs.Cover(p.Name, it, o); ok && c.supply == "" {
				covered := c
				covered.cost, covered.supply = cost, "commitment/"+id
				s.supply[covered.supply] = s.opts.Costs.Units(id)
				s.columns = append(s.columns, covered)
			}
		}
	}
	sh.last = len(s.columns)
	s.shops = append(s.shops, sh)
}

// columnType returns the instance type and offering of a column.
func (s *solver) columnType(c *column) (*catalog.InstanceType, *catalog.Offering) {
	it := &s.snap.Pools[s.shops[c.shop].pool].Catalog.Types()[c.typ]
	return it, &it.Offerings[c.offering]
}

func (s *solver) poolOf(c *column) *snapshot.Pool { return s.snap.Pools[s.shops[c.shop].pool] }

// columnLabel is the value of a label on nodes of a column; ok is false if they lack it
// or if it is not certain.
func (s *solver) columnLabel(c *column, key string) (string, bool) {
	it, of := s.columnType(c)
	switch key {
	case corev1.LabelTopologyZone:
		return of.Zone, true
	case karpv1.CapacityTypeLabelKey:
		return of.CapacityType, true
	case catalog.ReservationIDLabel:
		return of.ReservationID, of.ReservationID != ""
	}
	if r, ok := of.Requirements[key]; ok {
		return r.IsSingle()
	}
	if v, ok := s.shops[c.shop].labels[key]; ok {
		return v, true
	}
	if r, ok := it.Requirements[key]; ok {
		return r.IsSingle()
	}
	return "", false
}

// columnsFor is the set of columns whose nodes' labels and taints suit a class.
func (s *solver) columnsFor(class *snapshot.Class) bitset {
	out := newBits(len(s.columns))
	for _, sh := range s.shops {
		if !snapshot.Tolerates(class.Tolerations, s.snap.Pools[sh.pool].Taints) {
			continue
		}
		for _, term := range class.Terms {
			s.addMatching(out, sh, term)
		}
	}
	return out
}

// addMatching adds the columns of a shop that satisfy term.
func (s *solver) addMatching(out bitset, sh *shop, term requirements.Set) {
	var onType, onOffering []requirements.Requirement
	pool := s.snap.Pools[sh.pool]
	for key, r := range term {
		if key == requirements.FieldName || key == corev1.LabelHostname {
			if !r.Complement() {
				return // a new node has a name of its own
			}
			continue
		}
		if fixedByOffering(key) || s.onOfferings(pool.Catalog, key) {
			onOffering = append(onOffering, r)
			continue
		}
		if v, ok := sh.labels[key]; ok {
			if !r.Has(v) {
				return
			}
			continue
		}
		onType = append(onType, r)
	}
	types := pool.Catalog.Types()
	verdict := make([]uint8, len(types))
	type place struct{ zone, capacity, reservation string }
	known := map[place]bool{}
	for i := sh.first; i < sh.last; i++ {
		c := &s.columns[i]
		if out.has(i) {
			continue
		}
		if verdict[c.typ] == 0 {
			verdict[c.typ] = 1
			for _, r := range onType {
				have, ok := types[c.typ].Requirements[r.Key()]
				v, single := have.IsSingle()
				if ok && (!single || !r.Has(v)) || !ok && !r.AllowsAbsent() {
					verdict[c.typ] = 2
					break
				}
			}
		}
		if verdict[c.typ] == 2 {
			continue
		}
		if len(onOffering) > 0 {
			of := &types[c.typ].Offerings[c.offering]
			p := place{of.Zone, of.CapacityType, of.ReservationID}
			ok, seen := known[p]
			if !seen || of.Requirements != nil {
				ok = true
				for _, r := range onOffering {
					v, has := s.columnLabel(c, r.Key())
					if has && !r.Has(v) || !has && !r.AllowsAbsent() {
						ok = false
						break
					}
				}
				known[p] = ok
			}
			if !ok {
				continue
			}
		}
		out.set(i)
	}
}

// onOfferings reports whether some offering of a catalogue has a label of its own.
func (s *solver) onOfferings(c *catalog.Catalog, key string) bool {
	if s.offeringKeys == nil {
		s.offeringKeys = map[*catalog.Catalog]map[string]bool{}
	}
	keys, ok := s.offeringKeys[c]
	if !ok {
		keys = map[string]bool{}
		for _, t := range c.Types() {
			for i := range t.Offerings {
				for k := range t.Offerings[i].Requirements {
					keys[k] = true
				}
			}
		}
		s.offeringKeys[c] = keys
	}
	return keys[key]
}

// prefer keeps of a profile's columns those that satisfy most of its preferences, by
// the sum of their weights. Each PreferNoSchedule taint that is not tolerated counts
// against a column more than all preferences together, as in kube-scheduler's default
// weights.
func (s *solver) prefer(p *profile) bitset {
	if s.opts.Preferences == Ignore {
		return p.cols
	}
	softTaints := false
	for _, sh := range s.shops {
		softTaints = softTaints || slices.ContainsFunc(s.snap.Pools[sh.pool].Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectPreferNoSchedule })
	}
	if len(p.class.Preferred) == 0 && !softTaints {
		return p.cols
	}
	score := make(map[int]int)
	for _, t := range p.class.Preferred {
		m := newBits(len(s.columns))
		for _, sh := range s.shops {
			s.addMatching(m, sh, t.Term)
		}
		m.each(func(i int) { score[i] += int(t.Weight) })
	}
	best := math.MinInt
	p.cols.each(func(i int) {
		score[i] -= 10000 * snapshot.SoftUntolerated(p.class.Tolerations, s.poolOf(&s.columns[i]).Taints)
		best = max(best, score[i])
	})
	out := newBits(len(s.columns))
	p.cols.each(func(i int) {
		if score[i] == best {
			out.set(i)
		}
	})
	return out
}

// countsColumn is [solver.countsNode] for a new node.
func (s *solver) countsColumn(f *filter, n *node) bool {
	c := &s.columns[n.column]
	if f.taints && !snapshot.Tolerates(f.class.Tolerations, s.poolOf(c).Taints) {
		return false
	}
	return !f.affinity || s.columnMatches(c, f.class.Affinity)
}

// columnMatches reports whether nodes of a column satisfy one of the terms.
func (s *solver) columnMatches(c *column, terms []requirements.Set) bool {
	for _, t := range terms {
		ok := true
		for key, r := range t {
			if key == requirements.FieldName || key == corev1.LabelHostname {
				ok = ok && r.Complement()
				continue
			}
			v, has := s.columnLabel(c, key)
			if has && !r.Has(v) || !has && !r.AllowsAbsent() {
				ok = false
			}
		}
		if ok {
			return true
		}
	}
	return false
}

// daemonSets knows which daemons run on which columns.
type daemonSets struct {
	daemons []*snapshot.Daemon
	// sets are the distinct sets of daemons that occur together.
	sets  [][]int
	total []resources.List
}

func (s *solver) daemonSets() *daemonSets {
	s.daemons = &daemonSets{daemons: s.snap.Daemons}
	return s.daemons
}

// subtract gives every column what its type has for pods once its daemons run.
func (d *daemonSets) subtract(s *solver) {
	var cols []bitset
	for _, dm := range d.daemons {
		cols = append(cols, s.columnsFor(dm.Class))
	}
	byKey := map[string]int32{}
	type net struct {
		pool *catalog.Catalog
		typ  int32
		set  int32
	}
	alloc := map[net]int32{}
	key := make([]byte, len(cols))
	for i := range s.columns {
		c := &s.columns[i]
		for j, m := range cols {
			key[j] = '0'
			if m.has(i) {
				key[j] = '1'
			}
		}
		set, ok := byKey[string(key)]
		if !ok {
			set = int32(len(d.sets))
			byKey[string(key)] = set
			members, total := []int{}, resources.List{}
			for j := range cols {
				if key[j] == '1' {
					members = append(members, j)
					total.AddTo(d.daemons[j].Class.Requests)
				}
			}
			d.sets = append(d.sets, members)
			d.total = append(d.total, total)
		}
		c.daemons = set
		pool := s.poolOf(c).Catalog
		k := net{pool, c.typ, set}
		id, ok := alloc[k]
		if !ok {
			it := &pool.Types()[c.typ]
			v := s.vector(it.Allocatable, it.AttachLimits)
			for r, name := range s.dims {
				v[r] -= float64(d.total[set][name])
			}
			id = s.addAlloc(v)
			alloc[k] = id
		}
		c.alloc, c.allocID = s.allocs[id], id
	}
}

func (s *solver) addAlloc(v []float64) int32 {
	s.allocs = append(s.allocs, v)
	return int32(len(s.allocs) - 1)
}

// closePorts takes from a profile the columns where a daemon has one of its host ports.
func (d *daemonSets) closePorts(s *solver, p *profile) {
	conflict := make([]bool, len(d.sets))
	for i, set := range d.sets {
		for _, j := range set {
			conflict[i] = conflict[i] || portsConflict(d.daemons[j].Class.Ports, p.class.Ports)
		}
	}
	cols := p.cols.clone()
	p.cols.each(func(i int) {
		if conflict[s.columns[i].daemons] {
			cols[i/64] &^= 1 << (i % 64)
		}
	})
	p.cols = cols
}

func portsConflict(a, b []snapshot.Port) bool {
	for _, p := range a {
		for _, q := range b {
			if p.Conflicts(q) {
				return true
			}
		}
	}
	return false
}

// holds reports whether an empty node of a column has room for one pod of a class.
func holds(alloc, req []float64) bool {
	for r, q := range req {
		if q > 0 && q > alloc[r] {
			return false
		}
	}
	return true
}

// daemonsFit reports whether a column's daemons leave it at least nothing.
func daemonsFit(alloc []float64) bool {
	return !slices.ContainsFunc(alloc, func(v float64) bool { return v < 0 })
}

// room is how many more of a column the limits of its pool, and its supply, allow; at
// most n.
func (s *solver) roomFor(k int32, n int) int {
	c := &s.columns[k]
	if c.supply != "" {
		n = min(n, s.supply[c.supply])
	}
	if l := s.limits[s.shops[c.shop].pool]; l != nil {
		for i, name := range l.names {
			each := s.booked(c, name)
			switch {
			case l.remaining[i] < each:
				return 0
			case each > 0:
				n = min(n, int(l.remaining[i]/each))
			}
		}
	}
	return max(n, 0)
}

// book takes n of a column from the limits and the supply; negative n gives back.
func (s *solver) book(k int32, n int) {
	c := &s.columns[k]
	if c.supply != "" {
		s.supply[c.supply] -= n
	}
	if l := s.limits[s.shops[c.shop].pool]; l != nil {
		for i, name := range l.names {
			l.remaining[i] -= s.booked(c, name) * float64(n)
		}
	}
}

// booked is what one node of a column counts against a limit: the capacity of its type,
// or of the largest type that minValues keep beside it.
func (s *solver) booked(c *column, name corev1.ResourceName) float64 {
	if name == snapshot.NodesResource {
		return 1
	}
	types := s.poolOf(c).Catalog.Types()
	v := types[c.typ].Capacity[name]
	for _, t := range c.beside {
		v = max(v, types[t].Capacity[name])
	}
	return float64(v)
}
