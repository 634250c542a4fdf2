package nodepool

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// A NodePool is unhealthy if, of its last remembered launches, failures or more ran out of
// time.
const (
	remembered = 4
	failures   = 2
)

// health remembers how the last launches of NodePools ended.
type health struct {
	mu    sync.Mutex
	pools map[types.UID]*outcomes
}

type outcomes struct {
	ok                    []bool // the latest is last
	generation, nodeClass int64
}

func newHealth() *health { return &health{pools: map[types.UID]*outcomes{}} }

// renew forgets what is known of a NodePool that is another now, or whose NodeClass is, and
// reports whether it is. After a restart, what the condition says is taken over.
func (h *health) renew(np *karpv1.NodePool, nodeClass int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.pools[np.UID]
	if o == nil {
		o = &outcomes{}
		cond := np.Conditions().Get(karpv1.ConditionNodeRegistrationHealthy)
		if cond == nil || cond.ObservedGeneration != np.Generation || np.Status.NodeClassObservedGeneration != nodeClass {
			h.pools[np.UID] = &outcomes{generation: np.Generation, nodeClass: nodeClass}
			return true
		}
		switch cond.Status {
		case metav1.ConditionTrue:
			o.ok = []bool{true}
		case metav1.ConditionFalse:
			o.ok = []bool{false, false}
		}
		o.generation, o.nodeClass = np.Generation, nodeClass
		h.pools[np.UID] = o
		return false
	}
	if o.generation == np.Generation && o.nodeClass == nodeClass {
		return false
	}
	*o = outcomes{generation: np.Generation, nodeClass: nodeClass}
	return true
}

// add notes an outcome and reports whether the NodePool is healthy with it.
func (h *health) add(pool types.UID, ok bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.pools[pool]
	if o == nil {
		o = &outcomes{}
		h.pools[pool] = o
	}
	o.ok = append(o.ok, ok)
	o.ok = o.ok[max(0, len(o.ok)-remembered):]
	failed := 0
	for _, ok := range o.ok {
		if !ok {
			failed++
		}
	}
	return failed < failures
}

// Outcome notes that a claim has become a Node, or has run out of time, in the condition
// NodeRegistrationHealthy of the NodePool that owns it.
func (c *Controllers) Outcome(ctx context.Context, claim *karpv1.NodeClaim, ok bool) {
	np := c.opts.State.Pool(claim.Labels[karpv1.NodePoolLabelKey])
	if np == nil || !metav1.IsControlledBy(claim, np) && !owns(np, claim) {
		return
	}
	healthy := c.health.add(np.UID, ok)
	for range 5 { // the cache may be behind
		var latest karpv1.NodePool
		if err := c.opts.Client.Get(ctx, client.ObjectKeyFromObject(np), &latest); err != nil {
			return
		}
		err := c.write(ctx, &latest, func(np *karpv1.NodePool) bool {
			w := np.Conditions().At(c.opts.Now())
			launched := claim.Conditions().Get(karpv1.ConditionLaunched)
			switch {
			case ok && healthy:
				return w.SetTrue(karpv1.ConditionNodeRegistrationHealthy)
			case !ok && !healthy && (launched == nil || launched.Status == metav1.ConditionTrue):
				return w.SetFalse(karpv1.ConditionNodeRegistrationHealthy, "RegistrationFailed", "nodes of the last launches did not register")
			case !ok && !healthy:
				return w.SetFalse(karpv1.ConditionNodeRegistrationHealthy, launched.Reason, launched.Message)
			}
			return false
		})
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			ctrl.LoggerFrom(ctx).Error(err, "noting how a launch ended failed", "nodePool", np.Name)
			return
		}
	}
}

func owns(np *karpv1.NodePool, claim *karpv1.NodeClaim) bool {
	for _, o := range claim.OwnerReferences {
		if o.UID == np.UID {
			return true
		}
	}
	return false
}
