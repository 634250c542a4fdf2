package webhook

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// hypothesis is a cluster in which a NodePool is stored as somebody wants it.
type hypothesis struct {
	// old is nil for a NodePool that is new.
	np, old *karpv1.NodePool
	// before is the cluster as it is, after the same with np.
	before, after *snapshot.Snapshot
	// sold and soldBefore are what np and old may buy; nil if that is not known.
	sold, soldBefore *catalog.Catalog
	claims           []*karpv1.NodeClaim
}

// hypothesis supposes that np is stored. It leaves m as it is.
func (w *Webhook) hypothesis(ctx context.Context, m *Moment, np, old *karpv1.NodePool) *hypothesis {
	h := &hypothesis{np: np, old: old, before: m.Snapshot, claims: m.Objects.NodeClaims, soldBefore: m.Catalogs[np.Name]}
	if h.soldBefore != nil && old != nil && sameClass(np, old) {
		h.sold = h.soldBefore
	} else {
		h.sold = w.catalog(ctx, np)
	}
	built, _ := snapshot.Build(snapshot.Objects{NodePools: []*karpv1.NodePool{usable(np)}, NodeOverlays: m.Objects.NodeOverlays}, snapshot.Options{
		Now: m.Snapshot.Now, AssumeReady: true, PoolCatalogs: map[string]*catalog.Catalog{np.Name: h.sold},
	})
	pool := built.Pools[0]
	pool.Usage = resources.List{}
	after := *m.Snapshot
	after.Pools = nil
	for _, n := range m.Snapshot.Nodes {
		if n.Pool == np.Name {
			pool.Usage.AddTo(n.Capacity)
			pool.Usage[snapshot.NodesResource]++
		}
	}
	for _, p := range m.Snapshot.Pools {
		if p.Name != np.Name {
			after.Pools = append(after.Pools, p)
		}
	}
	after.Pools = append(after.Pools, pool)
	slices.SortFunc(after.Pools, func(x, y *snapshot.Pool) int {
		return cmp.Or(-cmp.Compare(x.Weight, y.Weight), strings.Compare(x.Name, y.Name))
	})
	h.after = &after
	return h
}

// usable is np without the conditions that the controller will judge anew, so that a change
// which makes a NodePool acceptable is seen as what it does once it is. That of its NodeClass
// is not up to the change.
func usable(np *karpv1.NodePool) *karpv1.NodePool {
	out := *np
	out.Status.Conditions = nil
	if c := np.Conditions().Get(karpv1.ConditionNodeClassReady); c != nil && c.Status == metav1.ConditionFalse {
		ready := *c
		ready.Type = karpv1.ConditionReady
		out.Status.Conditions = []metav1.Condition{ready}
	}
	return &out
}

func sameClass(a, b *karpv1.NodePool) bool {
	x, y := a.Spec.Template.Spec.NodeClassRef, b.Spec.Template.Spec.NodeClassRef
	return x != nil && y != nil && *x == *y
}

// catalog asks the cloud what np may buy; nil if it does not say so in time.
func (w *Webhook) catalog(ctx context.Context, np *karpv1.NodePool) *catalog.Catalog {
	if w.opts.Catalog == nil || np.Spec.Template.Spec.NodeClassRef == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.opts.MomentTime)
	defer cancel()
	got := make(chan *catalog.Catalog, 1)
	go func() {
		c, err := w.opts.Catalog(ctx, np.DeepCopy())
		if err != nil {
			c = nil
		}
		got <- c
	}()
	select {
	case c := <-got:
		return c
	case <-ctx.Done():
		return nil
	}
}

// impact begins to find out what the change does to running nodes. The result waits until
// that is known, as far as it can be in time.
func (w *Webhook) impact(ctx context.Context, h *hypothesis) (wait func() policy.Impact) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.ImpactTime)
	claims := map[string]*karpv1.NodeClaim{}
	for _, c := range h.claims {
		claims[c.Name] = c
	}
	out := policy.Impact{NodesDrifted: new(int64)}
	if h.sold != nil {
		out.NodesOrphaned = new(int64)
	}
	drifted := map[string]bool{}
	for _, n := range h.before.Nodes {
		if n.Pool != h.np.Name {
			continue
		}
		out.Nodes++
		claim := claims[n.Claim]
		if claim == nil {
			continue
		}
		if h.drifts(claim) {
			*out.NodesDrifted++
			drifted[n.Name] = true
		}
		if out.NodesOrphaned != nil && h.orphans(claim) {
			*out.NodesOrphaned++
		}
	}
	if out.Nodes == 0 {
		out.NodesOrphaned = new(int64)
	}
	plan := make(chan *replaced, 1)
	switch {
	case len(drifted) == 0 && len(h.before.Pending) == 0:
		plan <- &replaced{}
	case h.sold == nil:
		plan <- nil
	default:
		w.replace(ctx, h, drifted, plan)
	}
	return func() policy.Impact {
		defer cancel()
		var r *replaced
		select {
		case r = <-plan:
		case <-ctx.Done():
			select { // it may have been there in time
			case r = <-plan:
			default:
			}
		}
		if r != nil {
			out.HourlyCostDelta, out.PodsUnschedulable = &r.cost, &r.pods
		}
		return out
	}
}

