package replay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

const (
	// settling is how long a cluster has for pods that wait already, before nodes are taken away.
	settling = 5 * time.Minute
	// removal is how long nodes may take to go.
	removal = 30 * time.Minute
)

// Removal is what would happen if nodes were taken away. Money is in US dollars. Its JSON names
// are stable.
type Removal struct {
	Nodes []string `json:"nodes"`
	// Gone says that all of them went, Seconds how long that took.
	Gone    bool    `json:"gone"`
	Seconds float64 `json:"seconds"`
	// Before and After are what all nodes cost per hour.
	Before float64 `json:"costBefore"`
	After  float64 `json:"costAfter"`
	// Moved are the pods that had to leave, by name.
	Moved []Moved `json:"moved"`
	// Bought are the nodes that were bought for them.
	Bought []world.Entry `json:"bought"`
	// Stuck are the pods that would not go, with what keeps them.
	Stuck []Stuck `json:"stuck"`
}

// Moved is a pod that had to leave its node.
type Moved struct {
	Pod  string `json:"pod"`
	From string `json:"from"`
	// To is empty if the pod found no node, or nothing made it again.
	To string `json:"to,omitempty"`
	// New says that To was bought for it, Why what keeps it from a node.
	New bool   `json:"new,omitempty"`
	Why string `json:"why,omitempty"`
}

// Stuck is a pod that stays on its node.
type Stuck struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
	Why  string `json:"why"`
}

