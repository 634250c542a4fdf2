package nodeclaim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

const (
	// checkEvery is the time between two checks of a claim.
	checkEvery = 10 * time.Minute
	// least is the share of what the cloud promised that a Node must have, in percent.
	least = 90
)

// consistency compares Nodes with what their claims promised.
type consistency struct {
	*fleet.Kit
	checked *times
}

// Reconcile checks a claim whose last check is long enough ago.
func (k *consistency) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var c karpv1.NodeClaim
	if err := k.Client.Get(ctx, req.NamespacedName, &c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !k.ManagesClaim(&c) || !c.DeletionTimestamp.IsZero() || !c.Conditions().IsTrue(karpv1.ConditionInitialized) {
		return ctrl.Result{}, nil
	}
	if left := k.checked.left(c.UID, checkEvery); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if k.Behind(&c) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	nodes, err := fleet.Nodes(ctx, k.Client, c.Status.ProviderID)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(nodes) != 1 {
		return ctrl.Result{RequeueAfter: checkEvery}, nil
	}
	before := c.DeepCopy()
	cond := c.Conditions().At(k.Now())
	if fault := shortfall(&c, &nodes[0]); fault != "" {
		k.Events.Publish(observe.Event{About: &c, Warning: true, Reason: observe.FailedConsistencyCheck, Message: fault})
		cond.SetFalse(karpv1.ConditionConsistentStateFound, "ConsistencyCheckFailed", fault)
	} else {
		cond.SetTrue(karpv1.ConditionConsistentStateFound)
	}
	if err := k.WriteClaim(ctx, before, &c); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	k.checked.note(c.UID)
	return ctrl.Result{RequeueAfter: checkEvery}, nil
}

// shortfall says which resource a Node has much less of than its claim promised, or "".
func shortfall(c *karpv1.NodeClaim, n *corev1.Node) string {
	for _, name := range slices.Sorted(maps.Keys(c.Spec.Resources.Requests)) {
		want, have := c.Status.Capacity[name], n.Status.Capacity[name]
		if want.IsZero() || have.AsApproximateFloat64()*100 >= want.AsApproximateFloat64()*least {
			continue
		}
		return fmt.Sprintf("Node %s has %s of %s, %.0f%% of the %s that the cloud promised",
			n.Name, have.String(), name, 100*have.AsApproximateFloat64()/want.AsApproximateFloat64(), want.String())
	}
	return ""
}

// times remembers when something was last done for objects.
type times struct {
	now func() time.Time

	mu    sync.Mutex
	last  map[types.UID]time.Time
	sweep time.Time
}

func newTimes(now func() time.Time) *times { return &times{now: now, last: map[types.UID]time.Time{}} }

// left is how much of the time every is left since the last time.
func (t *times) left(uid types.UID, every time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.last[uid]
	if !ok {
		return 0
	}
	return min(every-t.now().Sub(at), every)
}

func (t *times) note(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.last[uid] = now
	if now.After(t.sweep) {
		maps.DeleteFunc(t.last, func(_ types.UID, at time.Time) bool { return now.Sub(at) > time.Hour })
		t.sweep = now.Add(time.Hour)
	}
}
