package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule/internal/relax"
)

// bounds notes whether the bound that came with packing holds for the whole plan.
type bounds struct {
	packs int
	bound float64
	// narrowed is true if pods were bound to fewer columns than they accept, which makes
	// a bound on those columns no bound at all.
	narrowed bool
	// pods is the number of pods that packing placed.
	pods int
}

func (b *bounds) add(lots []*lot, bound float64) {
	b.packs++
	b.bound = bound
	for _, l := range lots {
		b.narrowed = b.narrowed || l.place != nil || l.bundle != nil
	}
}

// bound is a lower bound on the cost of new nodes for the pods that the plan puts on new
// nodes: that of the packing if there was just one with free choice, else one of its
// own. Limits and rules between pods are left out, which only lowers it.
func (s *solver) bound() catalog.Price {
	onNew := make([]int, len(s.classes))
	pods := 0
	for _, pl := range s.placed {
		if s.nodes[pl.node].column >= 0 {
			onNew[pl.class] += int(pl.n)
			pods += int(pl.n)
		}
	}
	if pods == 0 {
		return 0
	}
	regular := s.bounds.packs == 1 && !s.bounds.narrowed && !s.short() && pods == s.bounds.pods
	for i := range s.columns {
		c := &s.columns[i]
		regular = regular && c.bias == 0 && c.supply == "" && !c.relaxed
	}
	for _, c := range s.classes {
		regular = regular && (c == nil || len(c.shared) == 0)
	}
	for _, p := range s.profiles {
		regular = regular && sameBits(p.all, p.preferred)
	}
	for _, p := range s.snap.Pools {
		regular = regular && p.Weight == s.snap.Pools[0].Weight
	}
	if regular {
		return catalog.Price(math.Floor(s.bounds.bound))
	}
	return s.ownBound(onNew)
}

// boundSteps is the number of dual steps for a bound of its own.
const boundSteps = 300

func (s *solver) ownBound(onNew []int) catalog.Price {
	p, _, credit := s.relaxation(onNew)
	bound := relax.New(p).Ascend(p, relaxSteps(p))
	return catalog.Price(max(0, math.Floor(bound-credit)))
}

// relaxSteps bounds the steps by the size of the problem.
func relaxSteps(p *relax.Problem) int {
	work := 1
	for _, f := range p.Fits {
		work += len(f) * p.Dims
	}
	return max(30, min(boundSteps, 20_000_000/work))
}

// relaxation is the problem of buying for so many pods of each class, without the rules
// between pods. itemOf are the problem's items by class, -1 for none; credit is what finite
// supplies may save.
func (s *solver) relaxation(pods []int) (p *relax.Problem, itemOf []int, credit float64) {
	p = &relax.Problem{Dims: s.D}
	type key struct {
		profile int32
		req     string
	}
	items := map[key]int{}
	itemOf = make([]int, len(pods))
	var profiles []*profile
	for id, n := range pods {
		itemOf[id] = -1
		if n == 0 {
			continue
		}
		c := s.classes[id]
		req := slices.Clone(c.req)
		for _, v := range c.shared { // attached once, however many pods use it
			if d, ok := slices.BinarySearch(s.drivers, v.Driver); ok {
				req[len(s.dims)+d]--
			}
		}
		var b strings.Builder
		fmt.Fprint(&b, req)
		k := key{c.profile.id, b.String()}
		i, ok := items[k]
		if !ok {
			i = len(p.Count)
			items[k] = i
			p.Count = append(p.Count, 0)
			p.Req = append(p.Req, req...)
			profiles = append(profiles, c.profile)
		}
		p.Count[i] += float64(n)
		itemOf[id] = i
	}
	needed := make([]bool, s.D)
	for i, q := range p.Req {
		needed[i%s.D] = needed[i%s.D] || q > 0
	}
	columns, credit := s.boundColumns(profiles, needed)
	for _, k := range columns {
		c := &s.columns[k]
		p.Alloc = append(p.Alloc, c.whole...)
		p.Price = append(p.Price, float64(c.cost))
	}
	p.Fits = make([][]int32, len(p.Count))
	for i := range p.Count {
		req := p.Req[i*s.D : (i+1)*s.D]
		for j, k := range columns {
			if profiles[i].all.has(int(k)) && holds(p.Alloc[j*s.D:(j+1)*s.D], req) {
				p.Fits[i] = append(p.Fits[i], int32(j))
			}
		}
	}
	return p, itemOf, credit
}

