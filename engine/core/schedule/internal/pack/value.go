package pack

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/schedule/internal/relax"
)

// value is what items are worth, by the relaxation. Items that differ only in their rules
// and in which of several like columns they may use are worth the same, so they and the
// columns are put together before they are valued.
type value struct {
	rel  relax.Problem
	dual *relax.Dual
	// kind and class number items and columns in rel.
	kind, class []int32
	// weight[a][i] is the value of item i to the power 1+alphas[a].
	weight [len(alphas)][]float64
	// best are, for each class of columns, kinds of items by the value per dollar they
	// have there, best first; fresh says that they are up to date.
	best    [][]ranked
	members [][]int32 // items by kind
	fresh   []bool
}

type ranked struct {
	kind    int32
	density float64
}

func newValue(p *Problem) value {
	v := value{kind: make([]int32, len(p.Items)), class: make([]int32, len(p.Columns))}
	v.rel.Dims = p.Dims
	classes := map[int32]int32{}
	for k := range p.Columns {
		c := &p.Columns[k]
		id, ok := classes[c.Class]
		if !ok {
			id = int32(len(v.rel.Price))
			classes[c.Class] = id
			v.rel.Price = append(v.rel.Price, c.Shadow)
			v.rel.Alloc = append(v.rel.Alloc, c.Alloc...)
		}
		v.rel.Price[id] = min(v.rel.Price[id], c.Shadow)
		v.class[k] = id
	}
	kinds := map[string]int32{}
	seen := make([]int32, len(v.rel.Price))
	for i := range p.Items {
		var fits []int32
		for _, k := range p.Fits[i] {
			if id := v.class[k]; seen[id] != int32(i)+1 {
				seen[id] = int32(i) + 1
				fits = append(fits, id)
			}
		}
		slices.Sort(fits)
		var key strings.Builder
		fmt.Fprint(&key, p.Items[i].Req, fits)
		id, ok := kinds[key.String()]
		if !ok {
			id = int32(len(v.rel.Fits))
			kinds[key.String()] = id
			v.rel.Fits = append(v.rel.Fits, fits)
			v.rel.Req = append(v.rel.Req, p.Items[i].Req...)
			v.rel.Count = append(v.rel.Count, 0)
			v.members = append(v.members, nil)
		}
		v.kind[i] = id
		v.rel.Count[id] += float64(p.Items[i].Count)
		v.members[id] = append(v.members[id], int32(i))
	}
	for a := range v.weight {
		v.weight[a] = make([]float64, len(p.Items))
	}
	v.best, v.fresh = make([][]ranked, len(v.rel.Price)), make([]bool, len(v.rel.Price))
	v.dual = relax.New(&v.rel)
	return v
}

// revalue values the items for a demand, in a number of dual steps from where it was,
// and returns the bound.
func (v *value) revalue(demand []int, steps int) float64 {
	clear(v.rel.Count)
	for i, n := range demand {
		v.rel.Count[v.kind[i]] += float64(n)
	}
	bound := v.dual.Ascend(&v.rel, steps)
	for i := range v.kind {
		pi := v.dual.Pi[v.kind[i]]
		if math.IsInf(pi, 1) {
			pi = 0
		}
		v.set(int32(i), max(pi, 1e-9))
	}
	clear(v.fresh)
	return bound
}

// set makes an item worth w.
func (v *value) set(i int32, w float64) {
	v.weight[0][i] = w
	for a := 1; a < len(alphas); a++ {
		v.weight[a][i] = math.Pow(w, 1+alphas[a])
	}
}

// reviseSteps is the number of dual steps after a part of the demand is met.
func (v *value) reviseSteps() int {
	work := 1
	for _, f := range v.rel.Fits {
		work += len(f) * v.rel.Dims
	}
	return max(8, min(40, 2_000_000/work))
}

// lambda are the prices of the resources of column k.
func (v *value) lambda(k int32) []float64 {
	i := int(v.class[k]) * v.rel.Dims
	return v.dual.Lambda[i : i+v.rel.Dims]
}

// bestDensity is the most value per dollar of shadow price that an item with demand has
// on columns like k; it may be an item that fits only others of them.
func (v *value) bestDensity(k int32, demand []int) float64 {
	class := v.class[k]
	if !v.fresh[class] {
		v.fresh[class] = true
		v.rankKinds(class, demand)
	}
	list := v.best[class]
	for len(list) > 0 {
		for _, i := range v.members[list[0].kind] {
			if demand[i] > 0 {
				return list[0].density
			}
		}
		list = list[1:]
		v.best[class] = list
	}
	return 0
}

func (v *value) rankKinds(class int32, demand []int) {
	list := v.best[class][:0]
	D := v.rel.Dims
	lambda := v.dual.Lambda[int(class)*D : int(class)*D+D]
	for kind, fits := range v.rel.Fits {
		if _, ok := slices.BinarySearch(fits, class); !ok {
			continue
		}
		w := 0.0
		for _, i := range v.members[kind] {
			if demand[i] > 0 {
				w = v.weight[0][i]
				break
			}
		}
		if w == 0 {
			continue
		}
		cost := 0.0
		for r, q := range v.rel.Req[kind*D : (kind+1)*D] {
			cost += q * lambda[r]
		}
		d := 1.0
		if cost > 0 {
			d = w / cost
		}
		list = append(list, ranked{int32(kind), d})
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(-cmp.Compare(a.density, b.density), cmp.Compare(a.kind, b.kind))
	})
	v.best[class] = list
}
