package simulate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// ConsolidateOptions tune [Consolidate] beside [Options].
type ConsolidateOptions struct {
	// MinSaving and SpotTypes are those of [consolidate.Options].
	MinSaving, SpotTypes int
	// IgnoreBudgets lets all nodes of a NodePool go at once.
	IgnoreBudgets bool
	// Target asks for the cheapest cluster for the same pods.
	Target bool
}

// Consolidation is what one round of disruption would do to a cluster.
type Consolidation struct {
	// Hourly is what all nodes whose price is known cost; After what they cost when the moves
	// are made.
	Hourly float64 `json:"hourly"`
	After  float64 `json:"after"`
	// Cheapest is what the cheapest nodes that were found for the same pods would cost, if
	// nothing had to be moved one by one; Bound is what none can go below. Absent unless asked
	// for.
	Cheapest *float64 `json:"cheapest,omitempty"`
	Bound    *float64 `json:"bound,omitempty"`
	// Moves in order; Evictions is the number of pods they move.
	Moves     []ConsolidationMove `json:"moves"`
	Evictions int                 `json:"evictions"`
	// Left are the nodes that stay, by name, with the reasons.
	Left []LeftNode `json:"left"`
	// Budgets say how many nodes may go, by NodePool and reason.
	Budgets []string `json:"budgets"`
	// Refused are the moves that policies did not allow as they were found.
	Refused  []string       `json:"refused,omitempty"`
	Problems []load.Problem `json:"problems,omitempty"`
	// Complete is false if not every node had its turn.
	Complete bool `json:"complete"`
}

// ConsolidationMove is one move.
type ConsolidationMove struct {
	Reason       string   `json:"reason"`
	Nodes        []string `json:"nodes"`
	Replacements []Offer  `json:"replacements,omitempty"`
	Saving       float64  `json:"saving"`
	Evictions    int      `json:"evictions"`
	// Pods say where the pods go: NAMESPACE/NAME to a node.
	Pods map[string]string `json:"pods"`
}

// LeftNode is a node that stays.
type LeftNode struct {
	Node    string             `json:"node"`
	Reasons []candidate.Reason `json:"reasons"`
}

// Consolidate is what a controller would do now to disrupt the cluster of an input, under the
// enforced policies. The error is that of [gate.Disrupt].
func Consolidate(ctx context.Context, in *load.Result, opts Options, more ConsolidateOptions) (*Consolidation, error) {
	snap, objs := Snapshot(in, opts)
	facts := candidate.Facts{Now: snap.Now}
	o := consolidate.Options{Solve: opts.Solve, MinSaving: more.MinSaving, SpotTypes: more.SpotTypes, MaxMoves: len(snap.Nodes) + 1, Trials: 100 * (len(snap.Nodes) + 10)}
	o.Candidates = candidate.Examine(snap, objs, facts)
	o.Allowances = candidate.Allowances(objs, facts, o.Candidates)
	out := &Consolidation{Moves: []ConsolidationMove{}, Left: []LeftNode{}, Budgets: []string{}, Problems: slices.Concat(in.Problems, opts.Problems)}
	for i := range o.Allowances {
		if more.IgnoreBudgets {
			o.Allowances[i].Unlimited = true
		} else {
			out.Budgets = append(out.Budgets, o.Allowances[i].String())
		}
	}
	e := policy.NewEngine(policy.Options{Records: -1, OnDecision: opts.Policies.OnDecision})
	if err := e.Swap(opts.Policies.Enforced); err != nil {
		return nil, err
	}
	f := Facts(opts.Policies.Facts, objs)
	f.Round = policy.NewRound(-1)
	d, err := gate.Disrupt(ctx, e, &policy.Inputs{}, snap, FactsOf(in, objs), f, o)
	if err != nil {
		return nil, err
	}
	out.Hourly, out.After, out.Complete = d.Cost.Dollars(), d.Cost.Dollars(), d.Complete
	for i := range d.Moves {
		m := &d.Moves[i]
		c := ConsolidationMove{Reason: string(m.Reason), Nodes: m.Nodes, Saving: m.Saving().Dollars(), Evictions: m.Evictions, Pods: map[string]string{}}
		names := map[string]string{}
		for j := range m.Plan.NewNodes {
			n := &m.Plan.NewNodes[j]
			c.Replacements = append(c.Replacements, newOffer(n.Planned))
			names[n.Name] = fmt.Sprintf("new %s", n.Planned.InstanceType)
		}
		for _, a := range m.Plan.Assignments {
			c.Pods[a.Pod.String()] = cmp.Or(names[a.Node], a.Node)
		}
		out.Moves = append(out.Moves, c)
		out.Evictions += m.Evictions
		out.After -= c.Saving
	}
	for _, c := range o.Candidates {
		if why, ok := d.Left[c.Node]; ok {
			out.Left = append(out.Left, LeftNode{c.Node, why})
		}
	}
	for _, r := range d.Refused {
		var said []string
		for _, s := range r.Reasons {
			said = append(said, s.String())
		}
		out.Refused = append(out.Refused, fmt.Sprintf("%s of %s: %s: %s", r.Reason, strings.Join(r.Nodes, ", "), r.Verdict, strings.Join(said, "; ")))
	}
	if more.Target {
		solve := opts.Solve
		if d.Costs != nil {
			solve.Costs = d.Costs
		}
		best, err := consolidate.Best(ctx, snap, o.Candidates, solve)
		if err != nil {
			return nil, err
		}
		out.Cheapest, out.Bound = new(best.Plan.Cost.Dollars()), new(best.Plan.Bound.Dollars())
	}
	return out, nil
}

