// Package fleet is what the controllers of machines have in common: how NodeClaims, Nodes
// and pods belong together, and how to write them without acting on what is out of date.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Mirror is told of every object that was written, so that decisions made elsewhere in the
// process rest on it at once.
type Mirror interface {
	Update(o client.Object)
	Remove(o client.Object)
}

// Kit is what a controller of machines acts with. Client and Provider are required.
type Kit struct {
	// Client reads from a cache that has the fields of [Indexes].
	Client   client.Client
	Provider cloud.Provider
	Metrics  *observe.Metrics
	Events   *observe.Events
	Mirror   Mirror
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time

	written *written
}

// NewKit fills in what k leaves out.
func NewKit(k Kit) *Kit {
	if k.Now == nil {
		k.Now = time.Now
	}
	k.written = newWritten(k.Now)
	return &k
}

// Count changes metrics, if there are any.
func (k *Kit) Count(f func(m *observe.Metrics)) {
	if k.Metrics != nil {
		f(k.Metrics)
	}
}

// Behind reports whether o was read before something that this kit wrote to it. Nothing
// should be decided on it: the watch brings what was written.
func (k *Kit) Behind(o client.Object) bool { return k.written.behind(o) }

// Released tells the mirror of an object that goes with the finalizer that was removed.
func (k *Kit) Released(o client.Object) {
	if k.Mirror != nil && len(o.GetFinalizers()) == 0 {
		k.Mirror.Remove(o)
	}
}

// Forget drops what is remembered of an object that is gone.
func (k *Kit) Forget(o client.Object) { k.written.forget(o) }

func (k *Kit) wrote(o client.Object) {
	k.written.note(o)
	if k.Mirror != nil {
		k.Mirror.Update(o.DeepCopyObject().(client.Object))
	}
}

// WriteNode writes what differs between before and after outside of the status, if after
// was made from the Node's present version. After then is what was stored.
func (k *Kit) WriteNode(ctx context.Context, before, after *corev1.Node) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := k.Client.Patch(ctx, after, exactly(before)); err != nil {
		return fmt.Errorf("patch node %q: %w", before.Name, err)
	}
	k.wrote(after)
	return nil
}

// WriteClaim writes what differs between before and after, metadata first, if after was
// made from the claim's present version. After then is what was stored.
func (k *Kit) WriteClaim(ctx context.Context, before, after *karpv1.NodeClaim) error {
	if !equality.Semantic.DeepEqual(before.ObjectMeta, after.ObjectMeta) {
		// The answer is decoded into what is sent, and would change the new status.
		stored := after.DeepCopy()
		if err := k.Client.Patch(ctx, stored, exactly(before)); err != nil {
			return fmt.Errorf("patch nodeclaim %q: %w", before.Name, err)
		}
		k.wrote(stored)
		after.ObjectMeta, before = stored.ObjectMeta, stored
	}
	if !equality.Semantic.DeepEqual(before.Status, after.Status) {
		if err := k.Client.Status().Patch(ctx, after, exactly(before)); err != nil {
			return fmt.Errorf("patch status of nodeclaim %q: %w", before.Name, err)
		}
		k.wrote(after)
	}
	return nil
}

// exactly patches the version that before is, or nothing. Lists such as conditions are
// written whole, so a patch on another version would undo what others wrote.
func exactly(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before.DeepCopyObject().(client.Object), client.MergeFromWithOptimisticLock{})
}

