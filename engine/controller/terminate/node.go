package terminate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// poll is the time between two looks at pods and volumes that a Node waits for.
const poll = time.Second

// nodes finalizes Nodes.
type nodes struct {
	*fleet.Kit
	queue *queue
	going *going
}

// exit is one pass over a Node that goes.
type exit struct {
	node *corev1.Node
	// claim is nil for a Node without.
	claim *karpv1.NodeClaim
	pods  []*corev1.Pod
	now   time.Time
	// end is when the drain ends by force; zero is never.
	end time.Time
	// stored are things to do once the claim is written.
	stored []func()
}

// change changes the claim's conditions, if there is a claim.
func (x *exit) change(f func(w karpv1.ConditionWriter)) {
	if x.claim != nil {
		f(x.claim.Conditions().At(x.now))
	}
}

// Reconcile takes a deleted Node as far as it can go now.
func (k *nodes) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	n := &corev1.Node{}
	if err := k.Client.Get(ctx, req.NamespacedName, n); err != nil {
		if client.IgnoreNotFound(err) == nil {
			n.Name = req.Name
			k.left(n)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if n.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(n, karpv1.TerminationFinalizer) {
		k.left(n)
		return ctrl.Result{}, nil
	}
	claims, err := k.claimsOf(ctx, n)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(claims) == 0 && !k.ManagesNode(n) {
		return ctrl.Result{}, nil
	}
	if k.Behind(n) || len(claims) > 0 && k.Behind(&claims[0]) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	k.going.add(n.Name)
	for i := range claims {
		c := &claims[i]
		if !c.DeletionTimestamp.IsZero() {
			continue
		}
		if err := k.Client.Delete(ctx, c, client.Preconditions{UID: &c.UID}); err != nil && !fleet.Lost(err) {
			return ctrl.Result{}, fmt.Errorf("delete nodeclaim %q: %w", c.Name, err)
		}
	}
	x := &exit{node: n, now: k.Now()}
	if len(claims) > 0 {
		x.claim, x.end = &claims[0], deadline(&claims[0])
	}
	if x.pods, err = fleet.Pods(ctx, k.Client, n.Name); err != nil {
		return ctrl.Result{}, err
	}
	if dead, err := k.dead(ctx, x); dead || err != nil {
		if err != nil {
			return fleet.Retry(ctrl.Result{}, err)
		}
		return k.release(ctx, x)
	}
	if err := k.close(ctx, x); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	var before *karpv1.NodeClaim
	if x.claim != nil {
		before = x.claim.DeepCopy()
	}
	again, err := k.empty(ctx, x)
	if x.claim != nil {
		// What came to be is written even if the next step failed.
		if e := k.WriteClaim(ctx, before, x.claim); e != nil {
			return fleet.Retry(ctrl.Result{}, err, e)
		}
	}
	for _, do := range x.stored {
		do()
	}
	if err != nil || again > 0 {
		return fleet.Retry(ctrl.Result{RequeueAfter: again}, err)
	}
	return k.release(ctx, x)
}

// empty drains the Node, waits for its volumes and ends the machine. It returns when to go
// on; zero is when there is nothing left to do.
func (k *nodes) empty(ctx context.Context, x *exit) (again time.Duration, err error) {
	for _, step := range []func(context.Context, *exit) (time.Duration, error){k.drain, k.detach, k.terminate} {
		if again, err := step(ctx, x); again > 0 || err != nil {
			return again, err
		}
	}
	return 0, nil
}

// claimsOf are the claims of a Node that are the provider's. The owner counts even if
// their provider IDs differ.
func (k *nodes) claimsOf(ctx context.Context, n *corev1.Node) ([]karpv1.NodeClaim, error) {
	claims, err := fleet.ClaimsOf(ctx, k.Client, n)
	if err != nil {
		return nil, err
	}
	if owner := fleet.OwnerClaim(n); len(claims) == 0 && owner != "" {
		var c karpv1.NodeClaim
		switch err := k.Client.Get(ctx, client.ObjectKey{Name: owner}, &c); {
		case client.IgnoreNotFound(err) != nil:
			return nil, err
		case err == nil && fleet.Owns(&c, n):
			claims = append(claims, c)
		}
	}
	return slices.DeleteFunc(claims, func(c karpv1.NodeClaim) bool { return !k.ManagesClaim(&c) }), nil
}

// dead reports whether the machine is gone already. Its pods are gone with it: they are
// deleted here, since whoever waits for them would wait for pod garbage collection.
func (k *nodes) dead(ctx context.Context, x *exit) (bool, error) {
	if fleet.Ready(x.node) || x.node.Spec.ProviderID == "" || !k.going.ask(x.node.Name, x.now) {
		return false, nil
	}
	if _, err := k.Provider.Get(ctx, x.node.Spec.ProviderID); !cloud.IsNotFound(err) {
		if err != nil {
			ctrl.LoggerFrom(ctx).Info("draining a node without knowing whether its machine exists", "node", x.node.Name, "error", err.Error())
		}
		return false, nil
	}
	for _, p := range x.pods {
		if fleet.IsMirror(p) {
			continue
		}
		if err := k.Client.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID}); err != nil && !fleet.Lost(err) {
			// The next look must ask the cloud again to come here.
			k.going.forgetAsked(x.node.Name)
			return false, fmt.Errorf("delete pod %s/%s, whose machine is gone: %w", p.Namespace, p.Name, err)
		}
	}
	return true, nil
}

