// Package repair ends Nodes that are broken for good by force: it deletes their NodeClaims
// whatever budgets say, and their pods are planned anew. It acts where that is asked for;
// otherwise disruption replaces such nodes, with their successors first.
package repair

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/health"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Name of the controller, as Karpenter's.
const Name = "node.health"

const (
	// recheck is when a node that may not be replaced now is looked at again.
	recheck = 5 * time.Minute
	// blockedEvery is the time between two events about the breaker.
	blockedEvery = 15 * time.Minute
)

// Options tune a [Controller]. Client and Provider are required.
type Options struct {
	// Client reads from the cache of the manager that the controller is registered with.
	Client client.Client
	// Provider says what broken means: it must be a [cloud.Repairer].
	Provider cloud.Provider
	Metrics  *observe.Metrics
	Events   *observe.Events
	// State is told of every object written here; *state.Cluster fits. Defaults to none.
	State fleet.Mirror
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Concurrency is how many Nodes are worked on at the same time. Defaults to 10.
	Concurrency int
}

// Controller repairs Nodes.
type Controller struct {
	*fleet.Kit
	concurrency int
	rules       *health.Rules
}

// New returns a controller, which acts once it is registered and runs. The error says what
// is wrong with the provider's policies: without any there is nothing to repair by.
func New(opts Options) (*Controller, error) {
	rules, err := health.New(opts.Provider)
	if err != nil {
		return nil, err
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = 10
	}
	return &Controller{
		Kit: fleet.NewKit(fleet.Kit{
			Client: opts.Client, Provider: opts.Provider, Metrics: opts.Metrics, Events: opts.Events, Mirror: opts.State, Now: opts.Now,
		}),
		concurrency: opts.Concurrency, rules: rules,
	}, nil
}

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error {
	if err := fleet.Index(context.Background(), mgr.GetFieldIndexer(), fleet.Indexes()...); err != nil {
		return err
	}
	broken := func(o client.Object) bool {
		n, ok := o.(*corev1.Node)
		return ok && c.ManagesNode(n) && len(c.rules.Faults(n)) > 0
	}
	return ctrl.NewControllerManagedBy(mgr).Named(Name).
		For(&corev1.Node{}, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return broken(e.Object) },
			UpdateFunc: func(e event.UpdateEvent) bool { return broken(e.ObjectNew) || broken(e.ObjectOld) },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute),
		}).
		Complete(c)
}

// Reconcile replaces a Node that is broken.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	n := &corev1.Node{}
	if err := c.Client.Get(ctx, req.NamespacedName, n); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	claims, err := fleet.ClaimsOf(ctx, c.Client, n)
	if err != nil || len(claims) != 1 || !c.ManagesClaim(&claims[0]) || !n.DeletionTimestamp.IsZero() || !claims[0].DeletionTimestamp.IsZero() {
		return ctrl.Result{}, err
	}
	claim := &claims[0]
	if c.Behind(claim) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	now := c.Now()
	due, next := c.rules.Due(n, claim, now)
	switch {
	case len(due) == 0 && next.IsZero():
		return fleet.Retry(ctrl.Result{}, c.recovered(ctx, claim))
	case len(due) == 0:
		return ctrl.Result{RequeueAfter: next.Sub(now)}, nil
	}
	if vetoed, err := c.vetoed(ctx, n, claim, due); err != nil || vetoed {
		return ctrl.Result{RequeueAfter: recheck}, err
	}
	pods, err := fleet.Pods(ctx, c.Client, n.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	return fleet.Retry(ctrl.Result{}, c.replace(ctx, n, claim, due, fleet.Moving(pods)))
}

