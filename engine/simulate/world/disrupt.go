package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// disrupter looks for moves once a loop, as long as something changes, and carries them out.
type disrupter struct {
	// wake is true if the next loop has something to look at.
	wake bool
	// due is when the next loop is, and later the earliest time after which one is known to be
	// worth it; zero for none.
	due, later time.Time
	memory     consolidate.Memory
	held       map[string]candidate.Reason
	// failures is how often moves of a node have failed in a row.
	failures map[string]int
	commands []*command
	// shut is true if a budget kept the last loop from a move, and expecting if nodes were
	// left alone since pods were expected on them.
	shut, expecting bool
	last            *gate.Disruption
	serial          int
}

func (d *disrupter) init() {
	d.held, d.failures = map[string]candidate.Reason{}, map[string]int{}
}

// RetryLater is the reason of nodes whose last move failed.
const RetryLater candidate.Code = "LastCommandFailed"

// Nodes whose move failed are left alone for firstRetry, then for twice as long each time, up
// to lastRetry.
const firstRetry, lastRetry = 2 * time.Minute, 30 * time.Minute

// failed leaves the nodes of a command alone for a while.
func (d *disrupter) failed(w *World, c *command, why string) {
	for _, claim := range c.claims {
		node := w.nodeOf(claim)
		wait := firstRetry << min(d.failures[node], 8)
		d.failures[node]++
		until := w.now.Add(min(wait, lastRetry))
		d.held[node] = candidate.Reason{Code: RetryLater, Message: why, Until: until}
		d.wakeAt(w, until)
	}
}

// command is a move that is being carried out.
type command struct {
	name   string
	reason karpv1.DisruptionReason
	// claims are those that go, bought those that take their place, and waits which of these
	// are not ready yet.
	claims, bought []string
	waits          map[string]bool
	// destinations are nodes that are to take pods of it, and places are where each is to go:
	// a node, or a claim whose node is not there yet.
	destinations map[string]bool
	places       map[snapshot.PodKey]string
	// ready is when its replacements were there.
	ready         time.Time
	cost, newCost catalog.Price
	evictions     int
}

// settle sees to it that a loop comes if there is something to look at.
func (d *disrupter) settle(w *World) {
	if w.opts.Still || !d.wake || !d.due.IsZero() {
		return
	}
	d.due = w.nextLoop()
	w.queue.push(d.due, func() { w.at(func() { d.loop(w) }) })
}

// at does something at the end of the instant, when all else has settled.
func (w *World) at(do func()) {
	for w.rebind || !w.cloudDue.IsZero() && !w.cloudDue.After(w.now) {
		if w.err != nil {
			return
		}
		if w.rebind {
			w.rebind = false
			w.bind()
			continue
		}
		w.stepCloud()
	}
	do()
}

// nextLoop is the time of the next loop after now.
func (w *World) nextLoop() time.Time {
	n := w.now.Sub(w.opts.Start)/w.opts.Loop + 1
	return w.opts.Start.Add(n * w.opts.Loop)
}

// leaving are the claims that are part of a command.
func (w *World) leaving() map[string]bool {
	out := map[string]bool{}
	for _, c := range w.disrupter.commands {
		for _, claim := range c.claims {
			out[claim] = true
		}
	}
	return out
}

func (w *World) candidateFacts() candidate.Facts {
	return candidate.Facts{
		Now: w.now, Leaving: w.leaving(), Nominated: func(node string) bool { _, ok := w.nominated[node]; return ok },
	}
}

