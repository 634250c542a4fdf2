package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/scenario"
	"github.com/dovetail-sh/dovetail/test/oracle/judge"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

// TestScenarios judges the plan of every file of the scenario suite.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("../scenarios/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j := judge.New(t.Context())
	judged := 0
	for _, path := range paths {
		if !scenario.IsScenario(path) {
			continue
		}
		problems, err := scenario.Problems(path, readCatalog)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for i := range problems {
			s := &problems[i]
			if len(s.Objects.NodeOverlays)+len(s.Snapshot.PoolCatalogs) > 0 || s.Snapshot.Catalog == nil {
				continue // prices and sizes then differ by pool, which the judge does not know
			}
			judged++
			t.Run(s.Name, func(t *testing.T) {
				snap, _ := snapshot.Build(s.Objects, s.Snapshot)
				plan, err := schedule.Solve(t.Context(), snap, s.Solve)
				if err != nil {
					t.Fatal(err)
				}
				p := &problem.Problem{Objects: s.Objects, Options: s.Snapshot, Types: s.Snapshot.Catalog.Types()}
				v, err := j.Judge(p, &plan, s.Solve.MinValues != schedule.BestEffort)
				if err != nil {
					t.Fatal(err)
				}
				for _, list := range [][]judge.Finding{v.Refused, v.Missed, v.Broken} {
					for _, f := range list {
						t.Errorf("%s", f)
					}
				}
			})
		}
	}
	if judged < 25 {
		t.Errorf("judged only %d scenarios: the files are not where they should be", judged)
	}
}

func readCatalog(path string) (*catalog.Catalog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing to lose
	c, errs := sim.ReadFile(f, path)
	return c, errors.Join(errs...)
}
