package v1

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// LabelRules say which labels NodePools and pods may use, and how. A cloud starts from
// [DefaultLabelRules] and adds its own. The zero value knows and restricts nothing.
//
// +kubebuilder:object:generate=false
type LabelRules struct {
	// WellKnown are labels that pods may ask for although no NodePool defines them:
	// instance types and offerings carry them. They are never restricted.
	WellKnown sets.Set[string]
	// KnownValues are, by well-known label, the values that mean something.
	KnownValues map[string]sets.Set[string]
	// RestrictedDomains are domains, with their subdomains, whose labels are refused.
	RestrictedDomains sets.Set[string]
	// Restricted are single labels that are refused.
	Restricted sets.Set[string]
	// Aliases maps an old label to the one that it stands for.
	Aliases map[string]string
	// ValueAliases maps, by label, a value to the one that it stands for.
	ValueAliases map[string]map[string]string
}

// DefaultLabelRules are the rules without any cloud's. The caller owns the result.
func DefaultLabelRules() LabelRules {
	return LabelRules{
		WellKnown: sets.New(
			NodePoolLabelKey,
			CapacityTypeLabelKey,
			corev1.LabelTopologyZone,
			corev1.LabelTopologyRegion,
			corev1.LabelInstanceTypeStable,
			corev1.LabelArchStable,
			corev1.LabelOSStable,
			corev1.LabelWindowsBuild,
		),
		KnownValues: map[string]sets.Set[string]{
			CapacityTypeLabelKey: sets.New(CapacityTypeOnDemand, CapacityTypeSpot, CapacityTypeReserved),
		},
		RestrictedDomains: sets.New(Group),
		Restricted:        sets.New(corev1.LabelHostname),
		Aliases: map[string]string{
			corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
			corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
			corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
			"beta.kubernetes.io/arch":           corev1.LabelArchStable,
			"beta.kubernetes.io/os":             corev1.LabelOSStable,
		},
		ValueAliases: map[string]map[string]string{},
	}
}

// NormalizeKey returns the label that key stands for: key itself unless it is an alias.
func (r LabelRules) NormalizeKey(key string) string {
	if to, ok := r.Aliases[key]; ok {
		return to
	}
	return key
}

// NormalizeValue returns the value that value stands for on the normalized key.
func (r LabelRules) NormalizeValue(key, value string) string {
	if to, ok := r.ValueAliases[key][value]; ok {
		return to
	}
	return value
}

// Refusal says why a NodePool or pod may not use a label, or "" if it may.
func (r LabelRules) Refusal(key string) string {
	if r.WellKnown.Has(key) {
		return ""
	}
	if r.Restricted.Has(key) {
		return fmt.Sprintf("label %q is set by the kubelet and cannot be chosen", key)
	}
	domain := LabelDomain(key)
	for _, restricted := range sets.List(r.RestrictedDomains) {
		if domain == restricted || strings.HasSuffix(domain, "."+restricted) {
			return fmt.Sprintf("labels of domain %q are reserved; allowed of it: %s", restricted, r.wellKnownOf(restricted))
		}
	}
	return ""
}

// wellKnownOf lists the well-known labels of a domain, or "none".
func (r LabelRules) wellKnownOf(domain string) string {
	var keys []string
	for _, key := range sets.List(r.WellKnown) {
		if d := LabelDomain(key); d == domain || strings.HasSuffix(d, "."+domain) {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		return "none"
	}
	return strings.Join(keys, ", ")
}

// Clone returns rules that share nothing with r.
func (r LabelRules) Clone() LabelRules {
	out := LabelRules{
		WellKnown:         r.WellKnown.Clone(),
		KnownValues:       make(map[string]sets.Set[string], len(r.KnownValues)),
		RestrictedDomains: r.RestrictedDomains.Clone(),
		Restricted:        r.Restricted.Clone(),
		Aliases:           maps.Clone(r.Aliases),
		ValueAliases:      make(map[string]map[string]string, len(r.ValueAliases)),
	}
	for key, values := range r.KnownValues {
		out.KnownValues[key] = values.Clone()
	}
	for key, values := range r.ValueAliases {
		out.ValueAliases[key] = maps.Clone(values)
	}
	return out
}

// LabelDomain is what stands before the slash of a label key, or "".
func LabelDomain(key string) string {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return ""
	}
	return domain
}

// OfferingLabels are the labels whose values make up an offering of an instance type.
func OfferingLabels() []string { return []string{corev1.LabelTopologyZone, CapacityTypeLabelKey} }

// WellKnownResources are the resources that every instance type has, sorted.
func WellKnownResources() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourcePods}
}

// KnownEphemeralTaints are on a Node only while it starts, so planning ignores them on
// a Node that is not yet initialized, and a Node is not initialized before they are gone.
// See also [IsKnownEphemeralTaint].
func KnownEphemeralTaints() []corev1.Taint {
	return []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		UnregisteredTaint(),
	}
}

// IsKnownEphemeralTaint reports whether t has the key and effect of one of
// [KnownEphemeralTaints], or is a taint of a readiness gate.
func IsKnownEphemeralTaint(t corev1.Taint) bool {
	if strings.HasPrefix(t.Key, ReadinessTaintPrefix) {
		return true
	}
	return slices.ContainsFunc(KnownEphemeralTaints(), func(known corev1.Taint) bool {
		return known.Key == t.Key && known.Effect == t.Effect
	})
}
