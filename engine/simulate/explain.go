package simulate

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Explanation is [schedule.Explanation] with its sentences, as data for programs.
type Explanation struct {
	Pod string `json:"pod"`
	// Node is where the plan puts the pod; empty if it puts it nowhere.
	Node string `json:"node,omitempty"`
	// New is true if Node is to be bought.
	New bool `json:"new,omitempty"`
	// Bought is that new node.
	Bought *Node `json:"bought,omitempty"`
	// Reasons are those of a pod without a node.
	Reasons []Reason          `json:"reasons,omitempty"`
	Pools   []PoolExplanation `json:"pools"`
	Nodes   []NodeExplanation `json:"nodes"`
}

// PoolExplanation says what a NodePool can do for the pod.
type PoolExplanation struct {
	Name    string             `json:"name"`
	Weight  int32              `json:"weight,omitempty"`
	Reasons []Reason           `json:"reasons"`
	Nearest []OfferExplanation `json:"nearest"`
}

// OfferExplanation says why an offering does not do, or why it was chosen.
type OfferExplanation struct {
	Offer
	Reasons []Reason `json:"reasons"`
	// Steps say how policies came from the list price to the cost; missing without score
	// policies.
	Steps []CostStep `json:"steps,omitempty"`
}

// CostStep is one step from the list price to what an offering costs. Money is in US dollars
// per hour.
type CostStep struct {
	Text   string  `json:"text"`
	Policy string  `json:"policy,omitempty"`
	Cost   float64 `json:"cost"`
}

// NodeExplanation says the same of an existing node.
type NodeExplanation struct {
	Name    string   `json:"name"`
	Reasons []Reason `json:"reasons"`
}

// NewExplanation converts e, which was made with costs; nil is list prices.
func NewExplanation(e schedule.Explanation, costs *policy.Costs) Explanation {
	out := Explanation{Pod: e.Pod.String(), Node: e.Node, New: e.New, Pools: []PoolExplanation{}, Nodes: []NodeExplanation{}}
	if e.Bought != nil {
		n := newNode(e.Bought, true)
		out.Bought = &n
	}
	if len(e.Reasons) > 0 {
		out.Reasons = reasons(e.Reasons)
	}
	for _, p := range e.Pools {
		pool := PoolExplanation{Name: p.Name, Weight: p.Weight, Reasons: reasons(p.Reasons), Nearest: []OfferExplanation{}}
		for _, n := range p.Nearest {
			x := OfferExplanation{Offer: newOffer(n.Offer), Reasons: reasons(n.Reasons)}
			for _, s := range costs.Steps(p.Name, n.Offer) {
				x.Steps = append(x.Steps, CostStep{Text: s.String(), Policy: s.Policy, Cost: catalog.Price(s.Cost).Dollars()})
			}
			pool.Nearest = append(pool.Nearest, x)
		}
		out.Pools = append(out.Pools, pool)
	}
	for _, n := range e.Nodes {
		out.Nodes = append(out.Nodes, NodeExplanation{Name: n.Name, Reasons: reasons(n.Reasons)})
	}
	return out
}

// shownNodes is the number of existing nodes that [WriteExplanation] lists one by one.
const shownNodes = 10

// WriteExplanation writes e, which was made with costs, for people; nil is list prices.
func WriteExplanation(w io.Writer, e schedule.Explanation, costs *policy.Costs) error {
	x := NewExplanation(e, costs)
	var b bytes.Buffer
	switch {
	case x.Node == "":
		fmt.Fprintf(&b, "%s gets no node:\n", x.Pod)
		writeReasons(&b, x.Reasons, "  ", "")
	case x.Bought != nil:
		n := x.Bought
		fmt.Fprintf(&b, "%s goes to a new node, %s: %s in %s, %s, $%s an hour, with %s.\n", x.Pod, n.Name, n.InstanceType, dash(n.Zone), n.CapacityType,
			money(n.Price), others(len(n.Pods)-1))
	default:
		fmt.Fprintf(&b, "%s goes to the existing node %s.\n", x.Pod, x.Node)
	}
	for _, p := range x.Pools {
		fmt.Fprintf(&b, "\nNodePool %s", p.Name)
		if p.Weight > 0 {
			fmt.Fprintf(&b, " (weight %d)", p.Weight)
		}
		fmt.Fprintln(&b, ":")
		if len(p.Reasons) == 0 {
			fmt.Fprintln(&b, "  could buy a node for it; the cheapest for this pod alone:")
		}
		writeReasons(&b, p.Reasons, "  ", "NodePool "+p.Name+": ")
		offers(&b, p.Nearest)
	}
	if len(x.Nodes) > 0 {
		fmt.Fprintln(&b, "\nExisting nodes:")
	}
	for i, n := range x.Nodes {
		if i == shownNodes {
			fmt.Fprintf(&b, "  and %d more; -o json lists them.\n", len(x.Nodes)-i)
			break
		}
		fmt.Fprintf(&b, "  %s:\n", n.Name)
		if len(n.Reasons) == 0 {
			fmt.Fprintln(&b, "    has room")
		}
		writeReasons(&b, n.Reasons, "    ", "node "+n.Name+": ")
	}
	_, err := w.Write(b.Bytes())
	return err
}

func others(n int) string {
	if n == 0 {
		return "no other pod"
	}
	return plural(n, "other pod")
}

func offers(b *bytes.Buffer, nearest []OfferExplanation) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, n := range nearest {
		verdict := "would do"
		for i, r := range n.Reasons {
			if i == 0 {
				verdict = r.Text
			} else {
				verdict += "; " + r.Text
			}
		}
		fmt.Fprintf(t, "    %s\t%s\t%s\t$%s\t%s\n", n.InstanceType, dash(n.Zone), n.CapacityType, money(n.Price), verdict)
		if len(n.Steps) < 2 {
			continue // the list price is what it costs
		}
		for _, s := range n.Steps {
			fmt.Fprintf(t, "      %s\t\t\t$%s\n", s.Text, money(s.Cost))
		}
	}
	flush(t)
}
