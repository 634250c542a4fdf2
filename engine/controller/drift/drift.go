// Package drift keeps the conditions of NodeClaims that disruption reads: Drifted, that a
// claim is no longer what its NodePool and the cloud ask for, and Consolidatable, that its
// pods have been at rest for as long as the NodePool says.
//
// The two are separate controllers. A cloud that is slow or fails delays what it is asked
// about, and neither the other claims nor consolidation.
package drift

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
)

const (
	// checkEvery is the longest time between two checks of a claim for drift: clouds change
	// what they offer without telling.
	checkEvery = 5 * time.Minute
	// answerWithin is how long the cloud may take for one answer.
	answerWithin = 30 * time.Second
	// firstRetry and lastRetry are how long to wait after failures.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Options tune the controllers. Client and Provider are required.
type Options struct {
	// Client reads from the cache of the manager that the controllers are registered with.
	Client   client.Client
	Provider cloud.Provider
	// State is told of every claim written here; *state.Cluster fits. Defaults to none.
	State fleet.Mirror
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Concurrency is how many claims are checked for drift at the same time. Defaults to
	// 100: a worker that waits for the cloud costs little more than its stack.
	Concurrency int
}

// Controllers are those of the conditions Drifted and Consolidatable.
type Controllers struct {
	*fleet.Kit
	concurrency int
}

// New returns the controllers, which act once they are registered and run.
func New(opts Options) *Controllers {
	if opts.Concurrency <= 0 {
		opts.Concurrency = 100
	}
	kit := fleet.NewKit(fleet.Kit{Client: opts.Client, Provider: opts.Provider, Mirror: opts.State, Now: opts.Now})
	return &Controllers{Kit: kit, concurrency: opts.Concurrency}
}

// Drift keeps the condition Drifted of claims, for callers that run without a manager.
func (c *Controllers) Drift() reconcile.Reconciler { return reconcile.Func(c.reconcileDrift) }

// Rest keeps the condition Consolidatable of claims, for callers that run without a manager.
func (c *Controllers) Rest() reconcile.Reconciler { return reconcile.Func(c.reconcileRest) }

// Register adds the controllers to mgr.
func (c *Controllers) Register(mgr manager.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		claim, ok := o.(*karpv1.NodeClaim)
		return ok && c.ManagesClaim(claim)
	})
	respec := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	options := func(n int) controller.Options {
		return controller.Options{
			MaxConcurrentReconciles: n,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}
	}
	drift := ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.disruption").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(ours, predicate.Funcs{UpdateFunc: matters})).
		Watches(&karpv1.NodePool{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfPool), respec).
		WithOptions(options(c.concurrency))
	classes, err := c.watchable(mgr)
	if err != nil {
		return err
	}
	for _, class := range classes {
		drift = drift.Watches(class, handler.EnqueueRequestsFromMapFunc(c.claimsOfClass))
	}
	return errors.Join(
		drift.Complete(c.Drift()),
		ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.consolidatable").
			For(&karpv1.NodeClaim{}, builder.WithPredicates(ours)).
			Watches(&karpv1.NodePool{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfPool), respec).
			WithOptions(options(10)).Complete(c.Rest()),
	)
}

// matters reports whether an update of a claim can change whether it is drifted. Most do
// not: pod events alone are one for each claim every ten seconds.
func matters(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*karpv1.NodeClaim)
	after, ok2 := e.ObjectNew.(*karpv1.NodeClaim)
	return !ok || !ok2 || before.Generation != after.Generation ||
		!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations) ||
		before.Conditions().IsTrue(karpv1.ConditionLaunched) != after.Conditions().IsTrue(karpv1.ConditionLaunched) ||
		before.Conditions().IsTrue(karpv1.ConditionDrifted) != after.Conditions().IsTrue(karpv1.ConditionDrifted)
}

// watchable are the kinds of NodeClass that the API server knows now. Claims of others are
// checked from time to time all the same.
func (c *Controllers) watchable(mgr manager.Manager) ([]client.Object, error) {
	var out []client.Object
	for _, gvk := range c.Provider.NodeClasses() {
		if _, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
			if meta.IsNoMatchError(err) {
				continue
			}
			return nil, fmt.Errorf("kind %s: %w", gvk.Kind, err)
		}
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(gvk)
		out = append(out, o)
	}
	return out, nil
}

func (c *Controllers) claimsOfPool(ctx context.Context, pool client.Object) []reconcile.Request {
	return c.claims(ctx, func(claim *karpv1.NodeClaim) bool { return claim.Labels[karpv1.NodePoolLabelKey] == pool.GetName() })
}

