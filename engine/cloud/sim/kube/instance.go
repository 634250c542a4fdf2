package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

// instances moves machines through their lives: a Node appears, interruptions are
// announced, and the Node goes with its machine. All it needs to know is in the
// SimInstance, so it goes on where it, or another, stopped.
type instances struct {
	client   client.Client
	objects  *objects
	provider *sim.Provider
	now      func() time.Time
}

func (r *instances) register(mgr manager.Manager, workers int) error {
	return builder.ControllerManagedBy(mgr).
		Named("sim.instance").
		For(&v1alpha1.SimInstance{}).
		Watches(&v1alpha1.SimNodeClass{}, handler.EnqueueRequestsFromMapFunc(r.ofClass), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// Nodes without machine are looked for when they appear, which is also at the
		// start. Their later changes do not matter.
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(ofNode), builder.WithPredicates(predicate.Funcs{
			UpdateFunc:  func(event.UpdateEvent) bool { return false },
			DeleteFunc:  func(event.DeleteEvent) bool { return false },
			GenericFunc: func(event.GenericEvent) bool { return false },
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// ofClass are the machines of a SimNodeClass.
func (r *instances) ofClass(ctx context.Context, class client.Object) []reconcile.Request {
	all, err := r.objects.List(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "list machines of a changed class", "class", class.GetName())
		return nil
	}
	var out []reconcile.Request
	for _, in := range all {
		if in.Spec.NodeClass == class.GetName() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: in.Name}})
		}
	}
	return out
}

// ofNode is the machine of a Node.
func ofNode(_ context.Context, node client.Object) []reconcile.Request {
	n, ok := node.(*corev1.Node)
	if !ok {
		return nil
	}
	name, ok := sim.InstanceName(n.Spec.ProviderID)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
}

// Reconcile brings one machine to what it is now.
func (r *instances) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	in := &v1alpha1.SimInstance{}
	err := r.client.Get(ctx, req.NamespacedName, in)
	if apierrors.IsNotFound(err) || err == nil && in.DeletionTimestamp != nil {
		return reconcile.Result{}, r.vanished(ctx, req.Name)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	class, err := r.objects.NodeClass(ctx, in.Spec.NodeClass)
	if err != nil && !errors.Is(err, sim.ErrNotFound) {
		return reconcile.Result{}, fmt.Errorf("%s %q: %w", sim.Kind, in.Spec.NodeClass, err)
	}
	now := r.now()
	p := sim.Advance(in, class, now)
	if p.Boot {
		if err := r.boot(ctx, in); err != nil {
			return reconcile.Result{}, err
		}
		sim.Booted(in, now)
	}
	if p.Ended {
		if err := r.deleteNode(ctx, in); err != nil {
			return reconcile.Result{}, err
		}
	}
	if p.Forget {
		r.provider.Announce(in)
		r.provider.Forget(in)
		return reconcile.Result{}, r.objects.Delete(ctx, in.Name)
	}
	if p.Changed || p.Boot {
		// A conflict means that the cache is behind: the newer version comes by itself, and
		// what was done is not done twice.
		switch err := r.client.Status().Update(ctx, in); {
		case apierrors.IsConflict(err):
			return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil
		case err != nil:
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	r.provider.Announce(in)
	if p.Next.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(p.Next.Sub(r.now()), time.Millisecond)}, nil
}

// boot makes the machine's Node.
func (r *instances) boot(ctx context.Context, in *v1alpha1.SimInstance) error {
	node := sim.Node(in)
	err := r.client.Create(ctx, node)
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			return fmt.Errorf("create node of machine %s: %w", in.Name, err)
		}
		return nil
	}
	have := &corev1.Node{}
	if err := r.objects.live.Get(ctx, client.ObjectKey{Name: node.Name}, have); err != nil {
		return fmt.Errorf("node of machine %s: %w", in.Name, err)
	}
	if have.Spec.ProviderID != node.Spec.ProviderID {
		return fmt.Errorf("node %s of machine %s: there is another one of that name, with provider ID %q", node.Name, in.Name, have.Spec.ProviderID)
	}
	return nil // made before a stop
}

// deleteNode deletes the machine's Node as a cloud's controller does: whoever holds it by
// a finalizer learns that way that the machine is gone.
func (r *instances) deleteNode(ctx context.Context, in *v1alpha1.SimInstance) error {
	node := &corev1.Node{}
	// The name is known although the status may not say that the Node was made.
	err := r.client.Get(ctx, client.ObjectKey{Name: in.Spec.Claim.Name}, node)
	if apierrors.IsNotFound(err) && in.Status.NodeTime == nil {
		err = r.objects.live.Get(ctx, client.ObjectKey{Name: in.Spec.Claim.Name}, node)
	}
	switch {
	case err != nil:
		return client.IgnoreNotFound(err)
	case node.Spec.ProviderID != sim.NodeProviderID(in):
		return nil
	}
	return r.delete(ctx, node)
}

func (r *instances) delete(ctx context.Context, node *corev1.Node) error {
	if node.DeletionTimestamp != nil {
		return nil
	}
	err := r.client.Delete(ctx, node, client.Preconditions{UID: &node.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete node %s: %w", node.Name, err)
	}
	return nil
}

// vanished deletes the Node of a machine whose record was deleted.
func (r *instances) vanished(ctx context.Context, name string) error {
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if of, ok := sim.InstanceName(node.Spec.ProviderID); !ok || of != name || node.DeletionTimestamp != nil {
			continue
		}
		// The cache of machines may be behind that of Nodes.
		switch in, err := r.objects.getLive(ctx, name); {
		case err == nil && in.DeletionTimestamp == nil:
			return nil
		case err != nil && !errors.Is(err, sim.ErrNotFound):
			return err
		}
		if err := r.delete(ctx, node.DeepCopy()); err != nil {
			return err
		}
	}
	return nil
}
