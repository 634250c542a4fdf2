package pack

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMemo(t *testing.T) {
	var m Memo
	opts := Options{DualSteps: 60, Improve: 40}
	first := problem(6, 9, 5)
	want := Solve(first, opts)
	if diff := cmp.Diff(want, m.Solve(first, opts)); diff != "" {
		t.Errorf("Memo.Solve() differs from Solve() (-want +got):\n%s", diff)
	}
	renumbered := problem(6, 9, 5)
	for k := range renumbered.Columns {
		renumbered.Columns[k].Class += 7
	}
	if got := m.Solve(renumbered, opts); &got.Nodes[0] != &m.young[m.key(first, opts)].Nodes[0] {
		t.Error("an equal problem is solved again")
	}
	changes := map[string]func(*Problem, *Options){
		"the number of an item": func(p *Problem, _ *Options) { p.Items[0].Count++ },
		"a request":             func(p *Problem, _ *Options) { p.Items[0].Req[0]++ },
		"a rule": func(p *Problem, _ *Options) {
			p.Items[0].Own = []Own{{Max: 1, Self: true}}
			p.Items[0].Adds = []int32{0}
			p.Groups = 1
		},
		"a price":            func(p *Problem, _ *Options) { p.Columns[8].Price *= 2 },
		"a size":             func(p *Problem, _ *Options) { p.Columns[8].Alloc[0]++ },
		"where an item fits": func(p *Problem, _ *Options) { p.Fits[0] = p.Fits[0][:len(p.Fits[0])-1] },
		"equal columns":      func(p *Problem, _ *Options) { p.Columns[1].Class = p.Columns[0].Class },
		"the work to spend":  func(_ *Problem, o *Options) { o.Improve = 0 },
	}
	for name, change := range changes {
		p, o := problem(6, 9, 5), opts
		change(p, &o)
		if m.key(p, o) == m.key(first, opts) {
			t.Errorf("%s makes no difference", name)
		}
	}
	for n := range 2*memoSize + 10 { // the oldest are forgotten
		p := problem(1, 1, 1)
		p.Columns[0].Price = float64(n + 1)
		m.Solve(p, Options{})
	}
	if n := len(m.young) + len(m.old); n > 2*memoSize {
		t.Errorf("%d results are remembered, want at most %d", n, 2*memoSize)
	}
}
