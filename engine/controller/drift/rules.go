package drift

import (
	"context"
	"errors"
	"fmt"
	"strings"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
)

// Reasons of the condition Drifted; others are the cloud's own.
const (
	NodePoolDrifted      = candidate.NodePoolDrifted
	RequirementsDrifted  = candidate.RequirementsDrifted
	InstanceTypeNotFound = candidate.InstanceTypeNotFound
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
	message, known := template(np, claim)
	if message != "" {
		v.reason, v.message = NodePoolDrifted, message
		return v
	}
	v.open[NodePoolDrifted] = !known
	known, unmet := candidate.Unmet(np, claim)
	if unmet != nil {
		v.reason, v.message = RequirementsDrifted, "spec.template.spec.requirements: "+unmet.Error()
		return v
	}
	v.open[RequirementsDrifted] = !known

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if c.Now().Sub(claim.CreationTimestamp.Time) >= candidate.ListedFor {
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
			if v.message = candidate.Unsold(sold, claim.Labels); v.message != "" {
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
	same, known := candidate.SameTemplate(np, c)
	if !known || np.Annotations[karpv1.NodePoolHashVersionAnnotationKey] != karpv1.NodePoolHashVersion {
		return "", false
	}
	if same {
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
