package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
)

type policyBenchFlags struct {
	policyEvalFlags
	time time.Duration
}

func policyBenchCommand() *cobra.Command {
	f := policyBenchFlags{}
	cmd := &cobra.Command{
		Use:   "bench POLICIES [FILES...]",
		Short: "Time policies on a cluster",
		Long: `Time policies on a cluster: the files of one, or the default NodePool of the catalogue.

Each policy is asked over and over, with nothing cached; the least time counts. For
policies of hook disrupt name the --nodes that a command would remove.`,
		Example: "  dovetail policy bench policies/score --catalog builtin",
		Args:    cobra.MinimumNArgs(1),
		RunE:    f.bench,
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.time, "time", time.Second, "how long to ask each policy")
	flags.StringVar(&f.catalog, "catalog", "builtin", "instance types: builtin, kwok, or a file")
	flags.StringVar(&f.facts, "facts", "", "file of what policies are told beside the objects")
	flags.StringSliceVar(&f.nodes, "nodes", nil, "nodes that a command would remove, for disrupt")
	flags.StringVar(&f.reason, "reason", policy.Underutilized, "reason of the command, for disrupt")
	flags.StringVar(&f.now, "now", "", "the time to ask for, in RFC 3339 (default: now)")
	return cmd
}

func (f *policyBenchFlags) bench(cmd *cobra.Command, args []string) error {
	var loader policyLoader
	list, errs := loader.folder(cmd.Context(), args[0])
	if len(list) == 0 {
		return fmt.Errorf("policy bench: %w", errors.Join(errs...))
	}
	for _, err := range errs {
		fmt.Fprintln(cmd.ErrOrStderr(), "dovetail: policy not loaded:", err)
	}
	w := cmd.OutOrStdout()
	questions := map[policy.Hook][]any{}
	timed := 0
	for i := range list {
		p := &list[i]
		if _, ok := questions[p.Hook]; !ok {
			qs, err := f.snapshot(cmd, policy.NewEngine(policy.Options{Records: -1}), p.Hook, args[1:])
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "dovetail: policy bench: hook %s: %v\n", p.Hook, err)
			}
			questions[p.Hook] = qs
		}
		runtime := "rego"
		if p.module != nil {
			runtime = "wasm"
		}
		for _, q := range questions[p.Hook] {
			best, st, err := timeOf(cmd.Context(), p, q, f.time)
			if err != nil {
				fmt.Fprintf(w, "policy=%s hook=%s runtime=%s error=%q\n", p.Name, p.Hook, runtime, err)
				continue
			}
			timed++
			fmt.Fprintf(w, "policy=%s hook=%s runtime=%s rows=%d ms=%.3f steps=%d fuel=%d bytes=%d\n",
				p.Name, p.Hook, runtime, st.Rows, float64(best.Nanoseconds())/1e6, st.Steps, st.Fuel, st.ResultBytes)
		}
	}
	if timed == 0 {
		return errors.New("policy bench: no policy could be timed")
	}
	return nil
}

// timeOf is the least time of asking p about q for that long.
func timeOf(ctx context.Context, p *loadedPolicy, q any, length time.Duration) (time.Duration, policy.Stats, error) {
	var st policy.Stats
	best := time.Duration(1<<63 - 1)
	limits := p.Limits.WithDefaults(p.Hook)
	for begin := time.Now(); time.Since(begin) < length; {
		var err error
		rows := 0
		if s, ok := q.(*policy.ScoreInput); ok {
			rows = s.Candidates.Len()
		}
		c, cancel := context.WithTimeout(ctx, limits.Wall(rows))
		at := time.Now()
		if s, ok := q.(*policy.ScoreInput); ok {
			s.Parameters = p.parameters()
			_, st, err = p.Evaluator.Score(c, s)
		} else {
			g := q.(policy.GateInput)
			g.Terms().Parameters = p.parameters()
			_, st, err = p.Evaluator.Gate(c, g)
			rows = len(g.Known())
		}
		took := time.Since(at)
		cancel()
		if err != nil {
			return 0, st, err
		}
		st.Rows = rows
		best = min(best, took)
	}
	return best, st, nil
}

func (p *loadedPolicy) parameters() map[string]any {
	if p.Parameters == nil {
		return map[string]any{}
	}
	return p.Parameters
}

func policyInspectCommand() *cobra.Command {
	output := "table"
	cmd := &cobra.Command{
		Use:     "inspect POLICY",
		Short:   "Say what a policy says about itself",
		Long:    "Say what a policy says about itself: the METADATA of Rego, the description of a Wasm module.",
		Example: "  dovetail policy inspect policies/score/host_fee.rego",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("policy inspect: --output %s: must be table or json", output)
			}
			return inspect(cmd, args[0], output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "table or json")
	return cmd
}

// inspection is what is known of a policy without asking it.
type inspection struct {
	Name        string            `json:"name"`
	Hooks       []policy.Hook     `json:"hooks"`
	Runtime     string            `json:"runtime"`
	Revision    string            `json:"revision"`
	Title       string            `json:"title,omitempty"`
	Description string            `json:"description,omitempty"`
	Package     string            `json:"package,omitempty"`
	Default     bool              `json:"default,omitempty"`
	Reads       policy.Reads      `json:"reads"`
	Parameters  any               `json:"parameters,omitempty"`
	ABI         string            `json:"abi,omitempty"`
	Module      *wasm.Description `json:"module,omitempty"`
	Bytes       int               `json:"bytes"`
}

