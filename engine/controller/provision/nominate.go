package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
// are written when nodes are about to take pods and not before, and again where an attempt
// that began earlier has dropped one. Nodes that become ready together are let go together:
// a node that opens makes kube-scheduler try all pods, also those whose node is still shut.
const (
	// patience is how long a new node is kept from taking pods until it is ready, so that
	// names can be written before.
	patience = 20 * time.Second
	// batchIdle and batchMost are how long ready nodes wait for others: until none has come
	// for batchIdle, or the first has waited for batchMost.
	batchIdle = time.Second
	batchMost = 8 * time.Second
	// confirmation is how long names may take to be seen by a watch before nodes are let go.
	confirmation = time.Second
	// following is how long the pods of a claim are led to its node once it takes pods and
	// no led pod has been bound. What is not bound then is planned anew.
	following = 12 * time.Second
	// giveUp is how long pods are led at most.
	giveUp = 10 * time.Minute
	// poll is the time between two looks while nodes open, step the one at other times.
	poll = 10 * time.Millisecond
	step = 50 * time.Millisecond
	// opening is how long it takes until most pods are bound.
	opening = 3 * time.Second
)

// Settle is how long after a node is initialized pods may still be expected on it, in the
// state of the cluster: the provisioner ends expectations itself.
const Settle = giveUp

// release lets nodes go in batches.
type release struct {
	mu      sync.Mutex
	waiting map[types.UID]nodeOf // by claim
	// done is when the pods of claims were named.
	done map[types.UID]time.Time
	// bound is when a pod was last seen to have been bound.
	bound       time.Time
	first, last time.Time
	running     bool
}

type nodeOf struct {
	claim *karpv1.NodeClaim
	node  string
}

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
		if !c.released(ctx, claim, node) {
			return step, nil
		}
		// An attempt that began before may have dropped a name meanwhile.
		if err := c.name(ctx, namings(c.waiting(claim.Name), node.Name)); err != nil {
			return 0, err
		}
	}
	c.startFollowing(context.WithoutCancel(ctx), claim, node.Name)
	return 0, nil
}

func (c *Controller) startFollowing(ctx context.Context, claim *karpv1.NodeClaim, node string) {
	if _, running := c.following.LoadOrStore(claim.UID, true); !running {
		go c.follow(ctx, claim, node)
	}
}

// released reports whether the pods of a claim have been named, and sees to it that they
// are.
func (c *Controller) released(ctx context.Context, claim *karpv1.NodeClaim, node *corev1.Node) bool {
	r := &c.release
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, done := r.done[claim.UID]; done {
		return true
	}
	if _, known := r.waiting[claim.UID]; known {
		return false
	}
	if r.waiting == nil {
		r.waiting, r.done = map[types.UID]nodeOf{}, map[types.UID]time.Time{}
	}
	now := time.Now()
	if len(r.waiting) == 0 {
		r.first = now
	}
	r.last = now
	r.waiting[claim.UID] = nodeOf{claim.DeepCopy(), node.Name}
	if !r.running {
		r.running = true
		go c.letGo(context.WithoutCancel(ctx))
	}
	return false
}

// letGo closes batches and names their pods, until no node waits.
func (c *Controller) letGo(ctx context.Context) {
	r := &c.release
	for {
		time.Sleep(poll)
		r.mu.Lock()
		if len(r.waiting) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		if time.Since(r.last) < batchIdle && time.Since(r.first) < batchMost {
			r.mu.Unlock()
			continue
		}
		batch := r.waiting
		r.waiting = map[types.UID]nodeOf{}
		r.mu.Unlock()

		c.confirm(ctx, batch)
		for _, b := range batch {
			c.startFollowing(ctx, b.claim, b.node)
		}

		r.mu.Lock()
		now := time.Now()
		maps.DeleteFunc(r.done, func(_ types.UID, at time.Time) bool { return now.Sub(at) > giveUp })
		for uid := range batch {
			r.done[uid] = now
		}
		r.mu.Unlock()
	}
}

// confirm writes the names of nodes to the pods of a batch until all are seen to have one,
// or some time has passed.
func (c *Controller) confirm(ctx context.Context, batch map[types.UID]nodeOf) {
	for begin := time.Now(); ; time.Sleep(poll) {
		var list []naming
		for _, b := range batch {
			list = append(list, namings(c.waiting(b.claim.Name), b.node)...)
		}
		if len(list) == 0 {
			return
		}
		if err := c.name(ctx, list); err != nil {
			ctrl.LoggerFrom(ctx).V(1).Info("naming the nodes of pods failed", "cause", err.Error())
		}
		if time.Since(begin) > confirmation {
			return
		}
	}
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

// follow writes the node's name again to pods that lost it, until all are bound. From those
// that are not bound after some time it takes the name, so that they are planned anew.
func (c *Controller) follow(ctx context.Context, claim *karpv1.NodeClaim, node string) {
	defer c.following.Delete(claim.UID)
	log := ctrl.LoggerFrom(ctx)
	var open time.Time
	last := -1
	pause := poll
	for begin := time.Now(); time.Since(begin) < giveUp; time.Sleep(pause) {
		if time.Since(begin) > opening {
			pause = step
		}
		pods := c.waiting(claim.Name)
		n := c.opts.State.Node(node)
		if len(pods) == 0 || n == nil || n.DeletionTimestamp != nil {
			return
		}
		if !takesPods(n, claim.Spec.Taints) || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.UnregisteredTaintKey }) {
			continue
		}
		if open.IsZero() {
			open = time.Now()
		}
		quiet := c.release.quiet(len(pods) < last)
		last = len(pods)
		if min(quiet, time.Since(open)) > following {
			break
		}
		if err := c.name(ctx, namings(pods, node)); err != nil {
			log.V(1).Info("naming the node of pods failed", "node", node, "cause", err.Error())
		}
	}
	pods := slices.DeleteFunc(c.waiting(claim.Name), func(p *corev1.Pod) bool {
		return p.Status.NominatedNodeName != "" && p.Status.NominatedNodeName != node
	})
	log.Info("pods found no room on the node that was bought for them, and are planned anew", "node", node, "pods", len(pods))
	if err := c.name(ctx, namings(pods, "")); err != nil {
		log.Error(err, "taking the node's name from pods failed", "node", node)
	}
	keys := make([]snapshot.PodKey, len(pods))
	for i, p := range pods {
		keys[i] = snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
	}
	c.opts.State.Unexpect(keys...)
}

// quiet is the time since a pod was last bound, which is now if bound is true.
func (r *release) quiet(bound bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if bound || r.bound.IsZero() {
		r.bound = time.Now()
	}
	return time.Since(r.bound)
}

// naming is a node's name to write to a pod; none takes that which it has.
type naming struct {
	pod  *corev1.Pod
	node string
}

// namings are those of pods that name no node, or, to take it, of those that name one. Pods
// that wait for a preemption on another node are left alone.
func namings(pods []*corev1.Pod, node string) []naming {
	var out []naming
	for _, p := range pods {
		if (p.Status.NominatedNodeName == "") != (node == "") {
			out = append(out, naming{p, node})
		}
	}
	return out
}

// name writes the names of nodes to pods. Pods that are bound or gone by now are passed over.
func (c *Controller) name(ctx context.Context, list []naming) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, n := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			p := n.pod
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"nominatedNodeName":%q}}`, p.UID, n.node))
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
	return errors.Join(errs...)
}
