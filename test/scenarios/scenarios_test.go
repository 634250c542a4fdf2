// Package scenarios holds cluster states with the outcome that must come of them.
package scenarios

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/simulate/scenario"
)

// TestScenarios plans every scenario file of this folder and judges the plans by what
// the file expects and by the invariants that hold in all of them.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	judged, held := 0, 0
	for _, path := range paths {
		if !scenario.IsScenario(path) {
			continue
		}
		problems, err := scenario.Problems(path, readCatalog)
		if err != nil {
			t.Error(err)
			continue
		}
		for i := range problems {
			p := &problems[i]
			judged++
			t.Run(p.Name, func(t *testing.T) {
				verdict, err := scenario.Judge(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				if len(verdict.Wrong) > 0 {
					t.Fatalf("%s\n%s", p.About, strings.Join(verdict.Wrong, "\n"))
				}
				held++
			})
		}
	}
	if judged < 30 {
		t.Errorf("only %d scenarios were judged: the files are not where they should be", judged)
	}
	fmt.Printf("scenarios=%d held=%d\n", judged, held)
}

func readCatalog(path string) (*catalog.Catalog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing to lose
	cat, errs := sim.ReadFile(f, path)
	return cat, errors.Join(errs...)
}
