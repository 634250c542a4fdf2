package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

// TestOracle judges the plans of generated problems.
func TestOracle(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	var total tally
	err := each(t.Context(), 1, n, func(a answer) error {
		if a.err != nil {
			t.Errorf("seed %d: %v", a.seed, a.err)
		}
		total.add(&a)
		var b bytes.Buffer
		if report(&b, &a); !a.verdict.OK() {
			t.Error(strings.TrimSpace(b.String()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", total)
	if total.unbought > n/100 {
		t.Errorf("%d pods are left out that one more node would hold, in %d problems", total.unbought, n)
	}
	if total.placed < 5*n || total.nodes < n/2 {
		t.Errorf("placed %d pods and bought %d nodes in %d problems: too few to show anything", total.placed, total.nodes, n)
	}
}

// TestOrder plans the same objects in other orders: the plan must be the same byte for byte.
func TestOrder(t *testing.T) {
	for seed := range uint64(200) {
		p := problem.Generate(seed)
		want := plan(t, p, seed)
		for again := range uint64(2) {
			if got := plan(t, problem.Shuffle(p, seed+again), seed); got != want {
				t.Errorf("seed %d, order %d: plan (-want +got):\n%s", seed, again, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
			}
		}
	}
}

// plan solves p and writes the plan as text.
func plan(t *testing.T, p *problem.Problem, seed uint64) string {
	t.Helper()
	snap, _ := snapshot.Build(p.Objects, p.Options)
	plan, err := schedule.Solve(t.Context(), snap, options(seed))
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	b, err := plan.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), ",", ",\n")
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	code, err := run(t.Context(), []string{"-n", "5", "-seed", "7", "-v", "-dump", t.TempDir()}, &out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; last != "problems=5 refused=0 missed=0" || code != 0 {
		t.Errorf("code %d, last line %q, want problems=5 refused=0 missed=0\n%s", code, last, out.String())
	}
	if n := strings.Count(out.String(), "seed="); n != 5 {
		t.Errorf("%d lines about seeds, want 5", n)
	}
}

func TestRun_BadFlag(t *testing.T) {
	if code, err := run(t.Context(), []string{"-n", "many"}, &bytes.Buffer{}); code != 2 || err == nil {
		t.Errorf("code %d, error %v, want 2 and an error", code, err)
	}
}
