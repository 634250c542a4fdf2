package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// Fields that caches are indexed by.
const (
	providerIDField = "dovetail.sh/provider-id"
	nodeField       = "dovetail.sh/node"
)

// FieldIndex makes objects of a kind be found by a field.
type FieldIndex struct {
	Object client.Object
	Field  string
	Values client.IndexerFunc
}

// Indexes are those that this package reads by.
func Indexes() []FieldIndex {
	return []FieldIndex{
		{&corev1.Node{}, providerIDField, func(o client.Object) []string { return some(o.(*corev1.Node).Spec.ProviderID) }},
		{&karpv1.NodeClaim{}, providerIDField, func(o client.Object) []string { return some(o.(*karpv1.NodeClaim).Status.ProviderID) }},
		{&corev1.Pod{}, nodeField, func(o client.Object) []string { return some(o.(*corev1.Pod).Spec.NodeName) }},
	}
}

// VolumeIndexes are those that [Attachments] reads by.
func VolumeIndexes() []FieldIndex {
	return []FieldIndex{
		{&storagev1.VolumeAttachment{}, nodeField, func(o client.Object) []string { return some(o.(*storagev1.VolumeAttachment).Spec.NodeName) }},
	}
}

func some(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// Index adds indexes to a cache. Those that it has already, since several controllers need
// them, are no error.
func Index(ctx context.Context, to client.FieldIndexer, indexes ...FieldIndex) error {
	for _, i := range indexes {
		err := to.IndexField(ctx, i.Object, i.Field, i.Values)
		if err != nil && !strings.Contains(err.Error(), "indexer conflict") {
			return fmt.Errorf("index %T by %s: %w", i.Object, i.Field, err)
		}
	}
	return nil
}

// Nodes are the Nodes with a provider ID, by name; none for an empty one.
func Nodes(ctx context.Context, from client.Reader, providerID string) ([]corev1.Node, error) {
	if providerID == "" {
		return nil, nil
	}
	var list corev1.NodeList
	if err := from.List(ctx, &list, client.MatchingFields{providerIDField: providerID}); err != nil {
		return nil, fmt.Errorf("list nodes of %s: %w", providerID, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// ClaimsOf are the NodeClaims of a Node: those with its provider ID, the one that owns it
// first. There is more than one only if somebody made them by hand.
func ClaimsOf(ctx context.Context, from client.Reader, n *corev1.Node) ([]karpv1.NodeClaim, error) {
	if n.Spec.ProviderID == "" {
		return nil, nil
	}
	var list karpv1.NodeClaimList
	if err := from.List(ctx, &list, client.MatchingFields{providerIDField: n.Spec.ProviderID}); err != nil {
		return nil, fmt.Errorf("list nodeclaims of %s: %w", n.Spec.ProviderID, err)
	}
	rank := func(c *karpv1.NodeClaim) int {
		if Owns(c, n) {
			return 0
		}
		return 1
	}
	slices.SortFunc(list.Items, func(a, b karpv1.NodeClaim) int {
		if d := rank(&a) - rank(&b); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list.Items, nil
}

// OwnerClaim is the name of the NodeClaim that owns a Node, or "".
func OwnerClaim(n *corev1.Node) string {
	if i := slices.IndexFunc(n.OwnerReferences, isClaim); i >= 0 {
		return n.OwnerReferences[i].Name
	}
	return ""
}

// Owns reports whether a claim owns a Node.
func Owns(c *karpv1.NodeClaim, n *corev1.Node) bool {
	return slices.ContainsFunc(n.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == c.UID })
}

func isClaim(r metav1.OwnerReference) bool {
	return r.Kind == "NodeClaim" && strings.HasPrefix(r.APIVersion, karpv1.Group+"/")
}

// Pods are the pods bound to a node, by namespace and name. They must not be changed.
func Pods(ctx context.Context, from client.Reader, node string) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := from.List(ctx, &list, client.MatchingFields{nodeField: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of node %q: %w", node, err)
	}
	out := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		if d := strings.Compare(a.Namespace, b.Namespace); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

// Moving counts the pods that lose their node with a claim.
func (k *Kit) Moving(ctx context.Context, c *karpv1.NodeClaim) (int, error) {
	if c.Status.NodeName == "" {
		return 0, nil
	}
	pods, err := Pods(ctx, k.Client, c.Status.NodeName)
	return Moving(pods), err
}

// Attachments are the volumes attached to a node. They must not be changed.
func Attachments(ctx context.Context, from client.Reader, node string) ([]storagev1.VolumeAttachment, error) {
	var list storagev1.VolumeAttachmentList
	if err := from.List(ctx, &list, client.MatchingFields{nodeField: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list volume attachments of node %q: %w", node, err)
	}
	return list.Items, nil
}

// Ready reports whether a Node says that it is ready.
func Ready(n *corev1.Node) bool {
	c := NodeCondition(n, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// NodeCondition is a condition of a Node, or nil.
func NodeCondition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}
