package v1alpha1

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// RuntimeValidate checks what the API server could not, by [v1.DefaultLabelRules]. It
// returns every fault with its field path, joined, or nil.
func (o *NodeOverlay) RuntimeValidate() error {
	return o.ValidateWith(v1.DefaultLabelRules()).ToAggregate()
}

// ValidateWith is [NodeOverlay.RuntimeValidate] by the rules of a cloud. The faults are
// in the order of the fields, and resources in alphabetical order.
func (o *NodeOverlay) ValidateWith(rules v1.LabelRules) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	for i, r := range o.Spec.Requirements {
		at := path.Child("requirements").Index(i)
		errs = append(errs, v1.ValidateRequirement(v1.Requirement{Key: r.Key, Operator: r.Operator, Values: r.Values}, rules, at)...)
		if r.Operator == corev1.NodeSelectorOpNotIn && len(r.Values) == 0 {
			errs = append(errs, field.Required(at.Child("values"), "operator NotIn has at least one value"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Spec.Capacity)) {
		if slices.Contains(v1.WellKnownResources(), name) {
			errs = append(errs, field.Forbidden(path.Child("capacity").Key(string(name)), fmt.Sprintf("%s cannot be changed, only extended resources be added", name)))
		}
	}
	return errs
}
