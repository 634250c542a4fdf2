package pack

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

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
	// weight[a][j] is the value of an item of kind j to the power 1+alphas[a].
	weight [len(alphas)][]float64
	// members are the items by kind; fitting[c*kinds+j] tells whether kind j fits class c.
	members [][]int32
	fitting []bool
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
	var key []byte
	for i := range p.Items {
		var fits []int32
		for _, k := range p.Fits[i] {
			if id := v.class[k]; seen[id] != int32(i)+1 {
				seen[id] = int32(i) + 1
				fits = append(fits, id)
			}
		}
		slices.Sort(fits)
		key = key[:0]
		for _, q := range p.Items[i].Req {
			key = binary.LittleEndian.AppendUint64(key, math.Float64bits(q))
		}
		for _, f := range fits {
			key = binary.LittleEndian.AppendUint32(key, uint32(f))
		}
		id, ok := kinds[string(key)]
		if !ok {
			id = int32(len(v.rel.Fits))
			kinds[string(key)] = id
			v.rel.Fits = append(v.rel.Fits, fits)
			v.rel.Req = append(v.rel.Req, p.Items[i].Req...)
			v.rel.Count = append(v.rel.Count, 0)
			v.members = append(v.members, nil)
		}
		v.kind[i] = id
		v.rel.Count[id] += float64(p.Items[i].Count)
		v.members[id] = append(v.members[id], int32(i))
	}
	// Items with rules of their own come first wherever they are allowed: later on they
	// may not be.
	for _, list := range v.members {
		slices.SortStableFunc(list, func(a, b int32) int {
			return -cmp.Compare(len(p.Items[a].Own), len(p.Items[b].Own))
		})
	}
	for a := range v.weight {
		v.weight[a] = make([]float64, len(v.members))
	}
	v.fitting = make([]bool, len(v.rel.Price)*len(v.members))
	for j, fits := range v.rel.Fits {
		for _, c := range fits {
			v.fitting[int(c)*len(v.members)+j] = true
		}
	}
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
	for j, pi := range v.dual.Pi {
		if math.IsInf(pi, 1) {
			pi = 0
		}
		v.set(int32(j), max(pi, 1e-9))
	}
	return bound
}

// onClass reports whether items of a kind fit columns of a class.
func (v *value) onClass(class, kind int32) bool {
	return v.fitting[int(class)*len(v.members)+int(kind)]
}

// set makes items of a kind worth w.
func (v *value) set(kind int32, w float64) {
	v.weight[0][kind] = w
	for a := 1; a < len(alphas); a++ {
		v.weight[a][kind] = math.Pow(w, 1+alphas[a])
	}
}

// reviseSteps is the number of dual steps after a part of the demand is met.
func (v *value) reviseSteps(ruled bool) int {
	if ruled {
		return 4 // the rules decide more than the values do
	}
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