// Remove takes a node away, or all of a NodePool, and looks what happens. Nothing else is
// disrupted meanwhile.
func Remove(ctx context.Context, in Input, s Setting, node, pool string) (*Removal, error) {
	objs := in.Cluster.Objects
	objs.NodePools, _ = s.pools(&in)
	opts := in.World
	opts.Still, opts.Policies, opts.Facts = true, s.Policies, s.Facts
	if len(opts.Classes) == 0 {
		opts.Classes = in.Cluster.Classes
	}
	w, err := world.New(objs, opts)
	if err != nil {
		return nil, err
	}
	w.Know(in.Cluster.Workloads, in.Cluster.Workload)
	if err := w.Run(ctx, w.Now().Add(settling)); err != nil {
		return nil, err
	}
	r := &Removal{Nodes: []string{}, Moved: []Moved{}, Bought: []world.Entry{}, Stuck: []Stuck{}, Before: w.Cost().Dollars()}
	at := map[string]bool{}
	for _, n := range w.Objects().Nodes {
		if n.Name == node || pool != "" && n.Labels[karpv1.NodePoolLabelKey] == pool {
			r.Nodes = append(r.Nodes, n.Name)
			at[n.Name] = true
		}
	}
	if len(r.Nodes) == 0 {
		if pool == "" {
			return nil, fmt.Errorf("there is no node %s: %s", node, known("nodes", w.Objects().Nodes))
		}
		if pools := w.Objects().NodePools; !slices.ContainsFunc(pools, func(np *karpv1.NodePool) bool { return np.Name == pool }) {
			return nil, fmt.Errorf("there is no NodePool %s: %s", pool, known("NodePools", pools))
		}
		return nil, fmt.Errorf("NodePool %s has no node", pool)
	}
	from := map[snapshot.PodKey]string{}
	for _, p := range w.Objects().Pods {
		if at[p.Spec.NodeName] && !candidate.Daemon(p) && !candidate.Mirror(p) {
			from[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p.Spec.NodeName
		}
	}
	why := map[string]string{}
	for _, c := range w.Candidates() {
		if !at[c.Node] {
			continue
		}
		var parts []string
		for _, reason := range c.Graceful {
			parts = append(parts, reason.String())
		}
		why[c.Node] = strings.Join(parts, "; ")
	}
	begun, seen := w.Now(), len(w.Record().Entries)
	if pool != "" {
		w.DrainPool(pool)
	} else if err := w.Delete("node", "", node); err != nil {
		return nil, err
	}
	for w.Now().Before(begun.Add(removal)) {
		if err := w.Run(ctx, w.Now().Add(10*time.Second)); err != nil {
			return nil, err
		}
		left := slices.ContainsFunc(w.Objects().Nodes, func(n *corev1.Node) bool { return at[n.Name] })
		if !left && !r.Gone {
			r.Gone, r.Seconds = true, w.Now().Sub(begun).Seconds()
		}
		if !left && !w.Busy() {
			break
		}
	}
	r.tell(w, from, why, seen)
	return r, nil
}

// known says what there is instead of a name that is not known.
func known[T metav1.Object](what string, objects []T) string {
	if len(objects) == 0 {
		return "there are no " + what + " in the input"
	}
	const shown = 10
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	if more := len(names) - shown; more > 0 {
		names = append(names[:shown], fmt.Sprintf("%d more", more))
	}
	return "there are " + strings.Join(names, ", ")
}

// tell fills in what became of the pods.
func (r *Removal) tell(w *world.World, from map[snapshot.PodKey]string, why map[string]string, seen int) {
	bought := map[string]bool{}
	for _, e := range w.Record().Entries[seen:] {
		if e.Kind == world.Bought {
			r.Bought = append(r.Bought, e)
			bought[e.Object] = true
		}
	}
	pods := map[snapshot.PodKey]*corev1.Pod{}
	for _, p := range w.Objects().Pods {
		pods[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	}
	waiting := w.Waiting()
	keys := make([]snapshot.PodKey, 0, len(from))
	for key := range from {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		if p := pods[key]; p != nil && p.Spec.NodeName == from[key] && p.DeletionTimestamp == nil {
			text := why[from[key]]
			if text == "" {
				text = "a PodDisruptionBudget does not let it go"
			}
			r.Stuck = append(r.Stuck, Stuck{Pod: key.String(), Node: from[key], Why: text})
			continue
		}
		m := Moved{Pod: key.String(), From: from[key]}
		heir, ok := w.Heir(key)
		switch p := pods[heir]; {
		case !ok || p == nil:
			m.Why = "nothing makes it again"
		case p.Spec.NodeName == "":
			m.Why = waiting[heir]
			if m.Why == "" {
				m.Why = "it waits for a node"
			}
		default:
			m.To, m.New = p.Spec.NodeName, bought[p.Spec.NodeName]
		}
		r.Moved = append(r.Moved, m)
	}
	r.After = w.Cost().Dollars()
}

// Trouble is the number of pods that would not go, or would have no node.
func (r *Removal) Trouble() int {
	n := len(r.Stuck)
	for _, m := range r.Moved {
		if m.To == "" {
			n++
		}
	}
	return n
}

// WriteTable writes r for people.
func (r *Removal) WriteTable(out io.Writer) error {
	var b bytes.Buffer
	what := "The nodes would be"
	if len(r.Nodes) == 1 {
		what = "The node would be"
	}
	switch {
	case r.Gone:
		fmt.Fprintf(&b, "%s gone after %.0f s; %d pods would move", what, r.Seconds, len(r.Moved))
	default:
		fmt.Fprintf(&b, "%s still there after %s: %d pods would not go; %d would move", what, removal, len(r.Stuck), len(r.Moved))
	}
	fmt.Fprintf(&b, ". The cluster costs $%s an hour now, and would cost $%s.\n", money(r.Before), money(r.After))
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(r.Bought) > 0 {
		fmt.Fprintln(t, "\nNodes to buy:")
		for _, e := range r.Bought {
			fmt.Fprintf(t, "  %s\t%s\t%s\n", e.Object, e.Text, e.Why)
		}
	}
	if len(r.Stuck) > 0 {
		fmt.Fprintln(t, "\nPods that would not go:")
		for _, s := range r.Stuck {
			fmt.Fprintf(t, "  %s\ton %s\t%s\n", s.Pod, s.Node, s.Why)
		}
	}
	if len(r.Moved) > 0 {
		fmt.Fprintln(t, "\nPods that would move:")
		for _, m := range r.Moved {
			to := m.To
			switch {
			case m.New:
				to += " (new)"
			case to == "":
				to = "no node: " + m.Why
			}
			fmt.Fprintf(t, "  %s\t%s →\t%s\n", m.Pod, m.From, to)
		}
	}
	_ = t.Flush() // to a buffer, which cannot fail
	_, err := out.Write(b.Bytes())
	return err
}
