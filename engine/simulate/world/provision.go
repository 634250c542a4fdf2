package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/order"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

const (
	// expectFor is how long pods are expected on a node that could take them.
	expectFor = 12 * time.Second
	// planAgain is how long pods without a place wait for the next plan, if something has
	// changed.
	planAgain = 10 * time.Second
)

// batch gathers pods that come together, as the provisioner does: until none has come for
// BatchIdle, or the first has waited for BatchMax.
type batch struct {
	open        bool
	first, last time.Time
	seen        map[snapshot.PodKey]bool
	// left are pods that the last plan had no place for, and again is when they are planned
	// again if something changes.
	left    map[snapshot.PodKey]bool
	again   time.Time
	changed bool
	pending bool
}

// trigger asks for a plan because of a pod. One that the window has seen does not keep it
// open; one that was left without a place waits for a change.
func (b *batch) trigger(w *World, key snapshot.PodKey) {
	if b.left[key] || b.seen[key] {
		return
	}
	if b.seen == nil {
		b.seen = map[snapshot.PodKey]bool{}
	}
	b.seen[key] = true
	b.last = w.now
	if b.open {
		return
	}
	b.open, b.first = true, w.now
	w.queue.push(w.now.Add(w.opts.BatchIdle), func() { b.close(w) })
}

// close plans if the window is over, and else looks again when it is.
func (b *batch) close(w *World) {
	end := b.last.Add(w.opts.BatchIdle)
	if most := b.first.Add(w.opts.BatchMax); most.Before(end) {
		end = most
	}
	if w.now.Before(end) {
		w.queue.push(end, func() { b.close(w) })
		return
	}
	b.open = false
	clear(b.seen)
	w.provision()
}

// settle sees to it that pods without a place are planned again after a change.
func (b *batch) settle(w *World) {
	if len(b.left) == 0 || !b.changed || b.pending {
		b.changed = b.changed && b.pending
		return
	}
	b.changed = false
	b.pending = true
	w.queue.push(maxTime(b.again, w.now.Add(w.opts.BatchIdle)), func() {
		b.pending = false
		clear(b.left)
		w.rebind = true
	})
}

// provision plans the pods that have no place, and buys what the plan says.
func (w *World) provision() {
	snap, objs := w.snapshot()
	if len(snap.Pending) == 0 {
		return
	}
	facts := w.facts()
	facts.PlanID = fmt.Sprintf("provision-%d", w.now.Unix())
	r, err := gate.Plan(w.context(), w.engine, &w.inputs, snap, objs.NodePools, facts, w.opts.Solve)
	if err != nil {
		w.fail(err)
		return
	}
	w.record.Plans++
	pools := w.pools()
	fallbacks := r.Fallbacks()
	made := map[string]string{}
	for i := range r.Plan.NewNodes {
		n := &r.Plan.NewNodes[i]
		allowed, offers := r.Allowed(n)
		claim := w.claim(pools[n.Pool], n, allowed, offers)
		if f, ok := fallbacks[n.Name]; ok {
			claim.Annotations[fact.FallbackAnnotation] = fact.FormatFallback(f)
		}
		made[n.Name] = claim.Name
	}
	for _, a := range r.Plan.Assignments {
		if !w.unbound[a.Pod] {
			continue // it is on a node that will go; what follows it will be planned then
		}
		e := expectation{node: a.Node}
		if a.New {
			e.node = made[a.Node]
		} else if c := w.claims[w.claimOf(a.Node)]; w.nodes[a.Node] != nil && (c == nil || c.Conditions().IsTrue(karpv1.ConditionInitialized)) {
			e.until = w.now.Add(expectFor)
			w.queue.push(e.until, w.giveUpExpecting)
		}
		w.expected[a.Pod] = e
		delete(w.batch.left, a.Pod)
		w.nominate(e.node, max(2*w.opts.BatchMax, 10*time.Second))
	}
	w.leave(r, snap)
	if len(r.Plan.Assignments) > 0 {
		w.changed()
		w.rebind = true
	}
	w.sayBought(r, made)
	for i := range r.Plan.NewNodes {
		w.launch(made[r.Plan.NewNodes[i].Name])
	}
}

