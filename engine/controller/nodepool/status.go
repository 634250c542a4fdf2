package nodepool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// unwatched is how often a NodeClass is looked at whose kind is not watched.
const unwatched = time.Minute

// reconcileStatus sets ValidationSucceeded and NodeClassReady, and with them Ready; and what is
// to be said of budgets.
func (c *Controllers) reconcileStatus(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	np, err := c.get(ctx, req)
	if np == nil {
		return ctrl.Result{}, err
	}
	class, err := c.nodeClass(ctx, np)
	if err != nil {
		return ctrl.Result{}, err
	}
	invalid := np.RuntimeValidate()
	return requeueLost(c.write(ctx, np, func(np *karpv1.NodePool) bool {
		w := np.Conditions().At(c.opts.Now())
		changed := w.Init()
		if invalid != nil {
			changed = w.SetFalse(karpv1.ConditionValidationSucceeded, "NodePoolValidationFailed", invalid.Error()) || changed
		} else {
			changed = w.SetTrue(karpv1.ConditionValidationSucceeded) || changed
		}
		if class.reason == "" {
			changed = w.SetTrue(karpv1.ConditionNodeClassReady) || changed
		} else {
			changed = w.SetFalse(karpv1.ConditionNodeClassReady, class.reason, class.message) || changed
		}
		changed = judgeBudgets(np, w, c.opts.Now()) || changed
		// What is known of launches is of another NodePool or NodeClass. The object says so
		// too, since an earlier write may have been lost.
		cond := np.Conditions().Get(karpv1.ConditionNodeRegistrationHealthy)
		stale := cond == nil || cond.ObservedGeneration != np.Generation || np.Status.NodeClassObservedGeneration != class.generation
		if c.health.renew(np, class.generation) || stale {
			np.Status.NodeClassObservedGeneration = class.generation
			changed = w.SetUnknown(karpv1.ConditionNodeRegistrationHealthy, "AwaitingReconciliation", "no launch since the NodePool or its NodeClass changed") || changed
		}
		return changed
	}), ctrl.Result{RequeueAfter: class.again})
}

// judgeBudgets says in a condition what is wrong with the disruption budgets of a NodePool, or
// seldom meant.
func judgeBudgets(np *karpv1.NodePool, w karpv1.ConditionWriter, now time.Time) bool {
	var faults, warnings []string
	reason := ""
	for _, f := range candidate.Review(np, now) {
		switch f.Severity {
		case candidate.Error:
			faults = append(faults, f.Field+": "+f.Message)
		case candidate.Warning:
			warnings = append(warnings, f.Field+": "+f.Message)
		default:
			continue
		}
		if reason == "" {
			reason = string(f.Code) // errors come first
		}
	}
	switch {
	case len(faults) > 0:
		return w.SetFalse(karpv1.ConditionBudgetsValid, reason, strings.Join(append(faults, warnings...), "; "))
	case len(warnings) > 0:
		return w.SetTrueBecause(karpv1.ConditionBudgetsValid, reason, strings.Join(warnings, "; "))
	}
	return w.Clear(karpv1.ConditionBudgetsValid)
}

// classState is what a NodeClass means for its NodePools.
type classState struct {
	// reason is why it is not ready; empty if it is.
	reason, message string
	generation      int64
	again           time.Duration
}

func (c *Controllers) nodeClass(ctx context.Context, np *karpv1.NodePool) (classState, error) {
	ref := np.Spec.Template.Spec.NodeClassRef
	gk := schema.GroupKind{Group: ref.Group, Kind: ref.Kind}
	kinds := c.opts.Provider.NodeClasses()
	i := slices.IndexFunc(kinds, func(k schema.GroupVersionKind) bool { return k.GroupKind() == gk })
	var o unstructured.Unstructured
	o.SetGroupVersionKind(kinds[i]) // get has checked that it is among them
	err := c.opts.Client.Get(ctx, client.ObjectKey{Name: ref.Name}, &o)
	name := ref.Kind + " " + ref.Name
	switch {
	case meta.IsNoMatchError(err):
		return classState{reason: "NodeClassNotFound", message: fmt.Sprintf("the API server does not know the kind %s", ref.Kind), again: unwatched}, nil
	case apierrors.IsNotFound(err):
		return classState{reason: "NodeClassNotFound", message: name + " does not exist", again: unwatched}, nil
	case err != nil:
		return classState{}, fmt.Errorf("%s: %w", name, err)
	case o.GetDeletionTimestamp() != nil:
		return classState{reason: "NodeClassTerminating", message: name + " is being deleted"}, nil
	}
	s := classState{generation: o.GetGeneration()}
	list, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return classState{}, fmt.Errorf("%s: status.conditions: %w", name, err)
	}
	s.reason, s.message = "NodeClassReadinessUnknown", name+" does not say yet whether it is ready"
	for _, item := range list {
		cond, ok := item.(map[string]any)
		if !ok || cond["type"] != karpv1.ConditionReady {
			continue
		}
		switch cond["status"] {
		case string(metav1.ConditionTrue):
			s.reason, s.message = "", ""
		case string(metav1.ConditionFalse):
			s.reason, s.message = fmt.Sprint(cond["reason"]), fmt.Sprint(cond["message"])
			if s.reason == "" {
				s.reason = "NodeClassNotReady"
			}
		}
	}
	return s, nil
}

