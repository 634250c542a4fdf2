package nodeclaim

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
)

// quiet is the time between two notes in one claim.
const quiet = 10 * time.Second

// podEvents notes in claims when a pod last came to their node or left it. Events only
// leave the time of the newest with the node's name; that is worked off at leisure, so any
// number of pods costs a claim one write in a while.
type podEvents struct {
	*fleet.Kit

	mu sync.Mutex
	// newest is the time of the last event that is not in a claim yet, by node.
	newest map[string]time.Time
}

func newPodEvents(kit *fleet.Kit) *podEvents {
	return &podEvents{Kit: kit, newest: map[string]time.Time{}}
}

func (e *podEvents) register(mgr manager.Manager, opts controller.Options) error {
	c, err := ctrl.NewControllerManagedBy(mgr).Named("nodeclaim.podevents").WithOptions(opts).
		Watches(&corev1.Pod{}, handler.Funcs{
			CreateFunc: func(_ context.Context, ev event.CreateEvent, q queue) { e.see(q, nil, ev.Object.(*corev1.Pod)) },
			UpdateFunc: func(_ context.Context, ev event.UpdateEvent, q queue) {
				e.see(q, ev.ObjectOld.(*corev1.Pod), ev.ObjectNew.(*corev1.Pod))
			},
			DeleteFunc: func(_ context.Context, ev event.DeleteEvent, q queue) { e.see(q, ev.Object.(*corev1.Pod), nil) },
		}).Build(e)
	if err != nil || c == nil {
		return fmt.Errorf("nodeclaim.podevents: %w", err)
	}
	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// see takes in a change of a pod from before to after; nil is a pod that was not or is no
// longer there.
func (e *podEvents) see(q queue, before, after *corev1.Pod) {
	node, at := happened(before, after, e.Now())
	if at.IsZero() {
		return
	}
	e.mu.Lock()
	if at.After(e.newest[node]) {
		e.newest[node] = at
	}
	e.mu.Unlock()
	q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
}

// happened is when a pod came to a node or left it; the zero time if neither. A pod that
// is seen for the first time tells itself, so a restart makes no news of old pods.
func happened(before, after *corev1.Pod, now time.Time) (node string, at time.Time) {
	p := after
	if p == nil {
		p = before
	}
	if p.Spec.NodeName == "" || fleet.Daemon(p) || fleet.IsMirror(p) {
		return "", time.Time{}
	}
	switch {
	case after == nil:
		if fleet.Active(before) { // else it left before
			return p.Spec.NodeName, now
		}
	case before == nil:
		return p.Spec.NodeName, boundAt(p)
	case before.Spec.NodeName == "",
		fleet.Terminal(after) && !fleet.Terminal(before),
		fleet.Terminating(after) && !fleet.Terminating(before):
		return p.Spec.NodeName, now
	}
	return "", time.Time{}
}

// boundAt is when a pod came to its node, or left it if it has.
func boundAt(p *corev1.Pod) time.Time {
	at := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	if !fleet.Terminal(p) {
		return at
	}
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	return at
}

// Reconcile notes the last event of a node in its claim.
func (e *podEvents) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	e.mu.Lock()
	at, ok := e.newest[req.Name]
	e.mu.Unlock()
	if !ok {
		return ctrl.Result{}, nil
	}
	done := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.newest[req.Name].Equal(at) {
			delete(e.newest, req.Name)
		}
	}
	var n corev1.Node
	if err := e.Client.Get(ctx, req.NamespacedName, &n); err != nil {
		if apierrors.IsNotFound(err) {
			done()
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	claims, err := fleet.ClaimsOf(ctx, e.Client, &n)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(claims) != 1 || !e.ManagesClaim(&claims[0]) {
		done()
		return ctrl.Result{}, nil
	}
	c := &claims[0]
	// Stored times are whole seconds.
	if at = at.Truncate(time.Second); !at.After(c.Status.LastPodEventTime.Time) {
		e.settled(req.Name, c.Status.LastPodEventTime.Time)
		return ctrl.Result{}, nil
	}
	if left := quiet - e.Now().Sub(c.Status.LastPodEventTime.Time); left > 0 && left <= quiet {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	// One field of its own: what others write meanwhile is no conflict, but another claim
	// of the name is.
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"lastPodEventTime":%q}}`, c.UID, metav1.NewTime(at).UTC().Format(time.RFC3339))
	if err := e.Client.Status().Patch(ctx, c, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	if e.Mirror != nil {
		e.Mirror.Update(c)
	}
	e.settled(req.Name, at)
	return ctrl.Result{}, nil
}

// settled drops what a claim knows: events up to the second at.
func (e *podEvents) settled(node string, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.newest[node].Truncate(time.Second).After(at) {
		delete(e.newest, node)
	}
}
