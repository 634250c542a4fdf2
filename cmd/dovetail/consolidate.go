package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/simulate"
)

const consolidateHelp = `Say what one round of disruption would do to a cluster: which nodes would go, what would
replace them, where their pods would go, and why every other node stays.

FILES are the cluster's objects, as for dovetail simulate; NodeClaims must be among them,
for nodes that nobody manages are never disrupted:

  kubectl get -A -o yaml nodes,pods,nodepools,nodeclaims,pdb,rs | dovetail simulate consolidate -`

func consolidateCommand() *cobra.Command {
	var f simulateFlags
	var o simulate.ConsolidateOptions
	var minSaving int
	cmd := &cobra.Command{
		Use:     "consolidate FILES...",
		Short:   "Say what a round of disruption would do to a cluster, and why not more",
		Long:    consolidateHelp,
		Example: `  dovetail simulate consolidate cluster.yaml --target --wide`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkMinSaving(minSaving); err != nil {
				return fmt.Errorf("simulate consolidate: --min-saving: %w", err)
			}
			o.MinSaving = leastSaving(minSaving)
			opts, err := f.options(cmd.InOrStdin())
			if err != nil {
				return err
			}
			p := newProgress(cmd.ErrOrStderr())
			defer p.stop()
			p.begin("reading files")
			in, err := f.input(args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			notLoaded, closeLog, err := f.policies(cmd.Context(), &opts)
			if err != nil {
				return err
			}
			p.begin("looking for moves")
			out, err := simulate.Consolidate(cmd.Context(), in, opts, o)
			if err := errors.Join(err, closeLog()); err != nil {
				return fmt.Errorf("simulate consolidate: %w", err)
			}
			p.stop()
			for _, e := range notLoaded {
				fmt.Fprintln(cmd.ErrOrStderr(), "dovetail: policy not loaded:", e)
			}
			if f.output == "table" {
				return out.WriteTable(cmd.OutOrStdout(), f.wide)
			}
			return encode(cmd.OutOrStdout(), f.output, out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.catalog, "catalog", "builtin", "instance types: builtin (EC2 in us-east-1), kwok, or a file")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	flags.BoolVar(&f.wide, "wide", false, "list every node that stays with all its reasons")
	flags.StringVar(&f.now, "now", "", "the time to look at, in RFC 3339 (default: now)")
	flags.StringVar(&f.policyDir, "policy-dir", "", "ask the policies in this folder")
	flags.StringVar(&f.facts, "facts", "", "file of what policies are told beside the objects")
	flags.StringVar(&f.decisionLog, "decision-log", "", "write the decisions of policies with their inputs to this file")
	flags.IntVar(&minSaving, "min-saving", consolidate.DefaultMinSaving, minSavingUsage)
	flags.IntVar(&o.SpotTypes, "spot-types", 0, "instance types that a spot node must be able to be of if it replaces a spot node; negative never does (default: 15)")
	flags.BoolVar(&o.IgnoreBudgets, "ignore-budgets", false, "let all nodes go at once")
	flags.BoolVar(&o.Target, "target", false, "also find the cheapest cluster for the same pods, and a bound")
	f.preferences, f.minValues = "Respect", "Strict"
	return cmd
}
