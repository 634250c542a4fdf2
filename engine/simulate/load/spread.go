package load

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// schedulerConfig is the part of a scheduler configuration that is read.
type schedulerConfig struct {
	PodTopologySpread struct {
		DefaultConstraints []spreadConstraint `json:"defaultConstraints"`
	} `json:"podTopologySpread"`
}

// spreadConstraint is a topology spread constraint without what a cluster-wide default
// cannot have: a selector and label keys.
type spreadConstraint struct {
	MaxSkew            int32                                `json:"maxSkew"`
	TopologyKey        string                               `json:"topologyKey"`
	WhenUnsatisfiable  corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable"`
	MinDomains         *int32                               `json:"minDomains"`
	NodeAffinityPolicy *corev1.NodeInclusionPolicy          `json:"nodeAffinityPolicy"`
	NodeTaintsPolicy   *corev1.NodeInclusionPolicy          `json:"nodeTaintsPolicy"`
}

// SchedulerConfig reads the default spread constraints of a scheduler configuration:
// one YAML or JSON document with podTopologySpread.defaultConstraints. Unlike
// manifests it is read strictly: anything unknown or invalid fails it.
func SchedulerConfig(in Input) ([]corev1.TopologySpreadConstraint, error) {
	var cfg schedulerConfig
	if err := Strict(in, &cfg); err != nil {
		return nil, err
	}
	var errs []error
	out := make([]corev1.TopologySpreadConstraint, 0, len(cfg.PodTopologySpread.DefaultConstraints))
	for i, c := range cfg.PodTopologySpread.DefaultConstraints {
		if err := validSpread(c); err != nil {
			errs = append(errs, fmt.Errorf("scheduler config %s: podTopologySpread.defaultConstraints[%d].%w", in.Name, i, err))
		}
		for j, other := range cfg.PodTopologySpread.DefaultConstraints[:i] {
			if other.TopologyKey == c.TopologyKey && other.WhenUnsatisfiable == c.WhenUnsatisfiable {
				errs = append(errs, fmt.Errorf("scheduler config %s: podTopologySpread.defaultConstraints[%d]: has the topologyKey and whenUnsatisfiable of [%d]", in.Name, i, j))
			}
		}
		out = append(out, corev1.TopologySpreadConstraint{MaxSkew: c.MaxSkew, TopologyKey: c.TopologyKey, WhenUnsatisfiable: c.WhenUnsatisfiable,
			MinDomains: c.MinDomains, NodeAffinityPolicy: c.NodeAffinityPolicy, NodeTaintsPolicy: c.NodeTaintsPolicy})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

func validSpread(c spreadConstraint) error {
	var errs []error
	if c.MaxSkew <= 0 {
		errs = append(errs, fmt.Errorf("maxSkew: %d: must be positive", c.MaxSkew))
	}
	if msgs := validation.IsQualifiedName(c.TopologyKey); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("topologyKey: %q: %s", c.TopologyKey, msgs[0]))
	}
	switch c.WhenUnsatisfiable {
	case corev1.DoNotSchedule, corev1.ScheduleAnyway:
	default:
		errs = append(errs, fmt.Errorf("whenUnsatisfiable: %q: must be DoNotSchedule or ScheduleAnyway", c.WhenUnsatisfiable))
	}
	if c.MinDomains != nil && (*c.MinDomains <= 0 || c.WhenUnsatisfiable != corev1.DoNotSchedule) {
		errs = append(errs, fmt.Errorf("minDomains: %d: must be positive and goes with DoNotSchedule only", *c.MinDomains))
	}
	policy := func(name string, p *corev1.NodeInclusionPolicy) {
		if p != nil && *p != corev1.NodeInclusionPolicyHonor && *p != corev1.NodeInclusionPolicyIgnore {
			errs = append(errs, fmt.Errorf("%s: %q: must be Honor or Ignore", name, *p))
		}
	}
	policy("nodeAffinityPolicy", c.NodeAffinityPolicy)
	policy("nodeTaintsPolicy", c.NodeTaintsPolicy)
	return errors.Join(errs...)
}

// ParseSpread reads the short form "KEY[:MAXSKEW[:WHEN]]" of a default spread
// constraint: "zone:1:DoNotSchedule". KEY may be zone or hostname for the label of that
// name; MAXSKEW defaults to 1 and WHEN to DoNotSchedule.
func ParseSpread(s string) (corev1.TopologySpreadConstraint, error) {
	parts := strings.Split(s, ":")
	c := spreadConstraint{TopologyKey: parts[0], MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule}
	switch c.TopologyKey {
	case "zone":
		c.TopologyKey = corev1.LabelTopologyZone
	case "hostname":
		c.TopologyKey = corev1.LabelHostname
	}
	if len(parts) > 3 {
		return corev1.TopologySpreadConstraint{}, fmt.Errorf("default spread %q: write KEY[:MAXSKEW[:WHEN]]", s)
	}
	if len(parts) > 1 {
		n, err := strconv.ParseInt(parts[1], 10, 32)
		if err != nil {
			return corev1.TopologySpreadConstraint{}, fmt.Errorf("default spread %q: max skew %q is not a whole number", s, parts[1])
		}
		c.MaxSkew = int32(n)
	}
	if len(parts) > 2 {
		c.WhenUnsatisfiable = corev1.UnsatisfiableConstraintAction(parts[2])
	}
	if err := validSpread(c); err != nil {
		return corev1.TopologySpreadConstraint{}, fmt.Errorf("default spread %q: %w", s, err)
	}
	return corev1.TopologySpreadConstraint{MaxSkew: c.MaxSkew, TopologyKey: c.TopologyKey, WhenUnsatisfiable: c.WhenUnsatisfiable}, nil
}
