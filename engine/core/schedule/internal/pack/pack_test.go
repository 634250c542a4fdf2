package pack

import (
	"math/rand/v2"
	"testing"
)

// problem makes n kinds of items and k columns of growing size whose prices grow with it.
func problem(n, k, count int) *Problem {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(k)))
	p := &Problem{Dims: 2}
	for j := range k {
		size := float64(j + 2)
		shape := []float64{2, 4, 8}[j%3] // memory to a core
		p.Columns = append(p.Columns, Column{
			Class: int32(j), Alloc: []float64{size * 1000, size * shape * 1024}, Price: size * (30 + 4*shape), Shadow: size * (30 + 4*shape),
		})
	}
	for range n {
		p.Items = append(p.Items, Item{Count: count, Req: []float64{float64(100 + rng.IntN(1400)), float64(128 + rng.IntN(4000))}})
	}
	fit(p)
	return p
}

func fit(p *Problem) {
	p.Fits = make([][]int32, len(p.Items))
	for i := range p.Items {
		for k, c := range p.Columns {
			if p.Items[i].Req[0] <= c.Alloc[0] && p.Items[i].Req[1] <= c.Alloc[1] {
				p.Fits[i] = append(p.Fits[i], int32(k))
			}
		}
	}
}

// verify checks that res holds every item once, by room and by rules, and returns what
// it costs.
func verify(t testing.TB, p *Problem, res Result) float64 {
	t.Helper()
	placed := make([]int, len(p.Items))
	cost := 0.0
	for _, n := range res.Nodes {
		cost += p.Columns[n.Column].Price
		use := make([]float64, p.Dims)
		count := map[int32]int32{}
		for _, c := range n.Items {
			placed[c.Item] += int(c.N)
			for r, q := range p.Items[c.Item].Req {
				use[r] += float64(c.N) * q
			}
			for _, g := range p.Items[c.Item].Adds {
				count[g] += c.N
			}
		}
		for r, a := range p.Columns[n.Column].Alloc {
			if use[r] > a {
				t.Errorf("a node of column %d uses %v of resource %d, has %v", n.Column, use[r], r, a)
			}
		}
		for _, c := range n.Items {
			for _, o := range p.Items[c.Item].Own {
				if o.Self && count[o.Group] > o.Max {
					t.Errorf("a node has %d items of group %d, allowed are %d", count[o.Group], o.Group, o.Max)
				}
			}
		}
	}
	for i, n := range placed {
		if n+res.Left[i] != p.Items[i].Count {
			t.Errorf("item %d: %d placed and %d left of %d", i, n, res.Left[i], p.Items[i].Count)
		}
	}
	return cost
}

func TestSolve(t *testing.T) {
	for _, size := range []struct{ items, columns, count int }{{1, 1, 1}, {3, 2, 5}, {12, 9, 40}, {40, 24, 7}} {
		p := problem(size.items, size.columns, size.count)
		plain := verify(t, p, Solve(p, Options{DualSteps: 200}))
		res := Solve(p, Options{DualSteps: 200, Improve: 200})
		cost := verify(t, p, res)
		if cost > plain {
			t.Errorf("%+v: improved cost %v is above %v", size, cost, plain)
		}
		if res.Bound > cost*(1+1e-9) {
			t.Errorf("%+v: bound %v is above the cost %v", size, res.Bound, cost)
		}
		if size.items >= 12 && cost > 1.1*res.Bound {
			t.Errorf("%+v: cost %v is more than a tenth above the bound %v", size, cost, res.Bound)
		}
	}
}

func TestSolve_rules(t *testing.T) {
	p := problem(4, 20, 30)
	p.Groups = 1
	p.Items[0].Own, p.Items[0].Adds = []Own{{Group: 0, Max: 1, Self: true}}, []int32{0}
	res := Solve(p, Options{DualSteps: 100, Improve: 100})
	verify(t, p, res)
	// 30 nodes are forced; everything else has room on them.
	if len(res.Nodes) != 30 {
		t.Errorf("%d nodes, want the 30 that the rule forces", len(res.Nodes))
	}
}

// few allows a number of nodes of each column.
type few struct{ left []int }

func (f *few) Room(k, n int) int { return min(n, f.left[k]) }
func (f *few) Take(k, n int)     { f.left[k] -= n }

func TestSolve_ledger(t *testing.T) {
	p := problem(3, 4, 50)
	f := &few{left: []int{2, 1, 0, 3}}
	p.Ledger, p.Finite = f, true
	res := Solve(p, Options{DualSteps: 100, Improve: 100})
	verify(t, p, res)
	bought := make([]int, 4)
	for _, n := range res.Nodes {
		bought[n.Column]++
	}
	for k, n := range []int{2, 1, 0, 3} {
		if bought[k] > n || f.left[k] != n-bought[k] {
			t.Errorf("column %d: %d bought, %d left in the ledger, of %d", k, bought[k], f.left[k], n)
		}
	}
}

func TestSolve_same(t *testing.T) {
	p := problem(20, 12, 25)
	first := Solve(p, Options{DualSteps: 100, Improve: 200})
	again := Solve(p, Options{DualSteps: 100, Improve: 200})
	if len(first.Nodes) != len(again.Nodes) || verify(t, p, first) != verify(t, p, again) {
		t.Error("the same problem was packed in two ways")
	}
}

// BenchmarkFill fills one column: the inner loop, in which a candidate is tested in a few
// operations per resource and nothing is allocated.
func BenchmarkFill(b *testing.B) {
	p := problem(200, 1, 50)
	p.Columns[0].Alloc = []float64{192_000, 768 * 1024}
	fit(p)
	s := newSolver(p)
	s.revalue(s.rem, 50)
	s.fill(0, -1, -1, 0)
	if n := testing.AllocsPerRun(10, func() { s.fill(0, -1, -1, 0) }); n != 0 {
		b.Fatalf("a fill allocates %v times, want 0", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.fill(0, -1, -1, 0)
	}
}

func BenchmarkSolve(b *testing.B) {
	p := problem(60, 80, 200)
	b.ReportAllocs()
	ratio := 0.0
	for b.Loop() {
		res := Solve(p, Options{DualSteps: 300, Improve: 100})
		ratio = verify(b, p, res) / res.Bound
	}
	b.ReportMetric(ratio, "cost/bound")
}
