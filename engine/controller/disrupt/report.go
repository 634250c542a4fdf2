package disrupt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// blockedEvery is how often it is said why a node stays.
const blockedEvery = 15 * time.Minute

// deleteFirst reports whether a static NodePool wants drifted nodes to go before their
// successors are there, where nothing else is possible.
func deleteFirst(np *karpv1.NodePool) bool {
	return np.Annotations[v1alpha1.DriftStrategyAnnotation] == v1alpha1.DriftDeleteFirst
}

// tell publishes an event about a node and its claim.
func (c *Controller) tell(node, claim string, e observe.Event) {
	if n := c.state.Node(node); n != nil {
		e.About = n
		c.Events.Publish(e)
	}
	if o := c.state.Claim(claim); o != nil {
		e.About = o
		c.Events.Publish(e)
	}
}

// found tells of a command that was just decided.
func (c *Controller) found(cmd *command) {
	if cmd.reason != karpv1.DisruptionReasonUnderutilized {
		return
	}
	for _, t := range cmd.targets {
		c.tell(t.node, t.claim, observe.Event{Reason: observe.ConsolidationCandidate, Message: fmt.Sprintf("Found: %s of %s, saves $%.4f/h", cmd.decision(), cmd.about(), cmd.saving.Dollars()), Key: observe.ConsolidationCandidate})
	}
}

// decided counts a command that begins.
func (c *Controller) decided(cmd *command) {
	pools := map[string]bool{}
	for _, t := range cmd.targets {
		pools[t.pool] = true
	}
	c.Count(func(m *observe.Metrics) {
		m.DisruptionDecisions.WithLabelValues(cmd.decision(), cmd.label(), cmd.kind()).Inc()
		for pool := range pools {
			m.DisruptionDecisionsByPool.WithLabelValues(cmd.decision(), cmd.label(), cmd.kind(), pool).Inc()
		}
	})
}

// gauge counts commands by phase.
func (c *Controller) gauge() {
	counts := map[phase]int{}
	for _, cmd := range c.commands {
		counts[cmd.phase]++
	}
	c.Count(func(m *observe.Metrics) {
		for p := confirming; p < over; p++ {
			m.DisruptionCommands.WithLabelValues(p.String()).Set(float64(counts[p]))
		}
	})
}

// report says what a pass found, and why nodes stay.
func (c *Controller) report(ctx context.Context, v *view, d *gate.Disruption, took time.Duration) {
	c.measure(v, d, took)
	log := ctrl.LoggerFrom(ctx)
	log.V(1).Info("looked for nodes to disrupt", "moves", len(d.Moves), "trials", d.Trials, "complete", d.Complete, "took", took.Round(time.Millisecond).String(), "cost", fmt.Sprintf("$%.4f/h", d.Cost.Dollars()))
	for _, r := range d.Refused {
		log.V(1).Info("policies did not let a move be made", "reason", r.Reason, "nodes", some(r.Nodes), "verdict", r.Verdict, "said", fmt.Sprint(r.Reasons))
	}
	for i := range d.Moves {
		m := &d.Moves[i]
		for pool, score := range m.Score {
			c.approved(v, m, pool, score)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Left)) {
		if cand := v.byNode[name]; cand != nil && cand.Claim != "" {
			c.stays(cand, d.Left[name])
		}
	}
	c.pools(ctx, v)
}

func (c *Controller) approved(v *view, m *consolidate.Move, pool string, score float64) {
	c.Count(func(x *observe.Metrics) {
		x.ConsolidationScore.WithLabelValues("approved", pool, "balanced").Observe(score)
		x.ConsolidationMoves.WithLabelValues("approved", pool, "balanced").Inc()
	})
	e := observe.Event{Reason: observe.ConsolidationApproved, Message: fmt.Sprintf("Score %.2f is at least %.2f: the share of savings over that of disruption", score, consolidate.BalancedScore), Key: observe.ConsolidationApproved}
	if len(m.Nodes) == 1 {
		c.tell(m.Nodes[0], v.byNode[m.Nodes[0]].Claim, e)
	} else if np := c.state.Pool(pool); np != nil {
		e.About = np
		c.Events.Publish(e)
	}
}

// stays tells why a node stays, by an event for each cause that somebody might want to do
// something about.
func (c *Controller) stays(cand *candidate.Candidate, reasons []candidate.Reason) {
	for _, r := range reasons {
		e := observe.Event{Message: r.String(), Every: blockedEvery, Key: string(r.Code), Limited: true}
		switch r.Code {
		case candidate.NodeDoNotDisrupt, candidate.PodDoNotDisrupt, candidate.SeveralBudgets, candidate.PodBudget, candidate.NoPool, candidate.Rebooting, candidate.NodeDoNotRepair, RetryLater:
			e.Reason = observe.DisruptionBlocked
		case candidate.TypeUnknown, candidate.LabelMissing, candidate.ConsolidateNever, candidate.OnlyWhenEmpty,
			consolidate.NoPlace, consolidate.SavingTooSmall, consolidate.TooFewSpotTypes, consolidate.BalancedTooLow:
			e.Reason = observe.Unconsolidatable
			if (cand.Drifted != "" || cand.Fault != nil) && (r.Code == consolidate.NoPlace || r.Code == candidate.LabelMissing) {
				e.Reason = observe.DisruptionBlocked
			}
		case candidate.TooManyBroken:
			e.Reason, e.Warning, e.Message = observe.NodeRepairBlocked, true, r.Message
			if np := c.state.Pool(cand.Pool); np != nil {
				e.About = np
				c.Events.Publish(e)
			}
		case consolidate.PolicyDenied:
			e.Reason, e.Key = observe.PolicyDenied, r.Object
		case gate.PolicyDeferred:
			e.Reason, e.Key = observe.PolicyDeferred, r.Object
		default:
			continue
		}
		c.tell(cand.Node, cand.Claim, e)
	}
}