// leave remembers the pods that have no place, with the reasons.
func (w *World) leave(r *gate.Result, snap *snapshot.Snapshot) {
	b := &w.batch
	if b.left == nil {
		b.left = map[snapshot.PodKey]bool{}
	}
	left := r.Plan.Unscheduled
	for _, u := range snap.Blocked {
		left = append(left, schedule.Unscheduled{Pod: u.Pod, Reasons: []schedule.Reason{{Code: schedule.Code("Blocked"), Hint: u.Message}}})
	}
	for _, u := range left {
		if !w.unbound[u.Pod] {
			continue
		}
		b.left[u.Pod] = true
		reasons := make([]string, len(u.Reasons))
		for i, reason := range u.Reasons {
			reasons[i] = reason.String()
		}
		text := strings.Join(reasons, "; ")
		if w.record.why[u.Pod] != text {
			w.record.why[u.Pod] = text
			w.say(Entry{Kind: Unplaced, Object: u.Pod.String(), Text: text})
		}
	}
	b.again = w.now.Add(planAgain)
	if d := r.RetryAfter(); d > 0 {
		// A policy wants to be asked again; nothing else may happen until then.
		w.queue.push(w.now.Add(d), func() {
			clear(b.left)
			w.rebind = true
		})
	} else if len(r.Plan.Unscheduled) > 0 && len(w.opts.Policies) > 0 {
		w.queue.push(w.now.Add(6*planAgain), func() { w.batch.changed = true }) // the time of day may matter to policies
	}
}

// nominate keeps a node from being disrupted before pods that were planned onto it are there.
func (w *World) nominate(node string, d time.Duration) {
	until := w.now.Add(d)
	w.nominated[node] = until
	w.queue.push(until, func() {
		if at, ok := w.nominated[node]; ok && !w.now.Before(at) {
			delete(w.nominated, node)
			if w.disrupter.expecting {
				w.stir()
			}
		}
	})
}

// claim makes the claim of a planned node. It is not launched yet.
func (w *World) claim(pool *karpv1.NodePool, n *schedule.NewNode, allowed requirements.Set, offers []schedule.Offer) *karpv1.NodeClaim {
	c := order.Claim(pool, w.claimName(pool.Name), n, allowed, offers, w.pod)
	c.UID = types.UID("claim-" + c.Name)
	c.CreationTimestamp = metav1.NewTime(w.now)
	c.SetDefaults()
	w.claims[c.Name] = c
	w.changed()
	return c
}

// claimName is the pool's name with five letters that count.
func (w *World) claimName(pool string) string {
	const digits = "bcdfghjklmnpqrstvwxz"
	for {
		w.serial++
		// An odd factor makes names that follow one another differ in all letters.
		n := uint64(w.serial) * 1_234_577 % 3_200_000
		name := make([]byte, 5)
		for i := range name {
			name[i] = digits[n%20]
			n /= 20
		}
		out := pool[:min(len(pool), 57)] + "-" + string(name)
		if w.claims[out] == nil && w.nodes[out] == nil {
			return out
		}
	}
}

func (w *World) pools() map[string]*karpv1.NodePool {
	out := make(map[string]*karpv1.NodePool, len(w.rest.NodePools))
	for _, np := range w.rest.NodePools {
		out[np.Name] = np
	}
	return out
}

// sayBought tells of the nodes of a plan.
func (w *World) sayBought(r *gate.Result, made map[string]string) {
	for i := range r.Plan.NewNodes {
		n := &r.Plan.NewNodes[i]
		what := fmt.Sprintf("%s in %s, %s, $%.4f/h", n.Planned.InstanceType, cmp.Or(n.Planned.Zone, "no zone"), n.Planned.CapacityType, n.Planned.Cost.Dollars())
		moved := 0
		for _, key := range n.Pods {
			if w.record.moved[key] {
				moved++
			}
		}
		w.say(Entry{Kind: Bought, Moved: moved, Object: made[n.Name], Pool: n.Pool, Text: what, Why: "pending: " + w.workloadText(n.Pods), Pods: len(n.Pods), Delta: n.Planned.Cost.Dollars()})
	}
	for _, o := range r.Launch.Objections {
		w.say(Entry{Kind: Refused, Object: o.Claim, Pool: o.Pool, Text: o.String()})
	}
}

// workloadText sums up pods by their workloads.
func (w *World) workloadText(pods []snapshot.PodKey) string {
	counts := map[string]int{}
	for _, key := range pods {
		name := key.String()
		if p := w.pod(key); p != nil {
			if wl := w.workloadOf(p); wl != nil {
				name = wl.namespace + "/" + wl.name
			}
		}
		counts[name]++
	}
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	const shown = 3
	var parts []string
	for i, name := range names {
		if i == shown {
			parts = append(parts, fmt.Sprintf("%d more workloads", len(names)-shown))
			break
		}
		parts = append(parts, fmt.Sprintf("%d × %s", counts[name], name))
	}
	return strings.Join(parts, ", ")
}
