package disrupt

import (
	"context"
	"fmt"
	"slices"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/health"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// view is the cluster at one moment, as disruption sees it.
type view struct {
	moment *state.Moment
	// snap is the moment's, without offerings that are barred; NodePools that policies do not
	// admit buy nothing in it.
	snap       *snapshot.Snapshot
	candidates []candidate.Candidate
	allowances []candidate.Allowance
	byNode     map[string]*candidate.Candidate
	nodes      map[string]bool
	// expired are the nodes that go for their age, with when they go whatever is; the zero
	// time is never.
	expired map[string]time.Time
	// breaks is when the next fault of a node has lasted long enough; zero if none is known.
	breaks time.Time
}

// look examines all nodes. Those of commands count as leaving, but for own ones.
func (c *Controller) look(ctx context.Context, own ...*command) (*view, error) {
	moment, err := c.state.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("the state of the cluster: %w", err)
	}
	v := &view{moment: moment, snap: c.barred.apply(admitted(moment.Snapshot)), nodes: map[string]bool{}, byNode: map[string]*candidate.Candidate{}, expired: map[string]time.Time{}}
	facts := candidate.Facts{Now: c.Now(), Leaving: map[string]bool{}, Nominated: c.state.Nominated, DeletionCost: c.opts.DeletionCost}
	replacing := map[string]bool{}
	for _, cmd := range c.commands {
		for _, r := range cmd.replacements {
			replacing[r.name] = true
		}
		if slices.Contains(own, cmd) {
			continue
		}
		for _, t := range cmd.targets {
			facts.Leaving[t.claim] = true
		}
	}
	facts.Broken, facts.Tripped, v.breaks = c.broken()
	v.candidates = candidate.Examine(v.snap, moment.Objects, facts)
	// What is bought to replace others would raise the number of nodes, and with it that of
	// those which a percentage lets go.
	counted := slices.DeleteFunc(slices.Clone(v.candidates), func(cand candidate.Candidate) bool { return replacing[cand.Claim] })
	v.allowances = candidate.Allowances(moment.Objects, facts, counted)
	for _, n := range v.snap.Nodes {
		v.nodes[n.Name] = true
	}
	for i := range v.candidates {
		v.byNode[v.candidates[i].Node] = &v.candidates[i]
	}
	c.expire(v)
	return v, nil
}

// admitted is a snapshot in which NodePools that policies do not admit buy nothing.
func admitted(snap *snapshot.Snapshot) *snapshot.Snapshot {
	denied := func(p *snapshot.Pool) bool {
		return p.Unusable == "" && p.Object != nil && p.Object.Conditions().IsFalse(karpv1.ConditionPolicyAdmitted)
	}
	if !slices.ContainsFunc(snap.Pools, denied) {
		return snap
	}
	out := *snap
	out.Pools = slices.Clone(snap.Pools)
	for i, p := range out.Pools {
		if denied(p) {
			q := *p
			q.Unusable = "policies do not admit it: " + p.Object.Conditions().Get(karpv1.ConditionPolicyAdmitted).Message
			out.Pools[i] = &q
		}
	}
	return &out
}

// broken are the nodes that are broken for good, the NodePools of which too many are for any
// to be replaced, and when the next fault has lasted long enough. They are not read off the
// snapshot, which may be older than a condition.
func (c *Controller) broken() (faults map[string]candidate.Fault, tripped map[string]string, next time.Time) {
	if c.rules == nil {
		return nil, nil, next
	}
	now := c.Now()
	faults, tripped = map[string]candidate.Fault{}, map[string]string{}
	type sum struct{ broken, total int }
	sums := map[string]sum{}
	for _, n := range c.state.Nodes() {
		claim := c.state.ClaimOf(n.Name)
		if claim == nil {
			continue
		}
		pool := claim.Labels[karpv1.NodePoolLabelKey]
		s := sums[pool]
		s.total++
		due, at := c.rules.Due(n, claim, now)
		if len(due) > 0 || !at.IsZero() {
			s.broken++
		}
		sums[pool] = s
		if len(due) > 0 {
			faults[n.Name] = c.rules.Fault(due, n, claim, now)
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for pool, s := range sums {
		if why := health.Tripped(s.broken, s.total, "NodePool "+pool); why != "" {
			tripped[pool] = why
		}
	}
	return faults, tripped, next
}

// expire makes candidates of the nodes that have reached their age, where NodePools want them
// to be replaced gracefully and their window is open.
func (c *Controller) expire(v *view) {
	now := c.Now()
	ways := map[string]candidate.Expiry{}
	for _, np := range v.moment.Objects.NodePools {
		ways[np.Name] = candidate.ExpiryOf(np)
	}
	for _, claim := range v.moment.Objects.NodeClaims {
		way := ways[claim.Labels[karpv1.NodePoolLabelKey]]
		at, ok := way.At(claim)
		if !ok || !way.Open(now) || now.Before(at) {
			continue
		}
		n := c.state.NodeOf(claim.Name)
		if n == nil {
			continue
		}
		cand := v.byNode[n.Name]
		if cand == nil || cand.Claim != claim.Name || cand.Drifted != "" {
			continue
		}
		cand.Drifted, cand.DriftedSince = policy.Expired, at
		forced, _ := way.Forced(claim)
		v.expired[n.Name] = forced
	}
}

// facts are what policies are told.
func (c *Controller) facts(v *view) policy.Facts {
	f := c.opts.Facts()
	f.Pod, f.Namespace = c.state.Pod, c.state.Namespace
	f.SnapshotRevision = v.moment.Revision
	f.PlanID = fmt.Sprintf("disrupt-%d", c.Now().UnixMilli())
	c.history.add(&f.History)
	f.InFlight = policy.InFlight{ByPool: map[string]int64{}, ByZone: map[string]int64{}, ByTeam: map[string]int64{}}
	for _, cmd := range c.commands {
		if cmd.phase == undoing {
			continue
		}
		f.InFlight.Commands++
		for _, t := range cmd.targets {
			f.InFlight.Nodes++
			f.InFlight.ByPool[t.pool]++
			if cand := v.byNode[t.node]; cand != nil {
				f.InFlight.ByZone[cand.Zone]++
			}
		}
	}
	return f
}

// objects are what policies are shown.
func (c *Controller) objects(v *view) fact.Objects {
	o := &v.moment.Objects
	return fact.Objects{
		Pod: c.state.Pod, ReplicaSets: o.ReplicaSets, StatefulSets: o.StatefulSets, PodDisruptionBudgets: o.PodDisruptionBudgets,
		ReplicationControllers: o.ReplicationControllers, Nodes: o.Nodes, NodeClaims: o.NodeClaims,
		Expired: v.expired,
	}
}
