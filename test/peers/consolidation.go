package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dovetail-sh/dovetail/test/peers/dovetail"
	"github.com/dovetail-sh/dovetail/test/peers/fleet"
	"github.com/dovetail-sh/dovetail/test/peers/karpenter"
	"github.com/dovetail-sh/dovetail/test/peers/memory"
)

// consolidation is the name of the work that takes nodes away.
const consolidation = "consolidation"

// consolidationReport is what engines made of one fleet.
type consolidationReport struct {
	Nodes int     `json:"nodes"`
	Pods  int     `json:"pods"`
	Pools int     `json:"pools"`
	Types int     `json:"types"`
	Seed  int64   `json:"seed"`
	Use   float64 `json:"use"`
	// Cost and Bound are US dollars per hour; see [fleet.Fleet.Bound].
	Cost    float64         `json:"cost"`
	Bound   float64         `json:"bound"`
	Results []consolidating `json:"results"`
}

// consolidating is one engine on it. Seconds are of deciding only, and of all CPUs for CPU
// seconds; costs are US dollars per hour.
type consolidating struct {
	Engine string `json:"engine"`
	// Rounds took nodes away, Idle found none to take.
	Rounds int `json:"rounds"`
	Idle   int `json:"idle"`
	// End says why there were no more rounds: settled, stalled (see [fleet.Fleet.Settle]) or
	// limit.
	End string `json:"end"`
	// RoundSeconds are the mean of all rounds.
	RoundSeconds   float64 `json:"roundSeconds"`
	LongestSeconds float64 `json:"longestSeconds"`
	TotalSeconds   float64 `json:"totalSeconds"`
	RoundCPU       float64 `json:"roundCPUSeconds"`
	Cost           float64 `json:"cost"`
	Nodes          int     `json:"nodes"`
	Removed        int     `json:"removed"`
	Launched       int     `json:"launched"`
	// Rescued nodes are those of Launched that were bought for pods which found no room.
	Rescued   int `json:"rescued"`
	Evictions int `json:"evictions"`
	Pending   int `json:"pending"`
	// EvictionsPerDollar divides evictions by what is saved per hour.
	EvictionsPerDollar float64 `json:"evictionsPerDollar,omitempty"`
	PeakHeap           uint64  `json:"peakHeapBytes"`
	PeakResident       uint64  `json:"peakResidentBytes"`
	// Course is what was reached after each round.
	Course []reached `json:"course"`
}

// reached is what has been spent to come down to a cost.
type reached struct {
	Seconds   float64 `json:"seconds"`
	Cost      float64 `json:"cost"`
	Evictions int     `json:"evictions"`
}

// consolidate lets the engines empty copies of one fleet.
func consolidate(ctx context.Context, cfg config, stderr io.Writer) (*consolidationReport, error) {
	f, err := fleet.Generate(fleet.Size{Nodes: cfg.nodes, Pods: cfg.pods, Pools: cfg.pools, Seed: cfg.seed}, builtin())
	if err != nil {
		return nil, err
	}
	rep := &consolidationReport{
		Nodes: len(f.Nodes), Pods: len(f.Pods), Pools: len(f.Pools), Types: len(f.Types), Seed: cfg.seed,
		Use: f.Use(), Cost: f.Cost().Dollars(), Bound: f.Bound(),
	}
	limits := fleet.Limits{Rounds: cfg.rounds, Think: cfg.think}
	var errs []error
	if cfg.engine != karpenter.Engine {
		ours := f.Clone()
		e, err := dovetail.NewConsolidation(ours)
		if err != nil {
			return rep, err
		}
		stop, err := profile(cfg.cpuProfile)
		if err != nil {
			return rep, err
		}
		errs = append(errs, rep.measure(ctx, dovetail.Engine, ours, e, limits, stderr))
		stop()
	}
	if cfg.engine != dovetail.Engine && (cfg.peerLimit == 0 || len(f.Pods) <= cfg.peerLimit) {
		theirs := f.Clone()
		e, err := karpenter.NewConsolidation(ctx, theirs)
		if err != nil {
			return rep, err
		}
		errs = append(errs, rep.measure(ctx, karpenter.Engine, theirs, e, limits, stderr))
	}
	return rep, errors.Join(errs...)
}

