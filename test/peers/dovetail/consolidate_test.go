package dovetail

import (
	"testing"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/test/peers/fleet"
)

// TestConsolidation empties a fleet for some rounds, twice: equal fleets must come to the
// same end.
func TestConsolidation(t *testing.T) {
	all := sim.Builtin().Types()
	types := make([]*catalog.InstanceType, len(all))
	for i := range all {
		types[i] = &all[i]
	}
	first, err := fleet.Generate(fleet.Size{Nodes: 60, Seed: 1}, types)
	if err != nil {
		t.Fatal(err)
	}
	var last fleet.Outcome
	for i := range 2 {
		f := first.Clone()
		e, err := NewConsolidation(f)
		if err != nil {
			t.Fatal(err)
		}
		out, err := f.Settle(t.Context(), e, fleet.Limits{Rounds: 6}, func(r fleet.Round) { t.Logf("%+v", r) })
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Rounds) == 0 || out.Pending > 0 {
			t.Errorf("%d rounds took nodes away, %d pods are pending, want some and none", len(out.Rounds), out.Pending)
		}
		if out.After > out.Before*6/10 {
			t.Errorf("the fleet costs %.2f $/h, before %.2f: want two fifths less at least, at 40 %% use", out.After.Dollars(), out.Before.Dollars())
		}
		if b := f.Bound(); out.After.Dollars() < b {
			t.Errorf("the fleet costs %.2f $/h, below its bound of %.2f", out.After.Dollars(), b)
		}
		if i > 0 && (out.After != last.After || out.Evictions != last.Evictions || len(out.Rounds) != len(last.Rounds)) {
			t.Errorf("the second run ends at %v after %d evictions in %d rounds, the first at %v after %d in %d",
				out.After, out.Evictions, len(out.Rounds), last.After, last.Evictions, len(last.Rounds))
		}
		last = out
	}
}
