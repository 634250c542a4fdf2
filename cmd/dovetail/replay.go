package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/simulate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/page"
	"github.com/dovetail-sh/dovetail/engine/simulate/replay"
	"github.com/dovetail-sh/dovetail/engine/simulate/script"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

// replayFlags are those of simulations in virtual time.
type replayFlags struct {
	replay        bool
	events        []string
	until         time.Duration
	consolidation string
	after         time.Duration
	compare       []string
	html          string
	register      time.Duration
	initialize    time.Duration
	minSaving     int
}

const replayHelp = `

With --replay the cluster lives on in virtual time: kube-scheduler binds, nodes take a while
until they are there, pending pods are planned and nodes are disrupted as in a cluster, and
the report says what was decided, what it cost and who had to move. The pods of a --trace
come and go by its columns creation_time and deletion_time; --events says what else is to
happen, such as "at: 10m scale deploy/web to 30". A SimNodeClass in the input says how long
things take, what prices do and what goes wrong. --compare plays the same again under another
setting. Equal input gives equal output.`

func (r *replayFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&r.replay, "replay", false, "live on in virtual time, instead of planning once")
	flags.StringArrayVar(&r.events, "events", nil, "file of events, which implies --replay (repeatable)")
	flags.DurationVar(&r.until, "until", 0, "how long a replay lasts (default: 15m beyond the last event)")
	flags.StringVar(&r.consolidation, "consolidation", "", "consolidation policy of all NodePools in a replay: off, WhenEmpty, WhenEmptyOrUnderutilized or Balanced (default: their own)")
	flags.DurationVar(&r.after, "consolidate-after", 0, "consolidateAfter of all NodePools in a replay (default: their own)")
	flags.IntVar(&r.minSaving, "min-saving", consolidate.DefaultMinSaving, minSavingUsage+", in a replay")
	flags.StringArrayVar(&r.compare, "compare", nil, "replay once more with another setting: a --consolidation, after=DURATION, policies=FOLDER or no-policies, or several with commas (repeatable)")
	flags.StringVar(&r.html, "html", "", "write a report with charts to this file, which works offline")
	flags.DurationVar(&r.register, "register-after", 0, "how long a node takes to register in a replay (default: 60s, or what its SimNodeClass says)")
	flags.DurationVar(&r.initialize, "initialize-after", 0, "how long it takes from then until it takes pods (default: 30s)")
}

// wanted reports whether the flags ask for virtual time.
func (r *replayFlags) wanted() bool {
	return r.replay || len(r.events) > 0 || len(r.compare) > 0 || r.html != "" || r.until > 0
}

// runReplay plays the input in virtual time.
func (f *simulateFlags) runReplay(cmd *cobra.Command, args []string) error {
	if err := checkMinSaving(f.minSaving); err != nil {
		return fmt.Errorf("simulate: --min-saving: %w", err)
	}
	opts, err := f.options(cmd.InOrStdin())
	if err != nil {
		return err
	}
	if len(args)+len(f.nodePools)+len(f.traces) == 0 {
		return errors.New("simulate: nothing to replay: name files, folders, - for standard input, or a --trace (see --help)")
	}
	if f.explain != "" || f.shadowDir != "" {
		return errors.New("simulate: --explain and --shadow-policy-dir are for plans, not for replays")
	}
	p := newProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.begin("reading files")
	in, err := f.replayInput(cmd, args, opts)
	if err != nil {
		return err
	}
	settings, closeLog, err := f.settings(cmd.Context())
	if err != nil {
		return err
	}
	runs := make([]*replay.Report, 0, len(settings))
	for _, s := range settings {
		p.begin("replaying" + strings.TrimSuffix(" "+s.Name, " "))
		begin := time.Now()
		r, err := replay.Run(cmd.Context(), *in, s)
		if err != nil {
			return errors.Join(fmt.Errorf("simulate: replay: %w", err), closeLog())
		}
		r.WallSeconds = time.Since(begin).Seconds()
		runs = append(runs, r)
	}
	p.stop()
	if err := closeLog(); err != nil {
		return err
	}
	if f.html != "" {
		if err := writePage(f.html, runs); err != nil {
			return fmt.Errorf("simulate: --html: %w", err)
		}
	}
	if err := f.writeReplay(cmd.OutOrStdout(), runs); err != nil {
		return err
	}
	return f.replayVerdict(runs[0])
}

