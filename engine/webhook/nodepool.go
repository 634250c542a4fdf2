package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
)

// nodePool judges a NodePool that is created or changed.
func (w *Webhook) nodePool(ctx context.Context, req *admission.Request) (answer, error) {
	var a answer
	var np karpv1.NodePool
	if err := json.Unmarshal(req.Object.Raw, &np); err != nil {
		return a, fmt.Errorf("the object cannot be read: %w", err)
	}
	var old *karpv1.NodePool
	if req.Operation == admissionv1.Update {
		old = &karpv1.NodePool{}
		if err := json.Unmarshal(req.OldObject.Raw, old); err != nil {
			return a, fmt.Errorf("the old object cannot be read: %w", err)
		}
	}
	if np.DeletionTimestamp != nil || old != nil && samePool(&np, old) {
		return a, nil
	}
	if np.Name == "" { // generateName: the API server names it later
		np.Name = np.GenerateName
	}
	if err := np.RuntimeValidate(); err != nil {
		if old == nil || !reflect.DeepEqual(np.Spec, old.Spec) {
			a.deny, a.invalid = append(a.deny, err.Error()), true
			return a, nil
		}
		a.warn("the NodePool is invalid and buys nothing: %v", err)
	}
	now := w.opts.Now()
	review, err := fact.Review(&np, old, now)
	if err != nil {
		return a, err
	}
	sameBudgets := old != nil && reflect.DeepEqual(np.Spec.Disruption.Budgets, old.Spec.Disruption.Budgets)
	for _, f := range candidate.Review(&np, now) {
		text := f.Field + ": " + f.Message
		switch {
		case f.Severity == candidate.Error && !sameBudgets:
			a.deny, a.invalid = append(a.deny, text), true
		case f.Severity != candidate.Info:
			a.warnings = append(a.warnings, text)
		}
	}
	if len(a.deny) > 0 {
		return a, nil
	}
	m := w.moments.at(ctx, w.opts.MomentTime)
	if m == nil {
		a.warn("policies were not asked and the effect on nodes is not known: the controller has not seen the cluster yet; it asks them once it has")
		return a, nil
	}
	h := w.hypothesis(ctx, m, &np, old)
	impact := w.impact(ctx, h)
	review.User = policy.User{Name: req.UserInfo.Username, Groups: req.UserInfo.Groups}
	if review.User.Groups == nil {
		review.User.Groups = []string{}
	}
	review.DryRun = req.DryRun != nil && *req.DryRun
	question := w.inputs.Admit(h.after, &np, review, w.opts.Facts())
	question.Impact = impact()
	a.tell(question.Impact)
	verdict, err := w.opts.Policies.Admit(ctx, question)
	if err != nil {
		return a, err
	}
	for _, r := range verdict.Deny {
		a.deny = append(a.deny, said(r))
	}
	for _, r := range verdict.Warn {
		a.warnings = append(a.warnings, said(r))
	}
	return a, nil
}

// said names the policy and the code of what a policy says.
func said(r policy.Reason) string {
	if r.Code == "" {
		return fmt.Sprintf("policy %s: %s", r.Policy, r.Msg)
	}
	return fmt.Sprintf("policy %s: %s: %s", r.Policy, r.Code, r.Msg)
}

// tell warns of what a change would do.
func (a *answer) tell(i policy.Impact) {
	var parts, unknown []string
	if n := i.NodesDrifted; n == nil {
		unknown = append(unknown, "nodesDrifted")
	} else if *n > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes drift and are replaced", *n, i.Nodes))
	}
	if n := i.NodesOrphaned; n == nil {
		unknown = append(unknown, "nodesOrphaned")
	} else if *n > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes are of a kind that the NodePool does not buy any more", *n, i.Nodes))
	}
	if n := i.HourlyCostDelta; n == nil {
		unknown = append(unknown, "hourlyCostDelta")
	} else if *n != 0 {
		parts = append(parts, fmt.Sprintf("the cost changes by %+.3f $/h", float64(*n)/1e6))
	}
	if n := i.PodsUnschedulable; n == nil {
		unknown = append(unknown, "podsUnschedulable")
	} else if *n > 0 {
		parts = append(parts, fmt.Sprintf("%d pods find no node any more", *n))
	}
	if len(parts) > 0 {
		a.warn("by this change %s", strings.Join(parts, ", "))
	}
	if len(unknown) > 0 {
		a.warn("policies were not told impact.%s: it could not be found out in time", strings.Join(unknown, ", impact."))
	}
}

// ours are annotations that the controller writes into NodePools.
var ours = []string{karpv1.NodePoolHashAnnotationKey, karpv1.NodePoolHashVersionAnnotationKey}

// samePool reports whether a change leaves alone what policies and validation look at, as
// those of the controller and of garbage collection do.
func samePool(np, old *karpv1.NodePool) bool {
	own := func(m map[string]string) map[string]string {
		out := maps.Clone(m)
		for _, key := range ours {
			delete(out, key)
		}
		return out
	}
	return maps.Equal(np.Labels, old.Labels) && maps.Equal(own(np.Annotations), own(old.Annotations)) && reflect.DeepEqual(np.Spec, old.Spec)
}
