package v1

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NodePoolHashVersion names the way [NodePool.Hash] computes. Hashes are compared only
// where both sides have this version; others are stamped anew. It changes whenever an
// unchanged template would get another hash.
const NodePoolHashVersion = "dovetail-v1"

// Hash is the drift hash of the NodePool's template: NodeClaims whose hash differs were
// made from another template.
//
// It covers labels, annotations, taints, startup taints, the NodeClass reference, the
// termination grace period and expireAfter. Requirements are left out, since a node may
// still satisfy changed ones. Neither the order of a list, nor an empty field against an
// absent one, nor the spelling of a duration changes the hash. The time a taint was
// added is ignored.
func (p *NodePool) Hash() string {
	t := &p.Spec.Template
	h := hasher{sha256.New()}
	h.labels("labels", t.Labels)
	h.labels("annotations", t.Annotations)
	h.taints("taints", t.Spec.Taints)
	h.taints("startupTaints", t.Spec.StartupTaints)
	if ref := t.Spec.NodeClassRef; ref != nil && *ref != (NodeClassReference{}) {
		h.text("nodeClassRef", ref.Group, ref.Kind, ref.Name)
	}
	if grace := t.Spec.TerminationGracePeriod; grace != nil {
		h.text("terminationGracePeriod", grace.Duration.String())
	}
	if after, ok := t.Spec.ExpireAfter.Value(); ok {
		h.text("expireAfter", after.String())
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// hasher writes fields so that no two different sequences of them look alike.
type hasher struct{ hash.Hash }

func (h hasher) text(parts ...string) {
	h.count(len(parts))
	for _, part := range parts {
		h.count(len(part))
		h.Write([]byte(part))
	}
}

func (h hasher) count(n int) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

func (h hasher) labels(field string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		h.text(field, key, labels[key])
	}
}

func (h hasher) taints(field string, taints []corev1.Taint) {
	sorted := slices.SortedFunc(slices.Values(taints), func(a, b corev1.Taint) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.Value, b.Value))
	})
	for _, t := range sorted {
		h.text(field, t.Key, string(t.Effect), t.Value)
	}
}
