package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
	"github.com/spf13/cobra"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

const exitFaults = 2

func policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check PATHS...",
		Short: "Load policies as the engine does, and say what is wrong with them",
		Long: `Load policies as the engine does, and say what is wrong with them.

Rego is compiled in strict mode against the schema of the hook's input and the allowed
builtin functions, with the parameters of the settings beside it; its tests are compiled
as well. A Wasm module is held against the ABI and the limits, compiled, and asked the
questions of the self-test.

Exit codes:
  0  every policy can be used
  1  wrong usage, or a file cannot be read
  2  some cannot`,
		Example: "  dovetail policy check policies",
		Args:    cobra.MinimumNArgs(1),
		RunE:    checkPolicies,
	}
}

func checkPolicies(cmd *cobra.Command, args []string) error {
	w := cmd.OutOrStdout()
	p := paletteFor(w)
	var loader policyLoader
	good, bad := 0, 0
	for _, dir := range args {
		if _, err := os.Stat(dir); err != nil {
			return fmt.Errorf("policy check: %w", err)
		}
		list, errs := loader.folder(cmd.Context(), dir)
		for i := range list {
			l := &list[i]
			reads := "reads all of its input"
			if r := l.Evaluator.Reads(); r != nil {
				reads = fmt.Sprintf("reads %d fields", len(r))
			}
			fmt.Fprintf(w, "%s  %-8s %s  %s\n", p.good("ok "), l.Hook, l.Name, p.dim(reads))
			good++
		}
		errs = append(errs, compileTests(dir)...)
		for _, err := range errs {
			fmt.Fprintf(w, "%s  %s\n", p.bad("BAD"), strings.ReplaceAll(err.Error(), "\n", "\n     "))
			bad++
		}
	}
	fmt.Fprintf(w, "policies=%d faults=%d\n", good, bad)
	if bad > 0 {
		return exit{exitFaults, fmt.Errorf("policy check: %d faults", bad)}
	}
	return nil
}

// compileTests compiles the tests in and below dir together with what they test.
func compileTests(dir string) []error {
	texts, err := readPolicyTree(dir, ".rego")
	if err != nil {
		return []error{err}
	}
	if !slices.ContainsFunc(sortedKeys(texts), isTest) {
		return nil
	}
	modules, err := parsePolicies([]string{dir})
	if err != nil {
		return []error{err}
	}
	caps, err := capabilities()
	if err != nil {
		return []error{err}
	}
	c := ast.NewCompiler().WithCapabilities(caps).WithStrict(true)
	c.Compile(modules)
	var out []error
	for _, e := range c.Errors {
		// What is wrong with a policy has been said when it was loaded.
		if e.Location != nil && isTest(e.Location.File) {
			out = append(out, &policy.Error{Class: policy.ClassLoad, File: e.Location.File, Line: e.Location.Row, Msg: e.Message})
		}
	}
	return out
}

type policyFmtFlags struct{ fail, write, list bool }

func policyFmtCommand() *cobra.Command {
	var f policyFmtFlags
	cmd := &cobra.Command{
		Use:   "fmt PATHS...",
		Short: "Format Rego files",
		Long:  "Format Rego files, and print them unless -w or -l is given.",
		Example: `  dovetail policy fmt -w policies
  dovetail policy fmt --fail -l policies`,
		Args: cobra.MinimumNArgs(1),
		RunE: f.run,
	}
	cmd.Flags().BoolVar(&f.fail, "fail", false, "exit with 2 if a file is not formatted")
	cmd.Flags().BoolVarP(&f.write, "write", "w", false, "write formatted files back")
	cmd.Flags().BoolVarP(&f.list, "list", "l", false, "list the files that are not formatted")
	return cmd
}

func (f *policyFmtFlags) run(cmd *cobra.Command, args []string) error {
	w := cmd.OutOrStdout()
	changed := 0
	var errs []error
	for _, dir := range args {
		texts, err := readPolicyTree(dir, ".rego")
		if err != nil {
			return fmt.Errorf("policy fmt: %w", err)
		}
		for _, name := range sortedKeys(texts) {
			text := []byte(texts[name])
			out, err := format.SourceWithOpts(name, text, format.Opts{RegoVersion: ast.RegoV1})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			same := bytes.Equal(text, out)
			if !same {
				changed++
			}
			switch {
			case !f.write && !f.list && !f.fail:
				if _, err := w.Write(out); err != nil {
					return err
				}
			case !same && (f.list || f.fail):
				fmt.Fprintln(w, name)
			}
			if f.write && !same {
				if err := os.WriteFile(name, out, 0o644); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("policy fmt: %w", err)
	}
	if f.fail && changed > 0 {
		return exit{exitFaults, fmt.Errorf("policy fmt: %d files are not formatted", changed)}
	}
	return nil
}