// loop looks for moves once.
func (d *disrupter) loop(w *World) {
	d.due, d.wake = time.Time{}, false
	snap, objs := w.snapshot()
	facts := w.candidateFacts()
	candidates := candidate.Examine(snap, objs, facts)
	// What is bought to replace others would raise the number of nodes, and with it that of
	// those which a percentage lets go.
	replacing := d.replacing()
	counted := slices.DeleteFunc(slices.Clone(candidates), func(c candidate.Candidate) bool { return replacing[c.Claim] })
	allowances := candidate.Allowances(objs, facts, counted)
	maps.DeleteFunc(d.held, func(_ string, r candidate.Reason) bool { return !r.Until.IsZero() && !w.now.Before(r.Until) })
	opts := w.opts.Consolidate
	opts.Solve, opts.Candidates, opts.Allowances, opts.Held, opts.Memory = w.opts.Solve, candidates, allowances, d.hold(w, candidates), &d.memory
	expired := w.expire(candidates)
	policyFacts := w.facts()
	policyFacts.PlanID = fmt.Sprintf("disrupt-%d", w.now.Unix())
	r, err := gate.Disrupt(w.context(), w.engine, &w.inputs, snap, w.factObjects(objs, expired), policyFacts, opts)
	if err != nil {
		w.fail(err)
		return
	}
	w.record.Loops++
	d.last = r
	for node, reason := range r.Deferred {
		d.held[node] = reason
		d.wakeAt(w, reason.Until)
	}
	for _, refused := range r.Refused {
		w.say(Entry{Kind: Refused, Object: strings.Join(refused.Nodes, ", "), Text: refusal(refused)})
	}
	if len(r.Refused) > 0 { // what policies say may depend on the time
		d.wakeAt(w, w.now.Add(askAgain))
	}
	for i := range r.Moves {
		d.carryOut(w, r, i)
	}
	// A complete search has found all moves that there are until something changes.
	d.wake = d.wake || !r.Complete
	d.shut, d.expecting = false, false
	for _, reasons := range r.Left {
		for _, reason := range reasons {
			d.shut = d.shut || reason.Code == consolidate.BudgetClosed
		}
	}
	for i := range candidates {
		c := &candidates[i]
		d.expecting = d.expecting || slices.ContainsFunc(c.Graceful, func(r candidate.Reason) bool { return r.Code == candidate.Nominated })
		for _, list := range [...][]candidate.Reason{c.Graceful, c.Eventual, c.Consolidation, c.Emptiness} {
			for _, reason := range list {
				d.wakeAt(w, reason.Until)
			}
		}
	}
	for _, a := range allowances {
		if a.Left == 0 {
			d.wakeAt(w, a.Opens)
		}
	}
}

func refusal(r gate.RefusedMove) string {
	said := make([]string, len(r.Reasons))
	for i, s := range r.Reasons {
		said[i] = s.String()
	}
	return fmt.Sprintf("%s of %s: %s", r.Verdict, r.Reason, strings.Join(said, "; "))
}

// wakeAt has a loop come at a time, if it is to come.
func (d *disrupter) wakeAt(w *World, at time.Time) {
	if !at.After(w.now) || !d.later.IsZero() && d.later.After(w.now) && !at.Before(d.later) {
		return
	}
	d.later = at
	w.queue.push(at, func() {
		d.wake = true
		if !d.later.After(w.now) {
			d.later = time.Time{}
		}
	})
}

// factObjects are what policies are told of objects.
func (w *World) factObjects(objs snapshot.Objects, expired map[string]time.Time) fact.Objects {
	return fact.Objects{
		Pod: w.pod,
		Workload: func(key snapshot.PodKey) (string, string) {
			if p := w.pod(key); p != nil {
				if wl := w.workloadOf(p); wl != nil {
					return wl.kind, wl.name
				}
			}
			return "", ""
		},
		ReplicaSets: objs.ReplicaSets, StatefulSets: objs.StatefulSets, ReplicationControllers: objs.ReplicationControllers,
		PodDisruptionBudgets: objs.PodDisruptionBudgets, Nodes: objs.Nodes, NodeClaims: objs.NodeClaims, Expired: expired,
	}
}

// replacing are the claims that were bought to replace others and whose command goes on.
func (d *disrupter) replacing() map[string]bool {
	out := map[string]bool{}
	for _, c := range d.commands {
		for _, claim := range c.bought {
			out[claim] = true
		}
	}
	return out
}

