package v1alpha1

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	simPricePattern  = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]+)?$`)
	simReasonPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
)

// Resolve is the time that t stands for, created being that of the SimNodeClass. Empty is
// the zero time. The error names the two forms.
func (t SimTime) Resolve(created time.Time) (time.Time, error) {
	if t == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(string(t)); err == nil && d >= 0 {
		return created.Add(d), nil
	}
	at, err := time.Parse(time.RFC3339Nano, string(t))
	if err != nil {
		return time.Time{}, fmt.Errorf("time %q: must be in RFC 3339, or a duration since the class was created", string(t))
	}
	return at, nil
}

// Matches reports whether s selects an offering.
func (s *SimSelector) Matches(instanceType, zone, capacityType string) bool {
	return (len(s.InstanceTypes) == 0 || MatchesAny(s.InstanceTypes, instanceType)) &&
		(len(s.Zones) == 0 || slices.Contains(s.Zones, zone)) &&
		(len(s.CapacityTypes) == 0 || slices.Contains(s.CapacityTypes, capacityType))
}

// MatchesAny reports whether name matches one of patterns, which may hold the wildcards *
// and ?. A pattern that cannot be read matches nothing.
func MatchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return err == nil && ok
	})
}

// Contains reports whether at is in w, created being the time of the SimNodeClass. An end
// that cannot be read is no end.
func (w *SimWindow) Contains(created, at time.Time) bool {
	from, until := w.Bounds(created)
	return !at.Before(from) && (until.IsZero() || at.Before(until))
}

// Bounds are the beginning and the end of w; zero if it has none.
func (w *SimWindow) Bounds(created time.Time) (from, until time.Time) {
	from, _ = w.From.Resolve(created) // zero on error: Validate tells
	until, _ = w.Until.Resolve(created)
	return from, until
}

// RuntimeValidate checks everything about the class that can be known without its
// catalogue, what an API server checks included. It returns every fault with its field
// path, joined, or nil.
func (c *SimNodeClass) RuntimeValidate() error { return c.Validate().ToAggregate() }

// Validate is [SimNodeClass.RuntimeValidate] with the faults as a list, in the order of
// the fields.
func (c *SimNodeClass) Validate() field.ErrorList {
	s, at := &c.Spec, field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, oneOf(at.Child("catalog", "builtin"), s.Catalog.Builtin, false, BuiltinEC2, BuiltinKWOK)...)
	if ref := s.Catalog.ConfigMapRef; ref != nil {
		if s.Catalog.Builtin != "" {
			errs = append(errs, field.Invalid(at.Child("catalog"), string(s.Catalog.Builtin), "at most one of builtin and configMapRef"))
		}
		errs = append(errs, ref.validate(at.Child("catalog", "configMapRef"))...)
	}
	errs = append(errs, patterns(at.Child("instanceTypes"), s.InstanceTypes)...)
	errs = append(errs, simLabels(at.Child("labels"), s.Labels)...)
	errs = append(errs, simTaints(at.Child("taints"), s.Taints)...)
	for _, latency := range []struct {
		name string
		of   SimLatency
	}{{"launchLatency", s.LaunchLatency}, {"registrationLatency", s.RegistrationLatency}, {"terminateLatency", s.TerminateLatency}} {
		errs = append(errs, notNegative(at.Child(latency.name, "base"), &latency.of.Base)...)
		errs = append(errs, notNegative(at.Child(latency.name, "jitter"), &latency.of.Jitter)...)
	}
	errs = append(errs, notNegative(at.Child("unavailableFor"), s.UnavailableFor)...)
	for i := range s.Capacity {
		r, at := &s.Capacity[i], at.Child("capacity").Index(i)
		errs = append(errs, r.SimSelector.validate(at)...)
		errs = append(errs, r.SimWindow.validate(at)...)
		if r.Available < 0 {
			errs = append(errs, field.Invalid(at.Child("available"), r.Available, "must not be negative"))
		}
	}
	for i := range s.Prices {
		r, at := &s.Prices[i], at.Child("prices").Index(i)
		errs = append(errs, r.SimSelector.validate(at)...)
		errs = append(errs, r.At.validate(at.Child("at"))...)
		if (r.Price != "") == (r.Percent != nil) {
			errs = append(errs, field.Invalid(at, r.Price, "exactly one of price and percent is required"))
		}
		if r.Price != "" && !simPricePattern.MatchString(r.Price) {
			errs = append(errs, field.Invalid(at.Child("price"), r.Price, "must be a decimal number of US dollars per hour"))
		}
		if r.Percent != nil && (*r.Percent < 1 || *r.Percent > 100_000) {
			errs = append(errs, field.Invalid(at.Child("percent"), *r.Percent, "must be from 1 to 100000"))
		}
	}
	for i := range s.Interruptions {
		errs = append(errs, s.Interruptions[i].validate(at.Child("interruptions").Index(i))...)
	}
	for i := range s.Failures {
		errs = append(errs, s.Failures[i].validate(at.Child("failures").Index(i))...)
	}
	return errs
}

func (r *SimInterruption) validate(at *field.Path) field.ErrorList {
	errs := r.SimSelector.validate(at)
	errs = append(errs, share(at.Child("percent"), r.Percent)...)
	errs = append(errs, r.At.validate(at.Child("at"))...)
	if r.At != "" && r.After != nil {
		errs = append(errs, field.Invalid(at, string(r.At), "at most one of at and after"))
	}
	errs = append(errs, notNegative(at.Child("after"), r.After)...)
	errs = append(errs, oneOf(at.Child("kind"), r.Kind, false, SpotInterruption, RebalanceRecommendation, ScheduledChange, InstanceStopping, InstanceTerminating)...)
	return append(errs, notNegative(at.Child("warning"), r.Warning)...)
}

func (r *SimFailure) validate(at *field.Path) field.ErrorList {
	errs := r.SimSelector.validate(at)
	errs = append(errs, r.SimWindow.validate(at)...)
	errs = append(errs, share(at.Child("percent"), r.Percent)...)
	errs = append(errs, oneOf(at.Child("kind"), r.Kind, true, FailureLaunch, FailureNeverRegisters, FailureWrongProviderID, FailureLateNotFound)...)
	if r.Reason != "" && !simReasonPattern.MatchString(r.Reason) {
		errs = append(errs, field.Invalid(at.Child("reason"), r.Reason, "must be a word in CamelCase"))
	}
	if (r.Reason != "" || r.Message != "") && r.Kind != FailureLaunch {
		errs = append(errs, field.Forbidden(at.Child("reason"), "reason and message are for kind LaunchError"))
	}
	if (r.For != nil) != (r.Kind == FailureLateNotFound) {
		errs = append(errs, field.Invalid(at.Child("for"), string(r.Kind), "is required for kind LateNotFound, and for it alone"))
	}
	return append(errs, notNegative(at.Child("for"), r.For)...)
}

func (s *SimSelector) validate(at *field.Path) field.ErrorList {
	errs := patterns(at.Child("instanceTypes"), s.InstanceTypes)
	for i, t := range s.CapacityTypes {
		errs = append(errs, oneOf(at.Child("capacityTypes").Index(i), t, true, "on-demand", "spot", "reserved")...)
	}
	return errs
}

func (w *SimWindow) validate(at *field.Path) field.ErrorList {
	return append(w.From.validate(at.Child("from")), w.Until.validate(at.Child("until"))...)
}

func (t SimTime) validate(at *field.Path) field.ErrorList {
	if _, err := t.Resolve(time.Time{}); err != nil {
		return field.ErrorList{field.Invalid(at, string(t), "must be in RFC 3339, or a duration since the class was created")}
	}
	return nil
}

func patterns(at *field.Path, list []string) field.ErrorList {
	var errs field.ErrorList
	for i, p := range list {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			errs = append(errs, field.Invalid(at.Index(i), p, "must be a name, which may hold the wildcards * and ?"))
		}
	}
	return errs
}

func notNegative(at *field.Path, d *metav1.Duration) field.ErrorList {
	if d != nil && d.Duration < 0 {
		return field.ErrorList{field.Invalid(at, d.Duration.String(), "must not be negative")}
	}
	return nil
}

func share(at *field.Path, percent *int32) field.ErrorList {
	if percent != nil && (*percent < 0 || *percent > 100) {
		return field.ErrorList{field.Invalid(at, *percent, "must be from 0 to 100")}
	}
	return nil
}

func simLabels(at *field.Path, labels map[string]string) field.ErrorList {
	var errs field.ErrorList
	for key, value := range labels {
		for _, msg := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(at.Key(key), key, msg))
		}
		for _, msg := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(at.Key(key), value, msg))
		}
		if strings.HasPrefix(key, "karpenter.sh/") {
			errs = append(errs, field.Forbidden(at.Key(key), "labels of domain karpenter.sh are set at registration"))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

func simTaints(at *field.Path, taints []corev1.Taint) field.ErrorList {
	var errs field.ErrorList
	for i, t := range taints {
		at := at.Index(i)
		for _, msg := range validation.IsQualifiedName(t.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), t.Key, msg))
		}
		for _, msg := range validation.IsValidLabelValue(t.Value) {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, msg))
		}
		errs = append(errs, oneOf(at.Child("effect"), t.Effect, true, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
	}
	return errs
}
