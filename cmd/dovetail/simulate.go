package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// Exit codes of simulate.
const (
	exitUnusable    = 1
	exitUnscheduled = 2
	exitProblems    = 3
)

type simulateFlags struct {
	traces          []string
	nodePools       []string
	catalog         string
	preferences     string
	minValues       string
	schedulerConfig string
	defaultSpread   []string
	output          string
	wide            bool
	explain         string
	now             string
	strict          bool
	allowPending    bool
	policyDir       string
	shadowDir       string
	facts           string
	decisionLog     string
	replayFlags
}

const simulateHelp = `Plan the nodes that a cluster needs, from files.

FILES are Kubernetes manifests in YAML or JSON: files, folders, or - for standard input,
in any mix; what kubectl get -A -o yaml prints is fine. Deployments, StatefulSets, Jobs
and other workloads count with the pods that their controllers would make, less those in
the input. Nodes and the pods on them are taken as they are; pending pods are planned.
Without a NodePool in the input one is assumed, and a note says which.

Exit codes:
  0  every pod has a node
  1  wrong usage, or nothing in the input can be used
  2  some pods stay without a node (not with --allow-unscheduled)
  3  the input has errors or warnings, or policies cannot be loaded (only with --strict)`

func simulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate [FILES...]",
		Short: "Plan the nodes that a cluster needs, from files",
		Long:  simulateHelp + replayHelp,
		Example: `  dovetail simulate examples/quickstart
  kubectl get -A -o yaml nodes,pods,nodepools | dovetail simulate -
  dovetail simulate --trace pods.csv --nodepool pool.yaml -o json
  dovetail simulate cluster.yaml --explain pod default/web-0
  dovetail simulate --trace pods.csv --replay --compare off --html report.html
  dovetail simulate cluster.yaml --events events.yaml --until 2h`,
		Args: cobra.ArbitraryArgs,
		RunE: f.run,
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.traces, "trace", nil, "CSV file of pods: cpu_milli, memory_mib, and perhaps name and num_gpu (repeatable)")
	flags.StringArrayVar(&f.nodePools, "nodepool", nil, "file of NodePools, the same as an argument (repeatable)")
	flags.StringVar(&f.catalog, "catalog", "builtin", "instance types: builtin (EC2 in us-east-1), kwok, or a file")
	flags.StringVar(&f.preferences, "preference-policy", string(schedule.Respect), "what preferred terms mean: Respect or Ignore")
	flags.StringVar(&f.minValues, "min-values-policy", string(schedule.Strict), "when minValues cannot be met: Strict or BestEffort")
	flags.StringVar(&f.schedulerConfig, "scheduler-config", "", "file with the scheduler's podTopologySpread.defaultConstraints")
	flags.StringArrayVar(&f.defaultSpread, "default-spread", nil, "a default spread constraint, KEY[:MAXSKEW[:WHEN]], such as zone:1:DoNotSchedule (repeatable)")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	flags.BoolVar(&f.wide, "wide", false, "list every node with its pods, and what else could be bought in its place")
	flags.StringVar(&f.explain, "explain", "", "say for a pod why it goes where it goes: NAMESPACE/NAME, or the word pod followed by it")
	flags.StringVar(&f.now, "now", "", "the time to plan for, in RFC 3339 (default: now)")
	flags.BoolVar(&f.strict, "strict", false, "fail if the input has errors or warnings")
	flags.BoolVar(&f.allowPending, "allow-unscheduled", false, "exit with 0 even if pods stay without a node")
	flags.StringVar(&f.policyDir, "policy-dir", "", "plan under the policies in this folder, and compare with the plan without them")
	flags.StringVar(&f.shadowDir, "shadow-policy-dir", "", "say what the policies in this folder would change")
	flags.StringVar(&f.facts, "facts", "", "file of what policies are told beside the objects: cluster, commitments, signals, history, inFlight, teamLabel")
	flags.StringVar(&f.decisionLog, "decision-log", "", "write the decisions of policies with their inputs to this file; policy eval --from-log replays them")
	f.add(cmd)
	cmd.AddCommand(scenarioCommand(), consolidateCommand(), removeCommand(), drainCommand())
	return cmd
}