// hold are the nodes that are left alone, and take no pods: those that policies deferred, and
// the nodes of moves that are under way, what replaces them and where their pods are to go.
func (d *disrupter) hold(w *World, candidates []candidate.Candidate) map[string]candidate.Reason {
	out := maps.Clone(d.held)
	if len(d.commands) == 0 {
		return out
	}
	closed := map[string]bool{}
	set := func(node, message string, c *command) {
		out[node] = candidate.Reason{Code: Held, Message: message + c.name}
		closed[node] = true
	}
	for _, c := range d.commands {
		for n := range c.destinations {
			set(n, "it is to take pods of ", c)
		}
		for _, claim := range c.bought {
			set(w.nodeOf(claim), "it was bought for ", c)
		}
		for _, claim := range c.claims {
			set(w.nodeOf(claim), "it is part of ", c)
		}
	}
	for i := range candidates {
		if closed[candidates[i].Node] {
			candidates[i].Destination = false
		}
	}
	return out
}

// nodeOf is the name of a claim's node; that of the claim while there is none.
func (w *World) nodeOf(claim string) string {
	if c := w.claims[claim]; c != nil && c.Status.NodeName != "" {
		return c.Status.NodeName
	}
	return claim
}

// Held is the reason of nodes that are part of a move that is under way, or are to take its
// pods.
const Held candidate.Code = "PartOfCommand"

const (
	// patience is how long a move whose replacements are ready waits for what is in its way.
	patience = time.Minute
	// settled is how long the destinations of pods that move are left alone.
	settled = 20 * time.Second
	// askAgain is after what time policies are asked again that have refused a move.
	askAgain = time.Minute
)

// expire makes drifted candidates of the nodes that have reached their age, where NodePools
// want them to be replaced gracefully and their window is open. It returns when they go
// whatever is.
func (w *World) expire(candidates []candidate.Candidate) map[string]time.Time {
	out := map[string]time.Time{}
	ways := map[string]candidate.Expiry{}
	for _, np := range w.rest.NodePools {
		ways[np.Name] = candidate.ExpiryOf(np)
	}
	for i := range candidates {
		c := &candidates[i]
		claim := w.claims[c.Claim]
		if claim == nil || c.Drifted != "" {
			continue
		}
		way := ways[c.Pool]
		at, ok := way.At(claim)
		if !ok || !way.Open(w.now) || w.now.Before(at) {
			continue
		}
		c.Drifted, c.DriftedSince = policy.Expired, at
		out[c.Node], _ = way.Forced(claim)
	}
	return out
}

// carryOut begins a move: at once if nothing has to be bought, and else when what is bought
// is ready.
func (d *disrupter) carryOut(w *World, r *gate.Disruption, i int) {
	m := &r.Moves[i]
	d.serial++
	c := &command{name: fmt.Sprintf("command-%d", d.serial), reason: m.Reason, cost: m.Cost, newCost: m.NewCost, evictions: m.Evictions, waits: map[string]bool{}}
	pool := ""
	for _, node := range m.Nodes {
		claim := w.claimOf(node)
		c.claims = append(c.claims, claim)
		if cl := w.claims[claim]; cl != nil {
			pool = cl.Labels[karpv1.NodePoolLabelKey]
		}
	}
	pools := w.pools()
	made := map[string]string{}
	for j := range m.Plan.NewNodes {
		n := &m.Plan.NewNodes[j]
		allowed, offers := r.Allowed(i, n)
		claim := w.claim(pools[n.Pool], n, allowed, offers)
		made[n.Name] = claim.Name
		c.bought = append(c.bought, claim.Name)
		c.waits[claim.Name] = true
	}
	c.destinations, c.places = map[string]bool{}, map[snapshot.PodKey]string{}
	for _, a := range m.Plan.Assignments {
		if c.places[a.Pod] = a.Node; a.New {
			c.places[a.Pod] = made[a.Node]
		} else {
			c.destinations[a.Node] = true
		}
	}
	d.commands = append(d.commands, c)
	w.changed()
	w.say(Entry{Kind: Decided, Object: strings.Join(m.Nodes, ", "), Pool: pool, Text: moveText(m), Why: w.whyOf(m), Pods: m.Evictions, Delta: -m.Saving().Dollars(), Reason: string(m.Reason), Nodes: m.Nodes, Bought: c.bought})
	if len(c.bought) == 0 {
		d.begin(w, c)
		return
	}
	for _, claim := range slices.Clone(c.bought) {
		w.launch(claim)
	}
}

