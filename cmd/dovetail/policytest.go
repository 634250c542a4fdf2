package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/policies"
)

const exitTestsFailed = 2

type policyTestFlags struct {
	verbose  bool
	run      string
	coverage bool
	minimum  float64
	junit    string
}

func policyTestCommand() *cobra.Command {
	var f policyTestFlags
	cmd := &cobra.Command{
		Use:   "test PATHS...",
		Short: "Run the tests of policies",
		Long: `Run the tests of policies: rules named test_... of Rego files, with what Dovetail allows
in policies, and the vectors in name_test.yaml beside a module name.wasm:

  - name: spot is half price
    parameters: {factor: 500}
    input: {candidates: [...]}          # as in policies/schemas/score/input.json
    want: {adjust: [{i: 0, permille: 500, factor: true}]}
    error: ""                           # or what the error must contain

Exit codes:
  0  all tests pass
  1  wrong usage, or a file cannot be read
  2  a test fails, or coverage is below --min-coverage`,
		Example: "  dovetail policy test policies --coverage",
		Args:    cobra.MinimumNArgs(1),
		RunE:    f.test,
	}
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "a line for each test, and what fails in it")
	cmd.Flags().StringVarP(&f.run, "run", "r", "", "run only tests whose name matches this regular expression")
	cmd.Flags().BoolVar(&f.coverage, "coverage", false, "list the lines that no test reaches")
	cmd.Flags().Float64Var(&f.minimum, "min-coverage", 0, "fail if tests reach less than this share of lines, in percent")
	cmd.Flags().StringVar(&f.junit, "junit", "", "write the results to this file as JUnit XML")
	return cmd
}

// testResult is one test.
type testResult struct {
	file, suite, name string
	took              time.Duration
	failed, skipped   bool
	// message says what failed; several lines.
	message string
}

func (f *policyTestFlags) test(cmd *cobra.Command, args []string) error {
	if _, err := regexp.Compile(f.run); err != nil {
		return fmt.Errorf("policy test: --run: %w", err)
	}
	modules, err := parsePolicies(args)
	if err != nil {
		return fmt.Errorf("policy test: %w", err)
	}
	var results []testResult
	var report *cover.Report
	if len(modules) > 0 {
		if results, report, err = f.rego(cmd.Context(), modules); err != nil {
			return fmt.Errorf("policy test: %w", err)
		}
	}
	vectors, err := f.wasm(cmd.Context(), args)
	if err != nil {
		return fmt.Errorf("policy test: %w", err)
	}
	results = append(results, vectors...)
	if f.junit != "" {
		if err := writeJUnit(f.junit, results); err != nil {
			return fmt.Errorf("policy test: --junit: %w", err)
		}
	}
	return f.tell(cmd.OutOrStdout(), results, report)
}

func capabilities() (*ast.Capabilities, error) {
	b, err := policies.Files.ReadFile("capabilities.json")
	if err != nil {
		return nil, err
	}
	return ast.LoadCapabilitiesJSON(bytes.NewReader(b))
}

func parseRego(name, text string, caps *ast.Capabilities) (*ast.Module, error) {
	return ast.ParseModuleWithOpts(name, text, ast.ParserOptions{ProcessAnnotation: true, Capabilities: caps, RegoVersion: ast.RegoV1})
}

