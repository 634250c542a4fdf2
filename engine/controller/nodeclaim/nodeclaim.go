// Package nodeclaim turns NodeClaims into Nodes, and gives up those that do not become one
// or have had their time.
//
// A claim is launched, registered when its Node appears, and initialized when the Node can
// take all its pods. Every step is readable from the objects: a controller that starts
// anew goes on where another stopped. Nothing here waits while it holds a worker, but for
// the cloud; what was written and has not been read back makes a claim wait for its watch.
//
// Deletion is the work of package terminate.
package nodeclaim

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
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
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Options tune the controllers of NodeClaims. Client and Provider are required.
type Options struct {
	// Client reads from the cache of the manager that the controllers are registered with.
	Client client.Client
	// Reader reads what is stored, past the cache. Defaults to Client.
	Reader   client.Reader
	Provider cloud.Provider
	Metrics  *observe.Metrics
	Events   *observe.Events
	// State is told of every object written here; *state.Cluster fits. Defaults to none.
	State fleet.Mirror
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Elapsed is the time since some moment, on a clock that nobody sets. Defaults to what
	// has passed of Now since New: times from time.Now are compared by such a clock.
	Elapsed func() time.Duration

	// Launches is how many claims are worked on at the same time, calls of the cloud
	// included. Defaults to 1000: a worker that waits for the cloud costs little more than
	// its stack.
	Launches int
	// Concurrency is how many claims each of the other controllers works on at the same
	// time. Defaults to 10.
	Concurrency int
	// LaunchTimeout and RegistrationTimeout are when a claim that has not come so far is
	// given up. Default to 5 and 15 minutes.
	LaunchTimeout, RegistrationTimeout time.Duration
	// InitializationNotice is when a registered node that is not initialized is first
	// reported by an event. Such a node stays. Defaults to 15 minutes.
	InitializationNotice time.Duration
	// CollectEvery is the time between two searches for claims without machine and machines
	// without claim. Defaults to 2 minutes.
	CollectEvery time.Duration
	// DeviceDrivers makes nodes wait for the resource drivers that their claim names. The
	// API server must serve ResourceSlices.
	DeviceDrivers bool

	// Expected are the pods that a claim was bought for. Defaults to none.
	Expected func(claim string) []snapshot.PodKey
	// BeforeReady is called when a claim's Node has everything but may not take pods yet.
	// An error leaves it so, and so does a time after which it is called again.
	BeforeReady func(ctx context.Context, claim *karpv1.NodeClaim, node *corev1.Node) (after time.Duration, err error)
	// Outcome is told whether a claim has become a Node: false is a launch or registration
	// that ran out of time.
	Outcome func(ctx context.Context, claim *karpv1.NodeClaim, ok bool)
}

func (o Options) withDefaults() Options {
	if o.Reader == nil {
		o.Reader = o.Client
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Elapsed == nil {
		now, begin := o.Now, o.Now()
		o.Elapsed = func() time.Duration { return now().Sub(begin) }
	}
	if o.Launches <= 0 {
		o.Launches = 1000
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 10
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&o.LaunchTimeout, 5 * time.Minute}, {&o.RegistrationTimeout, 15 * time.Minute},
		{&o.InitializationNotice, 15 * time.Minute}, {&o.CollectEvery, 2 * time.Minute},
	} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	if o.Expected == nil {
		o.Expected = func(string) []snapshot.PodKey { return nil }
	}
	if o.BeforeReady == nil {
		o.BeforeReady = func(context.Context, *karpv1.NodeClaim, *corev1.Node) (time.Duration, error) { return 0, nil }
	}
	if o.Outcome == nil {
		o.Outcome = func(context.Context, *karpv1.NodeClaim, bool) {}
	}
	return o
}

// Controllers are those of NodeClaims: lifecycle, garbage collection, consistency,
// expiration, hydration and pod events.
type Controllers struct {
	opts        Options
	lifecycle   *lifecycle
	collector   *collector
	consistency *consistency
	expiration  *expiration
	hydration   *hydration
	podEvents   *podEvents
}

