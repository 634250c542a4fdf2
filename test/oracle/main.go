// Oracle makes random scheduling problems, lets Dovetail plan them, and has
// kube-scheduler's own filter plugins judge every plan.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/oracle/judge"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
	}
	os.Exit(code)
}

// run judges the problems that args ask for. The code is 0 if all plans are good, 1 if
// some are not, 2 if they could not be judged.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	flags := flag.NewFlagSet("oracle", flag.ContinueOnError)
	n := flags.Int("n", 3000, "number of problems")
	seed := flags.Uint64("seed", 1, "seed of the first problem; the others follow")
	verbose := flags.Bool("v", false, "print a line per problem")
	dump := flags.String("dump", "", "folder to write failing problems to, as Kubernetes manifests")
	if err := flags.Parse(args); err != nil {
		return 2, err
	}
	var total tally
	err := each(ctx, *seed, *n, func(a answer) error {
		if a.err != nil {
			return fmt.Errorf("seed %d: %w", a.seed, a.err)
		}
		total.add(&a)
		if *verbose {
			p := &a.plan
			fmt.Fprintf(out, "seed=%d assigned=%d new=%d unscheduled=%d cost=%.3f bound=%.3f\n", a.seed, len(p.Assignments), len(p.NewNodes), len(p.Unscheduled), p.Cost.Dollars(), p.Bound.Dollars())
		}
		report(out, &a)
		if *dump != "" && !a.verdict.OK() {
			if err := problem.Dump(*dump, a.seed, a.problem); err != nil {
				return err
			}
			text, err := a.plan.MarshalText()
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(*dump, fmt.Sprintf("seed-%d.plan.json", a.seed)), text, 0o644)
		}
		return nil
	})
	if err != nil {
		return 2, err
	}
	fmt.Fprintf(out, "placed=%d nodes=%d unscheduled=%d unbought=%d broken=%d\n", total.placed, total.nodes, total.unscheduled, total.unbought, total.broken)
	fmt.Fprintf(out, "problems=%d refused=%d missed=%d\n", total.problems, total.refused, total.missed)
	if total.refused+total.missed+total.broken > 0 {
		return 1, nil
	}
	return 0, nil
}

// answer is one problem with its plan and what is wrong with it.
type answer struct {
	seed    uint64
	problem *problem.Problem
	plan    schedule.Plan
	verdict judge.Verdict
	err     error
}

// each judges the n problems from seed on, on all CPUs, and hands the answers to use in
// order of seed. It stops at use's first error.
func each(ctx context.Context, seed uint64, n int, use func(answer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	answers := make([]chan answer, workers)
	for w := range workers {
		answers[w] = make(chan answer, 64)
		go func() {
			defer close(answers[w])
			j := judge.New(ctx)
			for i := w; i < n; i += workers {
				select {
				case answers[w] <- solve(ctx, j, seed+uint64(i)):
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for i := range n {
		a, ok := <-answers[i%workers]
		if !ok {
			return ctx.Err()
		}
		if err := use(a); err != nil {
			return err
		}
	}
	return nil
}

// options of the problem of a seed: most have the defaults.
func options(seed uint64) schedule.Options {
	var o schedule.Options
	if seed%5 == 0 {
		o.Preferences = schedule.Ignore
	}
	if seed%7 == 0 {
		o.MinValues = schedule.BestEffort
	}
	return o
}

// solve plans the problem of a seed and judges the plan. A panic is a broken plan.
func solve(ctx context.Context, j *judge.Judge, seed uint64) (a answer) {
	a.seed, a.problem = seed, problem.Generate(seed)
	defer func() {
		if p := recover(); p != nil {
			a.verdict.Broken = append(a.verdict.Broken, judge.Finding{Plugin: "panic", Message: fmt.Sprintf("%v at %s", p, where(debug.Stack()))})
		}
	}()
	snap, problems := snapshot.Build(a.problem.Objects, a.problem.Options)
	o := options(seed)
	if a.plan, a.err = schedule.Solve(ctx, snap, o); a.err != nil {
		return a
	}
	a.verdict, a.err = j.Judge(a.problem, &a.plan, o.MinValues != schedule.BestEffort)
	for _, p := range problems {
		if strings.Contains(p.Message, "no node matches") {
			continue // affinity that matches nothing is worth a word, and no mistake
		}
		a.verdict.Broken = append(a.verdict.Broken, judge.Finding{Plugin: "build", Message: p.String()})
	}
	return a
}

// where is the line of Dovetail's core that a stack shows first.
func where(stack []byte) string {
	for line := range strings.Lines(string(stack)) {
		if _, at, ok := strings.Cut(line, "/engine/core/"); ok {
			return strings.TrimSpace(at)
		}
	}
	return string(stack)
}

// tally adds up answers.
type tally struct {
	problems, placed, nodes, unscheduled int
	refused, missed, unbought, broken    int
}

func (t *tally) add(a *answer) {
	t.problems++
	t.placed, t.nodes, t.unscheduled = t.placed+len(a.plan.Assignments), t.nodes+len(a.plan.NewNodes), t.unscheduled+len(a.plan.Unscheduled)
	v := &a.verdict
	t.unbought += len(v.Unbought)
	t.refused, t.missed, t.broken = t.refused+len(v.Refused), t.missed+len(v.Missed), t.broken+len(v.Broken)
}

// report prints what is wrong, a line each.
func report(out io.Writer, a *answer) {
	for _, list := range []struct {
		kind string
		of   []judge.Finding
	}{{"refused", a.verdict.Refused}, {"missed", a.verdict.Missed}, {"unbought", a.verdict.Unbought}, {"broken", a.verdict.Broken}} {
		for _, f := range list.of {
			fmt.Fprintf(out, "%s seed=%d %s\n", list.kind, a.seed, f)
		}
	}
}
