// Package nodepolicy puts NodePolicies in force and says in their status how they fare. A
// policy that cannot be used stops no other, and its last good revision stays.
package nodepolicy

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Set keeps policies in force; *set.Set of engine/policy/set fits. Its errors are also in
// the status of the policy that they are about.
type Set interface {
	Apply(ctx context.Context, policies ...*v1alpha1.NodePolicy) error
	Remove(names ...string)
	Status(name string) (v1alpha1.NodePolicyStatus, bool)
}

// Options tune a [Controller]. Client and Set are required.
type Options struct {
	Client  client.Client
	Set     Set
	Metrics *observe.Metrics
	Events  *observe.Events
	// Changed names policies whose status in the set has changed.
	Changed <-chan string
	// InForce is called after policies in force may have changed. Defaults to none.
	InForce func()
	// Elected is closed once this process leads. Before, it puts policies in force as well,
	// since every replica answers the API server, and one that takes over must not begin
	// without them; but it writes nothing. Nil leads.
	Elected <-chan struct{}
	// Shadow writes nothing, whoever leads.
	Shadow bool
	// Refresh is how often the activity of the last hour is written. Defaults to 1 min.
	Refresh time.Duration
}

// Controller is the controller of NodePolicies.
type Controller struct {
	opts    Options
	changed chan event.GenericEvent

	mu sync.Mutex
	// applied are the policies that the set was given, by name.
	applied map[string]version
}

// version tells what a policy says from what it said before, also when another took its
// name.
type version struct {
	uid        types.UID
	generation int64
}

// New returns the controller, which acts once it is registered and runs.
func New(opts Options) *Controller {
	if opts.InForce == nil {
		opts.InForce = func() {}
	}
	if opts.Refresh <= 0 {
		opts.Refresh = time.Minute
	}
	return &Controller{opts: opts, changed: make(chan event.GenericEvent), applied: map[string]version{}}
}

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error {
	if err := mgr.Add(everywhere(c.forward)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("nodepolicy").
		For(&v1alpha1.NodePolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(c.changed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, NeedLeaderElection: new(false)}).
		Complete(c)
}

// everywhere runs on all replicas, whoever leads.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// forward turns names of changed policies into requests, and those of all once this process
// leads, for what it did not write before.
func (c *Controller) forward(ctx context.Context) error {
	elected := c.opts.Elected
	for {
		var names []string
		select {
		case <-ctx.Done():
			return nil
		case name := <-c.opts.Changed:
			names = []string{name}
		case <-elected:
			elected = nil
			c.mu.Lock()
			names = slices.Sorted(maps.Keys(c.applied))
			c.mu.Unlock()
		}
		for _, name := range names {
			select {
			case c.changed <- event.GenericEvent{Object: &v1alpha1.NodePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}}:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// writes reports whether this process writes what it finds out.
func (c *Controller) writes() bool {
	if c.opts.Shadow {
		return false
	}
	if c.opts.Elected == nil {
		return true
	}
	select {
	case <-c.opts.Elected:
		return true
	default:
		return false
	}
}

// Reconcile puts one policy in force.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var np v1alpha1.NodePolicy
	err := client.IgnoreNotFound(c.opts.Client.Get(ctx, req.NamespacedName, &np))
	if err != nil {
		return reconcile.Result{}, err
	}
	if np.Name == "" || np.DeletionTimestamp != nil { // it is gone, or going
		c.opts.Set.Remove(req.Name)
		c.given(req.Name, version{})
		if c.opts.Metrics != nil {
			c.opts.Metrics.PolicyReady.DeletePartialMatch(map[string]string{"policy": req.Name})
		}
		c.opts.InForce()
		return reconcile.Result{}, nil
	}
	before, known := c.opts.Set.Status(np.Name)
	applied := false
	if c.given(np.Name, version{np.UID, np.Generation}) || !known || before.ObservedGeneration != np.Generation {
		// What is wrong with a policy is in its status; retrying is the set's own work.
		err = c.opts.Set.Apply(ctx, np.DeepCopy())
		if ctx.Err() != nil {
			c.given(np.Name, version{})
			return reconcile.Result{}, ctx.Err()
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).Info("the policy is not as it should be", "cause", err.Error())
		}
		applied = err == nil
	}
	status, ok := c.opts.Set.Status(np.Name)
	if !ok {
		return reconcile.Result{}, nil
	}
	ready := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady)
	c.measure(&np, ready)
	// The status may be that of an earlier process, and a change of mode or order has no
	// revision of its own.
	if applied || np.Status.Revision != status.Revision || before.Revision != status.Revision {
		c.opts.InForce()
	}
	if !c.writes() {
		return reconcile.Result{}, nil
	}
	c.tell(&np, status, ready)
	again := reconcile.Result{RequeueAfter: c.opts.Refresh}
	if equality.Semantic.DeepEqual(np.Status, status) {
		return again, nil
	}
	old := np.DeepCopy()
	np.Status = status
	return again, client.IgnoreNotFound(c.opts.Client.Status().Patch(ctx, &np, client.MergeFrom(old)))
}

// given notes what the set was given under a name, nothing for the zero version, and
// reports whether that is new.
func (c *Controller) given(name string, v version) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.applied[name] == v {
		return false
	}
	c.applied[name] = v
	if v == (version{}) {
		delete(c.applied, name)
	}
	return true
}

func (c *Controller) measure(np *v1alpha1.NodePolicy, ready bool) {
	if c.opts.Metrics == nil {
		return
	}
	v := 0.0
	if ready {
		v = 1
	}
	c.opts.Metrics.PolicyReady.WithLabelValues(np.Name, string(np.Spec.Hook), string(np.Spec.Runtime)).Set(v)
}

// tell publishes what is new about a policy.
func (c *Controller) tell(np *v1alpha1.NodePolicy, status v1alpha1.NodePolicyStatus, ready bool) {
	if status.LastError != "" && status.LastError != np.Status.LastError {
		c.opts.Events.Publish(observe.Event{About: np, Warning: true, Reason: observe.PolicyFailed, Message: shorten(status.LastError)})
	}
	if ready && status.Revision != np.Status.Revision {
		c.opts.Events.Publish(observe.Event{About: np, Reason: observe.PolicyReady, Message: "revision " + status.Revision + " is in force"})
	}
}

// shorten keeps a message within what an event holds.
func shorten(s string) string {
	const most = 1000
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