// New returns the controllers, which act once they are registered and run.
func New(opts Options) *Controllers {
	opts = opts.withDefaults()
	kit := fleet.NewKit(fleet.Kit{
		Client: opts.Client, Provider: opts.Provider, Metrics: opts.Metrics, Events: opts.Events, Mirror: opts.State, Now: opts.Now,
	})
	return &Controllers{
		opts:        opts,
		lifecycle:   newLifecycle(kit, opts),
		collector:   &collector{Kit: kit, reader: opts.Reader, elapsed: opts.Elapsed, suspects: map[string]time.Duration{}},
		consistency: &consistency{Kit: kit, checked: newTimes(opts.Now)},
		expiration:  &expiration{Kit: kit},
		hydration:   &hydration{Kit: kit},
		podEvents:   newPodEvents(kit),
	}
}

// Lifecycle takes NodeClaims from creation to initialization, for callers that run without
// a manager.
func (c *Controllers) Lifecycle() reconcile.Reconciler { return c.lifecycle }

// Collect ends claims without machine and machines without claim once. It returns when to
// do so again at the latest; zero is after Options.CollectEvery.
func (c *Controllers) Collect(ctx context.Context) (time.Duration, error) {
	return c.collector.collect(ctx)
}

// Register adds the controllers to mgr.
func (c *Controllers) Register(mgr manager.Manager) error {
	if err := fleet.Index(context.Background(), mgr.GetFieldIndexer(), fleet.Indexes()...); err != nil {
		return err
	}
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		claim, ok := o.(*karpv1.NodeClaim)
		return ok && c.lifecycle.ManagesClaim(claim)
	})
	managed, created := builder.WithPredicates(ours), builder.WithPredicates(ours, born)
	lifecycle := ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.lifecycle").
		For(&karpv1.NodeClaim{}, managed).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfStartingNode)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.opts.Launches,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		})
	if c.opts.DeviceDrivers {
		lifecycle = lifecycle.Watches(&resourcev1.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfSlice))
	}
	few := controller.Options{
		MaxConcurrentReconciles: c.opts.Concurrency,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
	return errors.Join(
		lifecycle.Complete(c.lifecycle),
		mgr.Add(fleet.Periodic{Name: "nodeclaim.garbagecollection", Every: c.opts.CollectEvery, Do: c.collector.collect}),
		ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.consistency").For(&karpv1.NodeClaim{}, managed).WithOptions(few).Complete(c.consistency),
		ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.expiration").For(&karpv1.NodeClaim{}, created).WithOptions(few).Complete(c.expiration),
		ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.hydration").For(&karpv1.NodeClaim{}, created).WithOptions(few).Complete(reconcile.Func(c.hydration.claim)),
		ctrl.NewControllerManagedBy(mgr).Named("node.hydration").For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(owned))).WithOptions(few).Complete(reconcile.Func(c.hydration.node)),
		c.podEvents.register(mgr, few),
	)
}

// born lets creations through: what never changes needs no other look.
var born = predicate.Funcs{
	UpdateFunc: func(event.UpdateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// claimsOfStartingNode are the claims of a Node that is not initialized yet.
func (c *Controllers) claimsOfStartingNode(ctx context.Context, o client.Object) []reconcile.Request {
	n, ok := o.(*corev1.Node)
	if !ok || n.Labels[karpv1.NodeInitializedLabelKey] == "true" && n.DeletionTimestamp.IsZero() {
		return nil
	}
	claims, err := fleet.ClaimsOf(ctx, c.opts.Client, n)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "a Node's NodeClaims are unknown", "node", n.Name)
	}
	return requests(claims)
}

// claimsOfSlice are the claims of the node that devices are on.
func (c *Controllers) claimsOfSlice(ctx context.Context, o client.Object) []reconcile.Request {
	slice, ok := o.(*resourcev1.ResourceSlice)
	if !ok || slice.Spec.NodeName == nil {
		return nil
	}
	var n corev1.Node
	if err := c.opts.Client.Get(ctx, client.ObjectKey{Name: *slice.Spec.NodeName}, &n); err != nil {
		return nil // its own event brings it
	}
	return c.claimsOfStartingNode(ctx, &n)
}

func requests(claims []karpv1.NodeClaim) []reconcile.Request {
	out := make([]reconcile.Request, len(claims))
	for i := range claims {
		out[i].NamespacedName = client.ObjectKeyFromObject(&claims[i])
	}
	return out
}