// drifts reports whether a claim drifts by the change, and would not go anyway.
func (h *hypothesis) drifts(c *karpv1.NodeClaim) bool {
	cond := c.Conditions()
	if !cond.IsTrue(karpv1.ConditionLaunched) || cond.IsTrue(karpv1.ConditionDrifted) || c.DeletionTimestamp != nil {
		return false
	}
	now := h.before.Now
	return candidate.Drift(h.np, c, h.sold, now) != "" && (h.old == nil || candidate.Drift(h.old, c, h.soldBefore, now) == "")
}

// orphans reports whether the pool would not buy a claim's machine again, and would have
// before.
func (h *hypothesis) orphans(c *karpv1.NodeClaim) bool {
	lost := func(np *karpv1.NodePool, sold *catalog.Catalog) bool {
		known, unmet := candidate.Unmet(np, c)
		return known && unmet != nil || sold.Len() > 0 && candidate.Unsold(sold, c.Labels) != ""
	}
	return lost(h.np, h.sold) && (h.old == nil || !lost(h.old, h.soldBefore))
}

// replaced is what it means to replace nodes.
type replaced struct{ cost, pods int64 }

// replace plans the cluster with the drifted nodes gone, and puts what that means into got;
// nil if it comes to nothing. A plan goes on for a moment after its time is up, so not more
// than a few are made at once.
func (w *Webhook) replace(ctx context.Context, h *hypothesis, drifted map[string]bool, got chan<- *replaced) {
	select {
	case w.impacts <- struct{}{}:
	default:
		got <- nil
		return
	}
	go func() {
		defer func() { <-w.impacts }()
		defer func() {
			if r := recover(); r != nil {
				ctrl.LoggerFrom(ctx).Error(fmt.Errorf("panic: %v", r), "what a change does is not known", "nodePool", h.np.Name, "stack", string(debug.Stack()))
				got <- nil
			}
		}()
		got <- w.plan(ctx, h, drifted)
	}()
}

// plan compares the plan for the pods of the drifted nodes and those that wait, under the
// changed pool, with that for those that wait now.
func (w *Webhook) plan(ctx context.Context, h *hypothesis, drifted map[string]bool) *replaced {
	var now schedule.Plan
	var err error
	if len(h.before.Pending) > 0 {
		if now, err = schedule.Solve(ctx, h.before, w.opts.Solve); err != nil {
			return nil
		}
	}
	then, err := schedule.Solve(ctx, h.after.Fork(drifted), w.opts.Solve)
	if err != nil {
		return nil
	}
	without := map[snapshot.PodKey]bool{}
	for _, u := range now.Unscheduled {
		without[u.Pod] = true
	}
	r := &replaced{cost: int64(then.Cost - now.Cost)}
	for _, u := range then.Unscheduled {
		if !without[u.Pod] {
			r.pods++
		}
	}
	for _, p := range h.before.Pools {
		if p.Name != h.np.Name {
			continue
		}
		for _, n := range h.before.Nodes {
			if drifted[n.Name] {
				r.cost -= int64(price(p.Catalog, n.Labels))
			}
		}
	}
	return r
}

// price is the list price of the offering that a node is of; 0 if c does not have it.
func price(c *catalog.Catalog, labels map[string]string) catalog.Price {
	it, ok := c.ByName(labels[corev1.LabelInstanceTypeStable])
	if !ok {
		return 0
	}
	for _, o := range it.Offerings {
		if o.Zone == labels[corev1.LabelTopologyZone] && o.CapacityType == labels[karpv1.CapacityTypeLabelKey] {
			return o.Price
		}
	}
	return 0
}
