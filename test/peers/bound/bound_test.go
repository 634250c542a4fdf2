package bound

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSolve(t *testing.T) {
	tests := map[string]struct {
		nodes   []Node
		classes []Class
		want    float64
		unheld  int
	}{
		"nothing to hold costs nothing": {
			nodes: []Node{{Price: 1, Room: []int64{4}}},
		},
		"one resource costs its share of the cheapest node per unit": {
			nodes:   []Node{{Price: 1, Room: []int64{4}}, {Price: 3, Room: []int64{16}}},
			classes: []Class{{Need: []int64{2}, Count: 10}},
			want:    20 * 3.0 / 16,
		},
		"a pod that only a dear node holds pays for that node": {
			nodes:   []Node{{Price: 1, Room: []int64{4}}, {Price: 10, Room: []int64{8}}},
			classes: []Class{{Need: []int64{5}, Count: 2}, {Need: []int64{1}, Count: 10}},
			// 2 pods of 5 need 10/8 of the large node; small pods stay on small nodes.
			want: 2*5*10.0/8 + 10*1.0/4,
		},
		"room left beside the large pod is free for small ones": {
			nodes:   []Node{{Price: 1, Room: []int64{4, 4}}, {Price: 10, Room: []int64{8, 8}}},
			classes: []Class{{Need: []int64{8, 0}, Count: 1}, {Need: []int64{0, 4}, Count: 3}},
			// The large pod buys one large node, whose 8 of the second resource are
			// unused and take two of the three small pods; the third needs a small node.
			want: 10 + 1,
		},
		"complementary pods share nodes": {
			nodes:   []Node{{Price: 2, Room: []int64{4, 4}}},
			classes: []Class{{Need: []int64{3, 1}, Count: 4}, {Need: []int64{1, 3}, Count: 4}},
			want:    2 * 4,
		},
		"slots count": {
			nodes:   []Node{{Price: 1, Room: []int64{1000, 2}}, {Price: 3, Room: []int64{1000, 10}}},
			classes: []Class{{Need: []int64{1, 1}, Count: 100}},
			want:    30,
		},
		"pods that fit nowhere are counted and cost nothing": {
			nodes:   []Node{{Price: 1, Room: []int64{4}}},
			classes: []Class{{Need: []int64{5}, Count: 7}, {Need: []int64{4}, Count: 2}},
			want:    2,
			unheld:  7,
		},
		"no nodes": {
			classes: []Class{{Need: []int64{5}, Count: 7}},
			unheld:  7,
		},
		"free nodes hold what fits": {
			nodes:   []Node{{Price: 0, Room: []int64{2}}, {Price: 1, Room: []int64{4}}},
			classes: []Class{{Need: []int64{2}, Count: 50}, {Need: []int64{4}, Count: 2}},
			want:    2,
		},
		"a pod that needs nothing fits and costs nothing": {
			nodes:   []Node{{Price: 1, Room: []int64{4}}},
			classes: []Class{{Need: []int64{0}, Count: 5}},
		},
		"a dearer node with less is never used": {
			nodes:   []Node{{Price: 5, Room: []int64{1}}, {Price: 1, Room: []int64{4}}},
			classes: []Class{{Need: []int64{1}, Count: 8}},
			want:    2,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Solve(tt.nodes, tt.classes)
			if math.Abs(got.Bound-tt.want) > 1e-5*max(1, tt.want) {
				t.Errorf("Solve().Bound = %v, want %v", got.Bound, tt.want)
			}
			if got.Gap() > closed {
				t.Errorf("Solve() gap = %v (bound %v, fractional %v), want at most %v", got.Gap(), got.Bound, got.Fractional, closed)
			}
			if got.Unheld != tt.unheld {
				t.Errorf("Solve().Unheld = %d, want %d", got.Unheld, tt.unheld)
			}
		})
	}
}

// TestSolve_Generated closes the gap on generated problems, stays below a purchase of
// whole nodes, and does not depend on the order of its arguments.
func TestSolve_Generated(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		dims := 1 + r.IntN(4)
		var nodes []Node
		for range 1 + r.IntN(20) {
			n := Node{Price: 0.1 + 10*r.Float64()}
			for range dims {
				n.Room = append(n.Room, int64(1+r.IntN(1000)))
			}
			nodes = append(nodes, n)
		}
		var classes []Class
		for range 1 + r.IntN(30) {
			c := Class{Count: 1 + r.IntN(50)}
			for range dims {
				c.Need = append(c.Need, int64(r.IntN(400)))
			}
			classes = append(classes, c)
		}
		got := Solve(nodes, classes)
		if got.Gap() > closed {
			t.Errorf("seed %d: gap %v after %d rounds", seed, got.Gap(), got.Rounds)
		}
		whole := 0.0
		for _, c := range classes {
			best := math.Inf(1)
			for _, n := range nodes {
				if fits(c.Need, n.Room) {
					best = min(best, n.Price*math.Ceil(float64(c.Count)/math.Floor(max(1, min(perNode(c.Need, n.Room), 1e9)))))
				}
			}
			if !math.IsInf(best, 1) {
				whole += best
			}
		}
		if got.Bound > whole*(1+1e-9) {
			t.Errorf("seed %d: bound %v is above a purchase of whole nodes for %v", seed, got.Bound, whole)
		}
		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		r.Shuffle(len(classes), func(i, j int) { classes[i], classes[j] = classes[j], classes[i] })
		if again := Solve(nodes, classes); math.Abs(again.Bound-got.Bound) > 2*closed*max(got.Bound, tiny) {
			t.Errorf("seed %d: bound %v, shuffled %v", seed, got.Bound, again.Bound)
		}
	}
}

func BenchmarkSolve(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var nodes []Node
	for range 300 {
		cpu := int64(1+r.IntN(96)) * 1000
		mem := cpu * int64(2+r.IntN(8))
		nodes = append(nodes, Node{Price: float64(cpu)/2e4 + float64(mem)/1e5, Room: []int64{cpu, mem, 110}})
	}
	var classes []Class
	for range 100 {
		classes = append(classes, Class{Need: []int64{int64(100 + r.IntN(8000)), int64(r.IntN(64000)), 1}, Count: 1 + r.IntN(100)})
	}
	for b.Loop() {
		if got := Solve(nodes, classes); got.Gap() > closed {
			b.Fatalf("gap %v", got.Gap())
		}
	}
}
