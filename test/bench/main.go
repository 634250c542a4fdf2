// Command bench runs Dovetail and Karpenter one after the other on the same work: each on a
// fresh control plane of the same kind, with the same kubelets, the same instance types and
// prices, and pods that are all unschedulable before the engine starts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are the flags.
type options struct {
	pods    int
	runs    int
	engines string
	cpus    int
	steady  time.Duration
	quiet   time.Duration
	timeout time.Duration
	profile string
}

func main() {
	var o options
	flag.IntVar(&o.pods, "pods", 1000, "number of pods")
	flag.IntVar(&o.runs, "runs", 1, "runs of each engine")
	flag.StringVar(&o.engines, "engines", "dovetail,karpenter", "engines, in the order in which they run")
	flag.IntVar(&o.cpus, "cpus", 64, "largest instance type, in CPUs")
	flag.DurationVar(&o.steady, "steady", 0, "measure this long after everything has settled")
	flag.DurationVar(&o.quiet, "quiet", 20*time.Second, "time without another NodeClaim, with all pods bound, after which a run is over")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "longest time of a run")
	flag.StringVar(&o.profile, "profile", "", "file for a CPU profile of dovetail's first minute")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	tools, err := prepare(ctx, o.cpus)
	if err != nil {
		return err
	}
	defer tools.close()
	results := map[string][]result{}
	var errs []error
	names := strings.Split(o.engines, ",")
	for i := range o.runs {
		for _, name := range names {
			e, ok := engines[name]
			if !ok {
				return fmt.Errorf("-engines: %q: must be dovetail or karpenter", name)
			}
			fmt.Fprintf(os.Stderr, "run %d of %s\n", i+1, name)
			r, err := measure(ctx, o, tools, e)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				continue
			}
			results[name] = append(results[name], *r)
			fmt.Println(r.line(name))
		}
	}
	fmt.Println()
	summarize(results)
	return errors.Join(errs...)
}

// summarize prints a line for each engine, of its median run, and how they compare.
func summarize(results map[string][]result) {
	median := map[string]result{}
	for _, name := range []string{"dovetail", "karpenter"} {
		list := results[name]
		if len(list) == 0 {
			continue
		}
		median[name] = middle(list)
		with := 0
		for _, r := range list {
			if r.extra > 0 {
				with++
			}
		}
		fmt.Println(median[name].line(name))
		if len(list) > 1 {
			fmt.Printf("engine=%s runs=%d runs_with_extra_nodes=%d\n", name, len(list), with)
		}
	}
	ours, ok := median["dovetail"]
	theirs, both := median["karpenter"]
	if ok && both {
		fmt.Printf("ratio nodeclaims=%.1f bound=%.1f cost=%.3f cpu=%.3f rss=%.2f\n",
			theirs.last.Seconds()/ours.last.Seconds(), theirs.bound.Seconds()/ours.bound.Seconds(), ours.cost/theirs.cost, ours.cpu/theirs.cpu, ours.rss/theirs.rss)
	}
}
