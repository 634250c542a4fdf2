package pack

import (
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/schedule/internal/relax"
)

func TestDual(t *testing.T) {
	for _, w := range []struct {
		name, cats string
		gen        int
		arch       string
		n          int
		lp         float64
	}{{"openb", "cmrgp", 2, "amd64", 0, 7045.8}, {"uni", "cmr", 2, "amd64", 5000, 132.2}, {"uni", "", 0, "", 5000, 57.3}} {
		ts := cat(w.cats, w.gen, w.arch)
		p := &Problem{Dims: 4, Items: items(w.name, w.n)}
		for _, t := range ts {
			p.Columns = append(p.Columns, Column{Alloc: t.a, Price: t.price, Shadow: t.price})
		}
		for i := range p.Items {
			var f []int32
			for k, t := range ts {
				ok := true
				for r := range t.a {
					ok = ok && p.Items[i].Req[r] <= t.a[r]
				}
				if ok {
					f = append(f, int32(k))
				}
			}
			p.Fits = append(p.Fits, f)
		}
		for _, steps := range []int{100, 200, 400, 800, 1600} {
			s := newSolver(p)
			st := time.Now()
			d := relax.New(&s.rel)
			b := d.Ascend(&s.rel, steps)
			t.Logf("%s %d: %d steps: %.2f = %.4f of lp, %v", w.name, w.n, steps, b, b/w.lp, time.Since(st))
		}
	}
}
