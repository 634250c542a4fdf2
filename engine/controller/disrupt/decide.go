package disrupt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// atRest is how long a pass that found nothing holds, as long as nothing changes that is seen:
// prices and policies may.
const atRest = time.Minute

// Decide looks for moves and makes commands of them. It reports whether it found one.
func (c *Controller) Decide(ctx context.Context) (acted bool, err error) {
	if c.state.Unsynced() != "" {
		return false, nil
	}
	now := c.Now()
	maps.DeleteFunc(c.held, func(_ string, r candidate.Reason) bool { return !now.Before(r.Until) })
	moment, err := c.state.Snapshot(ctx)
	if err != nil {
		return false, fmt.Errorf("the state of the cluster: %w", err)
	}
	if moment.Revision == c.quiet.revision && now.Before(c.quiet.until) {
		return false, nil
	}
	v, err := c.look(ctx)
	if err != nil {
		return false, err
	}
	begin := time.Now()
	static := c.staticMoves(v)
	d, err := gate.Disrupt(ctx, c.opts.Policies, &c.inputs, v.snap, c.objects(v), c.facts(v), c.options(v))
	if err != nil {
		return false, err
	}
	took := time.Since(begin)
	maps.Copy(c.held, d.Deferred)
	c.report(ctx, v, d, took)
	if c.opts.Decided != nil {
		c.opts.Decided(d)
	}
	if c.opts.Shadow {
		c.shadow(ctx, v, d, static)
		return false, nil
	}
	c.forgetFailures(v)
	var cmds []*command
	for i := range d.Moves {
		cmds = append(cmds, c.command(v, d, i))
	}
	cmds = append(cmds, static...)
	c.commands = append(c.commands, cmds...)
	err = each(cmds, func(cmd *command) error {
		c.found(cmd)
		if cmd.set(confirming, now); !cmd.renews() && c.opts.Confirm > 0 {
			return nil
		}
		return c.begin(ctx, cmd) // it was looked at just now
	})
	c.gauge()
	c.quiet = quiet{}
	if len(c.commands) == 0 && d.Complete {
		c.quiet = quiet{v.moment.Revision, c.restUntil(v, d)}
	}
	return len(cmds) > 0, err
}

// restUntil is when a pass that found nothing may find something although nothing has
// changed.
func (c *Controller) restUntil(v *view, d *gate.Disruption) time.Time {
	now := c.Now()
	until := now.Add(atRest)
	if !v.breaks.IsZero() && v.breaks.Before(until) {
		until = v.breaks
	}
	for _, reasons := range d.Left {
		for _, r := range reasons {
			if r.Code == candidate.Nominated {
				return now // nothing tells when it is not any more
			}
			if r.Until.After(now) && r.Until.Before(until) {
				until = r.Until
			}
		}
	}
	for _, r := range c.held {
		if r.Until.After(now) && r.Until.Before(until) {
			until = r.Until
		}
	}
	return until
}

// options are those of the search: the nodes of commands, what replaces them and the nodes
// that are to take their pods are left alone.
func (c *Controller) options(v *view) consolidate.Options {
	opts := consolidate.Options{
		Solve: c.opts.Solve, Candidates: v.candidates, Allowances: v.allowances, MinSaving: c.opts.MinSaving, SpotTypes: c.opts.SpotTypes,
		Memory: &c.memory, Held: maps.Clone(c.held),
	}
	hold := func(node, message string, closed bool) {
		opts.Held[node] = candidate.Reason{Code: Held, Message: message}
		if cand := v.byNode[node]; cand != nil && closed {
			cand.Destination = false
		}
	}
	for _, cmd := range c.commands {
		for _, r := range cmd.replacements {
			hold(c.nodeOf(r.name), "it replaces "+cmd.about(), cmd.holds())
		}
		if !cmd.holds() {
			continue
		}
		for _, n := range cmd.destinations {
			hold(n, "it is to take the pods of "+cmd.about(), true)
		}
		for _, t := range cmd.targets {
			hold(t.node, "it is part of a disruption that is under way", true)
		}
	}
	return opts
}

