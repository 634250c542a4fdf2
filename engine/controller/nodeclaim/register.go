package nodeclaim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Reasons of Registered.
const (
	nodeNotFound            = "NodeNotFound"
	multipleNodesFound      = "MultipleNodesFound"
	registrationHookPending = "RegistrationHookPending"
)

// register joins the claim with its Node: the Node gets what the claim says of it, and is
// opened to pods.
func (l *lifecycle) register(ctx context.Context, s *step) error {
	c := s.claim
	if s.cond.IsTrue(karpv1.ConditionRegistered) {
		return nil
	}
	n, reason, message, err := l.node(ctx, c)
	switch {
	case err != nil:
		return err
	case reason == multipleNodesFound:
		// One of them may be the rest of a machine that came back under another name.
		s.cond.SetFalse(karpv1.ConditionRegistered, reason, message)
		return nil
	case n == nil:
		s.cond.SetUnknown(karpv1.ConditionRegistered, reason, message)
		return nil
	case l.Behind(n):
		s.within(fleet.Again)
		return nil
	case !n.DeletionTimestamp.IsZero():
		s.cond.SetUnknown(karpv1.ConditionRegistered, nodeNotFound, "Node "+n.Name+" is being deleted")
		return nil
	}
	before := n.DeepCopy()
	if n.Labels[karpv1.NodeRegisteredLabelKey] != "true" && !hasTaint(n, karpv1.UnregisteredTaint()) {
		l.Events.Publish(observe.Event{
			About: c, Warning: true, Reason: observe.UnregisteredTaintMissing,
			Message: "Node " + n.Name + " started without the taint " + karpv1.UnregisteredTaintKey + ", so pods may have come before its labels and taints did",
		})
	}
	join(n, c)
	pending, err := l.pending(ctx, s, n)
	if len(pending) > 0 || err != nil {
		// Not the error's text: if it differed each time, each write would bring the claim
		// back at once.
		s.cond.SetUnknown(karpv1.ConditionRegistered, registrationHookPending, "Waiting for "+strings.Join(pending, ", "))
		if e := l.WriteNode(ctx, before, n); e != nil {
			return e
		}
		return err
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(new(karpv1.UnregisteredTaint())) })
	n.Labels[karpv1.NodeRegisteredLabelKey] = "true"
	if err := l.WriteNode(ctx, before, n); err != nil {
		return err
	}
	c.Status.NodeName = n.Name
	s.cond.SetTrue(karpv1.ConditionRegistered)
	s.stored = append(s.stored, func() {
		l.Count(func(m *observe.Metrics) {
			m.NodesCreated.WithLabelValues(n.Labels[karpv1.NodePoolLabelKey], n.Labels[corev1.LabelTopologyZone]).Inc()
		})
		l.opts.Outcome(ctx, c, true)
	})
	return nil
}

// pending are the hooks that registration still waits for. The error is that of a hook
// that failed.
func (l *lifecycle) pending(ctx context.Context, s *step, n *corev1.Node) ([]string, error) {
	if r, ok := cloud.As[cloud.Registrar](l.Provider); ok {
		names, after, err := r.Registered(ctx, s.claim.DeepCopy(), n.DeepCopy())
		if err != nil {
			return append(names, l.Provider.Name()), fmt.Errorf("registration hooks of node %q: %w", n.Name, err)
		}
		if len(names) > 0 {
			s.within(max(after, fleet.Again))
			return names, nil
		}
	}
	after, err := l.opts.BeforeReady(ctx, s.claim.DeepCopy(), n.DeepCopy())
	if err != nil {
		return []string{"nomination"}, fmt.Errorf("before node %q takes pods: %w", n.Name, err)
	}
	if after > 0 {
		s.within(after)
		return []string{"nomination"}, nil
	}
	return nil, nil
}

// join gives a Node what its claim says of it. Taints are given once: what somebody has
// taken away since, such as a startup taint, stays away.
func join(n *corev1.Node, c *karpv1.NodeClaim) {
	owner := metav1.OwnerReference{
		APIVersion: karpv1.GroupVersion.String(), Kind: "NodeClaim", Name: c.Name, UID: c.UID, BlockOwnerDeletion: new(true),
	}
	i := slices.IndexFunc(n.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == c.UID })
	joined := i >= 0 && controllerutil.ContainsFinalizer(n, karpv1.TerminationFinalizer)
	if i < 0 {
		// A claim restored from a backup has another UID than the one that was here first.
		n.OwnerReferences = slices.DeleteFunc(n.OwnerReferences, func(r metav1.OwnerReference) bool {
			return r.Kind == owner.Kind && r.APIVersion == owner.APIVersion
		})
		n.OwnerReferences = append(n.OwnerReferences, owner)
	}
	controllerutil.AddFinalizer(n, karpv1.TerminationFinalizer)
	if !joined && n.Labels[karpv1.NodeDoNotSyncTaintsLabelKey] != "true" && c.Labels[karpv1.NodeDoNotSyncTaintsLabelKey] != "true" {
		for _, t := range slices.Concat(c.Spec.Taints, c.Spec.StartupTaints) {
			if !hasTaint(n, t) {
				n.Spec.Taints = append(n.Spec.Taints, t)
			}
		}
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	maps.Copy(n.Labels, c.Labels)
	for key, value := range c.Annotations {
		if key != cloud.PreferredAnnotation { // means nothing once the machine is there
			n.Annotations[key] = value
		}
	}
}

func hasTaint(n *corev1.Node, t corev1.Taint) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(have corev1.Taint) bool { return have.MatchTaint(&t) })
}
