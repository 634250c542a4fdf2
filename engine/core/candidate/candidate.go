// Package candidate says of every node whether it may be disrupted, for what reasons, and
// what that would meet: who is in the way, what evicting its pods costs, and how many nodes
// the budgets of its NodePool let go now.
//
// It reads objects and changes nothing, so the controller, the simulation and policies see
// the same.
package candidate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Facts are what objects do not say of nodes.
type Facts struct {
	// Now is the clock.
	Now time.Time
	// Leaving are the NodeClaims, by name, that are as good as deleted or part of a command.
	Leaving map[string]bool
	// Nominated reports whether a node, by name, is expected to take pods that are pending.
	// Nil says no of all.
	Nominated func(node string) bool
	// DeletionCost makes the annotation controller.kubernetes.io/pod-deletion-cost count
	// where a pod has none of Karpenter's own.
	DeletionCost bool
}

// Candidate is a node and what stands in the way of disrupting it.
type Candidate struct {
	// Node, Claim and Pool are names. Claim and Pool are empty if nobody manages the node.
	Node, Claim, Pool string
	// InstanceType, Zone, CapacityType and ReservationID are those of its labels.
	InstanceType, Zone, CapacityType, ReservationID string
	// Static is true if the pool has replicas.
	Static bool
	// Pods are those that need another node if this one goes, by namespace and name: not of
	// DaemonSets, not terminating, not mirror pods.
	Pods []snapshot.PodKey
	// Disposable is the number of Pods that need no other node: they are annotated to be
	// left out of simulations.
	Disposable int
	// Cost is 1 plus what evicting Pods costs (§5.4).
	Cost float64
	// Drifted says why the claim is no longer what its pool asks for; "" if it is. Since is
	// when that began.
	Drifted      string
	DriftedSince time.Time
	// Lifetime is the part of expireAfter that is left, 0 to 1; 1 without one.
	Lifetime float64
	// Destination is false while the node's consolidateAfter has not passed and its pool
	// protects such nodes from taking pods of consolidation.
	Destination bool
	// blocked by class of method.
	Graceful, Eventual []Reason
	// Consolidation are the reasons against consolidation beside Graceful, Emptiness those
	// against deleting the node for being empty beside Graceful.
	Consolidation, Emptiness []Reason
}

// Empty reports whether no pod needs another node if this one goes. Unlike upstream (§13.2
// item 10), pods that cost nothing to evict still need one.
func (c *Candidate) Empty() bool { return len(c.Pods) == c.Disposable }

// Blocked are the reasons against disrupting the node for reason; none if it may go.
func (c *Candidate) Blocked(reason karpv1.DisruptionReason) []Reason {
	switch reason {
	case karpv1.DisruptionReasonEmpty:
		return append(c.Graceful[:len(c.Graceful):len(c.Graceful)], c.Emptiness...)
	case karpv1.DisruptionReasonUnderutilized:
		return append(c.Graceful[:len(c.Graceful):len(c.Graceful)], c.Consolidation...)
	}
	return c.Eventual
}

// Code names the cause of a Reason.
type Code string

// Codes. Each is stable: they are in reports and metrics.
const (
	NoClaim           Code = "NoNodeClaim"
	NoPool            Code = "NodePoolNotFound"
	Deleting          Code = "Deleting"
	NotInitialized    Code = "NotInitialized"
	Nominated         Code = "Nominated"
	NodeDoNotDisrupt  Code = "NodeDoNotDisrupt"
	PodDoNotDisrupt   Code = "PodDoNotDisrupt"
	SeveralBudgets    Code = "SeveralPodDisruptionBudgets"
	PodBudget         Code = "PodDisruptionBudget"
	StaticPool        Code = "StaticNodePool"
	TypeUnknown       Code = "InstanceTypeUnknown"
	LabelMissing      Code = "LabelMissing"
	ConsolidateNever  Code = "ConsolidationDisabled"
	OnlyWhenEmpty     Code = "ConsolidateWhenEmpty"
	NotConsolidatable Code = "NotConsolidatable"
	NotEmpty          Code = "NotEmpty"
	NoOwner           Code = "PodWithoutOwner"
)

// Reason is one cause, as data.
type Reason struct {
	Code Code `json:"code"`
	// Object is what is in the way, such as "pod shop/web-1"; empty if it is the node.
	Object string `json:"object,omitempty"`
	// Message says what is so, in words.
	Message string `json:"message"`
	// Until is when it ends by itself; zero if that is not known.
	Until time.Time `json:"until,omitzero"`
}

func (r Reason) String() string {
	if r.Object == "" {
		return r.Message
	}
	return fmt.Sprintf("%s: %s", r.Object, r.Message)
}

// Allowance is how many nodes of a NodePool may go now for one reason.
type Allowance struct {
	Pool   string
	Reason karpv1.DisruptionReason
	// Nodes are the counted ones; Allowed is the smallest of the budgets, or Unlimited;
	// Consumed are disrupted already; Left is what remains, never negative.
	Nodes, Allowed, Consumed, Left int
	// Unlimited is true if no budget is active for the reason.
	Unlimited bool
	// Budget is the index of the budget that decides, -1 if none does.
	Budget int
	// Opens is when more is allowed because of a schedule; zero if that is not known.
	Opens time.Time
	// Problem is an error in the budgets, by which nothing is allowed; "" if there is none.
	Problem string
}

func (a Allowance) String() string {
	if a.Problem != "" {
		return a.Problem
	}
	if a.Unlimited {
		return fmt.Sprintf("%s: no budget of NodePool %s is active", a.Reason, a.Pool)
	}
	s := fmt.Sprintf("%s: %d of %d nodes of NodePool %s may be disrupted at a time, %d are: %d may go now", a.Reason, a.Allowed, a.Nodes, a.Pool, a.Consumed, a.Left)
	if a.Left == 0 && !a.Opens.IsZero() {
		s += fmt.Sprintf("; spec.disruption.budgets[%d] opens at %s", a.Budget, a.Opens.UTC().Format(time.RFC3339))
	}
	return s
}

var _ = corev1.Pod{}
