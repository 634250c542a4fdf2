// Package page writes reports of replays as one HTML file: charts are drawn in it, and it
// loads nothing from anywhere, so it can be kept, mailed and opened offline.
package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/simulate/replay"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

//go:embed page.html
var text string

// Bounds on what is listed; the rest is counted.
const (
	shownMoves   = 40
	shownEntries = 400
	shownParts   = 12
)

// Write writes runs of one input, the first of which is what the others are compared with.
func Write(w io.Writer, runs ...*replay.Report) error {
	t, err := template.New("page").Parse(text)
	if err != nil {
		return fmt.Errorf("the page's template: %w", err)
	}
	return t.Execute(w, newView(runs))
}

// view is what the template shows.
type view struct {
	Title, Span   string
	Tiles         []tile
	Charts        []chart
	Parts         []parts
	Rows          []row
	Names         []string
	Verdicts      []string
	Moves         []move
	MoreMoves     int
	Entries       []entry
	MoreEntries   int
	Pending       []pair
	MorePending   int
	Notes         []string
	CausesOfMoves []pair
}

type tile struct{ Title, Value, Note string }

type pair struct{ Name, Value string }

type row struct {
	Title string
	Cells []string
}

type move struct {
	When, Reason, What, Why, Nodes, Saves string
	Pods                                  int
}

type entry struct{ When, Kind, Object, Text string }

// parts is a cost in its parts.
type parts struct {
	Title string
	Bars  []bar
}

type bar struct {
	Name, Value string
	Percent     float64
	Width       float64
}

func newView(runs []*replay.Report) *view {
	r := runs[0]
	v := &view{Title: "What the cluster cost", Span: fmt.Sprintf("%s, %s to %s", r.Span(), stamp(r.Start), stamp(r.End))}
	v.Tiles = []tile{
		{"Cost", dollars(r.Cost.Total), fmt.Sprintf("%s an hour; %s a month at this rate", dollars(r.Cost.Mean), dollars(replay.Monthly(r.Cost.Mean)))},
		{"Peak", dollars(r.Cost.Peak) + "/h", fmt.Sprintf("%s/h at the end", dollars(r.Cost.Last))},
		{"Nodes", fmt.Sprintf("%.1f", r.Nodes.Mean), fmt.Sprintf("on average; %d at most, %d bought, %d gone", r.Nodes.Peak, r.Nodes.Bought, r.Nodes.Gone)},
		{"In use", fmt.Sprintf("%.0f %%", r.Utilisation.CPU), fmt.Sprintf("of CPU requested, and %.0f %% of memory", r.Utilisation.Memory)},
		{"Evictions", fmt.Sprint(r.Evictions), causes(r)},
		{"Waiting", seconds(r.Pods.MedianWait), fmt.Sprintf("in the median until a pod has a node; %s for one in 20, %s at most", seconds(r.Pods.P95Wait), seconds(r.Pods.LongestWait))},
	}
	if r.Cost.PerCPUHour != nil {
		v.Tiles = append(v.Tiles, tile{"Unit cost", dollars(*r.Cost.PerCPUHour), "for each CPU that pods asked for, per hour"})
	}
	if len(runs) > 1 {
		v.compare(runs)
	}
	v.Charts = charts(runs)
	for _, p := range []struct {
		title string
		of    map[string]float64
	}{{"Cost by NodePool", r.Cost.ByPool}, {"Cost by capacity type", r.Cost.ByCapacity}, {"Cost by instance type", r.Cost.ByType}} {
		v.Parts = append(v.Parts, newParts(p.title, p.of, r.Cost.Total))
	}
	v.moves(r)
	v.entries(r)
	names := slices.Sorted(maps.Keys(r.Pods.Pending))
	for i, name := range names {
		if i == shownMoves {
			v.MorePending = len(names) - i
			break
		}
		v.Pending = append(v.Pending, pair{name, cmp.Or(r.Pods.Pending[name], "it has not been planned yet")})
	}
	for _, p := range r.Problems {
		v.Notes = append(v.Notes, p.String())
	}
	return v
}

func causes(r *replay.Report) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(r.EvictionsBy)) {
		out = append(out, fmt.Sprintf("%d %s", r.EvictionsBy[k], k))
	}
	if len(out) == 0 {
		return "no pod had to move"
	}
	return strings.Join(out, ", ")
}