// pools tells what keeps nodes of whole NodePools.
func (c *Controller) pools(ctx context.Context, v *view) {
	log := ctrl.LoggerFrom(ctx)
	for _, a := range v.allowances {
		np := c.state.Pool(a.Pool)
		if np == nil || a.Nodes == 0 || a.Unlimited || a.Allowed > 0 {
			continue
		}
		e := observe.Event{About: np, Reason: observe.DisruptionBlocked, Message: "No nodes may be disrupted: " + a.String(), Every: time.Minute, Key: string(a.Reason)}
		if a.Problem != "" {
			e.Warning = true
			log.Info("a budget cannot be read, so that no node of its NodePool may be disrupted", "nodepool", a.Pool, "reason", a.Reason, "problem", a.Problem)
		}
		c.Events.Publish(e)
	}
	for _, np := range v.moment.Objects.NodePools {
		way := candidate.ExpiryOf(np)
		for _, p := range way.Problems {
			c.Events.Publish(observe.Event{About: np, Warning: true, Reason: observe.ExpirationUnclear, Message: strings.ToUpper(p[:1]) + p[1:], Every: time.Hour})
		}
		if !way.Graceful {
			c.herd(v, np, way)
		}
	}
}

// herdWithin is how close together ages end that are a herd.
const herdWithin = 10 * time.Minute

// herd warns of nodes that are about to be deleted for their age together, and that are more
// than budgets let go at a time.
func (c *Controller) herd(v *view, np *karpv1.NodePool, way candidate.Expiry) {
	now, n := c.Now(), 0
	for _, claim := range c.state.ClaimsOf(np.Name) {
		if at, ok := way.At(claim); ok && at.Sub(now) < herdWithin {
			n++
		}
	}
	for _, a := range v.allowances {
		if a.Pool == np.Name && a.Reason == karpv1.DisruptionReasonDrifted && !a.Unlimited && n > max(a.Allowed, 1) {
			c.Events.Publish(observe.Event{
				About: np, Warning: true, Reason: observe.ExpirationHerd, Every: time.Hour, Key: observe.ExpirationHerd,
				Message: fmt.Sprintf("%d nodes reach their age within %s and are deleted then, whatever budgets say; annotation %s: %s replaces them within budgets", n, herdWithin, v1alpha1.ExpirationAnnotation, v1alpha1.ExpirationGraceful),
			})
		}
	}
}

// measure exports what a pass found.
func (c *Controller) measure(v *view, d *gate.Disruption, took time.Duration) {
	c.Count(func(m *observe.Metrics) {
		eligible := map[karpv1.DisruptionReason]int{}
		for i := range v.candidates {
			cand := &v.candidates[i]
			kind := karpv1.DisruptionReasonUnderutilized
			if cand.Empty() {
				kind = karpv1.DisruptionReasonEmpty
			}
			if len(cand.Blocked(kind)) == 0 {
				eligible[kind]++
			}
			if cand.Drifted != "" && len(cand.Blocked(karpv1.DisruptionReasonDrifted)) == 0 {
				eligible[karpv1.DisruptionReasonDrifted]++
			}
			if cand.Fault != nil && len(cand.Blocked(karpv1.DisruptionReasonUnhealthy)) == 0 {
				eligible[karpv1.DisruptionReasonUnhealthy]++
			}
		}
		for _, r := range candidate.Reasons() {
			m.EligibleNodes.WithLabelValues(strings.ToLower(string(r))).Set(float64(eligible[r]))
		}
		m.AllowedDisruptions.Reset() // of NodePools that are gone
		m.BudgetConsumers.Reset()
		for _, a := range v.allowances {
			labels := []string{a.Pool, strings.ToLower(string(a.Reason))}
			m.AllowedDisruptions.WithLabelValues(labels...).Set(float64(a.Left))
			m.BudgetConsumers.WithLabelValues(labels...).Set(float64(a.Consumed))
		}
		// One search finds moves for all reasons.
		m.DisruptionDuration.WithLabelValues(observe.ReasonUnderutilized, "multi").Observe(took.Seconds())
		if !d.Complete {
			m.ConsolidationTimeouts.WithLabelValues("multi").Inc()
		}
		for node, reasons := range d.Left {
			if cand := v.byNode[node]; cand != nil && slices.ContainsFunc(reasons, func(r candidate.Reason) bool { return r.Code == consolidate.BalancedTooLow }) {
				m.ConsolidationMoves.WithLabelValues("rejected", cand.Pool, "balanced").Inc()
			}
		}
	})
}
