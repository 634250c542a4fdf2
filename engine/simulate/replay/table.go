package replay

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

// shownEntries is the number of lines of the timeline that a table has.
const shownEntries = 40

// WriteTable writes r for people; wide lists the whole timeline.
func (r *Report) WriteTable(out io.Writer, wide bool) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s from %s: $%s in all, $%s an hour on average, $%s at most.\n", r.Span(), r.Start.UTC().Format("2006-01-02 15:04 MST"),
		money(r.Cost.Total), money(r.Cost.Mean), money(r.Cost.Peak))
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nNodes\t%.1f on average, %d at most, %d bought, %d gone\n", r.Nodes.Mean, r.Nodes.Peak, r.Nodes.Bought, r.Nodes.Gone)
	fmt.Fprintf(t, "Requested\t%.0f %% of CPU, %.0f %% of memory\n", r.Utilisation.CPU, r.Utilisation.Memory)
	fmt.Fprintf(t, "Evictions\t%d%s\n", r.Evictions, counts(r.EvictionsBy))
	fmt.Fprintf(t, "Waiting\t%.0f s per pod in the median, %.0f s for one in 20, %.0f s at most; %d pods placed\n", r.Pods.MedianWait, r.Pods.P95Wait, r.Pods.LongestWait, r.Pods.Placed)
	if r.Pods.Lost+r.Pods.Unowned > 0 {
		fmt.Fprintf(t, "Lost\t%d pods ended with their machine, %d had nobody to make them again\n", r.Pods.Lost, r.Pods.Unowned)
	}
	_ = t.Flush() // to a buffer, which cannot fail
	writeParts(&b, "Cost by NodePool", r.Cost.ByPool)
	writeParts(&b, "Cost by capacity type", r.Cost.ByCapacity)
	writeParts(&b, "Cost by instance type", r.Cost.ByType)
	r.writeTimeline(&b, wide)
	r.writePending(&b)
	for _, s := range []struct {
		severity load.Severity
		title    string
	}{{load.Error, "Problems"}, {load.Warning, "Warnings"}, {load.Note, "Notes"}} {
		first := true
		for _, p := range r.Problems {
			if p.Severity != s.severity {
				continue
			}
			if first {
				fmt.Fprintf(&b, "\n%s:\n", s.title)
				first = false
			}
			fmt.Fprintf(&b, "  %s\n", strings.TrimPrefix(p.String(), string(p.Severity)+": "))
		}
	}
	_, err := out.Write(b.Bytes())
	return err
}

func counts(m map[string]int) string {
	if len(m) == 0 {
		return ""
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// writeParts lists the largest parts of a cost; one alone says nothing new.
func writeParts(b *bytes.Buffer, title string, parts map[string]float64) {
	if len(parts) < 2 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", title)
	names := slices.Sorted(maps.Keys(parts))
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(parts[y], parts[x]) })
	const shown = 8
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	rest := 0.0
	for i, name := range names {
		if i >= shown {
			rest += parts[name]
			continue
		}
		fmt.Fprintf(t, "  $%s\t  %s\n", money(parts[name]), name)
	}
	if more := len(names) - shown; more > 0 {
		fmt.Fprintf(t, "  $%s\t  %d more\n", money(rest), more)
	}
	_ = t.Flush() // to a buffer, which cannot fail
}

// telling are the kinds of entries that a short timeline has.
var telling = []world.Kind{world.Decided, world.Bought, world.RolledBack, world.Refused, world.LaunchFailed, world.Interrupted, world.Expired, world.Drifted, world.Unplaced, world.Scaled, world.Scripted}

