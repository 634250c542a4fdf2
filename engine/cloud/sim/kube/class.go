package kube

import (
	"context"
	"errors"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

// maxMessage bounds the message of a condition.
const maxMessage = 2048

// classes says in the status of SimNodeClasses whether they can be used.
type classes struct {
	client   client.Client
	provider *sim.Provider
	now      func() time.Time
}

func (r *classes) register(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).Named("sim.nodeclass").For(&v1alpha1.SimNodeClass{}).Complete(r)
}

// Reconcile judges one class. One with a catalogue file is judged again now and then.
func (r *classes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	class := &v1alpha1.SimNodeClass{}
	if err := r.client.Get(ctx, req.NamespacedName, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := class.Status.DeepCopy()
	ready := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded,
		ObservedGeneration: class.Generation, LastTransitionTime: metav1.NewTime(r.now()),
	}
	because := func(reason, message string) {
		if len(message) > maxMessage {
			message = message[:maxMessage] + "…"
		}
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	}
	class.Status.InstanceTypes, class.Status.Offerings = 0, 0
	invalid := class.RuntimeValidate()
	sold, err := r.provider.Sold(ctx, class.Name)
	var notReady *cloud.NodeClassNotReadyError
	switch {
	case class.DeletionTimestamp != nil:
		because(v1alpha1.ReasonDeleting, "the class is being deleted")
	case invalid != nil:
		because(v1alpha1.ReasonInvalid, invalid.Error())
	case errors.As(err, &notReady):
		because(v1alpha1.ReasonCatalogFailed, notReady.Err.Error())
	case err != nil:
		return reconcile.Result{}, err
	default:
		types := sold.Types()
		for i := range types {
			class.Status.Offerings += int32(len(types[i].Offerings)) //nolint:gosec // a catalogue has thousands of them
		}
		class.Status.InstanceTypes = int32(len(types)) //nolint:gosec // likewise
	}
	meta.SetStatusCondition(&class.Status.Conditions, ready)
	var result reconcile.Result
	if class.Spec.Catalog.ConfigMapRef != nil && class.DeletionTimestamp == nil {
		result.RequeueAfter = fileAge
	}
	if reflect.DeepEqual(before, &class.Status) {
		return result, nil
	}
	switch err := r.client.Status().Update(ctx, class); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil
	case err != nil:
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return result, nil
}
