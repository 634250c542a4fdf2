package dovetail

import (
	"testing"

	"github.com/dovetail-sh/dovetail/test/peers/karpenter"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// TestSolve plans small works and holds them to what Karpenter reaches.
func TestSolve(t *testing.T) {
	types, err := karpenter.FakeTypes(400)
	if err != nil {
		t.Fatal(err)
	}
	full := work.Diverse(150, 42, types)
	if err := full.WithHalfFullNodes(4); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		w    *work.Work
		peer bool
	}{
		"diverse pods":                         {w: work.Diverse(150, 42, types), peer: true},
		"uniform pods":                         {w: work.Catalogue(200, 1, types), peer: true},
		"diverse pods on nodes that are there": {w: full},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := Solve(t.Context(), tt.w)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.w.Check(out); err != nil {
				t.Error(err)
			}
			if n := len(out.Unscheduled); n > 0 {
				t.Errorf("Solve() leaves %d pods unscheduled, want none", n)
			}
			placed := out.Placed()
			exact := tt.w.ClassBound(placed)
			cost := tt.w.Cost(out).Dollars()
			if cost < exact.Bound*(1-1e-6) {
				t.Errorf("Solve() costs %v $/h, below the bound of %v", cost, exact.Bound)
			}
			if out.OwnBound.Dollars() > cost {
				t.Errorf("Solve() claims a bound of %v $/h, above its cost of %v", out.OwnBound.Dollars(), cost)
			}
			if !tt.peer {
				if len(out.Existing) == 0 {
					t.Error("Solve() leaves the room of existing nodes unused")
				}
				return
			}
			peer, err := karpenter.Solve(t.Context(), tt.w)
			if err != nil {
				t.Fatal(err)
			}
			if theirs := tt.w.Cost(peer).Dollars(); cost > theirs*(1+1e-9) {
				t.Errorf("Solve() costs %v $/h, Karpenter %v", cost, theirs)
			}
			if len(out.New) > len(peer.New) && tt.w.Name == "diverse" {
				t.Errorf("Solve() buys %d nodes, Karpenter %d", len(out.New), len(peer.New))
			}
		})
	}
}