// WriteTable writes the round for people.
func (c *Consolidation) WriteTable(w io.Writer, wide bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: $%.4f/h now, $%.4f/h after %s with %s\n", plural(len(c.Moves)+len(c.Left), "node"), c.Hourly, c.After, plural(len(c.Moves), "move"), plural(c.Evictions, "eviction"))
	if c.Bound != nil {
		fmt.Fprintf(&b, "the cheapest cluster found for these pods costs $%.4f/h, none costs less than $%.4f/h\n", *c.Cheapest, *c.Bound)
	}
	if len(c.Moves) > 0 {
		b.WriteString("\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "REASON\tNODES\tREPLACED BY\tSAVES $/h\tEVICTS")
		for _, m := range c.Moves {
			by := []string{}
			for _, r := range m.Replacements {
				by = append(by, fmt.Sprintf("%s %s %s", r.InstanceType, r.CapacityType, r.Zone))
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%.4f\t%d\n", m.Reason, strings.Join(m.Nodes, " "), cmp.Or(strings.Join(by, ", "), "-"), m.Saving, m.Evictions)
		}
		_ = t.Flush() // into memory
	}
	if len(c.Left) > 0 {
		b.WriteString("\nNodes that stay\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		if wide {
			for _, n := range c.Left {
				for i, r := range n.Reasons {
					name := n.Node
					if i > 0 {
						name = ""
					}
					fmt.Fprintf(t, "  %s\t%s\t%s\n", name, r.Code, reasonText(r))
				}
			}
		} else {
			counts, example := map[candidate.Code]int{}, map[candidate.Code]string{}
			for _, n := range c.Left {
				r := n.Reasons[0]
				if counts[r.Code]++; example[r.Code] == "" {
					example[r.Code] = n.Node + ": " + reasonText(r)
				}
			}
			codes := sortedKeys(counts)
			slices.SortStableFunc(codes, func(a, b candidate.Code) int { return -cmp.Compare(counts[a], counts[b]) })
			for _, code := range codes {
				fmt.Fprintf(t, "  %d\t%s\t%s\n", counts[code], code, example[code])
			}
		}
		_ = t.Flush() // into memory
	}
	for _, list := range []struct {
		title string
		lines []string
	}{{"Budgets", c.Budgets}, {"Refused by policies", c.Refused}} {
		if len(list.lines) > 0 {
			fmt.Fprintf(&b, "\n%s\n", list.title)
			for _, l := range list.lines {
				fmt.Fprintf(&b, "  %s\n", l)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func reasonText(r candidate.Reason) string {
	s := r.String()
	if !r.Until.IsZero() {
		s += ", until " + r.Until.UTC().Format(time.RFC3339)
	}
	return s
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
