// Command peers plans the same pods with Dovetail and with Karpenter, in one process
// and on the same catalogue and NodePool, and prints what each took and bought.
//
//	go run . -work uniform -n 20000
//
// Works: diverse (Karpenter's own benchmark), uniform, openb (pods of a trace),
// catalogue (uniform pods on every priced type) and growth (Dovetail alone, from 1000
// to 100000 diverse pods). The last lines, one per engine, are for scripts:
//
//	engine=<name> pods=<n> seconds=<s> nodes=<n> cost=<usd/h> bound=<usd/h> unscheduled=<n>
//
// The work consolidation takes nodes away instead, from a fleet of which 40 % is used:
//
//	go run . -work consolidation -nodes 500
//
//	engine=<name> nodes=<n> round_seconds=<s> cost_before=<usd/h> cost_after=<usd/h> bound=<usd/h> evictions=<n>
//
// Bound is the class bound of package bound: no set of nodes costs less. Every plan is
// checked: each pod once, no node overfull, only offerings the NodePool may buy.
//
// Exit code 1 means that an engine failed or made an invalid plan, 2 a wrong command
// line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/test/peers/dovetail"
	"github.com/dovetail-sh/dovetail/test/peers/karpenter"
	"github.com/dovetail-sh/dovetail/test/peers/memory"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// fakeTypes is the size of the catalogue of Karpenter's benchmark.
const fakeTypes = 400

// existingNodes is the number of half-full nodes of the last step of growth.
const existingNodes = 2000

// growth are the sizes of that work.
var growth = []int{1000, 3000, 10000, 30000, 100000}

type config struct {
	work, trace, engine string
	pods, peerLimit     int
	repeat              int
	seed                int64
	json                bool
	cpuProfile          string
	// Of consolidation.
	nodes, pools, rounds int
	think                time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage is a command line that cannot be run.
var errUsage = errors.New("usage")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var rep interface {
		write(out io.Writer, asJSON bool) error
	}
	switch {
	case err != nil:
	case cfg.work == consolidation:
		if r, cerr := consolidate(ctx, cfg, stderr); r != nil {
			rep, err = r, cerr
		} else {
			err = cerr
		}
	default:
		if r, cerr := compare(ctx, cfg, stderr); r != nil {
			rep, err = r, cerr
		} else {
			err = cerr
		}
	}
	if rep != nil {
		if werr := rep.write(stdout, cfg.json); werr != nil && err == nil {
			err = werr
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "peers:", err)
		if errors.Is(err, errUsage) {
			return 2
		}
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (config, error) {
	var cfg config
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&cfg.work, "work", "", "diverse, uniform, openb, catalogue, growth or consolidation")
	f.IntVar(&cfg.pods, "n", 0, "number of pods (0: the work's own, 5000 or 20000; of a trace all; of growth the largest step; of consolidation as many as use 40 % of the CPU)")
	f.StringVar(&cfg.trace, "trace", "", "CSV file of pods for openb, with columns cpu_milli, memory_mib, num_gpu")
	f.StringVar(&cfg.engine, "engine", "both", "both, dovetail or karpenter")
	f.IntVar(&cfg.peerLimit, "peer-limit", 0, "leave Karpenter out if there are more pods than this (0: no limit)")
	f.IntVar(&cfg.repeat, "repeat", 0, "runs per engine, of which the median counts (0: 1, for growth 3)")
	f.Int64Var(&cfg.seed, "seed", 0, "seed of the pods (0: the work's own, 42 for diverse and growth, else 1)")
	f.IntVar(&cfg.nodes, "nodes", 500, "number of nodes of consolidation")
	f.IntVar(&cfg.pools, "pools", 5, "number of NodePools of consolidation")
	f.IntVar(&cfg.rounds, "rounds", 0, "end consolidation after this number of rounds of an engine (0: when two find nothing)")
	f.DurationVar(&cfg.think, "think", 0, "end consolidation when the rounds of an engine have taken so long together (0: no limit)")
	f.BoolVar(&cfg.json, "json", false, "print one JSON document instead of the table")
	f.StringVar(&cfg.cpuProfile, "cpuprofile", "", "write a CPU profile of Dovetail's runs to this file")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return cfg, err
		}
		return cfg, fmt.Errorf("%w: %w", errUsage, err)
	}
	if f.NArg() > 0 {
		return cfg, fmt.Errorf("%w: unexpected argument %q", errUsage, f.Arg(0))
	}
	works := []string{"diverse", "uniform", "openb", "catalogue", "growth", consolidation}
	switch {
	case !slices.Contains(works, cfg.work):
		return cfg, fmt.Errorf("%w: -work is %q, want one of %s", errUsage, cfg.work, strings.Join(works, ", "))
	case !slices.Contains([]string{"both", dovetail.Engine, karpenter.Engine}, cfg.engine):
		return cfg, fmt.Errorf("%w: -engine is %q, want both, dovetail or karpenter", errUsage, cfg.engine)
	case cfg.work == "openb" && cfg.trace == "":
		return cfg, fmt.Errorf("%w: -work openb needs -trace, a CSV file of pods", errUsage)
	case cfg.pods < 0 || cfg.repeat < 0 || cfg.peerLimit < 0 || cfg.seed < 0 || cfg.seed >= 1<<32:
		return cfg, fmt.Errorf("%w: -n, -repeat, -peer-limit and -seed must not be negative, -seed less than 2^32", errUsage)
	case cfg.work == consolidation && (cfg.nodes < 1 || cfg.pools < 1 || cfg.rounds < 0 || cfg.think < 0):
		return cfg, fmt.Errorf("%w: -nodes and -pools must be positive, -rounds and -think not negative", errUsage)
	case cfg.work == "growth" && cfg.engine == karpenter.Engine:
		return cfg, fmt.Errorf("%w: -work growth is for dovetail alone", errUsage)
	}
	if cfg.seed == 0 {
		cfg.seed = 1
		if cfg.work == "diverse" || cfg.work == "growth" {
			cfg.seed = 42
		}
	}
	if cfg.repeat == 0 {
		cfg.repeat = 1
		if cfg.work == "growth" {
			cfg.repeat = 3
		}
	}
	return cfg, nil
}

