package consolidate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// TestSettle holds on random clusters that every round lowers what is paid, that pods have
// room after it, that it ends, that it does not depend on the order of objects, and that prices
// that move by 3 % do not start it again.
func TestSettle(t *testing.T) {
	seeds := 4
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := idle(t, 24, 1+seed%3, uint64(seed))
			w.opts.Memory = &consolidate.Memory{}
			rest := false
			for round := 0; !rest; round++ {
				if round == 30 {
					t.Fatal("still moving after 30 rounds")
				}
				r := w.propose()
				for _, m := range r.Moves {
					if m.Saving() <= 0 {
						t.Fatalf("round %d: %v saves %v", round, m.Nodes, m.Saving())
					}
				}
				want := brief(r)
				for range 2 {
					if got := brief(shuffled(w).propose()); !slices.Equal(got, want) {
						t.Fatalf("round %d: another order of objects gives\n%q, not\n%q", round, got, want)
					}
				}
				w.apply(r)
				after := w.propose()
				saved := catalog.Price(0)
				for _, m := range r.Moves {
					saved += m.Saving()
				}
				if after.Cost != r.Cost-saved {
					t.Fatalf("round %d: costs %v after saving %v of %v", round, after.Cost, saved, r.Cost)
				}
				w.sound(t)
				rest = len(r.Moves) == 0
			}
			random := rand.New(rand.NewPCG(uint64(seed), 3))
			calm := w.cat
			w.propose()
			for round := range 12 {
				w.cat = noisy(t, calm, random)
				if r := w.propose(); len(r.Moves) > 0 {
					t.Fatalf("noise of prices, round %d: %q", round, brief(r))
				}
			}
		})
	}
}

// sound fails if a node holds more than it has, or a pod that may not be there.
func (w *world) sound(t *testing.T) {
	t.Helper()
	snap, _ := snapshot.Build(w.objs, snapshot.Options{Now: now, Catalog: w.cat, AssumeReady: true})
	if len(snap.Pending) > 0 {
		t.Fatalf("%d pods pending", len(snap.Pending))
	}
	for _, n := range snap.Nodes {
		if !n.Used.FitsIn(n.Allocatable) {
			t.Fatalf("%s holds %v of %v", n.Name, n.Used, n.Allocatable)
		}
		apps := map[string]int{}
		for _, p := range w.objs.Pods {
			if p.Spec.NodeName == n.Name && p.Spec.Affinity != nil {
				apps[p.Labels["app"]]++
			}
		}
		for app, k := range apps {
			if k > 1 {
				t.Fatalf("%s has %d pods of %s, which want to be apart", n.Name, k, app)
			}
		}
		for _, p := range w.objs.Pods {
			if p.Spec.NodeName == n.Name && !snapshot.Tolerates(p.Spec.Tolerations, n.Taints) {
				t.Fatalf("%s does not tolerate the taints of %s", p.Name, n.Name)
			}
		}
	}
}

func shuffled(w *world) *world {
	c := *w
	c.opts.Memory = nil
	r := rand.New(rand.NewPCG(uint64(len(w.objs.Pods)), 9))
	c.objs.Pods, c.objs.Nodes = slices.Clone(w.objs.Pods), slices.Clone(w.objs.Nodes)
	c.objs.NodeClaims, c.objs.NodePools = slices.Clone(w.objs.NodeClaims), slices.Clone(w.objs.NodePools)
	r.Shuffle(len(c.objs.Pods), func(i, j int) { c.objs.Pods[i], c.objs.Pods[j] = c.objs.Pods[j], c.objs.Pods[i] })
	r.Shuffle(len(c.objs.Nodes), func(i, j int) { c.objs.Nodes[i], c.objs.Nodes[j] = c.objs.Nodes[j], c.objs.Nodes[i] })
	r.Shuffle(len(c.objs.NodeClaims), func(i, j int) {
		c.objs.NodeClaims[i], c.objs.NodeClaims[j] = c.objs.NodeClaims[j], c.objs.NodeClaims[i]
	})
	r.Shuffle(len(c.objs.NodePools), func(i, j int) {
		c.objs.NodePools[i], c.objs.NodePools[j] = c.objs.NodePools[j], c.objs.NodePools[i]
	})
	return &c
}

// noisy moves every price by up to 3 %.
func noisy(t *testing.T, c *catalog.Catalog, r *rand.Rand) *catalog.Catalog {
	var types []catalog.InstanceType
	for _, it := range c.Types() {
		it.Offerings = slices.Clone(it.Offerings)
		for i := range it.Offerings {
			it.Offerings[i].Price = catalog.FromDollars(it.Offerings[i].Price.Dollars() * (0.97 + 0.06*r.Float64()))
		}
		types = append(types, it)
	}
	out, errs := catalog.New(types)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	return out
}

func TestBest(t *testing.T) {
	w := newWorld(t, families()...)
	w.pool("default")
	w.node("n1", "default", "c.16")
	w.node("n2", "default", "r.16")
	w.pods("n1", 1, 3, 6)
	w.pods("n2", 1, 3.5, 7)
	snap, _ := snapshot.Build(w.objs, snapshot.Options{Now: now, Catalog: w.cat, AssumeReady: true})
	var list []candidate.Candidate
	for _, n := range snap.Nodes {
		list = append(list, candidate.Candidate{Node: n.Name, Pool: "default", InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Zone: "z1", CapacityType: "on-demand"})
	}
	got, err := consolidate.Best(t.Context(), snap, list, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := catalog.FromDollars(16*0.04 + 16*0.065); got.Cost != want {
		t.Errorf("costs %v now, want %v", got.Cost, want)
	}
	if got.Plan.Cost != catalog.FromDollars(0.32) || got.Plan.Bound > got.Plan.Cost || got.Plan.Bound <= 0 {
		t.Errorf("cheapest %v, bound %v", got.Plan.Cost, got.Plan.Bound)
	}
}

func TestPropose_BadOptions(t *testing.T) {
	w := newWorld(t, families()...)
	w.pool("default")
	snap, _ := snapshot.Build(w.objs, snapshot.Options{Now: now, Catalog: w.cat, AssumeReady: true})
	for name, o := range map[string]consolidate.Options{
		"maxNodes: -1: must not be negative":                {MaxNodes: -1},
		"trials: -1: must not be negative":                  {Trials: -1},
		"minSaving: 1000: must be less than 1000 permille":  {MinSaving: 1000},
		"preferences: \"Never\": must be Respect or Ignore": {Solve: schedule.Options{Preferences: "Never"}},
	} {
		if _, err := consolidate.Propose(t.Context(), snap, o); err == nil || err.Error() != name {
			t.Errorf("error %v, want %s", err, name)
		}
	}
}