func (r *consolidationReport) measure(ctx context.Context, name string, f *fleet.Fleet, e fleet.Engine, limits fleet.Limits, stderr io.Writer) error {
	runtime.GC()
	debug.FreeOSMemory()
	watch := memory.Start()
	n, spent := 0, time.Duration(0)
	var course []reached
	out, err := f.Settle(ctx, e, limits, func(x fleet.Round) {
		n++
		spent += x.Think
		course = append(course, reached{spent.Seconds(), x.Cost.Dollars(), x.Evictions})
		fmt.Fprintf(stderr, "%s: round %d: %.2fs, %.2fs of CPU: %d nodes away, %d new, %d of them for pods without room; %.2f $/h, %d evictions\n",
			name, n, x.Think.Seconds(), x.CPU.Seconds(), x.Removed, x.Launched, x.Rescued, x.Cost.Dollars(), x.Evictions)
	})
	peak := watch.Stop()
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	c := consolidating{
		Engine: name, Rounds: len(out.Rounds), Idle: len(out.Idle), End: "limit", Cost: f.Cost().Dollars(), Nodes: out.Nodes,
		Removed: out.Removed, Launched: out.Launched, Rescued: out.Rescued, Evictions: f.Evictions, Pending: out.Pending,
		PeakHeap: peak.Heap, PeakResident: peak.Resident, Course: course,
	}
	switch {
	case out.Settled:
		c.End = "settled"
	case out.Stalled:
		c.End = "stalled"
	}
	var longest, cpu time.Duration
	for _, x := range slices.Concat(out.Rounds, out.Idle) {
		longest, cpu = max(longest, x.Think), cpu+x.CPU
	}
	c.TotalSeconds, c.LongestSeconds = spent.Seconds(), longest.Seconds()
	c.RoundSeconds, c.RoundCPU = ratio(c.TotalSeconds, float64(n)), ratio(cpu.Seconds(), float64(n))
	c.EvictionsPerDollar = ratio(float64(c.Evictions), r.Cost-c.Cost)
	r.Results = append(r.Results, c)
	return err
}

// write prints a table, the ratios, and a line for each engine.
func (r *consolidationReport) write(out io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Fprintf(out, "work %s, seed %d: %d nodes in %d pools, %d pods that use %.0f %% of the CPU, %d instance types; %.2f $/h, bound %.2f\n",
		consolidation, r.Seed, r.Nodes, r.Pools, r.Pods, 100*r.Use, r.Types, r.Cost, r.Bound)
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "engine\trounds\tidle\tend\tround s\tlongest s\ttotal s\tround CPU s\tnodes\taway\tnew\trescued\tpending\t$/h\tsaved %\tcost/bound\tevictions\tevictions/$\tpeak heap MiB\t")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%.3f\t%.3f\t%.2f\t%.3f\t%d\t%d\t%d\t%d\t%d\t%.2f\t%.1f\t%.3f\t%d\t%.1f\t%d\t\n",
			x.Engine, x.Rounds, x.Idle, x.End, x.RoundSeconds, x.LongestSeconds, x.TotalSeconds, x.RoundCPU, x.Nodes, x.Removed, x.Launched, x.Rescued,
			x.Pending, x.Cost, 100*(1-ratio(x.Cost, r.Cost)), ratio(x.Cost, r.Bound), x.Evictions, x.EvictionsPerDollar, x.PeakHeap>>20)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, r.summary())
	for _, x := range r.Results {
		fmt.Fprintf(out, "engine=%s nodes=%d round_seconds=%.4f cost_before=%.2f cost_after=%.2f bound=%.2f evictions=%d\n",
			x.Engine, r.Nodes, x.RoundSeconds, r.Cost, x.Cost, r.Bound, x.Evictions)
	}
	return nil
}

func (r *consolidationReport) summary() string {
	s := "summary:"
	at := map[string]*consolidating{}
	for i := range r.Results {
		x := &r.Results[i]
		at[x.Engine] = x
		s += fmt.Sprintf(" %s-evictions/$=%.1f", x.Engine, x.EvictionsPerDollar)
	}
	if ours, theirs := at[dovetail.Engine], at[karpenter.Engine]; ours != nil && theirs != nil {
		s += fmt.Sprintf(" round-speed-up=%.1f total-speed-up=%.1f cost/peer=%.3f evictions/peer=%.2f evictions-per-dollar/peer=%.2f",
			ratio(theirs.RoundSeconds, ours.RoundSeconds), ratio(theirs.TotalSeconds, ours.TotalSeconds), ratio(ours.Cost, theirs.Cost),
			ratio(float64(ours.Evictions), float64(theirs.Evictions)), ratio(ours.EvictionsPerDollar, theirs.EvictionsPerDollar))
		// Whoever ends at the higher cost is the measure of what the other spent to be there.
		first, last := ours, theirs
		if ours.Cost > theirs.Cost {
			first, last = theirs, ours
		}
		for _, at := range first.Course {
			if at.Cost <= last.Cost {
				s += fmt.Sprintf("\nat the %.2f $/h where %s ends after %.1f s and %d evictions, %s was after %.1f s and %d evictions (%.2f $/h)",
					last.Cost, last.Engine, last.TotalSeconds, last.Evictions, first.Engine, at.Seconds, at.Evictions, at.Cost)
				break
			}
		}
	}
	return s
}