// recovered takes back what was noted in a claim for a replacement that did not come about.
// An end of the drain that is left over would make a later, gentle one forceful.
func (c *Controller) recovered(ctx context.Context, claim *karpv1.NodeClaim) error {
	cond := claim.Conditions().Get(karpv1.ConditionDisruptionReason)
	if cond == nil || cond.Reason != string(karpv1.DisruptionReasonUnhealthy) {
		return nil
	}
	before := claim.DeepCopy()
	claim.Conditions().At(c.Now()).Clear(karpv1.ConditionDisruptionReason)
	delete(claim.Annotations, karpv1.NodeClaimTerminationTimestampAnnotationKey)
	return c.WriteClaim(ctx, before, claim)
}

// vetoed reports whether a Node may not be replaced now, and tells why by events.
func (c *Controller) vetoed(ctx context.Context, n *corev1.Node, claim *karpv1.NodeClaim, due []health.Fault) (bool, error) {
	marked := n.Annotations[karpv1.DoNotRepairAnnotationKey]
	if n.Labels[karpv1.NodeRegisteredLabelKey] != "true" {
		marked = claim.Annotations[karpv1.DoNotRepairAnnotationKey]
	}
	if marked == "true" {
		c.tell(observe.DisruptionBlocked, false, blockedEvery, "Not repaired although "+due[0].String()+": annotation "+karpv1.DoNotRepairAnnotationKey, n, claim)
		return true, nil
	}
	if why, err := c.tripped(ctx, n, claim); err != nil || why != "" {
		if err != nil {
			return true, err
		}
		about := []observe.Object{n, claim}
		if name := claim.Labels[karpv1.NodePoolLabelKey]; name != "" {
			pool := &karpv1.NodePool{}
			if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, pool); err == nil {
				about = append(about, pool)
			}
		}
		c.tell(observe.NodeRepairBlocked, true, blockedEvery, why, about...)
		return true, nil
	}
	return false, nil
}

func (c *Controller) tell(reason string, warning bool, every time.Duration, message string, about ...observe.Object) {
	for _, o := range about {
		c.Events.Publish(observe.Event{About: o, Warning: warning, Reason: reason, Message: message, Every: every, Key: reason})
	}
}

// tripped says why the breaker is open, or "": too many nodes of the NodePool are broken,
// of all nodes for a claim without.
func (c *Controller) tripped(ctx context.Context, n *corev1.Node, claim *karpv1.NodeClaim) (string, error) {
	options := []client.ListOption{client.UnsafeDisableDeepCopy}
	of := "the cluster"
	if pool := claim.Labels[karpv1.NodePoolLabelKey]; pool != "" {
		options = append(options, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})
		of = "NodePool " + pool
	}
	var list corev1.NodeList
	if err := c.Client.List(ctx, &list, options...); err != nil {
		return "", fmt.Errorf("list nodes to repair %q: %w", n.Name, err)
	}
	total, broken := 0, 0
	for i := range list.Items {
		if !c.ManagesNode(&list.Items[i]) {
			continue
		}
		total++
		if len(c.rules.Faults(&list.Items[i])) > 0 {
			broken++
		}
	}
	return health.Tripped(broken, total, of), nil
}

// replace deletes the claim of a broken Node. The end of the drain, which is now, is stamped
// first: a drain begins by reading it.
func (c *Controller) replace(ctx context.Context, n *corev1.Node, claim *karpv1.NodeClaim, due []health.Fault, pods int) error {
	now, message := c.Now(), "Node is broken: "+due[0].String()
	before := claim.DeepCopy()
	health.Bound(claim, now, 0)
	reason := string(karpv1.DisruptionReasonUnhealthy)
	claim.Conditions().At(now).SetTrueBecause(karpv1.ConditionDisruptionReason, reason, message)
	if err := c.WriteClaim(ctx, before, claim); err != nil {
		return err
	}
	first, err := c.GiveUp(ctx, claim, observe.ReasonUnhealthy, pods, &observe.Event{About: claim, Reason: observe.DisruptionTerminating, Message: message})
	if err != nil || !first {
		return err
	}
	c.tell(observe.DisruptionTerminating, false, 0, message, n)
	c.CountBroken(claim, string(due[0].Seen.Type))
	return nil
}
