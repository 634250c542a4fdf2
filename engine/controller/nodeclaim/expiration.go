package nodeclaim

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// expiration deletes claims that have reached their age. No budget holds it back: pods
// delay the drain only.
type expiration struct{ *fleet.Kit }

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
	if left := c.CreationTimestamp.Add(age).Sub(e.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
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
