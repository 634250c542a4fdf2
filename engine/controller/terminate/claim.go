package terminate

import (
	"context"
	"fmt"
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

// pollMachine is the time between two questions whether a machine is gone.
const pollMachine = 5 * time.Second

// claims finalizes NodeClaims.
type claims struct {
	*fleet.Kit
	census *census
}

// Reconcile takes a deleted claim as far as it can go now.
func (k *claims) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var c karpv1.NodeClaim
	if err := k.Client.Get(ctx, req.NamespacedName, &c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(&c, karpv1.TerminationFinalizer) || !k.ManagesClaim(&c) {
		return ctrl.Result{}, nil
	}
	if k.Behind(&c) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	if err := k.limit(ctx, &c); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	if waits, err := k.awaitNodes(ctx, &c); waits || err != nil {
		return fleet.Retry(ctrl.Result{RequeueAfter: pollMachine}, err)
	}
	gone, err := k.terminate(ctx, &c)
	if err != nil {
		return ctrl.Result{}, err
	}
	before := c.DeepCopy()
	c.Conditions().At(k.Now()).SetTrue(karpv1.ConditionInstanceTerminating)
	if !gone {
		return fleet.Retry(ctrl.Result{RequeueAfter: pollMachine}, k.WriteClaim(ctx, before, &c))
	}
	return k.release(ctx, before)
}

// limit stamps the end of the drain on a claim that bounds it.
func (k *claims) limit(ctx context.Context, c *karpv1.NodeClaim) error {
	if _, ok := c.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]; ok || c.Spec.TerminationGracePeriod == nil {
		return nil
	}
	before := c.DeepCopy()
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	end := c.DeletionTimestamp.Add(c.Spec.TerminationGracePeriod.Duration).UTC().Format(time.RFC3339)
	c.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = end
	if err := k.WriteClaim(ctx, before, c); err != nil {
		return err
	}
	k.Events.Publish(observe.Event{About: c, Warning: true, Reason: observe.GracePeriodExpiring, Message: "All pods will be deleted by " + end})
	return nil
}

// awaitNodes deletes the claim's Nodes, and reports whether there are any left. The Node
// of a claim that never registered belongs to the cloud controller manager.
func (k *claims) awaitNodes(ctx context.Context, c *karpv1.NodeClaim) (bool, error) {
	nodes, err := fleet.Nodes(ctx, k.Client, c.Status.ProviderID)
	if err != nil {
		return false, err
	}
	registered, waits := c.Conditions().IsTrue(karpv1.ConditionRegistered), false
	for i := range nodes {
		n := &nodes[i]
		if !registered && !controllerutil.ContainsFinalizer(n, karpv1.TerminationFinalizer) {
			continue
		}
		waits = true
		if !n.DeletionTimestamp.IsZero() {
			continue
		}
		if err := k.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); err != nil && !fleet.Lost(err) {
			return true, fmt.Errorf("delete node %q: %w", n.Name, err)
		}
	}
	return waits, nil
}

// terminate asks for the end of the claim's machine, and reports whether it is gone. A
// claim without provider ID may have a machine all the same: of a launch whose result was
// never written.
func (k *claims) terminate(ctx context.Context, c *karpv1.NodeClaim) (gone bool, err error) {
	of := c
	if c.Status.ProviderID == "" {
		m, err := k.census.find(ctx, c)
		if err != nil {
			return false, fmt.Errorf("look for the machine of nodeclaim %q: %w", c.Name, err)
		}
		if m == nil {
			return true, nil
		}
		of = c.DeepCopy()
		of.Status.ProviderID = m.ProviderID
	}
	err = k.Provider.Terminate(ctx, of)
	switch {
	case cloud.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("terminate machine of nodeclaim %q: %w", c.Name, err)
	}
	return false, nil
}

// release lets a claim go whose machine is gone.
func (k *claims) release(ctx context.Context, c *karpv1.NodeClaim) (ctrl.Result, error) {
	before := c.DeepCopy()
	controllerutil.RemoveFinalizer(c, karpv1.TerminationFinalizer)
	if err := k.WriteClaim(ctx, before, c); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	k.Released(c)
	now, pool := k.Now(), c.Labels[karpv1.NodePoolLabelKey]
	k.Count(func(m *observe.Metrics) {
		m.NodeClaimsTerminated.WithLabelValues(pool, c.Labels[karpv1.CapacityTypeLabelKey], c.Labels[corev1.LabelTopologyZone]).Inc()
		m.NodeClaimTermination.WithLabelValues(pool).Observe(now.Sub(c.DeletionTimestamp.Time).Seconds())
		if since := c.Conditions().Since(karpv1.ConditionInstanceTerminating); !since.IsZero() {
			m.InstanceTermination.WithLabelValues(pool).Observe(now.Sub(since).Seconds())
		}
	})
	ctrl.LoggerFrom(ctx).Info("NodeClaim is gone", "nodeclaim", c.Name, "providerID", c.Status.ProviderID, "took", now.Sub(c.DeletionTimestamp.Time).String())
	return ctrl.Result{}, nil
}

// census answers many questions for machines by few lists: everybody who asks while a list
// is being made is answered by the next one, so that no answer is older than its question.
type census struct {
	list func(ctx context.Context) ([]*cloud.Machine, error)

	turn sync.Mutex // held while a list is made
	mu   sync.Mutex
	next *answer // the list that has not begun
}

type answer struct {
	done     chan struct{}
	machines []*cloud.Machine
	err      error
}

// listTimeout bounds one list.
const listTimeout = time.Minute

// find is the machine that was launched for a claim, or nil.
func (k *census) find(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
	k.mu.Lock()
	a := k.next
	if a == nil {
		a = &answer{done: make(chan struct{})}
		k.next = a
		go k.make(context.WithoutCancel(ctx), a)
	}
	k.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	for _, m := range a.machines {
		if m.ClaimUID == string(c.UID) || m.ClaimUID == "" && m.ClaimName == c.Name {
			return m, nil
		}
	}
	return nil, nil
}

func (k *census) make(ctx context.Context, a *answer) {
	k.turn.Lock()
	defer k.turn.Unlock()
	k.mu.Lock()
	k.next = nil
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	a.machines, a.err = k.list(ctx)
	close(a.done)
}
