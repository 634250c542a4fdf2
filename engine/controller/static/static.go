// Package static keeps NodePools with spec.replicas at their number of nodes, whatever pods
// need.
package static

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// Options tune a [Controller]. Client, Provider and State are required.
type Options struct {
	Client   client.Client
	Provider cloud.Provider
	State    *state.Cluster
	Metrics  *observe.Metrics
	Events   *observe.Events
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
}

// Controller keeps the number of nodes of static NodePools.
type Controller struct {
	*fleet.Kit
	state *state.Cluster
}

// New returns the controller, which acts once it is registered and runs.
func New(opts Options) *Controller {
	return &Controller{
		Kit: fleet.NewKit(fleet.Kit{
			Client: opts.Client, Provider: opts.Provider, Metrics: opts.Metrics, Events: opts.Events, Mirror: opts.State, Now: opts.Now,
		}),
		state: opts.State,
	}
}

// again is when a NodePool is looked at anew although nothing happened.
const again = time.Minute

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("static.provisioning").
		For(&karpv1.NodePool{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			name := o.GetLabels()[karpv1.NodePoolLabelKey]
			if np := c.state.Pool(name); np == nil || !np.Static() {
				return nil
			}
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(c)
}

// Reconcile creates the claims that a static NodePool lacks, or deletes those that it has
// too many of.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var np karpv1.NodePool
	if err := c.Client.Get(ctx, req.NamespacedName, &np); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !np.Static() || np.DeletionTimestamp != nil || !state.Provides(c.Provider, np.Spec.Template.Spec.NodeClassRef) {
		return reconcile.Result{}, nil
	}
	if why := c.state.Unsynced(); why != "" {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	// The state has what this controller wrote, also before a watch tells of it.
	var live []*karpv1.NodeClaim
	marked, leaving := 0, 0 // marked are also those that replace others, until they are gone
	for _, claim := range c.state.ClaimsOf(np.Name) {
		switch {
		case claim.DeletionTimestamp != nil || claim.Conditions().IsTrue(karpv1.ConditionInstanceTerminating):
			leaving++
		case c.state.Marked(claim.Name), claim.Annotations[v1alpha1.ReplacesAnnotation] != "":
			marked++ // whoever replaces it makes its successor
		default:
			live = append(live, claim)
		}
	}
	want := int(*np.Spec.Replicas)
	switch {
	case len(live) > want:
		return c.shrink(ctx, &np, live, len(live)-want)
	case len(live)+marked < want && np.Conditions().IsTrue(karpv1.ConditionReady) && !np.Conditions().IsFalse(karpv1.ConditionPolicyAdmitted):
		return c.grow(ctx, &np, want-len(live)-marked, len(live)+marked+leaving)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// grow creates n claims, as far as the NodePool's limit of nodes allows beside those that
// there are.
func (c *Controller) grow(ctx context.Context, np *karpv1.NodePool, n, there int) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: again}
	if limit, ok := np.Spec.Limits["nodes"]; ok {
		if room := max(0, int(limit.Value())-there); room < n {
			n, result.RequeueAfter = room, again/2
		}
	}
	var errs []error
	for range n {
		errs = append(errs, c.create(ctx, np))
	}
	return result, errors.Join(errs...)
}

// attempts is how often one claim is tried to be created.
const attempts = 3

// create creates one claim. An error may hide that it was created, so it is tried under
// the same name again: another name might make one too many.
func (c *Controller) create(ctx context.Context, np *karpv1.NodePool) error {
	claim := np.NewClaim()
	claim.GenerateName = ""
	claim.Name = np.Name[:min(len(np.Name), 57)] + "-" + rand.String(5)
	var err error
	for n := range attempts {
		err = c.Client.Create(ctx, claim)
		if n > 0 && apierrors.IsAlreadyExists(err) {
			err = c.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim)
		}
		if err == nil {
			c.state.Update(claim)
			c.Count(func(m *observe.Metrics) {
				m.NodeClaimsCreated.WithLabelValues(observe.ReasonProvisioned, np.Name, "false").Inc()
			})
			return nil
		}
		if ctx.Err() != nil || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			break
		}
	}
	return fmt.Errorf("NodeClaim of NodePool %s: %w", np.Name, err)
}

// shrink deletes n claims, those first whose end costs least.
func (c *Controller) shrink(ctx context.Context, np *karpv1.NodePool, live []*karpv1.NodeClaim, n int) (reconcile.Result, error) {
	type candidate struct {
		claim      *karpv1.NodeClaim
		pods, rank int
	}
	list := make([]candidate, len(live))
	for i, claim := range live {
		list[i] = candidate{claim: claim}
		if !claim.Conditions().IsTrue(karpv1.ConditionLaunched) {
			continue // rank 0: there is nothing to end
		}
		var pods []*corev1.Pod
		if node := c.state.NodeOf(claim.Name); node != nil {
			pods = c.state.PodsOn(node.Name)
		}
		list[i].pods = fleet.Moving(pods)
		protected := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return fleet.Active(p) && fleet.ProtectionOf(p, c.Now()).On })
		switch {
		case protected:
			list[i].rank = 3
		case list[i].pods > 0:
			list[i].rank = 2
		default:
			list[i].rank = 1
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.pods, b.pods), b.claim.CreationTimestamp.Compare(a.claim.CreationTimestamp.Time), cmp.Compare(a.claim.Name, b.claim.Name))
	})
	var errs []error
	for _, victim := range list[:n] {
		_, err := c.GiveUp(ctx, victim.claim, observe.ReasonScaledDown, victim.pods, &observe.Event{
			About: victim.claim, Reason: observe.StaticScaledDown,
			Message: fmt.Sprintf("NodePool %s has more nodes than its %d replicas", np.Name, *np.Spec.Replicas),
		})
		if err == nil {
			// Until the watch tells of the deletion, the claim must not count.
			c.state.Mark(victim.claim.Name)
		}
		errs = append(errs, err)
	}
	return reconcile.Result{RequeueAfter: again}, errors.Join(errs...)
}