func (f *simulateFlags) run(cmd *cobra.Command, args []string) error {
	if f.wanted() {
		return f.runReplay(cmd, args)
	}
	pod, args, err := f.explained(args)
	if err != nil {
		return err
	}
	opts, err := f.options(cmd.InOrStdin())
	if err != nil {
		return err
	}
	if len(args)+len(f.nodePools)+len(f.traces) == 0 {
		return errors.New("simulate: nothing to plan: name files, folders, - for standard input, or a --trace (see --help)")
	}
	p := newProgress(cmd.ErrOrStderr())
	defer p.stop()
	opts.Progress = p.begin
	p.begin("reading files")
	in, err := f.input(args, cmd.InOrStdin())
	if err != nil {
		return err
	}
	notLoaded, closeLog, err := f.policies(cmd.Context(), &opts)
	if err != nil {
		return err
	}
	out, err := simulate.Run(cmd.Context(), in, opts)
	if err := errors.Join(err, closeLog()); err != nil {
		return err
	}
	if out.Report.Policies != nil {
		for _, e := range notLoaded {
			out.Report.Policies.NotLoaded = append(out.Report.Policies.NotLoaded, e.Error())
		}
	}
	if out.Costs != nil {
		opts.Solve.Costs = out.Costs
	}
	var explanation *schedule.Explanation
	if pod != "" {
		p.begin("explaining")
		if explanation, err = explain(cmd.Context(), in, out, opts, pod); err != nil {
			return err
		}
	}
	p.stop()
	if err := f.write(cmd, out, explanation); err != nil {
		return err
	}
	for _, e := range notLoaded {
		fmt.Fprintln(cmd.ErrOrStderr(), "dovetail: policy not loaded:", e)
	}
	if f.strict && len(notLoaded) > 0 {
		return exit{exitProblems, fmt.Errorf("simulate: %d policies are not loaded, and --strict is set", len(notLoaded))}
	}
	return f.verdict(cmd, &out.Report)
}

// policies loads what the flags name into opts. Policies that cannot be used are
// returned; the others are asked. The function that is returned ends the decision log.
func (f *simulateFlags) policies(ctx context.Context, opts *simulate.Options) (notLoaded []error, closeLog func() error, err error) {
	closeLog = func() error { return nil }
	if f.policyDir == "" && f.shadowDir == "" {
		return nil, closeLog, nil
	}
	p := &opts.Policies
	if p.Facts, err = readFacts(f.facts); err != nil {
		return nil, nil, fmt.Errorf("simulate: --facts: %w", err)
	}
	var loader policyLoader
	for _, dir := range []struct {
		flag, name string
		into       *[]policy.Policy
	}{{"--policy-dir", f.policyDir, &p.Enforced}, {"--shadow-policy-dir", f.shadowDir, &p.Shadow}} {
		if dir.name == "" {
			continue
		}
		list, errs := loader.folder(ctx, dir.name)
		if len(list) == 0 {
			return nil, nil, fmt.Errorf("simulate: %s: no policy can be used: %w", dir.flag, errors.Join(errs...))
		}
		*dir.into = enginePolicies(list)
		notLoaded = append(notLoaded, errs...)
	}
	if f.decisionLog != "" {
		log, err := os.Create(f.decisionLog)
		if err != nil {
			return nil, nil, fmt.Errorf("simulate: --decision-log: %w", err)
		}
		var failed error
		p.OnDecision = policy.NewLog(log, func(err error) { failed = errors.Join(failed, err) })
		closeLog = func() error { return errors.Join(failed, log.Close()) }
	}
	return notLoaded, closeLog, nil
}

// explained takes the pod to explain out of the arguments, if the flag has only the word
// pod.
func (f *simulateFlags) explained(args []string) (pod string, rest []string, err error) {
	if f.explain != "pod" {
		return strings.TrimPrefix(f.explain, "pod/"), args, nil
	}
	i := slices.IndexFunc(args, func(a string) bool {
		_, err := os.Stat(a)
		return a != "-" && err != nil
	})
	if i < 0 {
		return "", nil, errors.New("simulate: --explain pod: name the pod after it, as namespace/name")
	}
	return args[i], slices.Delete(slices.Clone(args), i, i+1), nil
}

func (f *simulateFlags) options(stdin io.Reader) (simulate.Options, error) {
	var opts simulate.Options
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	opts.Now = time.Now().UTC()
	if f.now != "" {
		t, err := time.Parse(time.RFC3339, f.now)
		if err != nil {
			fail("simulate: --now: %w", err)
		}
		opts.Now = t
	}
	opts.Solve = schedule.Options{Preferences: schedule.PreferencePolicy(f.preferences), MinValues: schedule.MinValuesPolicy(f.minValues)}
	if p := opts.Solve.Preferences; p != schedule.Respect && p != schedule.Ignore {
		fail("simulate: --preference-policy %s: must be %s or %s", p, schedule.Respect, schedule.Ignore)
	}
	if m := opts.Solve.MinValues; m != schedule.Strict && m != schedule.BestEffort {
		fail("simulate: --min-values-policy %s: must be %s or %s", m, schedule.Strict, schedule.BestEffort)
	}
	if !slices.Contains([]string{"table", "json", "yaml"}, f.output) {
		fail("simulate: --output %s: must be table, json or yaml", f.output)
	}
	if f.schedulerConfig != "" {
		in, err := load.Files([]string{f.schedulerConfig}, stdin)
		if err != nil {
			fail("simulate: --scheduler-config: %w", err)
		}
		for _, i := range in {
			spread, err := load.SchedulerConfig(i)
			if err != nil {
				fail("simulate: --scheduler-config: %w", err)
			}
			opts.DefaultSpread = append(opts.DefaultSpread, spread...)
		}
	}
	for _, s := range f.defaultSpread {
		spread, err := load.ParseSpread(s)
		if err != nil {
			fail("simulate: --default-spread: %w", err)
		}
		opts.DefaultSpread = append(opts.DefaultSpread, spread)
	}
	cat, problems, err := readCatalog(f.catalog)
	if err != nil {
		fail("simulate: --catalog: %w", err)
	}
	opts.Catalog, opts.Problems, opts.Alternatives = cat, problems, f.wide
	return opts, errors.Join(errs...)
}

