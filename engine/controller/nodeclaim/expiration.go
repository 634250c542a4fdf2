package nodeclaim

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// expiration deletes claims that have reached their age. No budget holds it back: pods
// delay the drain only. Claims of NodePools that want expired nodes to be replaced
// gracefully are left to disruption until their deadline.
type expiration struct{ *fleet.Kit }

// recheck is when a claim is looked at again that its NodePool may give another deadline.
const recheck = 5 * time.Minute

// Reconcile deletes a claim, or says when to come back.
func (e *expiration) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var c karpv1.NodeClaim
	if err := e.Client.Get(ctx, req.NamespacedName, &c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	age, ok := c.Spec.ExpireAfter.Value()
	if !ok || !c.DeletionTimestamp.IsZero() || !e.ManagesClaim(&c) {
		return ctrl.Result{}, nil
	}
	now := e.Now()
	if left := c.CreationTimestamp.Add(age).Sub(now); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	var np *karpv1.NodePool
	if name := c.Labels[karpv1.NodePoolLabelKey]; name != "" {
		np = &karpv1.NodePool{}
		if err := e.Client.Get(ctx, client.ObjectKey{Name: name}, np); apierrors.IsNotFound(err) {
			np = nil
		} else if err != nil {
			return ctrl.Result{}, fmt.Errorf("NodePool %q of expired nodeclaim %q: %w", name, c.Name, err)
		}
	}
	at, ok := candidate.ExpiryOf(np).Forced(&c)
	if !ok {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	if left := at.Sub(now); left > 0 {
		return ctrl.Result{RequeueAfter: min(left, recheck)}, nil
	}
	pods, err := e.Moving(ctx, &c)
	if err != nil {
		return ctrl.Result{}, err
	}
	_, err = e.GiveUp(ctx, &c, observe.ReasonExpired, pods, &observe.Event{
		About: &c, Reason: observe.Expired, Message: "Reached its age of " + c.Spec.ExpireAfter.String() + ", and is replaced",
	})
	return ctrl.Result{}, err
}