// moveText says what a move does.
func moveText(m *consolidate.Move) string {
	if len(m.Plan.NewNodes) == 0 {
		return fmt.Sprintf("delete %s: %d pods move, saves $%.4f/h", count(len(m.Nodes), "node"), m.Evictions, m.Saving().Dollars())
	}
	types := map[string]int{}
	for i := range m.Plan.NewNodes {
		o := &m.Plan.NewNodes[i].Planned
		types[o.InstanceType+" "+o.CapacityType]++
	}
	var parts []string
	for _, t := range slices.Sorted(maps.Keys(types)) {
		parts = append(parts, fmt.Sprintf("%d × %s", types[t], t))
	}
	return fmt.Sprintf("replace %s by %s: %d pods move, $%.4f/h becomes $%.4f/h", count(len(m.Nodes), "node"), strings.Join(parts, ", "), m.Evictions, m.Cost.Dollars(), m.NewCost.Dollars())
}

func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// whyOf says why a move is made.
func (w *World) whyOf(m *consolidate.Move) string {
	switch m.Reason {
	case karpv1.DisruptionReasonEmpty:
		return "nothing runs there that needs a node"
	case karpv1.DisruptionReasonDrifted:
		for _, node := range m.Nodes {
			if c := w.claims[w.claimOf(node)]; c != nil && c.Conditions().Get(karpv1.ConditionDrifted) == nil {
				return "it has reached its age"
			}
			if c := w.claims[w.claimOf(node)]; c != nil {
				if d := c.Conditions().Get(karpv1.ConditionDrifted); d != nil {
					return "drifted: " + cmp.Or(d.Message, d.Reason)
				}
			}
		}
		return "drifted"
	}
	if len(m.Plan.NewNodes) == 0 {
		return "its pods have room on other nodes"
	}
	return "its pods have room on cheaper nodes"
}

// ready notes that a node is there that a command waits for.
func (d *disrupter) ready(w *World, claim string) {
	for _, c := range slices.Clone(d.commands) {
		if !c.waits[claim] {
			continue
		}
		delete(c.waits, claim)
		if len(c.waits) == 0 {
			w.queue.push(w.now, func() { w.at(func() { d.check(w, c) }) })
		}
	}
}

