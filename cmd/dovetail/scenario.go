package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate/scenario"
)

func scenarioCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "scenario FILES...",
		Short: "Run scenario files and judge the plans by what they expect",
		Long: `Run scenario files and judge the plans by what they expect.

A scenario is a cluster state with the outcome that must hold, of one plan or of a life in
virtual time; package engine/simulate/scenario documents the file. Beside that, no pod may
stay pending that a node would take, the order of objects may not matter, and every placement
must keep Kubernetes' hard constraints. In a life, no move may raise the cost, make pods wait
for a new node or undo another, the cluster must come to rest, and every node that is left
alone must have a reason.

Exit codes:
  0  every scenario holds
  1  wrong usage, or a file cannot be read
  2  some scenario does not hold`,
		Example: "  dovetail simulate scenario test/scenarios",
		Args:    cobra.MinimumNArgs(1),
		RunE:    runScenarios,
	}
}

func runScenarios(cmd *cobra.Command, args []string) error {
	paths, err := scenarioFiles(args)
	if err != nil {
		return fmt.Errorf("simulate scenario: %w", err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool { return !scenario.IsScenario(p) })
	if len(paths) == 0 {
		return errors.New("simulate scenario: no scenario file among the arguments")
	}
	judged, held := 0, 0
	var loader policyLoader
	loadPolicy := func(ref scenario.Policy) (policy.Policy, error) {
		found, errs := findPolicies(ref.File)
		if len(found) != 1 || len(errs) > 0 {
			return policy.Policy{}, errOne(ref.File, len(found), errs)
		}
		f, err := with(found[0], ref.Parameters)
		if err != nil {
			return policy.Policy{}, err
		}
		p, err := loader.load(cmd.Context(), f)
		return p.Policy, err
	}
	for _, path := range paths {
		problems, err := scenario.Problems(path, wholeCatalog)
		if err != nil {
			return err
		}
		for i := range problems {
			if err := problems[i].LoadPolicies(loadPolicy); err != nil {
				return err
			}
			v, err := scenario.Judge(cmd.Context(), &problems[i])
			if err != nil {
				return err
			}
			judged++
			if len(v.Wrong) == 0 {
				held++
				fmt.Fprintf(cmd.OutOrStdout(), "ok    %s\n", v.Name)
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "WRONG %s\n      %s\n      - %s\n", v.Name, v.About, strings.Join(v.Wrong, "\n      - "))
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "scenarios=%d passed=%d\n", judged, held)
	if held < judged {
		return exit{code: exitUnscheduled, err: fmt.Errorf("simulate scenario: %d of %d do not hold", judged-held, judged)}
	}
	return nil
}

// wholeCatalog reads a catalogue file in which everything must be usable.
func wholeCatalog(path string) (*catalog.Catalog, error) {
	cat, problems, err := readCatalog(path)
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("%s: some of the catalogue cannot be used%s", path, listProblems(problems))
	}
	return cat, err
}
