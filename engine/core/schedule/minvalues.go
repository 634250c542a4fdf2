package schedule

import (
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// minValuesOf are the labels of which a pool's NodeClaims must offer several values, and
// how many; nil if there are none.
func minValuesOf(p *snapshot.Pool) map[string]int {
	var out map[string]int
	for key, r := range p.Requirements {
		if n := r.MinValues(); n > 1 {
			if out == nil {
				out = map[string]int{}
			}
			out[key] = n
		}
	}
	return out
}

// mustChoose reports whether a column's pool wants several values of one of the keys, so
// that a pod which fixes the value cannot have it.
func (s *solver) mustChoose(k int, keys []int32) bool {
	c := &s.columns[k]
	if c.relaxed {
		return false
	}
	want := s.shops[c.shop].minValues
	if want == nil {
		return false
	}
	for _, key := range keys {
		name := s.keys[key].name
		if want[name] > 1 {
			return true
		}
		if _, fixed := s.shops[c.shop].labels[name]; fixed || fixedByOffering(name) {
			continue
		}
		for other := range want { // a label of the type fixes the others of the type
			if !fixedByOffering(other) {
				return true
			}
		}
	}
	return false
}

// keepChoice makes the columns of a shop whose pool has minValues no larger than what
// enough of its types hold: whatever fits such a column fits the required number of
// types. A pod that does not accept those types does not accept the column.
func (s *solver) keepChoice(sh *shop) {
	pool := s.snap.Pools[sh.pool]
	want := minValuesOf(pool)
	if want == nil {
		return
	}
	types := pool.Catalog.Types()
	type spot struct {
		typ            int32
		zone, capacity string
	}
	at := map[spot]int{}
	var members []int32
	allocOf := map[int32][]float64{}
	for k := sh.first; k < sh.last; k++ {
		c := &s.columns[k]
		if c.relaxed || c.supply != "" {
			continue
		}
		of := &types[c.typ].Offerings[c.offering]
		at[spot{c.typ, of.Zone, of.CapacityType}] = k
		if allocOf[c.typ] == nil {
			allocOf[c.typ] = slices.Clone(c.alloc)
			members = append(members, c.typ)
		}
		for r, v := range c.alloc { // daemons may differ between offerings
			allocOf[c.typ][r] = min(allocOf[c.typ][r], v)
		}
	}
	choices := map[int32][]int32{}
	shared := map[int32]int32{}
	for _, t := range members {
		choice, alloc := s.choice(t, members, allocOf, types, want)
		if choice == nil {
			continue
		}
		choices[t] = choice
		shared[t] = s.addAlloc(alloc)
	}
	for k := sh.first; k < sh.last; k++ {
		c := &s.columns[k]
		if c.relaxed {
			continue
		}
		choice, ok := choices[c.typ]
		if !ok {
			for _, p := range s.profiles {
				p.cols.clear(k)
			}
			continue
		}
		c.allocID = shared[c.typ]
		c.alloc, c.beside = s.allocs[c.allocID], choice
		of := &types[c.typ].Offerings[c.offering]
		beside := make([]int32, 0, len(choice))
		for _, t := range choice {
			if other, ok := at[spot{t, of.Zone, of.CapacityType}]; ok && s.sameDaemons(c, &s.columns[other]) {
				beside = append(beside, int32(other))
			}
		}
		for _, p := range s.profiles {
			if len(beside) < len(choice) || p.all.has(k) && s.commonTerm(p, beside) == nil {
				p.cols.clear(k)
			}
		}
	}
	for key, n := range want {
		if !fixedByOffering(key) {
			continue
		}
		for _, p := range s.profiles {
			values := map[string]bool{}
			for k := sh.first; k < sh.last; k++ {
				if p.cols.has(k) && !s.columns[k].relaxed {
					v, _ := s.columnLabel(&s.columns[k], key)
					values[v] = true
				}
			}
			if len(values) >= n {
				continue
			}
			for k := sh.first; k < sh.last; k++ {
				if !s.columns[k].relaxed {
					p.cols.clear(k)
				}
			}
		}
	}
}

// commonTerm is the first node affinity term of a profile that all the columns satisfy;
// nil if there is none.
func (s *solver) commonTerm(p *profile, columns []int32) requirements.Set {
	for _, t := range p.class.Terms {
		ok := true
		for _, k := range columns {
			ok = ok && p.all.has(int(k)) && s.columnMatches(&s.columns[k], []requirements.Set{t})
		}
		if ok {
			return t
		}
	}
	return nil
}

// choice adds types to t, those that shrink what all hold together the least, until
// every wanted key has its number of values; nil if there are too few types. Offerings
// decide some keys; those are not counted here.
func (s *solver) choice(t int32, members []int32, allocOf map[int32][]float64, types []catalog.InstanceType, want map[string]int) ([]int32, []float64) {
	choice := []int32{t}
	alloc := slices.Clone(allocOf[t])
	values := map[string]map[string]bool{}
	for key := range want {
		values[key] = map[string]bool{}
	}
	addValues := func(u int32) {
		for key := range want {
			r, ok := types[u].Requirements[key]
			if !ok {
				continue
			}
			for _, v := range r.Values() {
				values[key][v] = true
			}
		}
	}
	addValues(t)
	for {
		missing := ""
		for _, key := range sortedKeys(want) {
			if !fixedByOffering(key) && len(values[key]) < want[key] {
				missing = key
				break
			}
		}
		if missing == "" {
			return choice, alloc
		}
		best, least := int32(-1), 0.0
		for _, u := range members {
			r, ok := types[u].Requirements[missing]
			if !ok || slices.Contains(choice, u) {
				continue
			}
			if !slices.ContainsFunc(r.Values(), func(v string) bool { return !values[missing][v] }) {
				continue
			}
			loss := 0.0
			for d, v := range allocOf[u] {
				if v < alloc[d] && alloc[d] > 0 {
					loss = max(loss, (alloc[d]-v)/alloc[d])
				}
			}
			if best < 0 || loss < least {
				best, least = u, loss
			}
		}
		if best < 0 {
			return nil, nil
		}
		choice = append(choice, best)
		addValues(best)
		for d, v := range allocOf[best] {
			alloc[d] = min(alloc[d], v)
		}
	}
}