// compare sets runs side by side.
func (v *view) compare(runs []*replay.Report) {
	for _, r := range runs {
		v.Names = append(v.Names, r.Name())
	}
	add := func(title string, cell func(*replay.Report) string) {
		r := row{Title: title}
		for _, run := range runs {
			r.Cells = append(r.Cells, cell(run))
		}
		v.Rows = append(v.Rows, r)
	}
	add("Cost", func(r *replay.Report) string { return dollars(r.Cost.Total) })
	add("Cost a month at this rate", func(r *replay.Report) string { return dollars(replay.Monthly(r.Cost.Mean)) })
	add("Peak cost per hour", func(r *replay.Report) string { return dollars(r.Cost.Peak) })
	add("Nodes on average", func(r *replay.Report) string { return fmt.Sprintf("%.1f", r.Nodes.Mean) })
	add("CPU requested", func(r *replay.Report) string { return fmt.Sprintf("%.1f %%", r.Utilisation.CPU) })
	add("Memory requested", func(r *replay.Report) string { return fmt.Sprintf("%.1f %%", r.Utilisation.Memory) })
	add("Evictions", func(r *replay.Report) string { return fmt.Sprint(r.Evictions) })
	add("Pods moved more than once", func(r *replay.Report) string { return fmt.Sprint(r.Pods.EvictedTwice) })
	add("Hours that pods waited", func(r *replay.Report) string { return fmt.Sprintf("%.1f", r.Pods.PendingSeconds/3600) })
	for _, d := range replay.Compare(runs...).Differences {
		verb, amount, word := "costs", d.Cost, "more"
		if d.Cost < 0 {
			verb, amount, word = "saves", -d.Cost, "less"
		}
		s := fmt.Sprintf("%s %s %s, %.1f %% %s than %s, with %+d evictions", d.Setting, verb, dollars(amount), math.Abs(d.Percent), word, runs[0].Name(), d.Evictions)
		if d.PerEviction != nil {
			s += fmt.Sprintf(": %s for each of them", dollars(*d.PerEviction))
		}
		v.Verdicts = append(v.Verdicts, s+".")
	}
}

func newParts(title string, of map[string]float64, total float64) parts {
	names := slices.Sorted(maps.Keys(of))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(of[b], of[a]) })
	p := parts{Title: title}
	rest, more := 0.0, 0
	widest := 0.0
	add := func(name string, cost float64) {
		b := bar{Name: name, Value: dollars(cost)}
		if total > 0 {
			b.Percent = math.Round(cost/total*1000) / 10
		}
		widest = max(widest, b.Percent)
		p.Bars = append(p.Bars, b)
	}
	for i, name := range names {
		if i >= shownParts {
			rest += of[name]
			more++
			continue
		}
		add(name, of[name])
	}
	if more > 0 {
		add(fmt.Sprintf("%d more", more), rest)
	}
	for i := range p.Bars {
		if widest > 0 {
			p.Bars[i].Width = math.Round(p.Bars[i].Percent/widest*1000) / 10
		}
	}
	return p
}

// moves are the decisions to take nodes away that saved most.
func (v *view) moves(r *replay.Report) {
	var list []*world.Entry
	saved := map[string]float64{}
	number := map[string]int{}
	for i := range r.Timeline {
		if e := &r.Timeline[i]; e.Kind == world.Decided {
			list = append(list, e)
			saved[e.Reason] -= e.Delta
			number[e.Reason]++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(saved)) {
		v.CausesOfMoves = append(v.CausesOfMoves, pair{reason, fmt.Sprintf("%s, which took %s an hour off the bill when made", plural(number[reason], "decision"), dollars(saved[reason]))})
	}
	slices.SortStableFunc(list, func(a, b *world.Entry) int { return cmp.Compare(a.Delta, b.Delta) })
	for i, e := range list {
		if i == shownMoves {
			v.MoreMoves = len(list) - i
			break
		}
		v.Moves = append(v.Moves, move{When: since(e.At, r.Start), Reason: e.Reason, What: e.Text, Why: e.Why, Nodes: clip(e.Object, 80), Pods: e.Pods, Saves: dollars(-e.Delta) + "/h"})
	}
}

func (v *view) entries(r *replay.Report) {
	for i := range r.Timeline {
		if i == shownEntries {
			v.MoreEntries = len(r.Timeline) - i
			break
		}
		e := &r.Timeline[i]
		what := e.Text
		if e.Why != "" {
			what += " (" + e.Why + ")"
		}
		v.Entries = append(v.Entries, entry{since(e.At, r.Start), string(e.Kind), clip(e.Object, 80), clip(what, 240)})
	}
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format("2 Jan 2006 15:04") }

// since is a time in a replay for people.
func since(t, start time.Time) string {
	d := t.Sub(start)
	switch {
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("day %d, %s", int(d.Hours()/24)+1, t.UTC().Format("15:04"))
}

func seconds(s float64) string {
	if s < 120 {
		return fmt.Sprintf("%.0f s", s)
	}
	if s < 7200 {
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// dollars is money with as many decimals as say something.
func dollars(f float64) string {
	sign := ""
	if f < 0 {
		sign, f = "−", -f
	}
	digits := 2
	switch {
	case f == 0, f >= 1000:
		digits = 0
	case f < 1:
		digits = 4
	}
	s := fmt.Sprintf("%.*f", digits, f)
	whole, part, ok := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if ok {
		whole += "." + part
	}
	return sign + "$" + whole
}
