package relax

import (
	"math"
	"testing"
)

func TestAscend(t *testing.T) {
	tests := map[string]struct {
		p    Problem
		want float64 // the relaxation's optimum, by hand
		tol  float64
	}{
		"one column, one resource": {
			p:    Problem{Dims: 1, Req: []float64{1}, Count: []float64{10}, Alloc: []float64{4}, Price: []float64{2}, Fits: [][]int32{{0}}},
			want: 5, tol: 1e-9,
		},
		"the scarce resource takes the whole price": {
			p:    Problem{Dims: 2, Req: []float64{1, 1}, Count: []float64{8}, Alloc: []float64{4, 8}, Price: []float64{1}, Fits: [][]int32{{0}}},
			want: 2, tol: 0.01,
		},
		"two shapes share a column that fits both together": {
			// One of each fills the column, so five columns are enough and needed.
			p:    Problem{Dims: 2, Req: []float64{3, 1, 1, 3}, Count: []float64{5, 5}, Alloc: []float64{4, 4}, Price: []float64{1}, Fits: [][]int32{{0}, {0}}},
			want: 5, tol: 0.02,
		},
		"an item that fits one column only is priced by it": {
			p:    Problem{Dims: 1, Req: []float64{1, 5}, Count: []float64{8, 1}, Alloc: []float64{4, 8}, Price: []float64{1, 4}, Fits: [][]int32{{0, 1}, {1}}},
			want: 4.5, tol: 0.01,
		},
		"an item without a column is left out": {
			p:    Problem{Dims: 1, Req: []float64{1, 1}, Count: []float64{4, 4}, Alloc: []float64{4}, Price: []float64{1}, Fits: [][]int32{{0}, nil}},
			want: 1, tol: 1e-9,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := New(&tt.p)
			got := d.Ascend(&tt.p, 2000)
			if got > tt.want+1e-9 || got < tt.want*(1-tt.tol) {
				t.Errorf("Ascend() = %v, want at most %v and within %v of it", got, tt.want, tt.tol)
			}
			for k, price := range tt.p.Price {
				sum := 0.0
				for r := range tt.p.Dims {
					sum += d.Lambda[k*tt.p.Dims+r] * tt.p.Alloc[k*tt.p.Dims+r]
				}
				if sum > price*(1+1e-9) {
					t.Errorf("column %d: resources cost %v, more than its price %v: the bound is not valid", k, sum, price)
				}
			}
			if last := len(tt.p.Count) - 1; tt.p.Fits[last] == nil && !math.IsInf(d.Pi[last], 1) {
				t.Errorf("Pi of an item without columns = %v, want +Inf", d.Pi[last])
			}
		})
	}
}
