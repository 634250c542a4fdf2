package candidate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
)

// Reasons of drift that follow from a NodePool, in the order in which they are looked for.
// A cloud has reasons of its own.
const (
	NodePoolDrifted      = "NodePoolDrifted"
	RequirementsDrifted  = "RequirementsDrifted"
	InstanceTypeNotFound = "InstanceTypeNotFound"
)

// ListedFor is the age from which on a claim's instance type must be on offer. A new machine
// may be of a type that the cloud lists a moment later.
const ListedFor = time.Hour

// Drift is the reason for which a claim is not what its NodePool asks for, or "". What
// cannot be judged is no reason. sold is what the pool may buy; nil if that is not known.
func Drift(pool *karpv1.NodePool, claim *karpv1.NodeClaim, sold *catalog.Catalog, now time.Time) string {
	if same, known := SameTemplate(pool, claim); known && !same {
		return NodePoolDrifted
	}
	if known, unmet := Unmet(pool, claim); known && unmet != nil {
		return RequirementsDrifted
	}
	if sold.Len() > 0 && now.Sub(claim.CreationTimestamp.Time) >= ListedFor && Unsold(sold, claim.Labels) != "" {
		return InstanceTypeNotFound
	}
	return ""
}

// SameTemplate reports whether a claim was made from the template that its NodePool has now.
// That is not known of a claim without a hash of the present version.
func SameTemplate(pool *karpv1.NodePool, claim *karpv1.NodeClaim) (same, known bool) {
	hash := claim.Annotations[karpv1.NodePoolHashAnnotationKey]
	if hash == "" || claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] != karpv1.NodePoolHashVersion {
		return false, false
	}
	return hash == pool.Hash(), true
}

// Unmet says which requirement of its NodePool a claim's labels do not meet; nil if they
// meet all. It is not known if the requirements cannot be read. A label that a claim does
// not have counts as missing, unless the claim itself left its value open: a successor would
// do the same, and be drifted too.
func Unmet(pool *karpv1.NodePool, claim *karpv1.NodeClaim) (known bool, unmet error) {
	want, err := requirements.FromEntries(entries(pool.Spec.Template.Spec.Requirements))
	if err != nil {
		return false, nil //nolint:nilerr // nodepool validation tells of requirements that cannot be read
	}
	have := requirements.FromLabels(claim.Labels)
	// What cannot be read of the claim's own says nothing.
	left, _ := requirements.FromEntries(entries(claim.Spec.Requirements))
	for key, r := range left {
		if !have.Has(key) {
			have[key] = r
		}
	}
	return true, have.Compatible(want, nil)
}

func entries(list []karpv1.Requirement) []requirements.Entry {
	out := make([]requirements.Entry, len(list))
	for i, r := range list {
		out[i] = requirements.Entry{Key: r.Key, Operator: r.Operator, Values: r.Values}
	}
	return out
}

// Unsold says why a machine with these labels cannot be bought any more, or "". Offerings
// that are out of capacity count as sold: they come back.
func Unsold(sold *catalog.Catalog, labels map[string]string) string {
	name := labels[corev1.LabelInstanceTypeStable]
	it, ok := sold.ByName(name)
	if !ok {
		return fmt.Sprintf("instance type %q is not sold any more", name)
	}
	have := requirements.FromLabels(labels)
	zone, capacity := labels[corev1.LabelTopologyZone], labels[karpv1.CapacityTypeLabelKey]
	for i := range it.Offerings {
		o := &it.Offerings[i]
		if (zone == "" || o.Zone == "" || o.Zone == zone) && sameCapacity(capacity, o.CapacityType) && matches(have, o) {
			return ""
		}
	}
	return fmt.Sprintf("instance type %q is not sold any more as %s in zone %s", name, capacity, zone)
}

// sameCapacity reports whether a machine of a capacity type may come from an offering: one
// of a reservation outlives it, as an on-demand machine.
func sameCapacity(have, offering string) bool {
	return have == "" || have == offering || have == karpv1.CapacityTypeReserved && offering == karpv1.CapacityTypeOnDemand
}

// matches reports whether the labels of a machine fit the further labels of an offering.
// Those of a reservation do not matter: reservations end, and others take their place.
func matches(have requirements.Set, o *catalog.Offering) bool {
	return o.CapacityType == karpv1.CapacityTypeReserved || have.Intersects(o.Requirements) == nil
}
