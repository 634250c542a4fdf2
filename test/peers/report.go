package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dovetail-sh/dovetail/test/peers/bound"
	"github.com/dovetail-sh/dovetail/test/peers/dovetail"
	"github.com/dovetail-sh/dovetail/test/peers/karpenter"
	"github.com/dovetail-sh/dovetail/test/peers/memory"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// report is what a comparison found.
type report struct {
	Work   string `json:"work"`
	Seed   int64  `json:"seed"`
	Repeat int    `json:"repeat"`
	// Types is the number of instance types the NodePool may buy, Given that of the
	// catalogue.
	Types   int      `json:"types"`
	Given   int      `json:"given"`
	Results []result `json:"results"`
	// Speedup divides Karpenter's seconds by Dovetail's.
	Speedup float64 `json:"speedup,omitempty"`
	// SolveSpeedup divides the times of the two Solve calls alone.
	SolveSpeedup float64 `json:"solveSpeedup,omitempty"`
	// CPUSpeedup divides the CPU seconds of the two runs.
	CPUSpeedup   float64 `json:"cpuSpeedup,omitempty"`
	CostOverPeer float64 `json:"costOverPeer,omitempty"`
	// TimePerPodGrowth divides the time per pod of the last step of growth by that of
	// the first.
	TimePerPodGrowth float64  `json:"timePerPodGrowth,omitempty"`
	Notes            []string `json:"notes,omitempty"`
}

