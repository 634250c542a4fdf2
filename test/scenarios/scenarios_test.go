// Package scenarios holds cluster states with the outcome that must come of them.
package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/engine/simulate/scenario"
)

// planTime is more than a plan may take, and maxMemory what no scenario may need: the largest
// have 8000 pods.
const (
	planTime  = 10 * time.Second
	maxMemory = 1 << 30
)

// TestScenarios has every scenario of these folders planned, or happen, and judges what comes
// of it by what the file expects and by the invariants that hold in all of them.
func TestScenarios(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"*.yaml", "policy/*.yaml", "life/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
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
				if err := p.LoadPolicies(func(ref scenario.Policy) (policy.Policy, error) { return loadPolicy(t.Context(), ref) }); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				verdict, err := scenario.Judge(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); p.Life == nil && took > planTime {
					t.Errorf("planning took %v in all orders, more than %v", took, planTime)
				}
				if len(verdict.Wrong) > 0 {
					t.Fatalf("%s\n%s", p.About, strings.Join(verdict.Wrong, "\n"))
				}
				held++
			})
		}
	}
	if judged < 100 {
		t.Errorf("only %d scenarios were judged: the files are not where they should be", judged)
	}
	var memory runtime.MemStats
	if runtime.ReadMemStats(&memory); memory.Sys > maxMemory {
		t.Errorf("%d MiB were in use, more than %d MiB", memory.Sys>>20, maxMemory>>20)
	}
	fmt.Printf("scenarios=%d passed=%d\n", judged, held)
}

// loadPolicy loads a policy in Rego, for the hook that its package names.
func loadPolicy(ctx context.Context, ref scenario.Policy) (policy.Policy, error) {
	b, err := os.ReadFile(ref.File)
	if err != nil {
		return policy.Policy{}, err
	}
	_, pkg, _ := strings.Cut(string(b), "\npackage dovetail.")
	hook, _, _ := strings.Cut(pkg, ".")
	name := strings.TrimSuffix(filepath.Base(ref.File), ".rego")
	m, err := rego.Load(ctx, rego.Source{Name: name, Hook: policy.Hook(hook), Files: map[string]string{ref.File: string(b)}, Parameters: ref.Parameters})
	if err != nil {
		return policy.Policy{}, err
	}
	return policy.Policy{Name: name, Hook: policy.Hook(hook), Revision: m.Revision(), Evaluator: m, Parameters: ref.Parameters}, nil
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
