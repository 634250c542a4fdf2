package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/simulate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// exitDiffers is the exit code of a replay with another verdict.
const exitDiffers = 2

type policyEvalFlags struct {
	hook    string
	pool    string
	nodes   []string
	reason  string
	input   string
	fromLog string
	id      string
	catalog string
	facts   string
	now     string
	output  string
	all     bool
}

func policyEvalCommand() *cobra.Command {
	var f policyEvalFlags
	cmd := &cobra.Command{
		Use:   "eval POLICIES [FILES...]",
		Short: "Ask policies a question",
		Long: `Ask policies a question, and print what they say.

POLICIES is a folder, a Rego file or a Wasm module. FILES describe a cluster, as those of
dovetail simulate do, and the question is made from it: the offerings of each NodePool
(score), the plan for the pending pods (launch), each NodePool (admit), or a command to
remove --nodes (disrupt). --input asks a question from a file, as JSON of the hook's
schema; --from-log asks the questions of a decision log again and compares.

Exit codes:
  0  the policies have answered
  1  wrong usage, or something cannot be read
  2  a replayed decision has another verdict`,
		Example: `  dovetail policy eval policies/score/host_fee.rego examples/quickstart
  dovetail policy eval policies examples/quickstart --hook launch
  dovetail policy eval policies cluster.yaml --hook disrupt --nodes node-a --reason Underutilized
  dovetail policy eval policies --from-log decisions.jsonl`,
		Args: cobra.MinimumNArgs(1),
		RunE: f.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.hook, "hook", "", "score, disrupt, launch or admit (default: that of the policies, if it is one)")
	flags.StringVar(&f.pool, "pool", "", "ask about this NodePool only")
	flags.StringSliceVar(&f.nodes, "nodes", nil, "nodes that a command would remove, for disrupt")
	flags.StringVar(&f.reason, "reason", policy.Underutilized, "reason of the command, for disrupt")
	flags.StringVar(&f.input, "input", "", "file with the question as JSON")
	flags.StringVar(&f.fromLog, "from-log", "", "decision log to ask again")
	flags.StringVar(&f.id, "id", "", "of the log, only the decision whose id begins so")
	flags.StringVar(&f.catalog, "catalog", "builtin", "instance types: builtin, kwok, or a file")
	flags.StringVar(&f.facts, "facts", "", "file of what policies are told beside the objects")
	flags.StringVar(&f.now, "now", "", "the time to ask for, in RFC 3339 (default: now)")
	flags.StringVarP(&f.output, "output", "o", "table", "table or json")
	flags.BoolVar(&f.all, "all", false, "list every offering, also those that no policy changed")
	return cmd
}

// evaluation is a decision, with the costs before and after for score.
type evaluation struct {
	Record policy.Record    `json:"record"`
	Scores []scoredOffering `json:"offerings,omitempty"`
}

// scoredOffering is an offering before and after score policies, in micro-USD per hour.
type scoredOffering struct {
	Offering string `json:"offering"`
	Before   int64  `json:"before"`
	After    int64  `json:"after"`
	Bias     int64  `json:"bias,omitempty"`
	Deny     string `json:"deny,omitempty"`
	// Commitment pays Covered instead of After while it has units left.
	Commitment string `json:"commitment,omitempty"`
	Covered    int64  `json:"covered,omitempty"`
}

func (f *policyEvalFlags) run(cmd *cobra.Command, args []string) error {
	fail := func(err error) error { return fmt.Errorf("policy eval: %w", err) }
	if f.output != "table" && f.output != "json" {
		return fail(fmt.Errorf("--output %s: must be table or json", f.output))
	}
	var loader policyLoader
	list, errs := loader.folder(cmd.Context(), args[0])
	if len(list) == 0 {
		return fail(errors.Join(errs...))
	}
	for _, err := range errs {
		fmt.Fprintln(cmd.ErrOrStderr(), "dovetail: policy not loaded:", err)
	}
	var records []policy.Record
	e := policy.NewEngine(policy.Options{OnDecision: func(r policy.Record, _ any) { records = append(records, r) }})
	if err := e.Swap(enginePolicies(list)); err != nil {
		return fail(err)
	}
	if f.fromLog != "" {
		return f.replay(cmd, e)
	}
	hook, err := f.asked(list)
	if err != nil {
		return fail(err)
	}
	ask := f.snapshot
	if f.input != "" {
		ask = f.file
	} else if len(args) == 1 {
		return fail(errors.New("name the files of a cluster, or --input or --from-log"))
	}
	questions, err := ask(cmd, e, hook, args[1:])
	if err != nil {
		return fail(err)
	}
	records = nil
	var out []evaluation
	for _, q := range questions {
		var ev evaluation
		records = nil
		switch q := q.(type) {
		case *policy.ScoreInput:
			var s *policy.Scores
			if s, err = e.Score(cmd.Context(), q); err == nil {
				ev.Scores = f.offerings(s)
			}
		case *policy.DisruptInput:
			_, err = e.Disrupt(cmd.Context(), q)
		case *policy.LaunchInput:
			_, err = e.Launch(cmd.Context(), q)
		case *policy.AdmitInput:
			_, err = e.Admit(cmd.Context(), q)
		}
		if err != nil {
			return fail(err)
		}
		if len(records) > 0 {
			ev.Record = records[len(records)-1]
		}
		out = append(out, ev)
	}
	return f.write(cmd.OutOrStdout(), out)
}

