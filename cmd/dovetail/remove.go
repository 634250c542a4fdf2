package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/simulate/replay"
)

// removeCommand says what would happen if a node were deleted, and drainCommand the same of
// all nodes of a NodePool.
func removeCommand() *cobra.Command {
	return goneCommand("remove node NAME FILES...", "node", "Say what would happen if a node were deleted",
		"  kubectl get -A -o yaml nodes,pods,nodepools,nodeclaims,poddisruptionbudgets,replicasets | dovetail simulate remove node default-x7k2p -")
}

func drainCommand() *cobra.Command {
	return goneCommand("drain pool NAME FILES...", "pool", "Say what would happen if all nodes of a NodePool were deleted",
		"  dovetail simulate drain pool old-pool cluster.yaml -o json")
}

const removeHelp = `

FILES are the cluster, as for dovetail simulate. The nodes are drained in virtual time: pods
are evicted as PodDisruptionBudgets and annotations allow, workloads make them again,
kube-scheduler puts them where there is room, and nodes are bought for the rest. Nothing else
is disrupted.

Exit codes:
  0  all pods find a node
  1  wrong usage, or nothing in the input can be used
  2  some pods would not go, or would have no node`

func goneCommand(use, what, short, example string) *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + "." + removeHelp, Example: example, Args: cobra.MinimumNArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != what {
				return fmt.Errorf("simulate: write %s", cmd.UseLine())
			}
			return f.remove(cmd, what, args[1], args[2:])
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.nodePools, "nodepool", nil, "file of NodePools, the same as an argument (repeatable)")
	flags.StringVar(&f.catalog, "catalog", "builtin", "instance types: builtin (EC2 in us-east-1), kwok, or a file")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	flags.StringVar(&f.now, "now", "", "the time to begin at, in RFC 3339")
	flags.StringVar(&f.policyDir, "policy-dir", "", "buy under the policies in this folder")
	flags.StringVar(&f.facts, "facts", "", "file of what policies are told beside the objects")
	f.preferences, f.minValues = "Respect", "Strict"
	return cmd
}

func (f *simulateFlags) remove(cmd *cobra.Command, what, name string, files []string) error {
	opts, err := f.options(cmd.InOrStdin())
	if err != nil {
		return err
	}
	p := newProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.begin("reading files")
	in, err := f.replayInput(cmd, files, opts)
	if err != nil {
		return err
	}
	settings, closeLog, err := f.settings(cmd.Context())
	if err != nil {
		return err
	}
	node, pool := name, ""
	if what == "pool" {
		node, pool = "", name
	}
	p.begin("draining")
	r, err := replay.Remove(cmd.Context(), *in, settings[0], node, pool)
	if err := errors.Join(err, closeLog()); err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	p.stop()
	w := cmd.OutOrStdout()
	if f.output == "table" {
		err = r.WriteTable(w)
	} else {
		var raw []byte
		if raw, err = json.MarshalIndent(r, "", "  "); err == nil && f.output == "yaml" {
			raw, err = yaml.JSONToYAML(raw)
		} else {
			raw = append(raw, '\n')
		}
		if err == nil {
			_, err = w.Write(raw)
		}
	}
	if err != nil {
		return fmt.Errorf("simulate: write the report: %w", err)
	}
	if n := r.Trouble(); n > 0 {
		return exit{code: exitUnscheduled, err: fmt.Errorf("simulate: %d pods would not go, or would have no node", n)}
	}
	return nil
}
