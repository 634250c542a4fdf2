// Package repair replaces Nodes that are broken for good, as far as the cloud tells what
// that means: by deleting their NodeClaims, so that their pods are planned anew.
//
// A restart in place is not done: a policy that asks for one gets a replacement.
package repair

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Name of the controller, as Karpenter's.
const Name = "node.health"

const (
	// oneOf is the breaker: at most one node of so many, rounded up, may be broken for any
	// to be replaced. More than that are not broken machines but a broken cluster.
	oneOf = 5
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
	rules       []rule
}

// rule is a policy with its expression; nil matches what no other rule of the condition
// and status does.
type rule struct {
	cloud.RepairPolicy
	reason *regexp.Regexp
}

// New returns a controller, which acts once it is registered and runs. The error says what
// is wrong with the provider's policies: without any there is nothing to repair by.
func New(opts Options) (*Controller, error) {
	repairer, ok := cloud.As[cloud.Repairer](opts.Provider)
	if !ok {
		return nil, fmt.Errorf("node repair: cloud %s does not tell which nodes are broken", opts.Provider.Name())
	}
	rules, err := compile(repairer.RepairPolicies())
	if err != nil {
		return nil, fmt.Errorf("node repair: policies of cloud %s: %w", opts.Provider.Name(), err)
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

func compile(policies []cloud.RepairPolicy) ([]rule, error) {
	if len(policies) == 0 {
		return nil, errors.New("there are none")
	}
	var errs []error
	rules := make([]rule, len(policies))
	for i, p := range policies {
		rules[i].RepairPolicy = p
		fault := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("policy %d (%s is %s): %s", i, p.Condition, p.Status, fmt.Sprintf(format, args...)))
		}
		if p.Condition == "" || p.Status == "" {
			fault("condition and status must be set")
		}
		if p.Toleration < 0 || p.Drain != nil && *p.Drain < 0 {
			fault("toleration and drain must not be negative")
		}
		if p.Priority < 0 || p.Priority > 100 {
			fault("priority %d is not between 0 and 100", p.Priority)
		}
		if p.Reason == "" {
			if p.Reboot {
				fault("what any reason matches must be replaced, not restarted")
			}
			continue
		}
		re, err := regexp.Compile(p.Reason)
		if err != nil {
			fault("reason: %v", err)
		}
		rules[i].reason = re
	}
	return rules, errors.Join(errs...)
}

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error {
	if err := fleet.Index(context.Background(), mgr.GetFieldIndexer(), fleet.Indexes()...); err != nil {
		return err
	}
	broken := func(o client.Object) bool {
		n, ok := o.(*corev1.Node)
		return ok && c.ManagesNode(n) && len(c.faults(n)) > 0
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

// fault is a condition of a Node that a rule calls broken.
type fault struct {
	rule
	condition corev1.NodeCondition
}

func (f *fault) String() string {
	s := fmt.Sprintf("%s is %s", f.condition.Type, f.condition.Status)
	if f.condition.Reason != "" {
		s += " (" + f.condition.Reason + ")"
	}
	return s
}

// faults are what is broken about a Node, in the order of its conditions. A rule for any
// reason that is the only one of all is also for every other condition that has rules.
func (c *Controller) faults(n *corev1.Node) []fault {
	var out []fault
	for _, cond := range n.Status.Conditions {
		known := false
		var any, all *rule
		alls, before := 0, len(out)
		for i := range c.rules {
			r := &c.rules[i]
			same := r.Condition == cond.Type && r.Status == cond.Status
			known = known || same
			switch {
			case r.reason == nil:
				all = r
				alls++
				if same {
					any = r
				}
			case same && r.reason.MatchString(cond.Reason):
				out = append(out, fault{*r, cond})
			}
		}
		if any == nil && alls == 1 {
			any = all
		}
		if known && len(out) == before && any != nil {
			out = append(out, fault{*any, cond})
		}
	}
	return out
}

// eligible is when a fault has lasted long enough.
func (f *fault) eligible(n *corev1.Node, claim *karpv1.NodeClaim) time.Time {
	since := f.condition.LastTransitionTime.Time
	for _, t := range []time.Time{n.CreationTimestamp.Time, claim.Conditions().Since(karpv1.ConditionRebooting)} {
		if t.After(since) {
			since = t
		}
	}
	return since.Add(f.Toleration)
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
	faults := c.faults(n)
	if len(faults) == 0 {
		return fleet.Retry(ctrl.Result{}, c.recovered(ctx, claim))
	}
	now := c.Now()
	var due []fault
	var wait ctrl.Result
	for _, f := range faults {
		if left := f.eligible(n, claim).Sub(now); left > 0 {
			wait = fleet.Sooner(wait, left)
		} else {
			due = append(due, f)
		}
	}
	if len(due) == 0 {
		return wait, nil
	}
	pods, err := fleet.Pods(ctx, c.Client, n.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if vetoed, err := c.vetoed(ctx, n, claim, due, pods); err != nil || vetoed {
		return ctrl.Result{RequeueAfter: recheck}, err
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
func (c *Controller) vetoed(ctx context.Context, n *corev1.Node, claim *karpv1.NodeClaim, due []fault, pods []*corev1.Pod) (bool, error) {
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
	if bound(due) != nil || claim.Spec.TerminationGracePeriod != nil {
		return false, nil
	}
	pod, err := c.blocking(ctx, pods)
	if err != nil || pod == "" {
		return false, err
	}
	c.tell(observe.DisruptionBlocked, false, 0, "Not repaired although "+due[0].String()+": "+pod+", and nothing bounds the drain", n, claim)
	return true, nil
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
		if len(c.faults(&list.Items[i])) > 0 {
			broken++
		}
	}
	if most := (total + oneOf - 1) / oneOf; broken > most {
		return fmt.Sprintf("%d of %d nodes of %s are broken, and none is replaced while there are more than %d", broken, total, of, most), nil
	}
	return "", nil
}

// bound is the shortest time that faults leave for the drain; nil is no bound.
func bound(due []fault) *time.Duration {
	var out *time.Duration
	for i := range due {
		if d := due[i].Drain; d != nil && (out == nil || *d < *out) {
			out = d
		}
	}
	return out
}

// blocking says which pod would hold up a drain for good, or "".
func (c *Controller) blocking(ctx context.Context, pods []*corev1.Pod) (string, error) {
	now := c.Now()
	budgets := map[string][]policyv1.PodDisruptionBudget{}
	for _, p := range pods {
		if !fleet.Active(p) || fleet.Stays(p) {
			continue
		}
		if guard := fleet.ProtectionOf(p, now); guard.On && guard.Until.IsZero() {
			return fmt.Sprintf("pod %s/%s has annotation %s", p.Namespace, p.Name, karpv1.DoNotDisruptAnnotationKey), nil
		}
		list, ok := budgets[p.Namespace]
		if !ok {
			var stored policyv1.PodDisruptionBudgetList
			if err := c.Client.List(ctx, &stored, client.InNamespace(p.Namespace), client.UnsafeDisableDeepCopy); err != nil {
				return "", fmt.Errorf("list budgets of namespace %q: %w", p.Namespace, err)
			}
			list = stored.Items
			budgets[p.Namespace] = list
		}
		for i := range list {
			b := &list[i]
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err == nil && selector.Matches(labels.Set(p.Labels)) && b.Status.DisruptionsAllowed == 0 {
				return fmt.Sprintf("PodDisruptionBudget %s/%s lets pod %s not go", b.Namespace, b.Name, p.Name), nil
			}
		}
	}
	return "", nil
}

// replace deletes the claim of a broken Node. What bounds the drain is stamped first: a
// drain that begins may be at its end at once.
func (c *Controller) replace(ctx context.Context, n *corev1.Node, claim *karpv1.NodeClaim, due []fault, pods int) error {
	now, message := c.Now(), "Node is broken: "+due[0].String()
	before := claim.DeepCopy()
	if d := bound(due); d != nil {
		left := *d
		if own := claim.Spec.TerminationGracePeriod; own != nil {
			left = min(left, own.Duration)
		}
		end := now.Add(left)
		if have, err := time.Parse(time.RFC3339, claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]); err != nil || end.Before(have) {
			if claim.Annotations == nil {
				claim.Annotations = map[string]string{}
			}
			claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = end.UTC().Format(time.RFC3339)
		}
	}
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
	c.Count(func(m *observe.Metrics) {
		m.NodeClaimsUnhealthyDisrupted.WithLabelValues(snake(string(due[0].condition.Type)), claim.Labels[karpv1.NodePoolLabelKey],
			claim.Labels[karpv1.CapacityTypeLabelKey], claim.Status.ImageID, c.TerminationMode(claim)).Inc()
	})
	return nil
}

// snake is a CamelCase word in snake case.
func snake(word string) string {
	var b strings.Builder
	for i, r := range word {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
