package dovetail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/peers/fleet"
)

// Consolidation looks for moves on a fleet with the options' defaults. All moves of a
// round are carried out after it: what they buy is there at once, and their nodes are
// gone then.
type Consolidation struct {
	fleet   *fleet.Fleet
	catalog *catalog.Catalog
	// memory is what rounds remember.
	memory consolidate.Memory
	now    time.Time
	made   int
}

var _ fleet.Engine = (*Consolidation)(nil)

// between is how much later the next round is.
const between = 6 * time.Minute

// NewConsolidation prepares rounds over f.
func NewConsolidation(f *fleet.Fleet) (*Consolidation, error) {
	types := make([]catalog.InstanceType, 0, len(f.Types))
	for _, it := range f.Types {
		types = append(types, *it)
	}
	cat, errs := catalog.New(types)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dovetail: catalogue: %w", err)
	}
	return &Consolidation{fleet: f, catalog: cat, now: f.Start.Add(time.Hour)}, nil
}

// Round makes a snapshot of the fleet's objects, examines its nodes and carries the moves
// out that are proposed. Round.Think is all but the last.
func (c *Consolidation) Round(ctx context.Context) (fleet.Round, error) {
	var r fleet.Round
	c.now = c.now.Add(between)
	objs := c.objects()
	stop := fleet.Watch(&r)
	result, err := c.propose(ctx, objs)
	stop()
	if err != nil {
		return r, err
	}
	r.More = !result.Complete
	for i := range result.Moves {
		m := &result.Moves[i]
		if err := c.launch(m.Plan.NewNodes, &r); err != nil {
			return r, err
		}
	}
	for i := range result.Moves {
		for _, name := range result.Moves[i].Nodes {
			if err := c.fleet.Remove(name); err != nil {
				return r, fmt.Errorf("dovetail: %w", err)
			}
			r.Removed++
		}
	}
	return r, c.settlePods(ctx, &r)
}

func (c *Consolidation) propose(ctx context.Context, objs snapshot.Objects) (consolidate.Result, error) {
	snap, err := c.snapshot(objs)
	if err != nil {
		return consolidate.Result{}, err
	}
	facts := candidate.Facts{Now: c.now}
	candidates := candidate.Examine(snap, objs, facts)
	result, err := consolidate.Propose(ctx, snap, consolidate.Options{
		Candidates: candidates, Allowances: candidate.Allowances(objs, facts, candidates), Memory: &c.memory,
	})
	if err != nil {
		return result, fmt.Errorf("dovetail: %w", err)
	}
	return result, nil
}

func (c *Consolidation) snapshot(objs snapshot.Objects) (*snapshot.Snapshot, error) {
	snap, problems := snapshot.Build(objs, snapshot.Options{Now: c.now, Catalog: c.catalog, Sorted: true})
	for _, p := range problems {
		return nil, fmt.Errorf("dovetail: snapshot: %s", p)
	}
	return snap, nil
}

// objects are those of the fleet, in the order that a cache of the API server keeps them in.
func (c *Consolidation) objects() snapshot.Objects {
	f := c.fleet
	objs := snapshot.Objects{
		NodePools: f.Pools, ReplicaSets: f.ReplicaSets, Namespaces: f.Namespaces, PodDisruptionBudgets: f.Budgets,
		Pods: slices.SortedFunc(maps.Values(f.Pods), func(a, b *corev1.Pod) int {
			if n := strings.Compare(a.Namespace, b.Namespace); n != 0 {
				return n
			}
			return strings.Compare(a.Name, b.Name)
		}),
		Nodes:      slices.SortedFunc(maps.Values(f.Nodes), func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) }),
		NodeClaims: slices.SortedFunc(maps.Values(f.Claims), func(a, b *karpv1.NodeClaim) int { return strings.Compare(a.Name, b.Name) }),
	}
	return objs
}

// launch buys the offerings that are planned.
func (c *Consolidation) launch(nodes []schedule.NewNode, r *fleet.Round) error {
	for i := range nodes {
		n := &nodes[i]
		c.made++
		r.Launched++
		if err := c.fleet.Launch(fmt.Sprintf("%s-new-%05d", n.Pool, c.made), n.Pool, n.Planned.InstanceType, n.Planned.Zone); err != nil {
			return fmt.Errorf("dovetail: %w", err)
		}
	}
	return nil
}

// attempts bounds how often nodes are bought for the pods of one round: a scheduler that
// does not know which pod a node was bought for may give it to another.
const attempts = 5

// settlePods places the pods that lost their node, and buys nodes for those that find no
// room.
func (c *Consolidation) settlePods(ctx context.Context, r *fleet.Round) error {
	for attempt := 0; ; attempt++ {
		if c.fleet.Bind() == 0 || attempt == attempts {
			return nil
		}
		snap, err := c.snapshot(c.objects())
		if err != nil {
			return err
		}
		plan, err := schedule.Solve(ctx, snap, schedule.Options{})
		if err != nil {
			return fmt.Errorf("dovetail: %w", err)
		}
		r.Rescued += len(plan.NewNodes)
		if err := c.launch(plan.NewNodes, r); err != nil {
			return err
		}
	}
}
