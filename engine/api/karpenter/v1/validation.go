package v1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Operators that corev1 has no constant for.
const (
	NodeSelectorOpGte corev1.NodeSelectorOperator = "Gte"
	NodeSelectorOpLte corev1.NodeSelectorOperator = "Lte"
)

var operators = []corev1.NodeSelectorOperator{
	corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist,
	corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt, NodeSelectorOpGte, NodeSelectorOpLte,
}

var taintEffects = []corev1.TaintEffect{
	corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute,
}

// RuntimeValidate checks what the API server could not, by [DefaultLabelRules]. It
// returns every fault with its field path, joined, or nil.
func (p *NodePool) RuntimeValidate() error {
	return p.ValidateWith(DefaultLabelRules()).ToAggregate()
}

// ValidateWith is [NodePool.RuntimeValidate] by the rules of a cloud. The faults are in
// the order of the fields, and map keys in alphabetical order.
func (p *NodePool) ValidateWith(rules LabelRules) field.ErrorList {
	path := field.NewPath("spec", "template")
	errs := validateLabels(p.Spec.Template.Labels, rules, path.Child("metadata", "labels"))
	path = path.Child("spec")
	spec := &p.Spec.Template.Spec
	errs = append(errs, validateTaints(spec, path)...)
	for i, r := range spec.Requirements {
		item := path.Child("requirements").Index(i)
		errs = append(errs, ValidateRequirement(r, rules, item)...)
		if rules.NormalizeKey(r.Key) == NodePoolLabelKey {
			errs = append(errs, field.Forbidden(item.Child("key"), fmt.Sprintf("label %q is set from the NodePool's name", NodePoolLabelKey)))
		}
	}
	return errs
}

func validateLabels(labels map[string]string, rules LabelRules, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := path.Key(key)
		if key == NodePoolLabelKey {
			errs = append(errs, field.Forbidden(at, "this label is set from the NodePool's name"))
		}
		for _, msg := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(at, key, msg))
		}
		for _, msg := range validation.IsValidLabelValue(labels[key]) {
			errs = append(errs, field.Invalid(at, labels[key], msg))
		}
		if msg := rules.Refusal(key); msg != "" {
			errs = append(errs, field.Forbidden(at, msg))
		}
	}
	return errs
}

func validateTaints(spec *NodeClaimTemplateSpec, path *field.Path) field.ErrorList {
	type identity struct {
		key    string
		effect corev1.TaintEffect
	}
	var errs field.ErrorList
	seen := map[identity]struct{}{}
	check := func(taints []corev1.Taint, path *field.Path) {
		for i, t := range taints {
			at := path.Index(i)
			if t.Key == "" {
				errs = append(errs, field.Required(at.Child("key"), "a taint has a key"))
			} else {
				for _, msg := range validation.IsQualifiedName(t.Key) {
					errs = append(errs, field.Invalid(at.Child("key"), t.Key, msg))
				}
			}
			if t.Value != "" {
				for _, msg := range validation.IsQualifiedName(t.Value) {
					errs = append(errs, field.Invalid(at.Child("value"), t.Value, msg))
				}
			}
			if t.Effect != "" && !slices.Contains(taintEffects, t.Effect) {
				errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, taintEffects))
			}
			id := identity{t.Key, t.Effect}
			if _, ok := seen[id]; ok {
				errs = append(errs, field.Duplicate(at, t.Key+":"+string(t.Effect)))
			}
			seen[id] = struct{}{}
		}
	}
	check(spec.Taints, path.Child("taints"))
	check(spec.StartupTaints, path.Child("startupTaints"))
	return errs
}

// ValidateRequirement returns the faults of one requirement of a NodePool, or of a pod's
// node selector or required node affinity. The key is normalized first.
//
// Values that rules.KnownValues does not list are no fault as long as enough known ones
// are left; [UnknownValues] tells them.
func ValidateRequirement(r Requirement, rules LabelRules, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	key := rules.NormalizeKey(r.Key)
	at, values := path.Child("key"), path.Child("values")
	for _, msg := range validation.IsQualifiedName(key) {
		errs = append(errs, field.Invalid(at, r.Key, msg))
	}
	if msg := rules.Refusal(key); msg != "" {
		errs = append(errs, field.Forbidden(at, msg))
	}
	if !slices.Contains(operators, r.Operator) {
		errs = append(errs, field.NotSupported(path.Child("operator"), r.Operator, operators))
	}
	for i, value := range r.Values {
		for _, msg := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(values.Index(i), value, msg))
		}
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(values, "operator In has at least one value"))
		}
		if r.MinValues != nil && len(r.Values) < *r.MinValues {
			errs = append(errs, field.Invalid(values, strings.Join(r.Values, ","), fmt.Sprintf("minValues %d asks for at least as many values", *r.MinValues)))
		}
		errs = append(errs, validateKnownValues(key, r, rules, values)...)
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt, NodeSelectorOpGte, NodeSelectorOpLte:
		if len(r.Values) != 1 {
			errs = append(errs, field.Invalid(values, strings.Join(r.Values, ","), fmt.Sprintf("operator %s has exactly one value", r.Operator)))
		} else if n, err := strconv.Atoi(r.Values[0]); err != nil || n < 0 {
			errs = append(errs, field.Invalid(values.Index(0), r.Values[0], fmt.Sprintf("operator %s has an integer of at least 0", r.Operator)))
		}
	}
	return errs
}

func validateKnownValues(key string, r Requirement, rules LabelRules, path *field.Path) field.ErrorList {
	known, ok := rules.KnownValues[key]
	if !ok || !rules.WellKnown.Has(key) || len(r.Values) == 0 {
		return nil
	}
	usable := 0
	for _, value := range r.Values {
		if known.Has(value) {
			usable++
		}
	}
	want := 1
	if r.MinValues != nil {
		want = max(want, *r.MinValues)
	}
	if usable >= want {
		return nil
	}
	return field.ErrorList{field.Invalid(path, strings.Join(r.Values, ","),
		fmt.Sprintf("%d of the values known (%s), at least %d wanted", usable, strings.Join(sets.List(known), ", "), want))}
}

// UnknownValues returns the values of an In requirement that its well-known label never
// has, in their order. They are harmless, but likely misspelt.
func UnknownValues(r Requirement, rules LabelRules) []string {
	key := rules.NormalizeKey(r.Key)
	known, ok := rules.KnownValues[key]
	if !ok || !rules.WellKnown.Has(key) || r.Operator != corev1.NodeSelectorOpIn {
		return nil
	}
	var unknown []string
	for _, value := range r.Values {
		if !known.Has(value) {
			unknown = append(unknown, value)
		}
	}
	return unknown
}