// reconcileHash stamps the hash of the template. Claims that another version of the hash
// stamped get this one first, so that a new way to compute it drifts nothing.
func (c *Controllers) reconcileHash(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	np, err := c.get(ctx, req)
	if np == nil {
		return ctrl.Result{}, err
	}
	hash := np.Hash()
	if np.Annotations[karpv1.NodePoolHashVersionAnnotationKey] != karpv1.NodePoolHashVersion {
		var claims karpv1.NodeClaimList
		if err := c.opts.Client.List(ctx, &claims, client.MatchingLabels{karpv1.NodePoolLabelKey: np.Name}); err != nil {
			return ctrl.Result{}, err
		}
		for i := range claims.Items {
			claim := &claims.Items[i]
			if claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] == karpv1.NodePoolHashVersion {
				continue
			}
			before := claim.DeepCopy()
			if claim.Annotations == nil {
				claim.Annotations = map[string]string{}
			}
			claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = karpv1.NodePoolHashVersion
			if !claim.Conditions().IsTrue(karpv1.ConditionDrifted) {
				claim.Annotations[karpv1.NodePoolHashAnnotationKey] = hash
			}
			if err := client.IgnoreNotFound(c.opts.Client.Patch(ctx, claim, client.MergeFrom(before))); err != nil {
				return ctrl.Result{}, fmt.Errorf("NodeClaim %s: %w", claim.Name, err)
			}
		}
	}
	if np.Annotations[karpv1.NodePoolHashAnnotationKey] == hash && np.Annotations[karpv1.NodePoolHashVersionAnnotationKey] == karpv1.NodePoolHashVersion {
		return ctrl.Result{}, nil
	}
	before := np.DeepCopy()
	if np.Annotations == nil {
		np.Annotations = map[string]string{}
	}
	np.Annotations[karpv1.NodePoolHashAnnotationKey] = hash
	np.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = karpv1.NodePoolHashVersion
	return ctrl.Result{}, client.IgnoreNotFound(c.opts.Client.Patch(ctx, np, client.MergeFrom(before)))
}

// reconcileCount writes what the nodes of a NodePool add up to.
func (c *Controllers) reconcileCount(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	np, err := c.get(ctx, req)
	if np == nil {
		return ctrl.Result{}, err
	}
	again := ctrl.Result{RequeueAfter: c.opts.CountEvery}
	if !c.opts.State.Synced() {
		return again, nil
	}
	used, nodes := c.opts.State.PoolUsage(np.Name)
	want := sum(used, nodes)
	err = c.write(ctx, np, func(np *karpv1.NodePool) bool {
		if equal(np.Status.Resources, want) && np.Status.Nodes != nil && *np.Status.Nodes == int64(nodes) {
			return false
		}
		np.Status.Resources, np.Status.Nodes = want, new(int64(nodes))
		return true
	})
	return requeueLost(err, again)
}

// sum has an entry for each resource that people ask after, also if there is none of it.
func sum(used resources.List, nodes int) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
		out[name] = resource.MustParse("0")
	}
	for name, q := range used.Quantities() {
		out[name] = q
	}
	out["nodes"] = *resource.NewQuantity(int64(nodes), resource.DecimalSI)
	return out
}

func equal(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, q := range a {
		other, ok := b[name]
		if !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// reconcileAdmission asks admit policies about a NodePool. Warnings become events.
func (c *Controllers) reconcileAdmission(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	np, err := c.get(ctx, req)
	if np == nil {
		return ctrl.Result{}, err
	}
	if !c.opts.State.Synced() {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	moment, err := c.opts.State.Snapshot(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	review, err := fact.Review(np, nil, c.opts.Now())
	if err != nil {
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	facts := c.opts.Facts()
	facts.Pod, facts.Namespace = c.opts.State.Pod, c.opts.State.Namespace
	verdict, err := c.opts.Policies.Admit(ctx, c.inputs.Admit(moment.Snapshot, np, review, facts))
	if err != nil {
		return ctrl.Result{}, err
	}
	asked := len(c.opts.Policies.Policies(policy.Admit)) > 0
	var deny []string
	for _, r := range verdict.Deny {
		deny = append(deny, gate.Said{Policy: r.Policy, Code: r.Code, Msg: r.Msg}.String())
	}
	for _, r := range verdict.Warn {
		c.opts.Events.Publish(observe.Event{About: np, Warning: true, Reason: observe.PolicyWarning, Message: gate.Said{Policy: r.Policy, Code: r.Code, Msg: r.Msg}.String(), Every: time.Hour})
	}
	return requeueLost(c.write(ctx, np, func(np *karpv1.NodePool) bool {
		w := np.Conditions().At(c.opts.Now())
		switch {
		case !verdict.Allowed:
			text := strings.Join(deny, "; ")
			c.opts.Events.Publish(observe.Event{About: np, Warning: true, Reason: observe.PolicyDenied, Message: text})
			return w.SetFalse(karpv1.ConditionPolicyAdmitted, "PolicyDenied", text)
		case asked || np.Conditions().Get(karpv1.ConditionPolicyAdmitted) != nil:
			return w.SetTrue(karpv1.ConditionPolicyAdmitted)
		}
		return false
	}), ctrl.Result{})
}

// requeueLost turns a conflict into another look: the cache is a moment behind.
func requeueLost(err error, r ctrl.Result) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return r, err
}