// replayInput reads the cluster, the traces and the events.
func (f *simulateFlags) replayInput(cmd *cobra.Command, args []string, opts simulate.Options) (*replay.Input, error) {
	stdin := cmd.InOrStdin()
	inputs, err := load.Files(append(slices.Clone(args), f.nodePools...), stdin)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	in := &replay.Input{Cluster: load.Read(inputs), Until: f.until}
	in.Cluster.Problems = append(in.Cluster.Problems, opts.Problems...)
	traces, err := load.Files(f.traces, stdin)
	if err != nil {
		return nil, fmt.Errorf("simulate: --trace: %w", err)
	}
	for _, t := range traces {
		stays, problems := load.Replay(t)
		in.Cluster.Problems = append(in.Cluster.Problems, problems...)
		in.Stays = append(in.Stays, stays...)
	}
	events, err := load.Files(f.events, stdin)
	if err != nil {
		return nil, fmt.Errorf("simulate: --events: %w", err)
	}
	for _, e := range events {
		list, err := script.Read(e)
		if err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
		in.Events = append(in.Events, list...)
	}
	if len(in.Cluster.Read)+len(in.Stays) == 0 {
		return nil, fmt.Errorf("simulate: no object in the input can be used%s", listProblems(in.Cluster.Problems))
	}
	in.World = world.Options{
		Consolidate: consolidate.Options{MinSaving: leastSaving(f.minSaving)},
		Catalog:     opts.Catalog, DefaultSpread: opts.DefaultSpread, Solve: opts.Solve, Register: f.register, Initialize: f.initialize,
	}
	if f.now != "" {
		in.World.Start = opts.Now
	}
	return in, nil
}

// settings are what is replayed: what the flags say, and what is to be compared with it.
func (f *simulateFlags) settings(ctx context.Context) ([]replay.Setting, func() error, error) {
	base := replay.Setting{Consolidation: f.consolidation}
	if f.after > 0 {
		base.After = &f.after
	}
	var opts simulate.Options
	notLoaded, closeLog, err := f.policies(ctx, &opts)
	if err != nil {
		return nil, closeLog, err
	}
	if len(notLoaded) > 0 {
		return nil, closeLog, fmt.Errorf("simulate: --policy-dir: %w", errors.Join(notLoaded...))
	}
	base.Policies, base.Facts, base.OnDecision = opts.Policies.Enforced, opts.Policies.Facts, opts.Policies.OnDecision
	out := []replay.Setting{base}
	for _, text := range f.compare {
		s, err := f.setting(ctx, base, text)
		if err != nil {
			return nil, closeLog, fmt.Errorf("simulate: --compare %s: %w", text, err)
		}
		out = append(out, s)
	}
	for i := range out {
		if err := out[i].Validate(); err != nil {
			return nil, closeLog, fmt.Errorf("simulate: %w", err)
		}
	}
	return out, closeLog, nil
}

// setting is base with what text changes.
func (f *simulateFlags) setting(ctx context.Context, base replay.Setting, text string) (replay.Setting, error) {
	s := base
	s.Name, s.OnDecision = text, nil
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch key {
		case "after":
			d, err := time.ParseDuration(value)
			if err != nil || d < 0 {
				return s, fmt.Errorf("after=%s: must be a duration such as 5m", value)
			}
			s.After = &d
		case "no-policies":
			s.Policies = nil
		case "policies":
			var loader policyLoader
			list, errs := loader.folder(ctx, value)
			if len(list) == 0 || len(errs) > 0 {
				return s, fmt.Errorf("policies=%s: not all policies can be used: %w", value, errors.Join(errs...))
			}
			s.Policies = enginePolicies(list)
		case replay.Off, string(karpv1.ConsolidationPolicyWhenEmpty), string(karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized), string(karpv1.ConsolidationPolicyBalanced):
			s.Consolidation = key
		default:
			return s, fmt.Errorf("%q: must be off, WhenEmpty, WhenEmptyOrUnderutilized, Balanced, after=DURATION, policies=FOLDER or no-policies", part)
		}
	}
	return s, nil
}

func (f *simulateFlags) writeReplay(w io.Writer, runs []*replay.Report) error {
	if f.output == "table" {
		if err := runs[0].WriteTable(w, f.wide); err != nil || len(runs) == 1 {
			return err
		}
		fmt.Fprintln(w)
		return replay.Compare(runs...).WriteTable(w)
	}
	var v any = runs[0]
	if len(runs) > 1 {
		v = replay.Compare(runs...)
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("simulate: write the report: %w", err)
	}
	if f.output == "yaml" {
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return fmt.Errorf("simulate: write the report: %w", err)
		}
		_, err = w.Write(raw)
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", raw)
	return err
}

// replayVerdict turns the outcome into an exit code.
func (f *simulateFlags) replayVerdict(r *replay.Report) error {
	faults := 0
	for _, p := range r.Problems {
		if p.Severity != load.Note {
			faults++
		}
	}
	switch {
	case f.strict && faults > 0:
		return exit{exitProblems, fmt.Errorf("simulate: the input has %d errors or warnings, and --strict is set", faults)}
	case len(r.Pods.Pending) > 0 && !f.allowPending:
		return exit{code: exitUnscheduled, err: fmt.Errorf("simulate: %d pods have no node at the end", len(r.Pods.Pending))}
	}
	return nil
}

// writePage writes the report for people who want charts.
func writePage(name string, runs []*replay.Report) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(page.Write(f, runs...), f.Close())
}
