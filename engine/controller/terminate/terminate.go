// Package terminate takes machines away: it drains their Nodes, waits for their volumes,
// ends them, and lets the objects go.
//
// A NodeClaim and its Node go together, whichever was deleted. The Node is finalized
// first: it keeps pods off, drains, and stays until the cloud says that the machine is
// gone; then the claim goes. Both are held by a finalizer, and how far they are is in
// their conditions, so that a controller that starts anew goes on where another stopped.
// The queue of evictions is in memory only: a drain fills it again.
package terminate

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Options tune the controllers. Client and Provider are required.
type Options struct {
	// Client reads from the cache of the manager that the controllers are registered with.
	Client   client.Client
	Provider cloud.Provider
	Metrics  *observe.Metrics
	Events   *observe.Events
	// State is told of every object written here; *state.Cluster fits. Defaults to none.
	State fleet.Mirror
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time

	// Concurrency is how many Nodes, and how many NodeClaims, are worked on at the same
	// time, calls of the cloud included. Defaults to 500.
	Concurrency int
	// Evictions is how many pods are evicted at the same time. Defaults to 100.
	Evictions int
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 500
	}
	if o.Evictions <= 0 {
		o.Evictions = 100
	}
	return o
}

// Controllers finalize NodeClaims and Nodes.
type Controllers struct {
	opts   Options
	claims *claims
	nodes  *nodes
	queue  *queue
}

// New returns the controllers, which act once they are registered and run.
func New(opts Options) *Controllers {
	opts = opts.withDefaults()
	kit := fleet.NewKit(fleet.Kit{
		Client: opts.Client, Provider: opts.Provider, Metrics: opts.Metrics, Events: opts.Events, Mirror: opts.State, Now: opts.Now,
	})
	q := newQueue(kit, opts.Evictions)
	return &Controllers{
		opts: opts, queue: q,
		claims: &claims{Kit: kit, census: &census{list: opts.Provider.List}},
		nodes:  &nodes{Kit: kit, queue: q, going: newGoing()},
	}
}

// Claims finalizes NodeClaims, for callers that run without a manager.
func (c *Controllers) Claims() reconcile.Reconciler { return c.claims }

// Nodes finalizes Nodes, for callers that run without a manager. They call Evict too.
func (c *Controllers) Nodes() reconcile.Reconciler { return c.nodes }

// Evict works once on the pods that are to be evicted now. A manager does so by itself.
func (c *Controllers) Evict(ctx context.Context) { c.queue.step(ctx) }

// Register adds the controllers to mgr.
func (c *Controllers) Register(mgr manager.Manager) error {
	if err := fleet.Index(context.Background(), mgr.GetFieldIndexer(), append(fleet.Indexes(), fleet.VolumeIndexes()...)...); err != nil {
		return err
	}
	options := controller.Options{
		MaxConcurrentReconciles: c.opts.Concurrency,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute),
	}
	finalizing := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetDeletionTimestamp() != nil && controllerutil.ContainsFinalizer(o, karpv1.TerminationFinalizer)
	}))
	return errors.Join(
		ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.termination").WithOptions(options).
			For(&karpv1.NodeClaim{}, finalizing).
			Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfGoingNode)).
			Complete(c.claims),
		ctrl.NewControllerManagedBy(mgr).Named("node.termination").WithOptions(options).
			For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetDeletionTimestamp() != nil }))).
			Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.goingNodeOfPod)).
			Complete(c.nodes),
		mgr.Add(c.queue),
	)
}

// claimsOfGoingNode are the claims that wait for a Node to go, or whose Node was deleted.
func (c *Controllers) claimsOfGoingNode(ctx context.Context, o client.Object) []reconcile.Request {
	n, ok := o.(*corev1.Node)
	if !ok || n.DeletionTimestamp.IsZero() {
		return nil
	}
	list, err := fleet.ClaimsOf(ctx, c.opts.Client, n)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "a Node's NodeClaims are unknown", "node", n.Name)
	}
	out := make([]reconcile.Request, len(list))
	for i := range list {
		out[i].NamespacedName = client.ObjectKeyFromObject(&list[i])
	}
	return out
}

// goingNodeOfPod is the Node of a pod, if it is being finalized.
func (c *Controllers) goingNodeOfPod(_ context.Context, o client.Object) []reconcile.Request {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" || !c.nodes.going.has(p.Spec.NodeName) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: p.Spec.NodeName}}}
}

// deadline is when the drain of a claim ends by force; the zero time is never.
func deadline(c *karpv1.NodeClaim) time.Time {
	if c == nil {
		return time.Time{}
	}
	text, ok := c.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
