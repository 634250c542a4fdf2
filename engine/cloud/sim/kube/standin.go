package kube

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

// standIns makes the NodeClasses of another cloud ready, as that cloud would.
type standIns struct {
	client client.Client
	kind   schema.GroupVersionKind
	now    func() time.Time
}

// register does nothing if the API server does not know the kind.
func (r *standIns) register(mgr manager.Manager) error {
	if _, err := mgr.GetRESTMapper().RESTMapping(r.kind.GroupKind(), r.kind.Version); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return err
	}
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(r.kind)
	return builder.ControllerManagedBy(mgr).Named("sim.standin."+r.kind.GroupKind().String()).For(o, builder.OnlyMetadata).Complete(r)
}

func (r *standIns) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(r.kind)
	if err := r.client.Get(ctx, req.NamespacedName, o); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if o.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil
	}
	list, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["type"] == v1alpha1.ConditionReady && c["status"] == string(metav1.ConditionTrue) {
			return reconcile.Result{}, nil
		}
	}
	before := o.DeepCopy()
	ready := map[string]any{
		"type": v1alpha1.ConditionReady, "status": string(metav1.ConditionTrue), "reason": "StandIn",
		"message":            "the simulated cloud stands in for this one",
		"lastTransitionTime": r.now().UTC().Format(time.RFC3339), "observedGeneration": o.GetGeneration(),
	}
	if err := unstructured.SetNestedSlice(o.Object, []any{ready}, "status", "conditions"); err != nil {
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.client.Status().Patch(ctx, o, client.MergeFrom(before)))
}
