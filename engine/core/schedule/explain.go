package schedule

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Explanation tells why a pod is planned where it is, or nowhere.
type Explanation struct {
	Pod snapshot.PodKey
	// Node is where the pod is planned; empty if nowhere. New is true for a node to be
	// bought, which is then Bought.
	Node   string
	New    bool
	Bought *NewNode
	// Reasons are those of a pod without a place.
	Reasons []Reason
	// Pools are all NodePools, by weight.
	Pools []PoolExplanation
	// Nodes are the existing nodes, by name, with what stands in the way on each; a node
	// without reasons would take the pod.
	Nodes []NodeExplanation
}

// PoolExplanation is what one NodePool has for the pod.
type PoolExplanation struct {
	Name   string
	Weight int32
	// Reasons say why the pool buys nothing for the pod; empty if it could.
	Reasons []Reason
	// Nearest are the cheapest offerings that hold the pod by itself or, if there are
	// none, those that come closest.
	Nearest []OfferExplanation
}

// OfferExplanation is an offering and what it lacks; nothing if it would do.
type OfferExplanation struct {
	Offer
	Reasons []Reason
}

// NodeExplanation is an existing node and what stands in the way there.
type NodeExplanation struct {
	Name    string
	Reasons []Reason
}

// nearestShown is the number of offerings shown per pool.
const nearestShown = 5

// Explain solves snap and tells about one of its pods. It returns an error if the pod is
// not waiting for a node in snap, and what [Solve] returns.
func Explain(ctx context.Context, snap *snapshot.Snapshot, opts Options, pod snapshot.PodKey) (Explanation, error) {
	if err := opts.Validate(); err != nil {
		return Explanation{}, err
	}
	for _, b := range snap.Blocked {
		if b.Pod == pod {
			return Explanation{Pod: pod, Reasons: []Reason{blockedReason(b)}}, nil
		}
	}
	class := int32(-1)
	for _, i := range snap.Pending {
		if snap.Pods[i].Key == pod {
			class = snap.Pods[i].Class
		}
	}
	if class < 0 {
		return Explanation{}, fmt.Errorf("pod %s: not found among the pods that wait for a node", pod)
	}
	s, err := solve(ctx, snap, opts.withDefaults())
	if err != nil {
		return Explanation{}, err
	}
	plan := s.plan()
	e := Explanation{Pod: pod}
	for _, a := range plan.Assignments {
		if a.Pod == pod {
			e.Node, e.New = a.Node, a.New
		}
	}
	for i := range plan.NewNodes {
		if e.New && plan.NewNodes[i].Name == e.Node {
			e.Bought = &plan.NewNodes[i]
		}
	}
	for _, u := range plan.Unscheduled {
		if u.Pod == pod {
			e.Reasons = u.Reasons
		}
	}
	c := s.classes[class]
	for i, p := range snap.Pools {
		pe := PoolExplanation{Name: p.Name, Weight: p.Weight, Reasons: s.diagnosePool(c, i)}
		if p.Unusable == "" {
			pe.Nearest = s.nearest(c, i)
		}
		e.Pools = append(e.Pools, pe)
	}
	for _, n := range s.nodes[:s.existing] {
		e.Nodes = append(e.Nodes, NodeExplanation{Name: n.name, Reasons: s.explainNode(c, n)})
	}
	return e, nil
}

// nearest lists the offerings of a pool that accept c by their labels, those with enough
// room first, the cheapest first; one per instance type and capacity type.
func (s *solver) nearest(c *class, pool int) []OfferExplanation {
	var fit, short []int32
	c.profile.all.each(func(k int) {
		col := &s.columns[k]
		if s.shops[col.shop].pool != pool || col.relaxed {
			return
		}
		if holds(col.whole, c.req) {
			fit = append(fit, int32(k))
		} else {
			short = append(short, int32(k))
		}
	})
	slices.SortFunc(fit, s.compareColumns)
	part := func(k int32) float64 { // how much of what the scarcest resource needs is there
		least := 1.0
		for r, q := range c.req {
			if q > 0 {
				least = min(least, s.columns[k].whole[r]/q)
			}
		}
		return least
	}
	slices.SortFunc(short, func(a, b int32) int {
		return cmp.Or(-cmp.Compare(part(a), part(b)), s.compareColumns(a, b))
	})
	var out []OfferExplanation
	seen := map[string]bool{}
	for _, k := range append(fit, short...) {
		o := s.offer(k)
		key := o.InstanceType + "/" + o.CapacityType
		if seen[key] {
			continue
		}
		seen[key] = true
		oe := OfferExplanation{Offer: o}
		switch {
		case !daemonsFit(s.columns[k].whole):
			oe.Reasons = []Reason{{Code: DaemonsTooLarge, InstanceType: o.InstanceType}}
		case !holds(s.columns[k].whole, c.req):
			oe.Reasons = s.diagnoseRoom(c, func(yield func([]float64) bool) { yield(s.columns[k].whole) })
		case s.roomFor(k, 1) == 0:
			oe.Reasons = s.diagnoseLimits(s.snap.Pools[pool], pool, []int32{k})
		}
		if out = append(out, oe); len(out) == nearestShown {
			break
		}
	}
	return out
}

// explainNode lists what keeps pods of c off an existing node as the plan leaves it.
func (s *solver) explainNode(c *class, n *node) []Reason {
	if r := s.nodeReason(c, n); r != nil {
		return []Reason{*r}
	}
	if s.roomAllows(c, n) == 0 {
		return s.diagnoseRoom(c, func(yield func([]float64) bool) { yield(n.room) })
	}
	return nil
}
