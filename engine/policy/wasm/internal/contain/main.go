// Command contain runs the hostile modules against the host and prints a line for each
// that is not contained, and at last a line of totals:
//
//	guests=<n> contained=<n> worst_overrun=<time used, in deadlines>
//
// It exits with 1 if any is not contained. With -v it prints a line for each.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/hostile"
)

const childArg = "compile-child"

func main() {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		os.Exit(wasm.CompileChildMain())
	}
	verbose := flag.Bool("v", false, "print a line for each module")
	flag.Parse()
	if err := run(*verbose); err != nil {
		fmt.Fprintln(os.Stderr, "contain:", err)
		os.Exit(1)
	}
}

func run(verbose bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "contain")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	host, err := wasm.NewHost(wasm.HostOptions{CacheDir: dir, CompileCommand: []string{self, childArg}, CompileSeconds: 1})
	if err != nil {
		return err
	}
	ctx := context.Background()
	judge, err := hostile.NewJudge(ctx, host)
	if err != nil {
		return err
	}
	guests, contained, worst := 0, 0, 0.0
	for _, c := range hostile.Cases() {
		r := judge.Run(ctx, c)
		guests++
		if r.Problem == "" {
			contained++
		} else {
			fmt.Printf("not contained: %s: %s\n", c.Name, r.Problem)
		}
		if verbose {
			first, _, _ := strings.Cut(fmt.Sprint(r.Err), "\n")
			fmt.Printf("%-60s %8v  %s\n", c.Name, r.Took.Round(100*time.Microsecond), first)
		}
		worst = max(worst, r.Overrun)
	}
	fmt.Printf("guests=%d contained=%d worst_overrun=%.2fx\n", guests, contained, worst)
	if contained < guests {
		return fmt.Errorf("%d modules are not contained", guests-contained)
	}
	return nil
}
