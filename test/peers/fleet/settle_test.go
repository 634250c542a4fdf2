package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// script plays rounds from a list, and takes real nodes away where it says so.
type script struct {
	f      *Fleet
	rounds []Round
	n      int
	// back launches as many nodes as go, of the same kind.
	back bool
}

var errScript = errors.New("the script has no more rounds")

func (s *script) Round(context.Context) (Round, error) {
	if s.n == len(s.rounds) {
		return Round{}, errScript
	}
	r := s.rounds[s.n]
	s.n++
	for range r.Removed {
		name := movable(s.f)
		n := s.f.Nodes[name]
		if s.back {
			if err := s.f.Launch(name+"x", n.Labels["karpenter.sh/nodepool"], n.Labels["node.kubernetes.io/instance-type"], s.f.state[name].zone); err != nil {
				return r, err
			}
		}
		if err := s.f.Remove(name); err != nil {
			return r, err
		}
	}
	s.f.Bind()
	return r, nil
}

func TestFleet_Settle(t *testing.T) {
	first, err := Generate(Size{Nodes: 60, Seed: 2}, builtin())
	if err != nil {
		t.Fatal(err)
	}
	away, none, more := Round{Removed: 1, Think: time.Second}, Round{Think: time.Second}, Round{Think: time.Second, More: true}
	repeat := func(r Round, n int) (out []Round) {
		for range n {
			out = append(out, r)
		}
		return out
	}
	tests := map[string]struct {
		rounds           []Round
		back             bool
		limits           Limits
		settled, stalled bool
		want             int
		wantErr          string
	}{
		"two idle rounds in a row":          {rounds: []Round{away, none, away, none, none}, settled: true, want: 5},
		"a round that has not seen all":     {rounds: []Round{none, more, none}, settled: true, want: 3},
		"a limit of rounds":                 {rounds: []Round{away, away, away}, limits: Limits{Rounds: 2}, want: 2},
		"a limit of time":                   {rounds: []Round{away, away, away}, limits: Limits{Think: 1500 * time.Millisecond}, want: 2},
		"rounds that only change one place": {rounds: repeat(away, 30), back: true, stalled: true, want: 10},
		"rounds that end with an error":     {rounds: []Round{away}, want: 1, wantErr: "no more rounds"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := first.Clone()
			e := &script{f: f, rounds: tt.rounds, back: tt.back}
			seen := 0
			out, err := f.Settle(t.Context(), e, tt.limits, func(Round) { seen++ })
			switch {
			case tt.wantErr != "":
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("Settle() = %v, want %q", err, tt.wantErr)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			if got := len(out.Rounds) + len(out.Idle); got != tt.want || seen != tt.want || out.Settled != tt.settled || out.Stalled != tt.stalled {
				t.Errorf("%d rounds, %d told, settled=%v stalled=%v; want %d, %v, %v", got, seen, out.Settled, out.Stalled, tt.want, tt.settled, tt.stalled)
			}
			if out.Before != first.Cost() || out.After != f.Cost() || out.Evictions != f.Evictions || out.Nodes != len(f.Nodes) {
				t.Errorf("Settle() = %+v, does not agree with the fleet", out)
			}
		})
	}
}