// parsePolicies reads the Rego files of paths, and the library that comes with Dovetail
// unless they bring one.
func parsePolicies(paths []string) (map[string]*ast.Module, error) {
	caps, err := capabilities()
	if err != nil {
		return nil, err
	}
	out := map[string]*ast.Module{}
	var errs []error
	lib := false
	for _, p := range paths {
		texts, err := readPolicyTree(p, ".rego")
		if err != nil {
			return nil, err
		}
		for _, name := range sortedKeys(texts) {
			m, err := parseRego(name, texts[name], caps)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			lib = lib || m.Package.Path.String() == "data.dovetail.lib"
			out[name] = m
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if lib || len(out) == 0 {
		return out, nil
	}
	entries, err := policies.Files.ReadDir("lib")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if isTest(e.Name()) {
			continue
		}
		name := path.Join("lib", e.Name())
		b, err := policies.Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if out["dovetail/"+name], err = parseRego("dovetail/"+name, string(b), caps); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *policyTestFlags) rego(ctx context.Context, modules map[string]*ast.Module) ([]testResult, *cover.Report, error) {
	caps, err := capabilities()
	if err != nil {
		return nil, nil, err
	}
	// The compiler rewrites what it is given; coverage is told by the files.
	original := map[string]*ast.Module{}
	for name, m := range modules {
		original[name] = m.Copy()
	}
	tracer := cover.New()
	store := inmem.New()
	var results []testResult
	err = storage.Txn(ctx, store, storage.TransactionParams{}, func(txn storage.Transaction) error {
		runner := tester.NewRunner().
			SetCompiler(ast.NewCompiler().WithCapabilities(caps).WithEnablePrintStatements(true)).
			SetStore(store).SetModules(modules).SetCoverageQueryTracer(tracer).CapturePrintOutput(true).
			RaiseBuiltinErrors(true).SetTimeout(5 * time.Second).Filter(f.run)
		found, err := runner.RunTests(ctx, txn)
		if err != nil {
			return err
		}
		for r := range found {
			t := testResult{file: r.Location.File, suite: strings.TrimPrefix(r.Package, "data."), name: r.Name, took: r.Duration, failed: r.Fail || r.Error != nil, skipped: r.Skip}
			switch {
			case r.Error != nil:
				t.message = r.Error.Error()
			case r.Fail:
				t.message = fmt.Sprintf("%s:%d: %s is not true", r.Location.File, r.Location.Row, r.Name)
			}
			if out := strings.TrimSpace(string(r.Output)); out != "" && (t.failed || f.verbose) {
				t.message = strings.TrimSpace(t.message + "\n" + out)
			}
			results = append(results, t)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(results, func(a, b testResult) int { return strings.Compare(a.file, b.file) })
	report := tracer.Report(original)
	// Tests are no policies, and the library that comes with Dovetail is not theirs.
	covered, lines := 0, 0
	for name, f := range report.Files {
		if isTest(name) || strings.HasPrefix(name, "dovetail/lib/") {
			delete(report.Files, name)
			continue
		}
		covered += f.CoveredLines
		lines += f.CoveredLines + f.NotCoveredLines
	}
	report.Coverage = 100
	if lines > 0 {
		report.Coverage = 100 * float64(covered) / float64(lines)
	}
	return results, &report, nil
}

// vector is a test of a Wasm module.
type vector struct {
	Name string `json:"name"`
	// Hook is needed for a module of several.
	Hook       policy.Hook     `json:"hook"`
	Parameters map[string]any  `json:"parameters"`
	Input      json.RawMessage `json:"input"`
	Want       json.RawMessage `json:"want"`
	Error      string          `json:"error"`
}

func (f *policyTestFlags) wasm(ctx context.Context, paths []string) ([]testResult, error) {
	match := regexp.MustCompile(f.run)
	var out []testResult
	var loader policyLoader
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() && filepath.Ext(p) != ".wasm" {
			continue
		}
		// What is no good as a policy may still be tested, and policy check says what it is.
		found, _ := findPolicies(p)
		dir := p
		if !info.IsDir() {
			dir = filepath.Dir(p)
		}
		for _, f := range found {
			results, err := testModule(ctx, &loader, dir, f, match)
			if err != nil {
				return nil, err
			}
			out = append(out, results...)
		}
	}
	return out, nil
}

// testModule runs the vectors of f, if it is a module with a file of them beside it.
func testModule(ctx context.Context, l *policyLoader, dir string, f set.Found, match *regexp.Regexp) ([]testResult, error) {
	module, _ := moduleName(f)
	if module == "" {
		return nil, nil
	}
	name := filepath.Join(dir, strings.TrimSuffix(module, ".wasm")+"_test.yaml")
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var vectors []vector
	if err := yaml.UnmarshalStrict(b, &vectors); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var out []testResult
	for _, v := range vectors {
		if !match.MatchString(v.Name) || v.Hook != "" && v.Hook != policy.Hook(f.Policy.Spec.Hook) {
			continue
		}
		t := testResult{file: name, suite: f.Policy.Name, name: v.Name}
		begin := time.Now()
		if err := v.run(ctx, l, f); err != nil {
			t.failed, t.message = true, err.Error()
		}
		t.took = time.Since(begin)
		out = append(out, t)
	}
	return out, nil
}

// run asks the module, and says what is not as wanted.
func (v *vector) run(ctx context.Context, l *policyLoader, f set.Found) error {
	got, err := v.ask(ctx, l, f)
	switch {
	case v.Error != "" && err == nil:
		return fmt.Errorf("no error, want one with %q; answer: %s", v.Error, got)
	case v.Error != "" && strings.Contains(err.Error(), v.Error):
		return nil
	case err != nil:
		return err
	}
	want, err := canonical(v.Want)
	if err != nil {
		return fmt.Errorf("want: %w", err)
	}
	if want != got {
		return fmt.Errorf("answer: %s\nwant:   %s", got, want)
	}
	return nil
}

func (v *vector) ask(ctx context.Context, l *policyLoader, f set.Found) (string, error) {
	if v.Parameters != nil {
		var err error
		if f, err = with(f, v.Parameters); err != nil {
			return "", err
		}
	}
	p, err := l.load(ctx, f)
	if err != nil {
		return "", err
	}
	defer p.module.Close()
	limits := p.Limits.WithDefaults(p.Hook)
	ctx, cancel := context.WithTimeout(ctx, limits.Wall(0))
	defer cancel()
	var answer any
	in, err := inputOf(p.Hook, v.Input)
	if err != nil {
		return "", fmt.Errorf("input: %w", err)
	}
	if q, ok := in.(*policy.ScoreInput); ok {
		answer, _, err = p.Evaluator.Score(ctx, q)
	} else {
		answer, _, err = p.Evaluator.Gate(ctx, in.(policy.GateInput))
	}
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return "", err
	}
	return canonical(raw)
}

// inputOf reads the input of a hook. Fields that it does not know are errors.
func inputOf(h policy.Hook, raw []byte) (any, error) {
	in := map[policy.Hook]any{
		policy.Score: &policy.ScoreInput{Candidates: &policy.Offerings{}}, policy.Disrupt: &policy.DisruptInput{},
		policy.Launch: &policy.LaunchInput{}, policy.Admit: &policy.AdmitInput{},
	}[h]
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		return nil, err
	}
	return in, nil
}

// canonical is JSON with sorted keys and without spaces.
func canonical(raw []byte) (string, error) {
	if len(raw) == 0 {
		raw = []byte("{}")
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	out, err := json.Marshal(v)
	return string(out), err
}

func (f *policyTestFlags) tell(w io.Writer, results []testResult, report *cover.Report) error {
	p := paletteFor(w)
	type file struct{ passed, failed, skipped int }
	byFile := map[string]*file{}
	failed, skipped := 0, 0
	for _, r := range results {
		n := byFile[r.file]
		if n == nil {
			n = &file{}
			byFile[r.file] = n
		}
		switch {
		case r.skipped:
			n.skipped++
			skipped++
		case r.failed:
			n.failed++
			failed++
		default:
			n.passed++
		}
	}
	for _, name := range sortedKeys(byFile) {
		n := byFile[name]
		word := p.good("ok  ")
		if n.failed > 0 {
			word = p.bad("FAIL")
		}
		fmt.Fprintf(w, "%s  %s  %d of %d\n", word, name, n.passed, n.passed+n.failed)
		for _, r := range results {
			if r.file != name || !f.verbose && !r.failed {
				continue
			}
			what := p.good("pass")
			if r.failed {
				what = p.bad("FAIL")
			} else if r.skipped {
				what = p.note("skip")
			}
			took := ""
			if f.verbose {
				took = " " + p.dim("("+millis(r.took)+")")
			}
			fmt.Fprintf(w, "      %s  %s%s\n", what, r.name, took)
			for line := range strings.SplitSeq(r.message, "\n") {
				if line != "" {
					fmt.Fprintln(w, "            "+line)
				}
			}
		}
	}
	coverage := 100.0
	if report != nil {
		coverage = report.Coverage
		if f.coverage {
			fmt.Fprintln(w)
			tellCoverage(w, p, report)
		}
	}
	line := fmt.Sprintf("tests=%d passed=%d failed=%d skipped=%d", len(results), len(results)-failed-skipped, failed, skipped)
	if report != nil {
		line += fmt.Sprintf(" coverage=%.1f%%", coverage)
	}
	switch {
	case failed > 0:
		fmt.Fprintln(w, p.bad(line))
		return exit{exitTestsFailed, fmt.Errorf("policy test: %d of %d tests fail", failed, len(results))}
	case len(results) == 0:
		fmt.Fprintln(w, p.note(line))
		return errors.New("policy test: no tests: neither a rule test_... nor a file name_test.yaml beside a module")
	case report != nil && coverage < f.minimum:
		fmt.Fprintln(w, p.bad(line))
		return exit{exitTestsFailed, fmt.Errorf("policy test: tests reach %.1f %% of the lines, less than %.1f %%", coverage, f.minimum)}
	}
	fmt.Fprintln(w, p.good(line))
	return nil
}

func tellCoverage(w io.Writer, p palette, r *cover.Report) {
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		f := r.Files[name]
		share := fmt.Sprintf("%5.1f%%", f.Coverage)
		if f.NotCoveredLines == 0 {
			fmt.Fprintf(w, "%s  %s\n", p.good(share), name)
			continue
		}
		var lines []string
		for _, n := range f.NotCovered {
			if n.Start.Row == n.End.Row {
				lines = append(lines, fmt.Sprint(n.Start.Row))
			} else {
				lines = append(lines, fmt.Sprintf("%d-%d", n.Start.Row, n.End.Row))
			}
		}
		fmt.Fprintf(w, "%s  %s: not lines %s\n", p.note(share), name, strings.Join(slices.Compact(lines), ", "))
	}
}

// writeJUnit writes results as JUnit XML, a suite for each package or module.
func writeJUnit(name string, results []testResult) error {
	type failure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Class   string    `xml:"classname,attr"`
		Name    string    `xml:"name,attr"`
		File    string    `xml:"file,attr"`
		Time    string    `xml:"time,attr"`
		Failure *failure  `xml:"failure,omitempty"`
		Skipped *struct{} `xml:"skipped,omitempty"`
	}
	type suite struct {
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	var doc struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []*suite `xml:"testsuite"`
	}
	at := map[string]*suite{}
	for _, r := range results {
		s := at[r.suite]
		if s == nil {
			s = &suite{Name: r.suite}
			at[r.suite] = s
			doc.Suites = append(doc.Suites, s)
		}
		s.Tests++
		c := testcase{Class: r.suite, Name: r.name, File: r.file, Time: fmt.Sprintf("%.6f", r.took.Seconds())}
		if r.failed {
			s.Failures++
			first, _, _ := strings.Cut(r.message, "\n")
			c.Failure = &failure{Message: cmp.Or(first, "failed"), Text: r.message}
		}
		if r.skipped {
			s.Skipped++
			c.Skipped = &struct{}{}
		}
		s.Cases = append(s.Cases, c)
	}
	b, err := xml.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append([]byte(xml.Header), append(b, '\n')...), 0o644)
}
