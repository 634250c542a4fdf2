// Command dovetail plans and runs the nodes of Kubernetes clusters.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// exit is an error with the exit code it asks for.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string { return e.err.Error() }
func (e exit) Unwrap() error { return e.err }

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var e exit
	if errors.As(err, &e) {
		if e.err != nil {
			fmt.Fprintln(stderr, "dovetail:", e.err)
		}
		return e.code
	}
	fmt.Fprintln(stderr, "dovetail:", err)
	return 1
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "dovetail",
		Short:         "Plan and run the nodes of Kubernetes clusters",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(controllerCommand(), simulateCommand(), policyCommand(), versionCommand(), compileChildCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// release is the version that a build from a checkout is given by the linker, since such a
// build need not know git. The default is what the go command knows.
var release string

// version is the module's version, with the revision it was built from if that is known.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dovetail (unknown)"
	}
	v := "dovetail " + cmp.Or(release, info.Main.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			v += " (" + s.Value[:12] + ")"
		}
	}
	return v + " " + info.GoVersion
}