// readCatalog reads the catalogue that name stands for. What of a file cannot be used
// is in the problems; a file without any usable type is an error.
func readCatalog(name string) (*catalog.Catalog, []load.Problem, error) {
	switch name {
	case "builtin":
		return sim.Builtin(), nil, nil
	case "kwok":
		return sim.KWOK(), nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing to lose
	cat, errs := sim.ReadFile(f, name)
	var problems []load.Problem
	for _, err := range errs {
		problems = append(problems, load.Problem{Severity: load.Error, File: name, Message: strings.TrimPrefix(err.Error(), name+": ")})
	}
	if cat.Len() == 0 {
		return nil, nil, fmt.Errorf("%s: no instance type can be used%s", name, listProblems(problems))
	}
	return cat, problems, nil
}

func (f *simulateFlags) input(args []string, stdin io.Reader) (*load.Result, error) {
	inputs, err := load.Files(append(slices.Clone(args), f.nodePools...), stdin)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	in := load.Read(inputs)
	traces, err := load.Files(f.traces, stdin)
	if err != nil {
		return nil, fmt.Errorf("simulate: --trace: %w", err)
	}
	for _, t := range traces {
		pods, problems := load.Trace(t)
		in.Problems = append(in.Problems, problems...)
		in.Add(t.Name, pods)
	}
	if len(in.Read) == 0 {
		return nil, fmt.Errorf("simulate: no object in the input can be used%s", listProblems(in.Problems))
	}
	return in, nil
}

func listProblems(problems []load.Problem) string {
	var b strings.Builder
	for i, p := range load.Sort(problems) {
		if i == 20 {
			fmt.Fprintf(&b, "\n  and %d more", len(problems)-i)
			break
		}
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

func (f *simulateFlags) write(cmd *cobra.Command, out *simulate.Outcome, explanation *schedule.Explanation) error {
	w := cmd.OutOrStdout()
	if f.output == "table" {
		if explanation != nil {
			return simulate.WriteExplanation(w, *explanation, out.Costs)
		}
		return out.Report.WriteTable(w, simulate.TableOptions{Wide: f.wide})
	}
	var v any = &out.Report
	if explanation != nil {
		v = simulate.NewExplanation(*explanation, out.Costs)
	}
	return encode(w, f.output, v)
}

// encode writes v as json or yaml.
func encode(w io.Writer, format string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("simulate: write the report: %w", err)
	}
	if format == "yaml" {
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return fmt.Errorf("simulate: write the report: %w", err)
		}
		_, err = w.Write(raw)
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", raw)
	return err
}

// verdict turns the outcome into an exit code. Formats for programs leave people a line.
func (f *simulateFlags) verdict(cmd *cobra.Command, r *simulate.Report) error {
	faults := 0
	for _, p := range r.Problems {
		if p.Severity != load.Note {
			faults++
		}
	}
	if faults > 0 && f.output != "table" {
		fmt.Fprintf(cmd.ErrOrStderr(), "dovetail: the input has faults: %d are listed under problems\n", faults)
	}
	switch {
	case f.strict && faults > 0:
		return exit{exitProblems, fmt.Errorf("simulate: the input has %d errors or warnings, and --strict is set", faults)}
	case r.Pods.Unscheduled > 0 && !f.allowPending:
		return exit{code: exitUnscheduled, err: fmt.Errorf("simulate: %d of %d pods have no node", r.Pods.Unscheduled, r.Pods.Pending)}
	}
	return nil
}

// podKey finds the pod that name means: namespace/name, name in namespace default, or
// the first pod of a workload of that name.
func podKey(in *load.Result, name string) (snapshot.PodKey, error) {
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		namespace, short = "default", name
	}
	var of, near []snapshot.PodKey
	for _, p := range in.Objects.Pods {
		key := snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
		if p.Namespace != namespace {
			continue
		}
		if p.Name == short {
			return key, nil
		}
		if _, workload := in.Workload(key); workload == short {
			of = append(of, key)
		}
		if strings.HasPrefix(p.Name, short) {
			near = append(near, key)
		}
	}
	byName := func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) }
	if len(of) > 0 {
		return slices.MinFunc(of, byName), nil
	}
	if len(near) > 0 {
		return snapshot.PodKey{}, fmt.Errorf("simulate: --explain: there is no pod %s/%s; did you mean %s?", namespace, short, slices.MinFunc(near, byName))
	}
	return snapshot.PodKey{}, fmt.Errorf("simulate: --explain: there is no pod %s/%s in the input", namespace, short)
}

// scenarioFiles are the scenario files among paths and in the folders among them.
func scenarioFiles(paths []string) ([]string, error) {
	var out []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			out = append(out, path)
			continue
		}
		found, err := filepath.Glob(filepath.Join(path, "*.y*ml"))
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}
