package nodeclaim

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
)

// hydration gives claims and Nodes the label of their NodeClass. Old versions of Karpenter
// did not.
type hydration struct{ *fleet.Kit }

func (h *hydration) claim(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var c karpv1.NodeClaim
	if err := h.Client.Get(ctx, req.NamespacedName, &c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !h.ManagesClaim(&c) || c.Labels[c.Spec.NodeClassRef.LabelKey()] == c.Spec.NodeClassRef.Name {
		return ctrl.Result{}, nil
	}
	before := c.DeepCopy()
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels[c.Spec.NodeClassRef.LabelKey()] = c.Spec.NodeClassRef.Name
	return fleet.Retry(ctrl.Result{}, h.WriteClaim(ctx, before, &c))
}

func (h *hydration) node(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var n corev1.Node
	if err := h.Client.Get(ctx, req.NamespacedName, &n); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	claims, err := fleet.ClaimsOf(ctx, h.Client, &n)
	if err != nil || len(claims) != 1 || !h.ManagesClaim(&claims[0]) || n.Labels[karpv1.NodeRegisteredLabelKey] != "true" {
		return ctrl.Result{}, err
	}
	ref := claims[0].Spec.NodeClassRef
	if n.Labels[ref.LabelKey()] == ref.Name {
		return ctrl.Result{}, nil
	}
	before := n.DeepCopy()
	n.Labels[ref.LabelKey()] = ref.Name
	return fleet.Retry(ctrl.Result{}, h.WriteNode(ctx, before, &n))
}

// owned reports whether a NodeClaim owns a Node.
func owned(o client.Object) bool {
	n, ok := o.(*corev1.Node)
	return ok && fleet.OwnerClaim(n) != ""
}