// check begins a command whose replacements are there, if the pods that it moves still have a
// place. Else it waits a while, and is then given up.
func (d *disrupter) check(w *World, c *command) {
	if !slices.Contains(d.commands, c) {
		return
	}
	if c.ready.IsZero() {
		c.ready = w.now
	}
	snap, objs := w.snapshot()
	nodes := schedule.PlannerNodes{Leave: map[string]bool{}, Closed: map[string]bool{}, Late: map[snapshot.PodKey]bool{}}
	var leave []string
	for _, claim := range c.claims {
		if n := w.nodeOf(claim); slices.ContainsFunc(snap.Nodes, func(s *snapshot.Node) bool { return s.Name == n }) {
			nodes.Leave[n] = true
			leave = append(leave, n)
		}
	}
	facts := w.candidateFacts()
	for _, claim := range c.claims {
		delete(facts.Leaving, claim)
	}
	blocked := ""
	for _, cand := range candidate.Examine(snap, objs, facts) {
		if !cand.Destination && cand.Claim != "" {
			nodes.Closed[cand.Node] = true
		}
		for _, p := range cand.Late {
			nodes.Late[p] = true
		}
		if !nodes.Leave[cand.Node] || blocked != "" {
			continue
		}
		for _, r := range cand.Blocked(c.reason) {
			// What is bought is not given up for a pod that came and stays.
			if r.Code != candidate.NotConsolidatable && r.Code != candidate.NodeEmpty {
				blocked = fmt.Sprintf("node %s: %s", cand.Node, r)
			}
		}
	}
	for _, o := range d.commands {
		if o == c {
			continue
		}
		for _, claim := range slices.Concat(o.claims, o.bought) {
			nodes.Closed[w.nodeOf(claim)] = true
		}
	}
	if blocked == "" && len(leave) > 0 {
		planner, err := schedule.NewPlanner(w.context(), snap, nodes, w.opts.Solve)
		if err != nil {
			w.fail(err)
			return
		}
		places := make(map[snapshot.PodKey]string, len(c.places))
		for pod, at := range c.places {
			places[pod] = w.nodeOf(at)
		}
		planner.Prefer(places)
		t := planner.Try(leave, 0, true)
		if !t.Complete { // perhaps they fit in another way
			planner.Undo(t)
			planner.Prefer(nil)
			t = planner.Try(leave, 0, true)
		}
		if !t.Complete {
			blocked = fmt.Sprintf("pod %s would have no place any more", t.Left)
		} else if c.reason == karpv1.DisruptionReasonUnderutilized {
			// kube-scheduler knows neither the plan nor who is to take which pods.
			nodes.Closed = map[string]bool{}
			for _, o := range d.commands {
				for _, claim := range o.claims {
					if n := w.nodeOf(claim); !nodes.Leave[n] {
						nodes.Closed[n] = true
					}
				}
			}
			other, err := schedule.NewPlanner(w.context(), snap, nodes, w.opts.Solve)
			if err != nil {
				w.fail(err)
				return
			}
			if t := other.Scatter(planner, t); !t.Complete {
				blocked = fmt.Sprintf("pod %s would have no place once kube-scheduler has spread the others", t.Left)
			}
		}
	}
	switch {
	case blocked == "":
		d.begin(w, c)
	case w.now.Sub(c.ready) >= patience:
		d.rollBack(w, c, blocked)
	default:
		w.queue.push(w.now.Add(w.opts.Loop), func() { w.at(func() { d.check(w, c) }) })
	}
}

// begin takes the nodes of a command away.
func (d *disrupter) begin(w *World, c *command) {
	d.forget(c)
	for n := range c.destinations {
		w.nominate(n, settled)
	}
	for _, claim := range c.claims {
		w.deleteClaim(claim, string(c.reason), fmt.Sprintf("%s, %s", strings.ToLower(string(c.reason)), c.name))
	}
	d.wake = true
}

// rollBack gives a command up. What was bought for it goes, unless pods are there already.
func (d *disrupter) rollBack(w *World, c *command, why string) {
	d.forget(c)
	nodes := make([]string, 0, len(c.claims))
	for _, claim := range c.claims {
		if cl := w.claims[claim]; cl != nil {
			nodes = append(nodes, cl.Status.NodeName)
		}
	}
	d.failed(w, c, why)
	w.say(Entry{Kind: RolledBack, Object: strings.Join(nodes, ", "), Text: why})
	for _, claim := range c.bought {
		cl := w.claims[claim]
		if cl == nil || cl.Status.NodeName != "" && slices.ContainsFunc(w.on(cl.Status.NodeName), func(p *corev1.Pod) bool { return !candidate.Daemon(p) }) {
			continue
		}
		if w.machines[claim] == nil {
			w.dropClaim(claim)
			continue
		}
		w.deleteClaim(claim, CauseRollBack, c.name+" was given up")
	}
	w.changed()
	w.stir()
	w.batch.trigger(w, snapshot.PodKey{Name: c.name})
}

func (d *disrupter) forget(c *command) {
	d.commands = slices.DeleteFunc(d.commands, func(o *command) bool { return o == c })
}