// command makes a command of move number i.
func (c *Controller) command(v *view, d *gate.Disruption, i int) *command {
	m := d.Moves[i]
	cmd := &command{id: c.name(), reason: m.Reason, want: len(m.Plan.NewNodes), saving: m.Saving()}
	forAge := 0
	for _, name := range m.Nodes {
		cand := v.byNode[name]
		t := target{node: name, claim: cand.Claim, pool: cand.Pool}
		if claim := c.state.Claim(cand.Claim); claim != nil {
			t.uid = claim.UID
		}
		if m.Reason == karpv1.DisruptionReasonUnhealthy {
			t.fault = cand.Fault
		}
		cmd.targets = append(cmd.targets, t)
		if _, ok := v.expired[name]; ok {
			forAge++
		}
	}
	cmd.expired = m.Reason == karpv1.DisruptionReasonDrifted && forAge == len(m.Nodes)
	cmd.destinations = destinationsOf(&m.Plan, func(n string) bool { return v.nodes[n] })
	cmd.plan = &plan{d, i}
	return cmd
}

// forgetFailures drops the failures of nodes that are gone.
func (c *Controller) forgetFailures(v *view) {
	maps.DeleteFunc(c.failures, func(node string, _ int) bool { return v.byNode[node] == nil })
}

// shadow tells what would be done, each move once in a while.
func (c *Controller) shadow(ctx context.Context, v *view, d *gate.Disruption, static []*command) {
	log, now := ctrl.LoggerFrom(ctx), c.Now()
	maps.DeleteFunc(c.told, func(_ string, at time.Time) bool { return now.Sub(at) >= 10*time.Minute })
	var cmds []*command
	for i := range d.Moves {
		cmds = append(cmds, c.command(v, d, i))
	}
	for _, cmd := range append(cmds, static...) {
		key := fmt.Sprint(cmd.condition(), cmd.nodes(), cmd.want)
		if _, ok := c.told[key]; ok {
			continue
		}
		c.told[key] = now
		c.decided(cmd)
		log.Info("would disrupt nodes", "reason", cmd.condition(), "decision", cmd.decision(), "nodes", cmd.about(), "replacements", cmd.want, "saving", fmt.Sprintf("$%.4f/h", cmd.saving.Dollars()))
	}
}

// staticMoves are commands for broken and drifted nodes of static NodePools: within budgets, as
// many as there is room for beside them, those first that are most urgent or have waited
// longest.
func (c *Controller) staticMoves(v *view) []*command {
	byPool := map[string][]*candidate.Candidate{}
	for i := range v.candidates {
		if cand := &v.candidates[i]; cand.Static && (cand.Fault != nil || cand.Drifted != "") {
			byPool[cand.Pool] = append(byPool[cand.Pool], cand)
		}
	}
	var out []*command
	for _, pool := range slices.Sorted(maps.Keys(byPool)) {
		cmds := c.staticOf(v, pool, karpv1.DisruptionReasonUnhealthy, byPool[pool], nil)
		out = append(out, cmds...)
		out = append(out, c.staticOf(v, pool, karpv1.DisruptionReasonDrifted, byPool[pool], cmds)...)
	}
	return out
}