// asked is the hook to ask.
func (f *policyEvalFlags) asked(list []loadedPolicy) (policy.Hook, error) {
	if f.hook != "" {
		h := policy.Hook(f.hook)
		if !slices.Contains(policy.Hooks(), h) {
			return "", fmt.Errorf("--hook %s: must be score, disrupt, launch or admit", f.hook)
		}
		return h, nil
	}
	for i := range list {
		if list[i].Hook != list[0].Hook {
			return "", errors.New("the policies are of several hooks; choose with --hook")
		}
	}
	return list[0].Hook, nil
}

func (f *policyEvalFlags) file(_ *cobra.Command, _ *policy.Engine, hook policy.Hook, _ []string) ([]any, error) {
	b, err := os.ReadFile(f.input)
	if err != nil {
		return nil, err
	}
	in, err := inputOf(hook, b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.input, err)
	}
	return []any{in}, nil
}

// cluster is what the files at paths hold, as a snapshot, with what policies are told beside
// it.
func (f *policyEvalFlags) cluster(stdin io.Reader, paths []string) (*load.Result, *snapshot.Snapshot, snapshot.Objects, policy.Facts, error) {
	var none snapshot.Objects
	facts, err := readFacts(f.facts)
	if err != nil {
		return nil, nil, none, facts, err
	}
	now := time.Now().UTC()
	if f.now != "" {
		if now, err = time.Parse(time.RFC3339, f.now); err != nil {
			return nil, nil, none, facts, fmt.Errorf("--now: %w", err)
		}
	}
	cat, _, err := readCatalog(f.catalog)
	if err != nil {
		return nil, nil, none, facts, fmt.Errorf("--catalog: %w", err)
	}
	inputs, err := load.Files(paths, stdin)
	if err != nil {
		return nil, nil, none, facts, err
	}
	in := load.Read(inputs)
	if len(in.Read) == 0 && len(paths) > 0 {
		return nil, nil, none, facts, fmt.Errorf("no object in the input can be used%s", listProblems(in.Problems))
	}
	snap, objs := simulate.Snapshot(in, simulate.Options{Now: now, Catalog: cat})
	return in, snap, objs, simulate.Facts(facts, objs), nil
}

func (f *policyEvalFlags) snapshot(cmd *cobra.Command, e *policy.Engine, hook policy.Hook, paths []string) ([]any, error) {
	read, snap, objs, facts, err := f.cluster(cmd.InOrStdin(), paths)
	if err != nil {
		return nil, err
	}
	in := &policy.Inputs{}
	var out []any
	switch hook {
	case policy.Score:
		for _, p := range snap.Pools {
			if (f.pool == "" || f.pool == p.Name) && p.Unusable == "" {
				out = append(out, in.Score(snap, p, facts))
			}
		}
	case policy.Admit:
		for _, np := range objs.NodePools {
			if f.pool != "" && f.pool != np.Name {
				continue
			}
			review, err := fact.Review(np, nil, snap.Now)
			if err != nil {
				return nil, err
			}
			out = append(out, in.Admit(snap, np, review, facts))
		}
	case policy.Launch:
		costs, err := e.Costs(cmd.Context(), in, snap, facts)
		if err != nil {
			return nil, err
		}
		plan, err := schedule.Solve(cmd.Context(), snap, schedule.Options{Costs: costs})
		if err != nil {
			return nil, err
		}
		if len(plan.NewNodes) == 0 {
			return nil, errors.New("the plan buys nothing, so there is nothing to ask for hook launch")
		}
		out = append(out, in.Launch(snap, &plan, costs, facts))
	case policy.Disrupt:
		q, err := f.command(cmd.Context(), in, simulate.FactsOf(read, objs), snap, facts)
		if err != nil {
			return nil, err
		}
		out = append(out, q)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no NodePool to ask about for hook %s", hook)
	}
	return out, nil
}

// command is the removal of --nodes: their pods go to other nodes, or to new ones.
func (f *policyEvalFlags) command(ctx context.Context, in *policy.Inputs, known fact.Objects, snap *snapshot.Snapshot, facts policy.Facts) (*policy.DisruptInput, error) {
	if len(f.nodes) == 0 {
		return nil, errors.New("hook disrupt asks about a command: name its --nodes")
	}
	without := map[string]bool{}
	for _, name := range f.nodes {
		without[name] = true
	}
	plan, err := schedule.Solve(ctx, snap.Fork(without), schedule.Options{})
	if err != nil {
		return nil, err
	}
	return known.Question(in, snap, fact.Proposal{Reason: f.reason, Nodes: f.nodes, Plan: plan}, facts)
}

