package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/policies"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Write, test and try policies",
		Long: `Write, test and try policies.

A policy is a Rego file of package dovetail.<hook>.<name>, or a Wasm module that exports
dv_<hook>. Hooks are score, disrupt, launch and admit. A NodePolicy in name.yaml beside
name.rego or name.wasm gives it parameters, order, mode, failure policy and so on.`,
	}
	cmd.AddCommand(policyTestCommand(), policyCheckCommand(), policyFmtCommand(), policyEvalCommand(), policyBenchCommand(),
		policyInspectCommand(), policyNewCommand(), policyPushCommand(), policyCapabilitiesCommand())
	return cmd
}

// compileChildCommand is what a Wasm host starts to compile a module under limits.
func compileChildCommand() *cobra.Command {
	return &cobra.Command{
		Use: compileChild, Hidden: true, Args: cobra.NoArgs, Short: "Compile a Wasm module",
		RunE: func(*cobra.Command, []string) error {
			if code := wasm.CompileChildMain(); code != 0 {
				return exit{code: code}
			}
			return nil
		},
	}
}

func policyCapabilitiesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "capabilities",
		Short: "Print what Rego policies may use, for opa check and opa test --capabilities",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := policies.Files.ReadFile("capabilities.json")
			if err != nil {
				return fmt.Errorf("policy capabilities: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(b)
			return err
		},
	}
}

// palette colours words for a terminal.
type palette bool

// paletteFor has colours if w is a terminal and nobody asked for none.
func paletteFor(w io.Writer) palette {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return palette(err == nil && info.Mode()&os.ModeCharDevice != 0)
}

func (p palette) paint(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p palette) good(s string) string { return p.paint("32", s) }
func (p palette) bad(s string) string  { return p.paint("1;31", s) }
func (p palette) note(s string) string { return p.paint("33", s) }
func (p palette) dim(s string) string  { return p.paint("2", s) }

// millis is d in milliseconds with three decimals.
func millis(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d.Nanoseconds())/1e6) }