func (r *Report) writeTimeline(b *bytes.Buffer, wide bool) {
	var list []*world.Entry
	for i := range r.Timeline {
		if e := &r.Timeline[i]; wide || slices.Contains(telling, e.Kind) {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(b, "\nTimeline:")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	left := 0
	for i, e := range list {
		if !wide && i >= shownEntries/2 && i < len(list)-shownEntries/2 {
			if left == 0 {
				left = len(list) - shownEntries
				fmt.Fprintf(t, "  ...\t%d more\t\t\n", left)
			}
			continue
		}
		text := e.Text
		if e.Why != "" {
			text += " (" + e.Why + ")"
		}
		fmt.Fprintf(t, "  +%s\t%s\t%s\t%s\n", e.At.Sub(r.Start), e.Kind, clip(e.Object, 60), clip(text, 160))
	}
	_ = t.Flush() // to a buffer, which cannot fail
	if left > 0 {
		fmt.Fprintln(b, "--wide lists all of it, as -o json does.")
	}
}

func (r *Report) writePending(b *bytes.Buffer) {
	if len(r.Pods.Pending) == 0 {
		return
	}
	fmt.Fprintf(b, "\nWithout a node at the end: %d pods\n", len(r.Pods.Pending))
	for i, name := range slices.Sorted(maps.Keys(r.Pods.Pending)) {
		if i == 10 {
			fmt.Fprintf(b, "  and %d more\n", len(r.Pods.Pending)-i)
			break
		}
		fmt.Fprintf(b, "  %s: %s\n", name, cmp.Or(r.Pods.Pending[name], "it has not been planned yet"))
	}
}

func clip(s string, n int) string {
	if len([]rune(s)) <= n {
		return s
	}
	return string([]rune(s)[:n-3]) + "..."
}

// money is dollars with a comma per thousand.
func money(f float64) string {
	digits := 2
	if f < 10 && f > -10 {
		digits = 4
	}
	s := fmt.Sprintf("%.*f", digits, f)
	whole, part, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return whole + "." + part
}

// WriteTable writes c for people.
func (c *Comparison) WriteTable(out io.Writer) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(title string, cell func(r *Report) string) {
		fmt.Fprint(t, title)
		for _, r := range c.Runs {
			fmt.Fprintf(t, "\t%s", cell(r))
		}
		fmt.Fprintln(t)
	}
	row("", func(r *Report) string { return r.Name() })
	row("Cost", func(r *Report) string { return "$" + money(r.Cost.Total) })
	row("Cost per hour", func(r *Report) string { return "$" + money(r.Cost.Mean) })
	row("Nodes, mean", func(r *Report) string { return fmt.Sprintf("%.1f", r.Nodes.Mean) })
	row("Nodes, peak", func(r *Report) string { return fmt.Sprint(r.Nodes.Peak) })
	row("Nodes bought", func(r *Report) string { return fmt.Sprint(r.Nodes.Bought) })
	row("CPU requested", func(r *Report) string { return fmt.Sprintf("%.1f %%", r.Utilisation.CPU) })
	row("Memory requested", func(r *Report) string { return fmt.Sprintf("%.1f %%", r.Utilisation.Memory) })
	row("Evictions", func(r *Report) string { return fmt.Sprint(r.Evictions) })
	row("Pod waiting, hours", func(r *Report) string { return fmt.Sprintf("%.2f", r.Pods.PendingSeconds/3600) })
	row("Without a node", func(r *Report) string { return fmt.Sprint(len(r.Pods.Pending)) })
	_ = t.Flush() // to a buffer, which cannot fail
	for _, d := range c.Differences {
		verb, amount := "costs", d.Cost
		word := "more"
		if d.Cost < 0 {
			verb, amount, word = "saves", -d.Cost, "less"
		}
		fmt.Fprintf(&b, "\n%s against %s: %s $%s (%.1f %% %s), %+d evictions", d.Setting, c.Runs[0].Name(), verb, money(amount), abs(d.Percent), word, d.Evictions)
		if d.PerEviction != nil {
			fmt.Fprintf(&b, ", $%s saved per eviction", money(*d.PerEviction))
		}
		fmt.Fprintln(&b, ".")
	}
	_, err := out.Write(b.Bytes())
	return err
}

func abs(f float64) float64 { return max(f, -f) }
