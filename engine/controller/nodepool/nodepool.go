// Package nodepool keeps the status of NodePools: whether they are valid, whether their
// NodeClass is ready, what policies say of them, what their nodes add up to, and whether
// launches have become nodes lately. It also stamps the hash of their template, from which
// drift is told.
package nodepool

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// Options tune the controllers of NodePools. Client, Provider and State are required.
type Options struct {
	Client   client.Client
	Provider cloud.Provider
	State    *state.Cluster
	Metrics  *observe.Metrics
	Events   *observe.Events
	// Policies are asked whether a NodePool is acceptable. Nil admits all.
	Policies *policy.Engine
	// Facts are what policies are told besides the state.
	Facts func() policy.Facts
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// CountEvery is how often what nodes add up to is written. Defaults to 5 s.
	CountEvery time.Duration
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Facts == nil {
		o.Facts = func() policy.Facts { return policy.Facts{} }
	}
	if o.CountEvery <= 0 {
		o.CountEvery = 5 * time.Second
	}
	return o
}

// Controllers are those of NodePools.
type Controllers struct {
	opts    Options
	inputs  policy.Inputs
	health  *health
	recheck chan event.GenericEvent
}

// New returns the controllers, which act once they are registered and run.
func New(opts Options) *Controllers {
	return &Controllers{opts: opts.withDefaults(), health: newHealth(), recheck: make(chan event.GenericEvent, 1)}
}

// Register adds the controllers to mgr.
func (c *Controllers) Register(mgr manager.Manager) error {
	classes, err := c.watchable(mgr)
	if err != nil {
		return err
	}
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	ready := ctrl.NewControllerManagedBy(mgr).Named("nodepool.readiness").For(&karpv1.NodePool{}, changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10})
	for _, class := range classes {
		ready = ready.Watches(class, handler.EnqueueRequestsFromMapFunc(c.poolsOf))
	}
	if err := ready.Complete(reconcile.Func(c.reconcileStatus)); err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("nodepool.hash").For(&karpv1.NodePool{}, changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).Complete(reconcile.Func(c.reconcileHash)); err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("nodepool.counter").For(&karpv1.NodePool{}, changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).Complete(reconcile.Func(c.reconcileCount)); err != nil {
		return err
	}
	if c.opts.Policies == nil {
		return nil
	}
	return ctrl.NewControllerManagedBy(mgr).Named("nodepool.admission").For(&karpv1.NodePool{}, changed).
		WatchesRawSource(source.Channel(c.recheck, handler.EnqueueRequestsFromMapFunc(c.allPools))).
		Complete(reconcile.Func(c.reconcileAdmission))
}

// Recheck asks policies about all NodePools again.
func (c *Controllers) Recheck() {
	select {
	case c.recheck <- event.GenericEvent{Object: &karpv1.NodePool{}}:
	default: // one is waiting already
	}
}

// watchable are the kinds of NodeClass that the API server knows now. NodePools of others
// are looked at from time to time.
func (c *Controllers) watchable(mgr manager.Manager) ([]client.Object, error) {
	var out []client.Object
	for _, gvk := range c.opts.Provider.NodeClasses() {
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

func (c *Controllers) allPools(context.Context, client.Object) []reconcile.Request {
	var out []reconcile.Request
	for _, np := range c.opts.State.Pools() {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(np)})
	}
	return out
}

// poolsOf are the NodePools that refer to a NodeClass.
func (c *Controllers) poolsOf(_ context.Context, class client.Object) []reconcile.Request {
	gk := class.GetObjectKind().GroupVersionKind().GroupKind()
	var out []reconcile.Request
	for _, np := range c.opts.State.Pools() {
		if ref := np.Spec.Template.Spec.NodeClassRef; ref != nil && ref.Name == class.GetName() && ref.Group == gk.Group && ref.Kind == gk.Kind {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(np)})
		}
	}
	return out
}

// get reads the NodePool of a request; nil if it is gone or another program's.
func (c *Controllers) get(ctx context.Context, req reconcile.Request) (*karpv1.NodePool, error) {
	var np karpv1.NodePool
	if err := c.opts.Client.Get(ctx, req.NamespacedName, &np); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !np.DeletionTimestamp.IsZero() || !state.Provides(c.opts.Provider, np.Spec.Template.Spec.NodeClassRef) {
		return nil, nil
	}
	return &np, nil
}

// write patches the status of a NodePool that change has changed.
func (c *Controllers) write(ctx context.Context, np *karpv1.NodePool, change func(*karpv1.NodePool) bool) error {
	before := np.DeepCopy()
	if !change(np) {
		return nil
	}
	// Conditions are a list that several write: a patch must be of what is stored now.
	err := c.opts.Client.Status().Patch(ctx, np, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	c.opts.State.Update(np)
	return nil
}