// close keeps new pods and the traffic of load balancers off the Node.
func (k *nodes) close(ctx context.Context, x *exit) error {
	n := x.node
	before := n.DeepCopy()
	taint := karpv1.DisruptedTaint()
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelNodeExcludeBalancers] = karpv1.ExcludeBalancersLabelValue
	return k.WriteNode(ctx, before, n)
}

// terminate ends the machine of a Node that has a claim.
func (k *nodes) terminate(ctx context.Context, x *exit) (time.Duration, error) {
	if x.claim == nil {
		return 0, nil // nothing tells which machine is ours; garbage collection ends it
	}
	of := x.claim.DeepCopy()
	if of.Status.ProviderID == "" {
		of.Status.ProviderID = x.node.Spec.ProviderID
	}
	err := k.Provider.Terminate(ctx, of)
	if err != nil && !cloud.IsNotFound(err) {
		return 0, fmt.Errorf("terminate machine of node %q: %w", x.node.Name, err)
	}
	x.change(func(w karpv1.ConditionWriter) { w.SetTrue(karpv1.ConditionInstanceTerminating) })
	if err == nil {
		return pollMachine, nil
	}
	return 0, nil
}

// release lets a Node go.
func (k *nodes) release(ctx context.Context, x *exit) (ctrl.Result, error) {
	n := x.node
	before := n.DeepCopy()
	controllerutil.RemoveFinalizer(n, karpv1.TerminationFinalizer)
	if err := k.WriteNode(ctx, before, n); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	k.Released(n)
	k.left(n)
	pool, took := n.Labels[karpv1.NodePoolLabelKey], x.now.Sub(n.DeletionTimestamp.Time)
	k.Count(func(m *observe.Metrics) {
		m.NodesTerminated.WithLabelValues(pool, n.Labels[corev1.LabelTopologyZone]).Inc()
		m.NodeTermination.WithLabelValues(pool).Observe(took.Seconds())
		m.NodeLifetime.WithLabelValues(pool).Observe(x.now.Sub(n.CreationTimestamp.Time).Seconds())
	})
	ctrl.LoggerFrom(ctx).Info("Node is gone", "node", n.Name, "providerID", n.Spec.ProviderID, "took", took.String())
	return ctrl.Result{}, nil
}

// left drops what is remembered of a Node that is not being finalized.
func (k *nodes) left(n *corev1.Node) {
	if k.going.remove(n.Name) {
		k.queue.drop(n.Name)
		k.Forget(n)
	}
}

// going are the Nodes that are being finalized, with when the cloud was last asked for
// their machine.
type going struct {
	mu    sync.Mutex
	asked map[string]time.Time
}

func newGoing() *going { return &going{asked: map[string]time.Time{}} }

func (g *going) add(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.asked[name]; !ok {
		g.asked[name] = time.Time{}
	}
}

func (g *going) has(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.asked[name]
	return ok
}

func (g *going) remove(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.asked[name]
	delete(g.asked, name)
	return ok
}

// ask reports whether the cloud may be asked again, and takes it that it is.
func (g *going) ask(name string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if since := now.Sub(g.asked[name]); since >= 0 && since < pollMachine {
		return false
	}
	g.asked[name] = now
	return true
}

func (g *going) forgetAsked(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked[name] = time.Time{}
}