func inspect(cmd *cobra.Command, path string, asJSON bool) error {
	var loader policyLoader
	list, errs := loader.folder(cmd.Context(), path)
	var out []inspection
	for n := range list {
		p := &list[n]
		i := inspection{Name: p.Name, Hooks: []policy.Hook{p.Hook}, Revision: p.Revision, Reads: p.Evaluator.Reads()}
		if p.rego != nil {
			m := p.rego.Metadata()
			i.Runtime, i.Package, i.Title, i.Description, i.Default = "rego", p.rego.Package(), m.Title, strings.TrimSpace(m.Description), m.Default
			if m.Parameters != nil {
				i.Parameters = m.Parameters
			}
			for _, b := range p.found.Artifact.Files {
				i.Bytes += len(b)
			}
		} else {
			d := p.module.Description()
			i.Runtime, i.Module, i.Bytes, i.Title = "wasm", &d, 0, strings.TrimSpace(d.Name+" "+d.Version)
			i.ABI = fmt.Sprintf("1.%d", p.module.Minor())
			_, b := moduleName(p.found)
			i.Bytes = len(b)
			i.Hooks = nil
			for _, h := range p.module.Hooks() {
				i.Hooks = append(i.Hooks, policy.Hook(h.String()))
			}
			if len(d.SettingsSchema) > 0 {
				i.Parameters = d.SettingsSchema
			}
			p.module.Close()
		}
		out = append(out, i)
	}
	if len(out) == 0 {
		return fmt.Errorf("policy inspect: %w", errors.Join(errs...))
	}
	for _, err := range errs {
		fmt.Fprintln(cmd.ErrOrStderr(), "dovetail: policy not loaded:", err)
	}
	w := cmd.OutOrStdout()
	if asJSON {
		b, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			return fmt.Errorf("policy inspect: %w", err)
		}
		_, err = fmt.Fprintf(w, "%s\n", b)
		return err
	}
	for n := range out {
		if n > 0 {
			fmt.Fprintln(w)
		}
		i := &out[n]
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		line := func(name, value string) {
			if value != "" {
				fmt.Fprintf(t, "%s:\t%s\n", name, value)
			}
		}
		line("name", i.Name)
		line("title", i.Title)
		line("hooks", strings.Trim(fmt.Sprint(i.Hooks), "[]"))
		line("runtime", strings.TrimSpace(i.Runtime+" "+i.ABI))
		line("package", i.Package)
		line("revision", i.Revision)
		line("bytes", fmt.Sprint(i.Bytes))
		if i.Default {
			line("default", "safe to enable everywhere")
		}
		if i.Module != nil && i.Module.Guardrail {
			line("guardrail", "its failure must not be ignored")
		}
		if i.Reads == nil {
			line("reads", "all of its input")
		} else {
			line("reads", strings.Join(i.Reads, "\n\t"))
		}
		if i.Parameters != nil {
			b, err := json.MarshalIndent(i.Parameters, "\t", "  ")
			if err != nil {
				return fmt.Errorf("policy inspect: %w", err)
			}
			line("parameters", string(b))
		}
		_ = t.Flush()
		if i.Description != "" {
			fmt.Fprintf(w, "\n%s\n", i.Description)
		}
	}
	return nil
}

//go:embed scaffold
var scaffolds embed.FS

var policyName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func policyNewCommand() *cobra.Command {
	dir := "."
	cmd := &cobra.Command{
		Use:     "new HOOK NAME",
		Short:   "Begin a policy with its test",
		Long:    "Begin a policy in Rego with its test: two files that pass dovetail policy check and test.",
		Example: "  dovetail policy new score no_old_types --dir policies/score",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return scaffold(cmd, dir, policy.Hook(args[0]), args[1])
		},
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "folder to write to; it is made if it does not exist")
	return cmd
}

func scaffold(cmd *cobra.Command, dir string, hook policy.Hook, name string) error {
	if !slices.Contains(policy.Hooks(), hook) {
		return fmt.Errorf("policy new: hook %q: must be score, disrupt, launch or admit", hook)
	}
	if !policyName.MatchString(name) {
		return fmt.Errorf("policy new: name %q: must be lower-case letters, digits and _, beginning with a letter", name)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("policy new: %w", err)
	}
	for _, suffix := range []string{".rego", "_test.rego"} {
		t, err := template.New("").Delims("<<", ">>").ParseFS(scaffolds, "scaffold/"+string(hook)+suffix+".tmpl")
		if err != nil {
			return fmt.Errorf("policy new: %w", err)
		}
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, string(hook)+suffix+".tmpl", name); err != nil {
			return fmt.Errorf("policy new: %w", err)
		}
		path := filepath.Join(dir, name+suffix)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return fmt.Errorf("policy new: %w", err)
		}
		_, err = f.Write(b.Bytes())
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("policy new: %w", err)
		}
		fmt.Fprintln(cmd.OutOrStdout(), path)
	}
	return nil
}
