package terminate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

const (
	// minDrain is how long a drain takes at least: pods may be bound to the Node while its
	// taint has not got around.
	minDrain = 5 * time.Second
	// forceful is why pods are evicted where nobody gave a reason.
	forceful = "Forceful Termination"
)

// drain has the pods of the Node evicted, group by group, and by force those for whom the
// end is near.
func (k *nodes) drain(_ context.Context, x *exit) (time.Duration, error) {
	if !x.end.IsZero() {
		k.Events.Publish(observe.Event{
			About: x.node, Warning: true, Reason: observe.GracePeriodExpiring,
			Message: "All pods will be deleted by " + x.end.UTC().Format(time.RFC3339),
		})
	}
	groups, waiting := grouped(x.pods, x.now)
	if waiting > 0 {
		x.change(func(w karpv1.ConditionWriter) { w.SetUnknown(karpv1.ConditionDrained, "Draining", "") })
		k.Events.Publish(observe.Event{
			About: x.node, Warning: true, Reason: observe.FailedDraining, Message: fmt.Sprintf("%d pods are waiting to be evicted", waiting), Key: "waiting",
		})
		k.queue.add(x, groups)
		return poll, nil
	}
	if x.claim == nil || x.claim.Conditions().IsTrue(karpv1.ConditionDrained) {
		return 0, nil
	}
	drained := x.claim.Conditions().Get(karpv1.ConditionDrained)
	if drained == nil || drained.Status != metav1.ConditionUnknown {
		x.change(func(w karpv1.ConditionWriter) { w.SetUnknown(karpv1.ConditionDrained, "Draining", "") })
		drained = x.claim.Conditions().Get(karpv1.ConditionDrained)
	}
	if left := minDrain - x.now.Sub(drained.LastTransitionTime.Time); left > 0 {
		return min(left, poll), nil
	}
	x.change(func(w karpv1.ConditionWriter) { w.SetTrue(karpv1.ConditionDrained) })
	pool := x.node.Labels[karpv1.NodePoolLabelKey]
	x.stored = append(x.stored, func() {
		k.Count(func(m *observe.Metrics) { m.NodesDrained.WithLabelValues(pool).Inc() })
	})
	return 0, nil
}

// grouped are the pods that a drain waits for, in the order in which groups of them go:
// what the cluster does not need before what it does, and daemons after what they serve.
func grouped(pods []*corev1.Pod, now time.Time) (groups [4][]*corev1.Pod, waiting int) {
	for _, p := range pods {
		if !fleet.Waited(p, now) {
			continue
		}
		i := 0
		if fleet.Daemon(p) {
			i++
		}
		if fleet.Critical(p) {
			i += 2
		}
		groups[i] = append(groups[i], p)
		waiting++
	}
	return groups, waiting
}

// detach waits for the volumes of the pods that have gone.
func (k *nodes) detach(ctx context.Context, x *exit) (time.Duration, error) {
	blocking, err := k.attached(ctx, x)
	switch {
	case err != nil:
		return 0, err
	case len(blocking) == 0:
		x.change(func(w karpv1.ConditionWriter) { w.SetTrue(karpv1.ConditionVolumesDetached) })
		return 0, nil
	case !x.end.IsZero() && !x.now.Before(x.end):
		x.change(func(w karpv1.ConditionWriter) {
			w.SetFalse(karpv1.ConditionVolumesDetached, "TerminationGracePeriodElapsed", "Still attached: "+strings.Join(blocking, ", "))
		})
		return 0, nil
	}
	x.change(func(w karpv1.ConditionWriter) {
		w.SetUnknown(karpv1.ConditionVolumesDetached, "AwaitingVolumeDetachment", "")
	})
	k.Events.Publish(observe.Event{
		About: x.node, Reason: observe.AwaitingVolumeDetachment, Message: "Waiting for volumes to be detached: " + strings.Join(blocking, ", "), Key: "volumes",
	})
	return poll, nil
}

// attached are the volumes that have to be detached, sorted: not those of pods that run
// until the machine ends.
func (k *nodes) attached(ctx context.Context, x *exit) ([]string, error) {
	attachments, err := fleet.Attachments(ctx, k.Client, x.node.Name)
	if err != nil || len(attachments) == 0 {
		return nil, err
	}
	stays := map[string]bool{}
	for _, p := range x.pods {
		if fleet.Terminal(p) || fleet.Waited(p, x.now) {
			continue
		}
		for i := range p.Spec.Volumes {
			name, err := k.volume(ctx, p, &p.Spec.Volumes[i])
			if err != nil {
				return nil, err
			}
			stays[name] = true
		}
	}
	var out []string
	for i := range attachments {
		if name := attachments[i].Spec.Source.PersistentVolumeName; name != nil && *name != "" && !stays[*name] {
			out = append(out, *name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// volume is the PersistentVolume of a pod's volume, or "".
func (k *nodes) volume(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (string, error) {
	var name string
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = p.Name + "-" + v.Name
	default:
		return "", nil
	}
	var pvc corev1.PersistentVolumeClaim
	if err := k.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: name}, &pvc); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return "", nil
		}
		return "", fmt.Errorf("get claim of volume %s of pod %s/%s: %w", v.Name, p.Namespace, p.Name, err)
	}
	return pvc.Spec.VolumeName, nil
}
