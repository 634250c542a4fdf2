package drift

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
)

// Reasons of the condition Drifted; others are the cloud's own.
const (
	NodePoolDrifted      = "NodePoolDrifted"
	RequirementsDrifted  = "RequirementsDrifted"
	InstanceTypeNotFound = "InstanceTypeNotFound"
)

// cloudsOwn stands for all reasons of the cloud.
const cloudsOwn = "cloud"

// class is the rule that gives a reason.
func class(reason string) string {
	switch reason {
	case NodePoolDrifted, RequirementsDrifted, InstanceTypeNotFound:
		return reason
	}
	return cloudsOwn
}

// listedFor is the age from which on a claim's instance type must be in the catalogue. A
// new machine may be of a type that the cloud lists a moment later.
const listedFor = time.Hour

// verdict is what the rules say of a claim.
type verdict struct {
	// reason is that of the first rule that finds drift, or "".
	reason, message string
	// open are the rules that could not be judged, by [class].
	open map[string]bool
	// err is what to try again for.
	err error
}

// judge applies the rules in order. One that cannot be judged does not keep the next from
// finding drift.
func (c *Controllers) judge(ctx context.Context, np *karpv1.NodePool, claim *karpv1.NodeClaim) verdict {
	v := verdict{open: map[string]bool{}}
	var known bool
	if v.message, known = template(np, claim); v.message != "" {
		v.reason = NodePoolDrifted
		return v
	}
	v.open[NodePoolDrifted] = !known
	if v.message, known = labels(np, claim); v.message != "" {
		v.reason = RequirementsDrifted
		return v
	}
	v.open[RequirementsDrifted] = !known

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if c.Now().Sub(claim.CreationTimestamp.Time) >= listedFor {
		sold, err := c.Provider.Catalog(ctx, np)
		switch {
		case cloud.IsNodeClassNotReady(err):
			v.open[InstanceTypeNotFound] = true // a change of the class brings it back
		case err != nil:
			v.open[InstanceTypeNotFound] = true
			v.err = fmt.Errorf("instance types of nodepool %q: %w", np.Name, err)
		case sold.Len() == 0:
			// A cloud that sells nothing at all is no reason to replace all nodes.
			v.open[InstanceTypeNotFound] = true
		default:
			if v.message = offered(sold, claim); v.message != "" {
				v.reason, v.err = InstanceTypeNotFound, nil
				return v
			}
		}
	}
	reason, err := c.Provider.Drift(ctx, claim)
	switch {
	case cloud.IsNotFound(err):
		// A machine that is gone is none to replace; the garbage collection sees to its claim.
	case err != nil:
		v.open[cloudsOwn] = true
		if !cloud.IsNodeClassNotReady(err) {
			v.err = errors.Join(v.err, fmt.Errorf("drift of nodeclaim %q: %w", claim.Name, err))
		}
	case reason != "":
		v.reason = reason
		v.message = "the machine is not what the NodeClass asks for now"
		if ref := claim.Spec.NodeClassRef; ref != nil {
			v.message = fmt.Sprintf("the machine is not what %s %s asks for now", ref.Kind, ref.Name)
		}
	}
	return v
}

// template says in which fields a claim differs from its NodePool's template, or "". It is
// not known before both have hashes of the present version. The NodePool's is computed,
// since the one in its annotation may be of an earlier template.
func template(np *karpv1.NodePool, c *karpv1.NodeClaim) (message string, known bool) {
	version := func(annotations map[string]string) bool {
		return annotations[karpv1.NodePoolHashVersionAnnotationKey] == karpv1.NodePoolHashVersion
	}
	hash := c.Annotations[karpv1.NodePoolHashAnnotationKey]
	if hash == "" || !version(c.Annotations) || !version(np.Annotations) {
		return "", false
	}
	if hash == np.Hash() {
		return "", true
	}
	var parts []string
	for _, d := range np.Differences(c) {
		parts = append(parts, d.String())
	}
	if len(parts) == 0 {
		return "spec.template: changed since the NodeClaim was made", true
	}
	return strings.Join(parts, "; "), true
}

// labels says which requirement of the NodePool a claim's labels do not meet, or "". It is
// not known if the requirements cannot be read. A label that a claim does not have counts as
// missing, unless the claim itself left its value open: a successor would do the same, and
// be drifted too.
func labels(np *karpv1.NodePool, c *karpv1.NodeClaim) (message string, known bool) {
	want, err := requirements.FromEntries(entries(np.Spec.Template.Spec.Requirements))
	if err != nil {
		return "", false
	}
	have := requirements.FromLabels(c.Labels)
	// What cannot be read of the claim's own says nothing.
	left, _ := requirements.FromEntries(entries(c.Spec.Requirements))
	for key, r := range left {
		if !have.Has(key) {
			have[key] = r
		}
	}
	if err := have.Compatible(want, nil); err != nil {
		return "spec.template.spec.requirements: " + err.Error(), true
	}
	return "", true
}

func entries(list []karpv1.Requirement) []requirements.Entry {
	out := make([]requirements.Entry, len(list))
	for i, r := range list {
		out[i] = requirements.Entry{Key: r.Key, Operator: r.Operator, Values: r.Values}
	}
	return out
}

// offered says why a claim's machine cannot be bought any more, or "". Offerings that are
// out of capacity count: they come back.
func offered(sold *catalog.Catalog, c *karpv1.NodeClaim) string {
	name := c.Labels[corev1.LabelInstanceTypeStable]
	kind, ok := sold.ByName(name)
	if !ok {
		return fmt.Sprintf("instance type %q is not sold any more", name)
	}
	have := requirements.FromLabels(c.Labels)
	zone, capacity := c.Labels[corev1.LabelTopologyZone], c.Labels[karpv1.CapacityTypeLabelKey]
	for i := range kind.Offerings {
		if o := &kind.Offerings[i]; (zone == "" || o.Zone == "" || o.Zone == zone) && sameCapacity(capacity, o.CapacityType) && matches(have, o) {
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
