package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// kube-scheduler tries the node first that a pod's status.nominatedNodeName names, keeps
// room for the pod there, and forgets the name at the first attempt that fails. So names
// are written when a node is about to take pods and not before, and again where an attempt
// that began earlier has dropped one.
const (
	// patience is how long a new node is kept from taking pods until it is ready, so that
	// names can be written before.
	patience = 20 * time.Second
	// confirmation is how long names may take to be seen by a watch before a node is let go.
	confirmation = 500 * time.Millisecond
	// following is how long the pods of a claim are led to its node.
	following = time.Minute
	// step is the time between two looks.
	step = 50 * time.Millisecond
)

// Nominate tells kube-scheduler which pods a claim's node was bought for. It is called when
// the node has everything but may not take pods yet. If that is too early, it returns when
// to call it again.
func (c *Controller) Nominate(ctx context.Context, claim *karpv1.NodeClaim, node *corev1.Node) (after time.Duration, err error) {
	if len(c.waiting(claim.Name)) == 0 {
		return 0, nil
	}
	if !ready(node) && c.opts.Now().Sub(node.CreationTimestamp.Time) < patience && c.daemonsTolerate() {
		return step, nil
	}
	if takesPods(node, claim.Spec.Taints) {
		if err := c.confirm(ctx, claim.Name, node.Name); err != nil {
			return 0, err
		}
	}
	if _, running := c.following.LoadOrStore(claim.UID, true); !running {
		go c.follow(context.WithoutCancel(ctx), claim.DeepCopy(), node.Name)
	}
	return 0, nil
}

// ready reports whether a node is ready, and the taints of one that is not are gone.
func ready(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key != karpv1.UnregisteredTaintKey && karpv1.IsKnownEphemeralTaint(t) {
			return false
		}
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// takesPods reports whether nothing but its registration keeps the pods off a node that it
// was bought for; taints are those that it is to keep.
func takesPods(n *corev1.Node, taints []corev1.Taint) bool {
	return ready(n) && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key != karpv1.UnregisteredTaintKey && t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(taints, func(kept corev1.Taint) bool { return kept.MatchTaint(&t) })
	})
}

// daemonsTolerate reports whether all DaemonSets run on nodes that have not registered. A
// node may need one of them to become ready.
func (c *Controller) daemonsTolerate() bool {
	list := c.daemons.Load()
	if list == nil {
		return true
	}
	taints := []corev1.Taint{karpv1.UnregisteredTaint()}
	for _, d := range *list {
		if snapshot.Untolerated(d.Spec.Template.Spec.Tolerations, taints) != nil {
			return false
		}
	}
	return true
}

// waiting are the pods that a claim was bought for and that are not bound.
func (c *Controller) waiting(claim string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, key := range c.opts.State.Expected(claim) {
		if p := c.opts.State.Pod(key); p != nil && p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// confirm writes the node's name to the pods until all have it, or some time has passed.
func (c *Controller) confirm(ctx context.Context, claim, node string) error {
	for end := time.Now().Add(confirmation); time.Now().Before(end); {
		unnamed, err := c.name(ctx, c.waiting(claim), node)
		if err != nil || unnamed == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step / 5):
		}
	}
	return nil
}

// follow writes the node's name again to pods that lost it, until all are bound.
func (c *Controller) follow(ctx context.Context, claim *karpv1.NodeClaim, node string) {
	defer c.following.Delete(claim.UID)
	log := ctrl.LoggerFrom(ctx)
	for end := time.Now().Add(following); time.Now().Before(end); time.Sleep(step) {
		pods := c.waiting(claim.Name)
		if len(pods) == 0 {
			return
		}
		n := c.opts.State.Node(node)
		if n == nil || n.DeletionTimestamp != nil {
			return
		}
		if !takesPods(n, claim.Spec.Taints) {
			continue
		}
		if _, err := c.name(ctx, pods, node); err != nil {
			log.V(1).Info("naming the node of pods failed", "node", node, "cause", err.Error())
		}
	}
}

// name writes the node's name to pods that name none, and returns how many there were. Pods
// that are bound or gone by now are passed over, and so are those that wait for a
// preemption on another node.
func (c *Controller) name(ctx context.Context, pods []*corev1.Pod, node string) (unnamed int, err error) {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, p := range pods {
		if p.Status.NominatedNodeName != "" {
			continue
		}
		unnamed++
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"nominatedNodeName":%q}}`, p.UID, node))
			target := &corev1.Pod{}
			target.Namespace, target.Name = p.Namespace, p.Name
			err := c.opts.Pods.Status().Patch(ctx, target, patch)
			switch {
			case err == nil:
				c.opts.State.Update(target)
			// Invalid: it has been bound meanwhile. Conflict: it is another pod of the name.
			case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsConflict(err):
			default:
				mu.Lock()
				errs = append(errs, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return unnamed, errors.Join(errs...)
}