// staticOf are the commands for nodes of one static NodePool and reason; before are those that
// were made just now for another.
func (c *Controller) staticOf(v *view, pool string, reason karpv1.DisruptionReason, cands []*candidate.Candidate, before []*command) []*command {
	broken := reason == karpv1.DisruptionReasonUnhealthy
	cands = slices.DeleteFunc(slices.Clone(cands), func(cand *candidate.Candidate) bool {
		_, held := c.held[cand.Node]
		taken := slices.ContainsFunc(before, func(cmd *command) bool { return cmd.targets[0].node == cand.Node })
		return held || taken || broken && cand.Fault == nil || !broken && cand.Drifted == "" || len(cand.Blocked(reason)) > 0
	})
	slices.SortFunc(cands, func(a, b *candidate.Candidate) int {
		if broken {
			return cmp.Or(-cmp.Compare(a.Fault.Urgency, b.Fault.Urgency), cmp.Compare(a.Cost, b.Cost), strings.Compare(a.Node, b.Node))
		}
		return cmp.Or(a.DriftedSince.Compare(b.DriftedSince), strings.Compare(a.Node, b.Node))
	})
	np := c.state.Pool(pool)
	i := slices.IndexFunc(v.allowances, func(a candidate.Allowance) bool { return a.Pool == pool && a.Reason == reason })
	if np == nil || np.DeletionTimestamp != nil || !np.Static() || i < 0 {
		return nil
	}
	if a := v.allowances[i]; !a.Unlimited {
		left := a.Left
		for _, cmd := range before {
			if !v.byNode[cmd.targets[0].node].Uninitialized() {
				left--
			}
		}
		// Budgets do not count nodes that have not come up.
		cands = slices.DeleteFunc(cands, func(cand *candidate.Candidate) bool {
			if cand.Uninitialized() {
				return false
			}
			left--
			return left < 0
		})
	}
	n := c.standing(pool)
	n.there += len(before)
	if len(cands) == 0 || n.running > int(*np.Spec.Replicas) {
		return nil // first it is scaled down
	}
	room := len(cands)
	if limit, ok := np.Spec.Limits["nodes"]; ok {
		room = min(room, max(0, int(limit.Value())-n.there))
	}
	if !np.Conditions().IsTrue(karpv1.ConditionReady) || np.Conditions().IsFalse(karpv1.ConditionPolicyAdmitted) {
		return nil
	}
	var out []*command
	for _, cand := range cands[:room] {
		out = append(out, c.staticCommand(v, cand, reason, 1))
	}
	if room > 0 {
		return out
	}
	first := c.opts.DriftFirst || deleteFirst(np)
	if broken {
		first = c.opts.RepairFirst
	}
	if !first {
		for _, cand := range cands {
			c.tell(cand.Node, cand.Claim, observe.Event{
				Reason: observe.DisruptionBlocked, Key: "static-at-limit", Every: blockedEvery,
				Message: fmt.Sprintf("NodePool %s is at its limit of nodes: there is no room to replace the node before it goes", pool),
			})
		}
		return nil
	}
	// One at a time, and only while no other is missing.
	missing := int(*np.Spec.Replicas) - n.ready
	if broken && cands[0].Uninitialized() {
		missing-- // it is the one
	}
	if missing > 0 || n.there > int(*np.Spec.Replicas) {
		return nil
	}
	cmd := c.staticCommand(v, cands[0], reason, 0)
	cmd.first = true
	if !c.opts.Shadow {
		c.Count(func(m *observe.Metrics) {
			m.TerminateFirst.WithLabelValues(pool, cmd.label(), "static-at-limit").Inc()
		})
	}
	return append(out, cmd)
}

// standing counts the claims of a static NodePool: all, those that stay, and of those the ones
// whose nodes are up.
type standing struct{ there, running, ready int }

func (c *Controller) standing(pool string) (n standing) {
	replacing, going := map[string]bool{}, map[string]bool{}
	for _, cmd := range c.commands {
		for _, r := range cmd.replacements {
			replacing[r.name] = true
		}
		for _, t := range cmd.targets {
			going[t.claim] = true
		}
	}
	for _, claim := range c.state.ClaimsOf(pool) {
		n.there++
		if claim.DeletionTimestamp != nil || c.state.Marked(claim.Name) || replacing[claim.Name] {
			continue
		}
		n.running++
		if claim.Conditions().IsTrue(karpv1.ConditionInitialized) && !going[claim.Name] {
			n.ready++
		}
	}
	return n
}

func (c *Controller) staticCommand(v *view, cand *candidate.Candidate, reason karpv1.DisruptionReason, want int) *command {
	cmd := &command{id: c.name(), reason: reason, static: true, want: want}
	t := target{node: cand.Node, claim: cand.Claim, pool: cand.Pool}
	if reason == karpv1.DisruptionReasonUnhealthy {
		t.fault = cand.Fault
	} else {
		_, cmd.expired = v.expired[cand.Node]
	}
	if claim := c.state.Claim(cand.Claim); claim != nil {
		t.uid = claim.UID
	}
	cmd.targets = []target{t}
	return cmd
}
