package replay

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

// Report is what came of a replay. Money is in US dollars. Its JSON names are stable.
type Report struct {
	// Setting is the name of what was replayed; empty if nothing was set.
	Setting string    `json:"setting,omitempty"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Hours   float64   `json:"hours"`
	Cost    Cost      `json:"cost"`
	// Evictions is the number of pods that had to leave a running node, EvictionsBy that by
	// cause.
	Evictions   int            `json:"evictions"`
	EvictionsBy map[string]int `json:"evictionsBy"`
	Pods        Pods           `json:"pods"`
	Nodes       Nodes          `json:"nodes"`
	Utilisation Utilisation    `json:"utilisation"`
	// Decisions counts the lines of the timeline by kind.
	Decisions map[string]int `json:"decisions"`
	// Plans and Loops are how often pods were planned, and nodes looked at.
	Plans int `json:"plans"`
	Loops int `json:"loops"`
	// WallSeconds is how long the replay took: the only field that differs from one run to
	// the next.
	WallSeconds float64        `json:"wallSeconds"`
	Timeline    []world.Entry  `json:"timeline"`
	Problems    []load.Problem `json:"problems"`
}

// Cost is what was paid.
type Cost struct {
	// Total is the sum over the whole time, Mean that per hour, Peak the most per hour and
	// Last what it was at the end.
	Total  float64            `json:"total"`
	Mean   float64            `json:"meanHourly"`
	Peak   float64            `json:"peakHourly"`
	Last   float64            `json:"lastHourly"`
	ByPool map[string]float64 `json:"byPool"`
	ByType map[string]float64 `json:"byType"`
	// ByCapacity is by capacity type.
	ByCapacity map[string]float64 `json:"byCapacityType"`
	// PerCPUHour is what an hour of a CPU cost that pods asked for; absent without any.
	PerCPUHour *float64 `json:"perRequestedCPUHour,omitempty"`
	// Curve is the course of cost, nodes and pods.
	Curve []Sample `json:"curve"`
}

// Sample is the mean over a span of the curve; Peak is the most nodes.
type Sample struct {
	At      time.Time `json:"at"`
	Hourly  float64   `json:"hourly"`
	Spot    float64   `json:"spotHourly,omitempty"`
	Nodes   float64   `json:"nodes"`
	Running float64   `json:"running"`
	Pending float64   `json:"pending"`
	// CPU and Memory are requested, in percent of what is allocatable.
	CPU    float64 `json:"cpuPercent"`
	Memory float64 `json:"memoryPercent"`
}

// Pods is how pods fared.
type Pods struct {
	// Placed is how many got a node; Pending are without one at the end, by name, with what is
	// in the way.
	Placed  int               `json:"placed"`
	Pending map[string]string `json:"pending"`
	// PendingSeconds is what all pods waited together.
	PendingSeconds float64 `json:"pendingSeconds"`
	MedianWait     float64 `json:"medianWaitSeconds"`
	P95Wait        float64 `json:"p95WaitSeconds"`
	LongestWait    float64 `json:"longestWaitSeconds"`
	// Lost are evicted pods whose machine ended under them, Unowned those that nothing made
	// again, EvictedTwice those that had to move more than once.
	Lost         int `json:"lost"`
	Unowned      int `json:"unowned"`
	EvictedTwice int `json:"evictedTwice"`
}

// Nodes is how many nodes there were.
type Nodes struct {
	Bought int     `json:"bought"`
	Gone   int     `json:"gone"`
	Peak   int     `json:"peak"`
	Mean   float64 `json:"mean"`
	Hours  float64 `json:"hours"`
}

// Utilisation is what pods asked for, in percent of what was allocatable, over the whole time.
type Utilisation struct {
	CPU    float64 `json:"cpuPercent"`
	Memory float64 `json:"memoryPercent"`
}

// samples is how many points a curve has at most.
const samples = 400

func newReport(w *world.World, name string) *Report {
	rec := w.Record()
	end := w.Now()
	hours := end.Sub(rec.Start).Hours()
	r := &Report{
		Setting: name, Start: rec.Start, End: end, Hours: round(hours, 4), Evictions: rec.TotalEvictions(), EvictionsBy: rec.Evictions,
		Cost: Cost{Total: round(rec.Cost, 4), ByPool: rounded(rec.ByPool), ByType: rounded(rec.ByType), ByCapacity: rounded(rec.ByCapacity), Peak: rec.PeakCost.Dollars()},
		Pods: Pods{
			Placed: len(rec.Waits), Pending: map[string]string{}, PendingSeconds: round(w.PendingSeconds(), 1), LongestWait: rec.LongestWait.Seconds(),
			Lost: rec.Lost, Unowned: rec.Unowned, EvictedTwice: len(rec.EvictedTwice()),
		},
		Nodes:     Nodes{Peak: rec.PeakNodes, Hours: round(rec.NodeHours, 2)},
		Decisions: map[string]int{}, Plans: rec.Plans, Loops: rec.Loops, Timeline: rec.Entries,
		Utilisation: Utilisation{CPU: percent(rec.CPURequestedHours, rec.CPUAllocatableHours), Memory: percent(rec.MemRequestedHours, rec.MemAllocatableHours)},
	}
	if r.Timeline == nil {
		r.Timeline = []world.Entry{}
	}
	for i := range rec.Entries {
		e := &rec.Entries[i]
		r.Decisions[string(e.Kind)]++
		switch e.Kind {
		case world.Bought:
			r.Nodes.Bought++
		case world.Decided:
			r.Nodes.Bought += len(e.Bought)
		case world.Gone:
			r.Nodes.Gone++
		}
	}
	if hours > 0 {
		r.Cost.Mean, r.Nodes.Mean = round(rec.Cost/hours, 6), round(rec.NodeHours/hours, 2)
	}
	if rec.CPURequestedHours > 0 {
		per := round(rec.Cost/rec.CPURequestedHours, 6)
		r.Cost.PerCPUHour = &per
	}
	waits := slices.Clone(rec.Waits)
	slices.Sort(waits)
	if n := len(waits); n > 0 {
		r.Pods.MedianWait, r.Pods.P95Wait = float64(waits[n/2]), float64(waits[min(n*95/100, n-1)])
	}
	for key, why := range w.Waiting() {
		r.Pods.Pending[key.String()] = why
	}
	if n := len(rec.Points); n > 0 {
		r.Cost.Last = rec.Points[n-1].Cost.Dollars()
	}
	r.Cost.Curve = curve(rec.Points, rec.Start, end)
	return r
}

// curve is the course of points as means over spans of equal length.
func curve(points []world.Point, start, end time.Time) []Sample {
	if len(points) == 0 || !end.After(start) {
		return []Sample{}
	}
	n := samples
	span := end.Sub(start) / time.Duration(n)
	if span < time.Second {
		span = time.Second
		n = int(end.Sub(start)/span) + 1
	}
	out := make([]Sample, 0, n)
	at := 0
	for i := range n {
		from := start.Add(time.Duration(i) * span)
		to := from.Add(span)
		if i == n-1 {
			to = end
		}
		if !to.After(from) {
			break
		}
		s := Sample{At: from}
		var cpu, cpuAll, memory, memoryAll float64
		for at > 0 && points[at].At.After(from) {
			at--
		}
		for j := at; j < len(points) && points[j].At.Before(to); j++ {
			a, b := points[j].At, to
			if j+1 < len(points) && points[j+1].At.Before(to) {
				b = points[j+1].At
			}
			if a.Before(from) {
				a = from
			}
			at = j
			if !b.After(a) {
				continue
			}
			p := &points[j]
			weight := b.Sub(a).Seconds() / to.Sub(from).Seconds()
			s.Hourly += p.Cost.Dollars() * weight
			s.Spot += p.Spot.Dollars() * weight
			s.Nodes += float64(p.Nodes) * weight
			s.Running += float64(p.Running) * weight
			s.Pending += float64(p.Pending) * weight
			cpu += float64(p.CPURequested) * weight
			cpuAll += float64(p.CPUAllocatable) * weight
			memory += float64(p.MemoryRequested) * weight
			memoryAll += float64(p.MemoryAllocatable) * weight
		}
		s.CPU, s.Memory = percent(cpu, cpuAll), percent(memory, memoryAll)
		s.Hourly, s.Spot, s.Nodes = round(s.Hourly, 6), round(s.Spot, 6), round(s.Nodes, 3)
		s.Running, s.Pending = round(s.Running, 3), round(s.Pending, 3)
		out = append(out, s)
	}
	return out
}

func percent(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return round(part/whole*100, 2)
}

func round(f float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(f*p) / p
}

func rounded(m map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(m))
	for k, v := range m {
		out[k] = round(v, 4)
	}
	return out
}

// Monthly is a cost per hour as one per month.
func Monthly(hourly float64) float64 { return hourly * 730 }

// Comparison is replays of one input under several settings, the first being what the others
// are compared with.
type Comparison struct {
	Runs []*Report `json:"runs"`
	// Differences are those of the other runs from the first, in their order.
	Differences []Difference `json:"differences"`
	// WallSeconds is how long all of them took.
	WallSeconds float64 `json:"wallSeconds"`
}

// Difference is that of one run from the first; what is less is negative.
type Difference struct {
	Setting   string  `json:"setting"`
	Cost      float64 `json:"cost"`
	Percent   float64 `json:"costPercent"`
	Monthly   float64 `json:"costMonthly"`
	Evictions int     `json:"evictions"`
	Pending   float64 `json:"pendingSeconds"`
	NodeHours float64 `json:"nodeHours"`
	// PerEviction is what each eviction more saved; absent if there are none more or nothing
	// is saved.
	PerEviction *float64 `json:"savedPerEviction,omitempty"`
}

// Compare sets runs side by side.
func Compare(runs ...*Report) *Comparison {
	c := &Comparison{Runs: runs, Differences: []Difference{}}
	for _, r := range runs {
		c.WallSeconds += r.WallSeconds
		if r == runs[0] {
			continue
		}
		first := runs[0]
		d := Difference{
			Setting: r.Setting, Cost: round(r.Cost.Total-first.Cost.Total, 4), Monthly: round(Monthly(r.Cost.Mean-first.Cost.Mean), 2),
			Evictions: r.Evictions - first.Evictions, Pending: round(r.Pods.PendingSeconds-first.Pods.PendingSeconds, 1), NodeHours: round(r.Nodes.Hours-first.Nodes.Hours, 2),
		}
		if first.Cost.Total > 0 {
			d.Percent = round(d.Cost/first.Cost.Total*100, 2)
		}
		if d.Evictions > 0 && d.Cost < 0 {
			per := round(-d.Cost/float64(d.Evictions), 4)
			d.PerEviction = &per
		}
		c.Differences = append(c.Differences, d)
	}
	return c
}

// Name is what a report is called among others.
func (r *Report) Name() string {
	if r.Setting == "" {
		return "as written"
	}
	return r.Setting
}

// Span is the length of the replay for people.
func (r *Report) Span() string {
	d := r.End.Sub(r.Start)
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.1f days", d.Hours()/24)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%.1f hours", d.Hours())
	}
	return fmt.Sprintf("%.1f minutes", d.Minutes())
}