func (f *policyEvalFlags) offerings(s *policy.Scores) []scoredOffering {
	var out []scoredOffering
	for i := range s.Cost {
		row := &s.Rows.Rows[i]
		o := scoredOffering{Before: row.Offering.ListPrice, After: s.Cost[i], Bias: s.Bias[i], Deny: s.Deny[i]}
		if row.InstanceType != nil {
			o.Offering = row.InstanceType.Name
		}
		o.Offering = strings.Join([]string{o.Offering, row.Offering.Zone, row.Offering.CapacityType}, "/")
		if c, ok := s.Cover[i]; ok {
			o.Commitment, o.Covered = c.Commitment, c.MicroUSD
		}
		if f.all || o.After != o.Before || o.Bias != 0 || o.Deny != "" || o.Commitment != "" {
			out = append(out, o)
		}
	}
	slices.SortStableFunc(out, func(a, b scoredOffering) int {
		return cmp.Or(cmp.Compare(a.After+a.Bias, b.After+b.Bias), strings.Compare(a.Offering, b.Offering))
	})
	return out
}

func (f *policyEvalFlags) write(w io.Writer, list []evaluation) error {
	if f.output == "json" {
		b, err := json.MarshalIndent(list, "", "  ")
		if err != nil {
			return fmt.Errorf("policy eval: %w", err)
		}
		_, err = fmt.Fprintf(w, "%s\n", b)
		return err
	}
	for i := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		list[i].write(w, f.all)
	}
	return nil
}

func (e *evaluation) write(w io.Writer, all bool) {
	p := paletteFor(w)
	r := &e.Record
	fmt.Fprintf(w, "%s %s: %s\n", r.Hook, cmp.Or(r.Subject, "-"), r.Effect)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  POLICY\tMODE\tVERDICT\tMICROS\tSTEPS OR FUEL")
	for _, x := range r.Policies {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%d\t%d\n", x.Name, x.Mode, x.Verdict, x.Micros, x.Steps+x.Fuel)
	}
	_ = t.Flush()
	for _, x := range r.Policies {
		if x.Error != "" {
			fmt.Fprintf(w, "  %s %s: %s\n", p.bad("error"), x.ErrorClass, x.Error)
			continue
		}
		if r.Hook == policy.Score {
			continue
		}
		for _, reason := range x.Reasons {
			fmt.Fprintf(w, "  %s says %s\n", x.Name, reason.Msg)
		}
	}
	const most = 40
	if r.Hook != policy.Score {
		return
	}
	if len(e.Scores) == 0 {
		fmt.Fprintln(w, "  no offering has another cost or bias; --all lists them")
		return
	}
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  OFFERING\tBEFORE\tAFTER\tBIAS\tNOTE")
	shown := e.Scores
	if !all {
		shown = shown[:min(len(shown), most)]
	}
	for _, o := range shown {
		note := ""
		if o.Commitment != "" {
			note = fmt.Sprintf("$%s while %s has units", usd(o.Covered), o.Commitment)
		}
		if o.Deny != "" {
			note = "excluded by " + o.Deny
		}
		fmt.Fprintf(t, "  %s\t$%s\t$%s\t%s\t%s\n", o.Offering, usd(o.Before), usd(o.After), usd(o.Bias), note)
	}
	_ = t.Flush()
	if more := len(e.Scores) - len(shown); more > 0 {
		fmt.Fprintf(w, "  and %d more; --all lists them\n", more)
	}
}

// usd is an amount in micro-USD as dollars.
func usd(micro int64) string { return fmt.Sprintf("%.6g", catalog.Price(micro).Dollars()) }

func (f *policyEvalFlags) replay(cmd *cobra.Command, e *policy.Engine) error {
	file, err := os.Open(f.fromLog)
	if err != nil {
		return fmt.Errorf("policy eval: --from-log: %w", err)
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing to lose
	w := cmd.OutOrStdout()
	lines := bufio.NewReader(file)
	asked, same := 0, 0
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("policy eval: --from-log: %w", err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			var l policy.Logged
			if err := json.Unmarshal(line, &l); err != nil {
				return fmt.Errorf("policy eval: %s:%d: %w", f.fromLog, number, err)
			}
			if strings.HasPrefix(l.Record.ID, f.id) && (f.hook == "" || string(l.Record.Hook) == f.hook) {
				differences, err := e.Replay(cmd.Context(), l)
				if err != nil {
					return fmt.Errorf("policy eval: %s:%d: %w", f.fromLog, number, err)
				}
				asked++
				if len(differences) == 0 {
					same++
				}
				for _, d := range differences {
					fmt.Fprintln(w, d)
				}
				if f.id != "" {
					(&evaluation{Record: l.Record}).write(w, false)
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
	}
	fmt.Fprintf(w, "decisions=%d same=%d\n", asked, same)
	switch {
	case asked == 0:
		return errors.New("policy eval: no decision in the log is asked for")
	case same < asked:
		return exit{exitDiffers, fmt.Errorf("policy eval: %d of %d decisions have another verdict", asked-same, asked)}
	}
	return nil
}