// result is one engine on one work.
type result struct {
	Engine string `json:"engine"`
	Note   string `json:"note,omitempty"`
	Pods   int    `json:"pods"`
	// Seconds are what counts: Karpenter's Solve, as its benchmark measures it;
	// Dovetail's Build and Solve.
	Seconds      float64 `json:"seconds"`
	BuildSeconds float64 `json:"buildSeconds"`
	SolveSeconds float64 `json:"solveSeconds"`
	// CPUSeconds is what the whole run used of all CPUs, the conversion of its input
	// included: unlike the times above it hardly depends on what else the machine does.
	CPUSeconds    float64 `json:"cpuSeconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	Nodes         int     `json:"nodes"`
	// Cost and Bound are US dollars per hour. Bound is for the pods on new nodes.
	Cost        float64 `json:"cost"`
	Bound       float64 `json:"bound"`
	CostToBound float64 `json:"costToBound,omitempty"`
	// BoundGap is how far, relatively, Bound may be below the exact relaxation.
	BoundGap float64 `json:"boundGap"`
	// OwnBound is the bound that the engine claims itself; 0 if none.
	OwnBound    float64 `json:"ownBound,omitempty"`
	Existing    int     `json:"podsOnExistingNodes,omitempty"`
	Unscheduled int     `json:"unscheduled"`
	// Why is the engine's reason for the first unscheduled pod.
	Why string `json:"why,omitempty"`
	// PeakHeap and PeakResident are bytes, the work's own objects included.
	PeakHeap     uint64 `json:"peakHeapBytes"`
	PeakResident uint64 `json:"peakResidentBytes"`
	// Bought counts new nodes by instance type.
	Bought map[string]int `json:"bought"`
}

func (r *report) describe(w *work.Work) { r.Types, r.Given = w.Admitted(), len(w.Types) }

func (r *report) add(w *work.Work, o *work.Outcome, peak memory.Peak, cpu time.Duration, note string) {
	placed := o.Placed()
	b := bound.Result{}
	if len(placed) > 0 {
		b = w.ClassBound(placed)
	}
	res := result{
		Engine: o.Engine, Note: note, Pods: len(w.Pods), BuildSeconds: o.Build.Seconds(), SolveSeconds: o.Solve.Seconds(), CPUSeconds: cpu.Seconds(),
		Seconds: (o.Build + o.Solve).Seconds(), Nodes: len(o.New), Cost: w.Cost(o).Dollars(), Bound: b.Bound, BoundGap: b.Gap(),
		OwnBound: o.OwnBound.Dollars(), Unscheduled: len(o.Unscheduled), Why: o.Why, PeakHeap: peak.Heap, PeakResident: peak.Resident,
		Bought: map[string]int{},
	}
	if o.Engine == karpenter.Engine {
		res.Seconds = res.SolveSeconds
	}
	if res.Seconds > 0 {
		res.PodsPerSecond = float64(res.Pods) / res.Seconds
	}
	if res.Bound > 0 {
		res.CostToBound = res.Cost / res.Bound
	}
	for _, n := range o.New {
		res.Bought[n.InstanceType]++
	}
	for _, pods := range o.Existing {
		res.Existing += len(pods)
	}
	r.Results = append(r.Results, res)
}

// relate fills in the ratios of the two engines, if both ran.
func (r *report) relate() {
	at := map[string]*result{}
	for i := range r.Results {
		at[r.Results[i].Engine] = &r.Results[i]
	}
	ours, theirs := at[dovetail.Engine], at[karpenter.Engine]
	if ours == nil || theirs == nil {
		return
	}
	r.Speedup = ratio(theirs.Seconds, ours.Seconds)
	r.SolveSpeedup = ratio(theirs.SolveSeconds, ours.SolveSeconds)
	r.CPUSpeedup = ratio(theirs.CPUSeconds, ours.CPUSeconds)
	r.CostOverPeer = ratio(ours.Cost, theirs.Cost)
}

// relateGrowth compares the last step without existing nodes with the first.
func (r *report) relateGrowth() {
	if n := len(r.Results); n >= 3 {
		first, last := r.Results[0], r.Results[n-2]
		r.TimePerPodGrowth = ratio(last.Seconds/float64(last.Pods), first.Seconds/float64(first.Pods))
	}
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// write prints the report: a table, what was bought, the ratios, and a line for each
// result.
func (r *report) write(out io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Fprintf(out, "work %s, seed %d: %d of %d instance types; ", r.Work, r.Seed, r.Types, r.Given)
	fmt.Fprintln(out, "counted are Build + Solve of dovetail and Solve of karpenter")
	if r.Repeat > 1 {
		fmt.Fprintf(out, "times are the median of %d runs\n", r.Repeat)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "engine\tpods\tbuild s\tsolve s\tcounted s\tCPU s\tpods/s\tµs/pod\tnodes\t$/h\tbound $/h\tcost/bound\town bound\tunscheduled\tpeak heap MiB\tpeak RSS MiB\t")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%d\t%.4f\t%.4f\t%.4f\t%.4f\t%.0f\t%.2f\t%d\t%.2f\t%.2f\t%.3f\t%.2f\t%d\t%d\t%d\t\n",
			x.Engine, x.Pods, x.BuildSeconds, x.SolveSeconds, x.Seconds, x.CPUSeconds, x.PodsPerSecond, 1e6*ratio(x.Seconds, float64(x.Pods)),
			x.Nodes, x.Cost, x.Bound, x.CostToBound, x.OwnBound, x.Unscheduled, x.PeakHeap>>20, x.PeakResident>>20)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range r.Results {
		name := x.Engine
		if x.Note != "" {
			name += fmt.Sprintf(" (%d pods, %s, %d put on them)", x.Pods, x.Note, x.Existing)
		}
		fmt.Fprintf(out, "%s bought %s\n", name, x.bought())
		if x.Unscheduled > 0 {
			fmt.Fprintf(out, "%s leaves %d pods unscheduled, the first because: %.300s\n", name, x.Unscheduled, x.Why)
		}
		if x.BoundGap > 1e-5 {
			fmt.Fprintf(out, "%s: the bound is valid, but up to %.3f %% below the exact relaxation\n", name, 100*x.BoundGap)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintln(out, n)
	}
	fmt.Fprintln(out, r.summary())
	for _, x := range r.Results {
		fmt.Fprintf(out, "engine=%s pods=%d seconds=%.4f nodes=%d cost=%.2f bound=%.2f unscheduled=%d\n",
			x.Engine, x.Pods, x.Seconds, x.Nodes, x.Cost, x.Bound, x.Unscheduled)
	}
	return nil
}

func (r *report) summary() string {
	parts := []string{"summary:"}
	add := func(format string, v float64) {
		if v > 0 {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add("speed-up=%.1f", r.Speedup)
	add("solve-speed-up=%.1f", r.SolveSpeedup)
	add("cpu-speed-up=%.1f", r.CPUSpeedup)
	add("cost/peer=%.3f", r.CostOverPeer)
	add("time-per-pod-growth=%.2f", r.TimePerPodGrowth)
	seen := map[string]bool{}
	for _, x := range slices.Backward(r.Results) {
		if !seen[x.Engine] {
			seen[x.Engine] = true
			add(x.Engine+"-cost/bound=%.3f", x.CostToBound)
		}
	}
	return strings.Join(parts, " ")
}

// bought lists the types of which most nodes were bought.
func (x *result) bought() string {
	const shown = 8
	names := slices.SortedFunc(maps.Keys(x.Bought), func(a, b string) int {
		if x.Bought[a] != x.Bought[b] {
			return x.Bought[b] - x.Bought[a]
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, n := range names[:min(shown, len(names))] {
		parts = append(parts, fmt.Sprintf("%d %s", x.Bought[n], n))
	}
	if len(names) > shown {
		parts = append(parts, fmt.Sprintf("nodes of %d other types", len(names)-shown))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
