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
	j := judge.New(ctx)
	for s := *seed; s < *seed+uint64(*n) && ctx.Err() == nil; s++ {
		c := problem.Generate(s)
		plan, v, err := solve(ctx, j, c, s)
		if err != nil {
			return 2, fmt.Errorf("seed %d: %w", s, err)
		}
		total.add(&plan, &v)
		if *verbose {
			fmt.Fprintf(out, "seed=%d assigned=%d new=%d unscheduled=%d cost=%.3f bound=%.3f\n", s, len(plan.Assignments), len(plan.NewNodes), len(plan.Unscheduled), plan.Cost.Dollars(), plan.Bound.Dollars())
		}
		report(out, s, &v)
		if *dump != "" && !v.OK() {
			if err := problem.Dump(*dump, s, c); err != nil {
				return 2, err
			}
		}
	}
	fmt.Fprintf(out, "placed=%d nodes=%d unscheduled=%d broken=%d\n", total.placed, total.nodes, total.unscheduled, total.broken)
	fmt.Fprintf(out, "problems=%d refused=%d missed=%d\n", total.problems, total.refused, total.missed)
	if ctx.Err() != nil {
		return 2, ctx.Err()
	}
	if total.refused+total.missed+total.broken > 0 {
		return 1, nil
	}
	return 0, nil
}

// solve plans a problem and judges the plan.
func solve(ctx context.Context, j *judge.Judge, c *problem.Problem, seed uint64) (plan schedule.Plan, v judge.Verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			v.Broken = append(v.Broken, judge.Finding{Plugin: "panic", Message: fmt.Sprint(p)})
		}
	}()
	snap, problems := snapshot.Build(c.Objects, c.Options)
	for _, p := range problems {
		v.Broken = append(v.Broken, judge.Finding{Plugin: "build", Message: p.String()})
	}
	opts := schedule.Options{}
	if seed%5 == 0 {
		opts.Preferences = schedule.Ignore
	}
	if seed%7 == 0 {
		opts.MinValues = schedule.BestEffort
	}
	if plan, err = schedule.Solve(ctx, snap, opts); err != nil {
		return plan, v, fmt.Errorf("solve: %w", err)
	}
	found, err := j.Judge(c, &plan, opts.MinValues != schedule.BestEffort)
	found.Broken = append(v.Broken, found.Broken...)
	return plan, found, err
}

// tally adds up verdicts.
type tally struct {
	problems, placed, nodes, unscheduled int
	refused, missed, broken              int
}

func (t *tally) add(p *schedule.Plan, v *judge.Verdict) {
	t.problems++
	t.placed, t.nodes, t.unscheduled = t.placed+len(p.Assignments), t.nodes+len(p.NewNodes), t.unscheduled+len(p.Unscheduled)
	t.refused, t.missed, t.broken = t.refused+len(v.Refused), t.missed+len(v.Missed), t.broken+len(v.Broken)
}

// report prints what is wrong, a line each.
func report(out io.Writer, seed uint64, v *judge.Verdict) {
	for _, list := range []struct {
		kind string
		of   []judge.Finding
	}{{"refused", v.Refused}, {"missed", v.Missed}, {"broken", v.Broken}} {
		for _, f := range list.of {
			fmt.Fprintf(out, "%s seed=%d %s\n", list.kind, seed, f)
		}
	}
}