// boundColumns are the columns for a bound: for each set of profiles that accept it and
// each allocation the cheapest, less those that another one beats. Columns of limited supply
// are left out if a regular one holds as much; credit is what using up their supply may save
// then.
func (s *solver) boundColumns(profiles []*profile, needed []bool) (columns []int32, credit float64) {
	var distinct []*profile
	seen := map[int32]bool{}
	for _, p := range profiles {
		if !seen[p.id] {
			seen[p.id] = true
			distinct = append(distinct, p)
		}
	}
	type alike struct {
		alloc *float64
		sig   string
	}
	at := map[alike]int{}
	var sigs []string
	savings := map[string]float64{}
	sig := make([]byte, len(distinct))
	for k := range s.columns {
		c := &s.columns[k]
		used := false
		for i, p := range distinct {
			sig[i] = '0'
			if p.all.has(k) {
				sig[i], used = '1', true
			}
		}
		if !used || c.relaxed {
			continue
		}
		if c.supply != "" {
			if regular := s.regularCost(c); !math.IsInf(regular, 1) {
				savings[c.supply] = max(savings[c.supply], regular-float64(c.cost))
				continue
			}
		}
		key := alike{&c.whole[0], string(sig)}
		if i, ok := at[key]; ok {
			if c.cost < s.columns[columns[i]].cost {
				columns[i] = int32(k)
			}
			continue
		}
		at[key] = len(columns)
		columns = append(columns, int32(k))
		sigs = append(sigs, key.sig)
	}
	columns = s.unbeaten(columns, sigs, needed)
	for _, supply := range sortedKeys(savings) {
		credit += savings[supply] * float64(s.units[supply])
	}
	return columns, credit
}

// unbeaten leaves out each column that another one beats: that costs no more, holds no less
// of what is needed and is accepted wherever it is, by sigs. A fractional solution has no use
// for it.
func (s *solver) unbeaten(columns []int32, sigs []string, needed []bool) []int32 {
	order := make([]int, len(columns))
	for i := range order {
		order[i] = i
	}
	size := func(i int) (sum float64) {
		for r, q := range s.columns[columns[i]].whole {
			if needed[r] {
				sum += q
			}
		}
		return sum
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.columns[columns[a]].cost, s.columns[columns[b]].cost), -cmp.Compare(size(a), size(b)))
	})
	beats := func(a, b int) bool {
		for i := range sigs[a] {
			if sigs[a][i] < sigs[b][i] {
				return false
			}
		}
		x, y := s.columns[columns[a]].whole, s.columns[columns[b]].whole
		for r, need := range needed {
			if need && x[r] < y[r] {
				return false
			}
		}
		return true
	}
	var kept []int
	for _, i := range order {
		if !slices.ContainsFunc(kept, func(j int) bool { return beats(j, i) }) {
			kept = append(kept, i)
		}
	}
	slices.Sort(kept)
	out := make([]int32, len(kept))
	for i, j := range kept {
		out[i] = columns[j]
	}
	return out
}

// regularCost is the cost of the cheapest column without limits that holds whatever c
// does, for the same pods; +Inf if there is none.
func (s *solver) regularCost(c *column) float64 {
	least := math.Inf(1)
	for i := range s.columns {
		o := &s.columns[i]
		if o.supply == "" && o.shop == c.shop && float64(o.cost) < least && holds(o.whole, c.whole) {
			_, a := s.columnType(o)
			_, b := s.columnType(c)
			if a.Zone == b.Zone {
				least = float64(o.cost)
			}
		}
	}
	return least
}

func sameBits(a, b bitset) bool { return slices.Equal(a, b) }