// load makes the work of cfg with n pods; 0 means its own number.
func load(cfg config, n int) (*work.Work, error) {
	if cfg.work == "diverse" || cfg.work == "growth" {
		types, err := karpenter.FakeTypes(fakeTypes)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			n = 5000
		}
		return work.Diverse(n, cfg.seed, types), nil
	}
	types := builtin()
	switch cfg.work {
	case "uniform":
		if n == 0 {
			n = 20000
		}
		return work.Uniform(n, uint32(cfg.seed), types), nil
	case "catalogue":
		if n == 0 {
			n = 5000
		}
		return work.Catalogue(n, uint32(cfg.seed), types), nil
	}
	in, err := os.Open(cfg.trace)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer in.Close()
	return work.Openb(in, n, types)
}

func compare(ctx context.Context, cfg config, stderr io.Writer) (*report, error) {
	rep := &report{Work: cfg.work, Seed: cfg.seed, Repeat: cfg.repeat}
	if cfg.work == "growth" {
		stop, err := profile(cfg.cpuProfile)
		if err != nil {
			return nil, err
		}
		defer stop()
		return rep, grow(ctx, cfg, rep, stderr)
	}
	w, err := load(cfg, cfg.pods)
	if err != nil {
		return nil, err
	}
	rep.describe(w)
	var errs []error
	if cfg.engine != karpenter.Engine {
		stop, err := profile(cfg.cpuProfile)
		if err != nil {
			return nil, err
		}
		if err := rep.measure(ctx, w, cfg.repeat, dovetail.Solve, "", stderr); err != nil {
			errs = append(errs, err)
		}
		stop()
	}
	switch {
	case cfg.engine == dovetail.Engine:
	case cfg.peerLimit > 0 && len(w.Pods) > cfg.peerLimit:
		rep.Notes = append(rep.Notes, fmt.Sprintf("karpenter is left out: %d pods are more than -peer-limit %d", len(w.Pods), cfg.peerLimit))
	default:
		if err := rep.measure(ctx, w, cfg.repeat, karpenter.Solve, "", stderr); err != nil {
			errs = append(errs, err)
		}
	}
	rep.relate()
	return rep, errors.Join(errs...)
}

// profile starts a CPU profile in a file; an empty name starts none.
func profile(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("cpu profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("cpu profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}

// grow measures Dovetail alone on ever more pods, and the largest number on existing
// nodes too.
func grow(ctx context.Context, cfg config, rep *report, stderr io.Writer) error {
	sizes := growth
	if cfg.pods > 0 {
		sizes = slices.DeleteFunc(slices.Clone(growth), func(n int) bool { return n >= cfg.pods })
		sizes = append(sizes, cfg.pods)
	}
	var errs []error
	for _, n := range sizes {
		w, err := load(cfg, n)
		if err != nil {
			return err
		}
		rep.describe(w)
		if err := rep.measure(ctx, w, cfg.repeat, dovetail.Solve, "no existing nodes", stderr); err != nil {
			errs = append(errs, err)
		}
	}
	w, err := load(cfg, sizes[len(sizes)-1])
	if err != nil {
		return err
	}
	if err := w.WithHalfFullNodes(existingNodes); err != nil {
		return err
	}
	if err := rep.measure(ctx, w, 1, dovetail.Solve, fmt.Sprintf("%d half-full nodes, %d pods on them", len(w.Nodes), len(w.Bound)), stderr); err != nil {
		errs = append(errs, err)
	}
	rep.relateGrowth()
	return errors.Join(errs...)
}

type solver func(context.Context, *work.Work) (*work.Outcome, error)

// measure runs an engine and adds the median run to the report. An invalid plan is
// reported and an error.
func (r *report) measure(ctx context.Context, w *work.Work, repeat int, solve solver, note string, stderr io.Writer) error {
	type timed struct {
		out  *work.Outcome
		peak memory.Peak
		cpu  time.Duration
	}
	var runs []timed
	for range repeat {
		// A clean heap, so that no run pays for the garbage of another.
		runtime.GC()
		debug.FreeOSMemory()
		watch := memory.Start()
		cpu := cpuTime()
		out, err := solve(ctx, w)
		cpu = cpuTime() - cpu
		peak := watch.Stop()
		if err != nil {
			return err
		}
		fmt.Fprintf(stderr, "%s: %s: %d pods: build %.4fs, solve %.4fs\n", w.Name, out.Engine, len(w.Pods), out.Build.Seconds(), out.Solve.Seconds())
		runs = append(runs, timed{out, peak, cpu})
	}
	slices.SortStableFunc(runs, func(a, b timed) int { return int(a.out.Build + a.out.Solve - b.out.Build - b.out.Solve) })
	m := runs[len(runs)/2]
	r.add(w, m.out, m.peak, m.cpu, note)
	if err := w.Check(m.out); err != nil {
		return fmt.Errorf("%s: %s: invalid plan: %w", w.Name, m.out.Engine, err)
	}
	return nil
}

// builtin is Dovetail's own catalogue of AWS types.
func builtin() []*catalog.InstanceType {
	types := sim.Builtin().Types()
	out := make([]*catalog.InstanceType, len(types))
	for i := range types {
		out[i] = &types[i]
	}
	return out
}

// cpuTime is what the process has used of all CPUs so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