func (c *Controllers) claimsOfClass(ctx context.Context, class client.Object) []reconcile.Request {
	gk := class.GetObjectKind().GroupVersionKind().GroupKind()
	return c.claims(ctx, func(claim *karpv1.NodeClaim) bool {
		ref := claim.Spec.NodeClassRef
		return ref.Name == class.GetName() && ref.Group == gk.Group && ref.Kind == gk.Kind
	})
}

// claims are requests for the provider's claims that are among those wanted.
func (c *Controllers) claims(ctx context.Context, wanted func(*karpv1.NodeClaim) bool) []reconcile.Request {
	var list karpv1.NodeClaimList
	if err := c.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "the NodeClaims of a change are unknown, and are checked later")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if claim := &list.Items[i]; c.ManagesClaim(claim) && wanted(claim) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(claim)})
		}
	}
	return out
}

// get reads a claim and its NodePool; nil if there is nothing to say about the claim.
func (c *Controllers) get(ctx context.Context, req reconcile.Request) (*karpv1.NodeClaim, *karpv1.NodePool, error) {
	var claim karpv1.NodeClaim
	if err := c.Client.Get(ctx, req.NamespacedName, &claim); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	if pool == "" || !c.ManagesClaim(&claim) || !claim.DeletionTimestamp.IsZero() {
		return nil, nil, nil
	}
	var np karpv1.NodePool
	if err := c.Client.Get(ctx, client.ObjectKey{Name: pool}, &np); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	return &claim, &np, nil
}

func (c *Controllers) reconcileDrift(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	claim, np, err := c.get(ctx, req)
	if claim == nil {
		return ctrl.Result{}, err
	}
	if c.Behind(claim) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	before := claim.DeepCopy()
	cond := claim.Conditions().At(c.Now())
	if !cond.IsTrue(karpv1.ConditionLaunched) {
		cond.Clear(karpv1.ConditionDrifted)
		return fleet.Retry(ctrl.Result{}, c.WriteClaim(ctx, before, claim))
	}
	v := c.judge(ctx, np, claim)
	was := cond.Get(karpv1.ConditionDrifted)
	switch {
	case v.reason != "":
		cond.SetTrueBecause(karpv1.ConditionDrifted, v.reason, v.message)
	case was != nil && v.open[class(was.Reason)]:
		// What made it so cannot be judged now, so nothing says that it is over.
	default:
		cond.Clear(karpv1.ConditionDrifted)
	}
	wrote := c.WriteClaim(ctx, before, claim)
	if wrote == nil {
		if is := cond.IsTrue(karpv1.ConditionDrifted); is != (was != nil && was.Status == metav1.ConditionTrue) {
			ctrl.LoggerFrom(ctx).Info("NodeClaim changed", "nodeclaim", claim.Name, "drifted", is, "reason", v.reason, "cause", v.message)
		}
	}
	return fleet.Retry(ctrl.Result{RequeueAfter: checkEvery}, wrote, v.err)
}

// reconcileRest sets Consolidatable once nothing has happened on a claim's node for as long
// as its NodePool asks, and removes it when something does.
func (c *Controllers) reconcileRest(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	claim, np, err := c.get(ctx, req)
	if claim == nil {
		return ctrl.Result{}, err
	}
	if c.Behind(claim) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	now := c.Now()
	before := claim.DeepCopy()
	cond := claim.Conditions().At(now)
	var result ctrl.Result
	end, ok := quietFrom(np, claim)
	switch {
	case !ok:
		cond.Clear(karpv1.ConditionConsolidatable)
	case now.Before(end):
		cond.Clear(karpv1.ConditionConsolidatable)
		result = fleet.Sooner(result, end.Sub(now))
	default:
		cond.SetTrue(karpv1.ConditionConsolidatable)
	}
	return fleet.Retry(result, c.WriteClaim(ctx, before, claim))
}

// quietFrom is when a claim has been at rest for consolidateAfter, if nothing happens on its
// node until then; false is never. Rest begins with the last pod that came or went, and not
// before the node could take its pods at all.
func quietFrom(np *karpv1.NodePool, c *karpv1.NodeClaim) (time.Time, bool) {
	after, ok := np.Spec.Disruption.ConsolidateAfter.Value()
	if !ok || np.Static() || !c.Conditions().IsTrue(karpv1.ConditionInitialized) {
		return time.Time{}, false
	}
	since := c.Conditions().Since(karpv1.ConditionInitialized)
	if last := c.Status.LastPodEventTime.Time; last.After(since) {
		since = last
	}
	return since.Add(after), true
}
