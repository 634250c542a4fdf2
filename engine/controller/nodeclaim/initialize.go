package nodeclaim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// initialize finds out whether the claim's Node can take all its pods.
func (l *lifecycle) initialize(ctx context.Context, s *step) error {
	c := s.claim
	if s.cond.IsTrue(karpv1.ConditionInitialized) || !s.cond.IsTrue(karpv1.ConditionRegistered) || s.cond.IsTrue(karpv1.ConditionRebooting) {
		return nil
	}
	n, _, message, err := l.node(ctx, c)
	if err != nil {
		return err
	}
	reason := nodeNotFound
	if n != nil {
		if l.Behind(n) {
			s.within(fleet.Again)
			return nil
		}
		if reason, message, err = l.unfinished(ctx, c, n); err != nil {
			return err
		}
	}
	if reason != "" {
		s.cond.SetUnknown(karpv1.ConditionInitialized, reason, message)
		l.remind(s, reason+": "+message)
		return nil
	}
	before := n.DeepCopy()
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[karpv1.NodeInitializedLabelKey] = "true"
	if err := l.WriteNode(ctx, before, n); err != nil {
		return err
	}
	s.cond.SetTrue(karpv1.ConditionInitialized)
	return nil
}

// remind tells of a Node that has been unfinished for long. It is not removed: what it
// waits for may be the user's.
func (l *lifecycle) remind(s *step, cause string) {
	since := s.cond.Since(karpv1.ConditionRegistered)
	if left := l.opts.InitializationNotice - s.now.Sub(since); left > 0 {
		s.within(left)
		return
	}
	l.Events.Publish(observe.Event{
		About: s.claim, Warning: true, Reason: observe.NotInitialized, Every: l.opts.InitializationNotice, Key: "NotInitialized",
		Message: fmt.Sprintf("Node %s is registered since %s and still not initialized: %s", s.claim.Status.NodeName, since.UTC().Format("15:04:05 MST"), cause),
	})
	s.within(l.opts.InitializationNotice)
}

// unfinished is what a Node still misses: a reason and message for the condition, or "".
func (l *lifecycle) unfinished(ctx context.Context, c *karpv1.NodeClaim, n *corev1.Node) (reason, message string, err error) {
	if !fleet.Ready(n) {
		message = "Node " + n.Name + " does not say whether it is ready"
		if cond := fleet.NodeCondition(n, corev1.NodeReady); cond != nil {
			message = fmt.Sprintf("Node %s is not ready: %s", n.Name, strings.TrimSuffix(cond.Reason+": "+cond.Message, ": "))
		}
		return "NodeNotReady", message, nil
	}
	for _, t := range n.Spec.Taints {
		if slices.ContainsFunc(c.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(&t) }) {
			return "StartupTaintsExist", "Startup taint " + t.ToString() + " is still there", nil
		}
	}
	for _, t := range n.Spec.Taints {
		if karpv1.IsKnownEphemeralTaint(t) {
			return "KnownEphemeralTaintsExist", "Taint " + t.ToString() + " is still there", nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Spec.Resources.Requests)) {
		asked := c.Spec.Resources.Requests[name]
		if have := n.Status.Allocatable[name]; !asked.IsZero() && have.IsZero() {
			return "ResourceNotRegistered", "Resource " + string(name) + " was asked for and is not there yet", nil
		}
	}
	if !l.opts.DeviceDrivers {
		return "", "", nil
	}
	missing, err := l.missingDrivers(ctx, c, n)
	if err != nil || len(missing) == 0 {
		return "", "", err
	}
	return "DRADriverPoolsNotPublished", "Device drivers that have not published their devices: " + strings.Join(missing, ", "), nil
}

// missingDrivers are the drivers that the claim names and that have no complete pool of
// devices on the node: as many slices of the newest generation as the pool says it has.
func (l *lifecycle) missingDrivers(ctx context.Context, c *karpv1.NodeClaim, n *corev1.Node) ([]string, error) {
	text := c.Annotations[karpv1.RequestedDRADriversAnnotationKey]
	if text == "" {
		return nil, nil
	}
	var list resourcev1.ResourceSliceList
	if err := l.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	type pool struct{ driver, name string }
	newest, count := map[pool]resourcev1.ResourcePool{}, map[pool]int64{}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		if spec.NodeName == nil || *spec.NodeName != n.Name {
			continue
		}
		p := pool{spec.Driver, spec.Pool.Name}
		switch have, ok := newest[p]; {
		case !ok || spec.Pool.Generation > have.Generation:
			newest[p], count[p] = spec.Pool, 1
		case spec.Pool.Generation == have.Generation:
			count[p]++
		}
	}
	complete := map[string]bool{}
	for p, want := range newest {
		if count[p] >= want.ResourceSliceCount {
			complete[p.driver] = true
		}
	}
	var missing []string
	for driver := range strings.SplitSeq(text, ",") {
		if driver = strings.TrimSpace(driver); driver != "" && !complete[driver] {
			missing = append(missing, driver)
		}
	}
	return missing, nil
}
