package simulate

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// compactAbove is the number of new nodes above which equal ones share a line.
const compactAbove = 20

// TableOptions tune [Report.WriteTable]. The zero value is ready to use.
type TableOptions struct {
	// Wide lists every node with its pods, and every unscheduled pod.
	Wide bool
}

// WriteTable writes r for people.
func (r *Report) WriteTable(w io.Writer, opts TableOptions) error {
	var b bytes.Buffer
	fmt.Fprintln(&b, r.sentence())
	r.nodeTable(&b, opts.Wide)
	r.costLines(&b)
	if r.Policies != nil {
		r.Policies.write(&b, opts.Wide)
	}
	r.existingTable(&b, opts.Wide)
	r.unscheduledLines(&b, opts.Wide)
	r.problemLines(&b)
	_, err := w.Write(b.Bytes())
	return err
}

// nodeGroup are equal nodes: of one pool and offering.
type nodeGroup struct {
	node             *Node
	count            int
	minPods, maxPods int
	sum              map[string]float64
}

func (r *Report) nodeTable(b *bytes.Buffer, wide bool) {
	if len(r.Nodes) == 0 {
		return
	}
	names := r.resourceNames()
	var groups []*nodeGroup
	index := map[string]*nodeGroup{}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		key := n.Name
		if !wide && len(r.Nodes) > compactAbove {
			key = strings.Join([]string{n.Pool, n.InstanceType, n.Zone, n.CapacityType, n.ReservationID, money(n.Price)}, "\x00")
		}
		g := index[key]
		if g == nil {
			g = &nodeGroup{node: n, minPods: len(n.Pods), sum: map[string]float64{}}
			index[key] = g
			groups = append(groups, g)
		}
		g.count++
		g.minPods, g.maxPods = min(g.minPods, len(n.Pods)), max(g.maxPods, len(n.Pods))
		for _, name := range names {
			g.sum[name] += n.Utilisation[name].Percent
		}
	}
	grouped := len(groups) < len(r.Nodes)
	if grouped {
		slices.SortStableFunc(groups, func(x, y *nodeGroup) int {
			return cmp.Compare(float64(y.count)*y.node.Price, float64(x.count)*x.node.Price)
		})
	}
	fmt.Fprintln(b)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	header := []string{"NODE", "TYPE", "ZONE", "CAPACITY", "$/HOUR", "PODS"}
	if grouped {
		header = []string{"NODES", "POOL", "TYPE", "ZONE", "CAPACITY", "$/HOUR EACH", "PODS EACH"}
	}
	for _, name := range names {
		header = append(header, strings.ToUpper(name))
	}
	if wide {
		header = append(header, "ALTERNATIVES")
	}
	fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, g := range groups {
		n := g.node
		capacity := n.CapacityType
		if n.ReservationID != "" {
			capacity += " " + n.ReservationID
		}
		row := []string{n.Name, n.InstanceType, dash(n.Zone), dash(capacity), money(n.Price), strconv.Itoa(len(n.Pods))}
		if grouped {
			pods := strconv.Itoa(g.minPods)
			if g.maxPods > g.minPods {
				pods += "-" + strconv.Itoa(g.maxPods)
			}
			row = []string{strconv.Itoa(g.count), n.Pool, n.InstanceType, dash(n.Zone), dash(capacity), money(n.Price), pods}
		}
		for _, name := range names {
			if _, ok := n.Utilisation[name]; !ok {
				row = append(row, "-")
				continue
			}
			row = append(row, fmt.Sprintf("%.0f %%", g.sum[name]/float64(g.count)))
		}
		if wide {
			next := "none"
			if n.Alternatives != nil && n.Next != nil {
				next = fmt.Sprintf("%d, next %s $%s", *n.Alternatives, n.Next.InstanceType, money(n.Next.Price))
			}
			row = append(row, next)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	flush(t)
	if grouped {
		fmt.Fprintln(b, "Utilisation is the mean of a line's nodes; --wide lists them one by one.")
	}
	if wide {
		for i := range r.Nodes {
			fmt.Fprintf(b, "\n%s (%s):\n  %s\n", r.Nodes[i].Name, r.Nodes[i].InstanceType, strings.Join(r.Nodes[i].Pods, "\n  "))
		}
	}
	for i := range r.Nodes {
		if r.Nodes[i].MinValuesRelaxed {
			fmt.Fprintf(b, "%s: the pool's minValues could not be met and are relaxed\n", r.Nodes[i].Name)
		}
	}
}

// flush ends a table in a buffer, which cannot fail.
func flush(t *tabwriter.Writer) { _ = t.Flush() }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (r *Report) costLines(b *bytes.Buffer) {
	if len(r.Nodes) == 0 {
		fmt.Fprintln(b, "\nNothing is to be bought.")
		return
	}
	fmt.Fprintf(b, "\nCost of the new nodes: $%s an hour, $%s a month (%d h).", money(r.Cost.Hourly), thousands(r.Cost.Monthly), HoursPerMonth)
	if r.Cost.AboveBound != nil {
		fmt.Fprintf(b, "\nThe plan is within %.1f %% of the bound: nothing below $%s an hour holds these pods.", *r.Cost.AboveBound, money(r.Cost.Bound))
	}
	fmt.Fprintln(b)
}

// money is an hourly price in dollars, with two to four decimals.
func money(f float64) string {
	if f >= 100 {
		return thousands(f)
	}
	s := strconv.FormatFloat(f, 'f', 4, 64)
	for range 2 {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}

// thousands is f in cents with a comma per thousand.
func thousands(f float64) string {
	s := strconv.FormatFloat(f, 'f', 2, 64)
	for i := len(s) - 6; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func (r *Report) existingTable(b *bytes.Buffer, wide bool) {
	if len(r.Existing) == 0 {
		return
	}
	fmt.Fprintln(b, "\nExisting nodes that get pods:")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tPOOL\tPODS\tCPU\tMEMORY")
	rows := r.Existing
	if !wide && len(rows) > compactAbove {
		rows = rows[:compactAbove]
	}
	for i := range rows {
		e := &rows[i]
		name := e.Name
		if e.InFlight {
			name += " (on its way)"
		}
		fmt.Fprintf(t, "%s\t%s\t+%d\t%.0f → %.0f %%\t%.0f → %.0f %%\n", name, dash(e.Pool), len(e.Pods),
			e.Before["cpu"], e.After["cpu"], e.Before["memory"], e.After["memory"])
	}
	flush(t)
	if more := len(r.Existing) - len(rows); more > 0 {
		fmt.Fprintf(b, "and %d more; --wide lists them.\n", more)
	}
	if wide {
		for i := range r.Existing {
			fmt.Fprintf(b, "\n%s:\n  %s\n", r.Existing[i].Name, strings.Join(r.Existing[i].Pods, "\n  "))
		}
	}
}

// unscheduledLines groups the pods of a workload that share their reasons.
func (r *Report) unscheduledLines(b *bytes.Buffer, wide bool) {
	if len(r.Unscheduled) == 0 {
		return
	}
	fmt.Fprintln(b, "\nUnscheduled:")
	type group struct {
		first *Unscheduled
		count int
	}
	var groups []*group
	index := map[string]*group{}
	for i := range r.Unscheduled {
		u := &r.Unscheduled[i]
		key := u.Pod
		if !wide {
			var why strings.Builder
			for _, reason := range u.Reasons {
				why.WriteString(reason.Text + "\x00" + reason.Hint + "\x00")
			}
			namespace, _, _ := strings.Cut(u.Pod, "/")
			key = namespace + "\x00" + u.Workload + "\x00" + why.String()
		}
		g := index[key]
		if g == nil {
			g = &group{first: u}
			index[key] = g
			groups = append(groups, g)
		}
		g.count++
	}
	for _, g := range groups {
		u := g.first
		switch {
		case g.count == 1 && u.Workload == "":
			fmt.Fprintf(b, "  %s\n", u.Pod)
		case g.count == 1:
			fmt.Fprintf(b, "  %s (%s)\n", u.Pod, u.Workload)
		case u.Workload == "":
			fmt.Fprintf(b, "  %s such as %s\n", plural(g.count, "pod"), u.Pod)
		default:
			fmt.Fprintf(b, "  %s of %s, such as %s\n", plural(g.count, "pod"), u.Workload, u.Pod)
		}
		writeReasons(b, u.Reasons, "    ", "")
	}
}

// writeReasons writes a line per reason. What its indentation is under, such as
// "NodePool web: ", is not said again.
func writeReasons(b *bytes.Buffer, reasons []Reason, indent, under string) {
	for _, reason := range reasons {
		fmt.Fprintf(b, "%s- %s\n", indent, strings.TrimPrefix(reason.Text, under))
		if reason.Hint != "" && !strings.Contains(reason.Text, reason.Hint) {
			fmt.Fprintf(b, "%s  would help: %s\n", indent, reason.Hint)
		}
	}
}

func (r *Report) problemLines(b *bytes.Buffer) {
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
				fmt.Fprintf(b, "\n%s:\n", s.title)
				first = false
			}
			fmt.Fprintf(b, "  %s\n", strings.TrimPrefix(p.String(), string(p.Severity)+": "))
		}
	}
}