// lost notes that a claim is gone or about to go for another cause.
func (d *disrupter) lost(w *World, claim string) {
	for _, c := range slices.Clone(d.commands) {
		switch {
		case slices.Contains(c.bought, claim):
			d.rollBack(w, c, "the replacement "+claim+" did not come")
		case slices.Contains(c.claims, claim):
			c.claims = slices.DeleteFunc(c.claims, func(o string) bool { return o == claim })
			if len(c.claims) == 0 {
				d.rollBack(w, c, "its nodes went by themselves")
			}
		}
	}
}

// Left are the nodes that the last loop left alone, with the reasons, and the ones that were
// part of its moves.
func (w *World) Left() (left map[string][]candidate.Reason, moved map[string]bool) {
	last := w.disrupter.last
	if last == nil {
		return nil, nil
	}
	moved = map[string]bool{}
	for i := range last.Moves {
		for _, n := range last.Moves[i].Nodes {
			moved[n] = true
		}
	}
	return last.Left, moved
}

// Leaving is the number of nodes that are part of moves whose replacements are not ready.
func (w *World) Leaving() int { return len(w.leaving()) }

// Busy reports whether a move is being carried out, or nodes are ending or on their way.
func (w *World) Busy() bool {
	if len(w.disrupter.commands) > 0 || len(w.unbound) > 0 && len(w.batch.left) < len(w.unbound) {
		return true
	}
	for _, c := range w.claims {
		if c.DeletionTimestamp != nil || !c.Conditions().IsTrue(karpv1.ConditionInitialized) {
			return true
		}
	}
	return false
}

// SetPool adds a NodePool or replaces the one of its name. Nodes that are no longer what it
// asks for have drifted.
func (w *World) SetPool(np *karpv1.NodePool) {
	i := slices.IndexFunc(w.rest.NodePools, func(o *karpv1.NodePool) bool { return o.Name == np.Name })
	if i < 0 {
		w.rest.NodePools = append(w.rest.NodePools, np)
	} else {
		w.rest.NodePools[i] = np
	}
	w.addClasses()
	w.changed()
	w.stir()
	for _, name := range slices.Sorted(maps.Keys(w.claims)) {
		c := w.claims[name]
		if c.Labels[karpv1.NodePoolLabelKey] != np.Name || c.DeletionTimestamp != nil {
			continue
		}
		sold, err := w.sold(np)
		if err != nil {
			continue
		}
		reason := candidate.Drift(np, c, sold, w.now)
		if reason == "" {
			reason, _ = w.cloud.Drift(w.context(), c)
		}
		switch drifted := c.Conditions().Get(karpv1.ConditionDrifted); {
		case reason != "" && drifted == nil:
			w.changeClaim(name, func(c *karpv1.NodeClaim) {
				c.Conditions().At(w.now).SetTrueBecause(karpv1.ConditionDrifted, reason, "")
			})
			w.say(Entry{Kind: Drifted, Object: name, Pool: np.Name, Text: reason})
		case reason == "" && drifted != nil:
			w.changeClaim(name, func(c *karpv1.NodeClaim) { c.Conditions().At(w.now).Clear(karpv1.ConditionDrifted) })
		}
	}
}

// mayEvict reports whether all PodDisruptionBudgets of a pod let it go, and takes one from
// each if they do.
func (w *World) mayEvict(p *corev1.Pod) bool {
	w.countBudgets()
	var mine []int
	for i, b := range w.rest.PodDisruptionBudgets {
		if b.Namespace != p.Namespace {
			continue
		}
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !sel.Matches(labels.Set(p.Labels)) {
			continue
		}
		if b.Status.DisruptionsAllowed <= 0 && p.Spec.NodeName != "" {
			return false
		}
		mine = append(mine, i)
	}
	for _, i := range mine {
		q := w.rest.PodDisruptionBudgets[i].DeepCopy()
		q.Status.DisruptionsAllowed--
		q.Status.CurrentHealthy--
		w.rest.PodDisruptionBudgets[i] = q
	}
	return true
}