// Lost reports whether a write failed because the object has changed or is gone. It is no
// fault: the change brings the object back.
func Lost(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// Again is how long to wait where a watch is expected to bring news first.
const Again = time.Second

// Retry turns lost writes among errs into a later try, and returns the other errors.
func Retry(r ctrl.Result, errs ...error) (ctrl.Result, error) {
	var faults []error
	for _, err := range errs {
		switch {
		case err == nil:
		case Lost(err):
			r = Sooner(r, Again)
		default:
			faults = append(faults, err)
		}
	}
	return r, errors.Join(faults...)
}

// Sooner is r, but not after more than d.
func Sooner(r ctrl.Result, d time.Duration) ctrl.Result {
	d = max(d, time.Millisecond)
	if r.RequeueAfter == 0 || d < r.RequeueAfter {
		r.RequeueAfter = d
	}
	return r
}

// ManagesClaim reports whether a claim is the provider's.
func (k *Kit) ManagesClaim(c *karpv1.NodeClaim) bool {
	ref := c.Spec.NodeClassRef
	if ref == nil {
		return false
	}
	for _, gvk := range k.Provider.NodeClasses() {
		if gvk.Group == ref.Group && gvk.Kind == ref.Kind {
			return true
		}
	}
	return false
}

// ManagesNode reports whether a Node came from a claim: it has the label of a NodeClass of
// the provider, or a NodeClaim owns it. No other Node is ever touched.
func (k *Kit) ManagesNode(n *corev1.Node) bool {
	for _, gvk := range k.Provider.NodeClasses() {
		ref := karpv1.NodeClassReference{Group: gvk.Group, Kind: gvk.Kind}
		if _, ok := n.Labels[ref.LabelKey()]; ok {
			return true
		}
	}
	return slices.ContainsFunc(n.OwnerReferences, isClaim)
}

// GiveUp asks for the deletion of a claim: reason is a metric label, pods the number of
// those that lose their node, and event, which may be nil, tells why. It is counted and
// told once: first reports whether it is. A claim that is going already, or another of its
// name, is left alone.
func (k *Kit) GiveUp(ctx context.Context, c *karpv1.NodeClaim, reason string, pods int, event *observe.Event) (first bool, err error) {
	return k.GiveUpUnder(ctx, c, reason, "", pods, event)
}

// GiveUpUnder is GiveUp for a reason that rests on a consolidation policy, which is a metric
// label.
func (k *Kit) GiveUpUnder(ctx context.Context, c *karpv1.NodeClaim, reason, policy string, pods int, event *observe.Event) (first bool, err error) {
	if !c.DeletionTimestamp.IsZero() {
		return false, nil
	}
	err = k.Client.Delete(ctx, c, client.Preconditions{UID: &c.UID})
	switch {
	case Lost(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete nodeclaim %q: %w", c.Name, err)
	}
	if !k.written.deleted(c) {
		return false, nil
	}
	if event != nil {
		k.Events.Publish(*event)
	}
	k.Count(func(m *observe.Metrics) {
		labels := []string{reason, c.Labels[karpv1.NodePoolLabelKey], c.Labels[karpv1.CapacityTypeLabelKey], policy, k.TerminationMode(c)}
		m.NodeClaimsDisrupted.WithLabelValues(labels...).Inc()
		m.PodsDisruptionInitiated.WithLabelValues(labels...).Add(float64(pods))
	})
	ctrl.LoggerFrom(ctx).Info("deleted NodeClaim", "nodeclaim", c.Name, "reason", reason, "providerID", c.Status.ProviderID, "pods", pods)
	return true, nil
}

// CountBroken counts a claim that goes because a condition of its Node says that it is broken.
func (k *Kit) CountBroken(c *karpv1.NodeClaim, condition string) {
	k.Count(func(m *observe.Metrics) {
		m.NodeClaimsUnhealthyDisrupted.WithLabelValues(Snake(condition), c.Labels[karpv1.NodePoolLabelKey],
			c.Labels[karpv1.CapacityTypeLabelKey], c.Status.ImageID, k.TerminationMode(c)).Inc()
	})
}

// Snake is a CamelCase word in snake case, as labels of metrics are.
func Snake(word string) string {
	var b strings.Builder
	for i, r := range word {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// TerminationMode is how a claim's drain is bounded, as a metric label.
func (k *Kit) TerminationMode(c *karpv1.NodeClaim) string {
	end, err := time.Parse(time.RFC3339, c.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	switch {
	case err == nil && !end.After(k.Now()):
		return "forceful"
	case err == nil || c.Spec.TerminationGracePeriod != nil:
		return "eventual"
	}
	return "graceful"
}
