// Package candidate says of every node whether it may be disrupted, for what reasons, and
// what that would meet: who is in the way, what evicting its pods costs, and how many nodes
// the budgets of its NodePool let go now.
//
// It reads objects and changes nothing, so the controller, the simulation and policies see
// the same.
package candidate

import (
	"fmt"
	"slices"
	"time"

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
	// Broken are the nodes, by name, that are broken for good, Tripped the NodePools of which
	// so many are that none is replaced, with the reason.
	Broken  map[string]Fault
	Tripped map[string]string
}

// Fault is what is broken about a node for good, as its cloud says.
type Fault struct {
	// Condition is the one of the Node that says so, Message what it says.
	Condition, Message string
	// Urgency says which of several nodes goes first: the one with more.
	Urgency float64
	// Drain bounds how long pods have once the node goes; 0 is not at all. Nil leaves it to
	// the claim.
	Drain *time.Duration
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
	// left out of simulations. LeftOut names them.
	Disposable int
	LeftOut    []snapshot.PodKey
	// Returning is the number of pods that are terminating and will be made again under
	// their names. They need room, so the node is not empty, but no plan moves them.
	Returning int
	// Lost are those of Pods that nothing makes again once they are evicted, since no
	// controller owns them.
	Lost []snapshot.PodKey
	// Cost is 1 plus what evicting Pods costs (§5.4).
	Cost float64
	// Rounds is in how many turns PodDisruptionBudgets let the pods go at the least: 1 if
	// all may go at once. A drain takes that many times what a pod needs to become ready.
	Rounds int
	// Late are those of Pods that may have to wait for others to be ready elsewhere.
	Late []snapshot.PodKey
	// Drifted says why the claim is no longer what its pool asks for; "" if it is. Since is
	// when that began.
	Drifted      string
	DriftedSince time.Time
	// Fault is what is broken about the node for good; nil if nothing is.
	Fault *Fault
	// Lifetime is the part of expireAfter that is left, 0 to 1; 1 without one.
	Lifetime float64
	// Destination says that the node may take pods of consolidation. It may not while its
	// consolidateAfter has not passed, if its pool protects such nodes by annotation, nor if it
	// is broken.
	Destination bool
	// Graceful are the reasons against every voluntary disruption. Eventual are those
	// against drift, for which pods are no obstacle if their end is bounded, and Repair
	// those against replacing the node because it is unhealthy, for which pods are none
	// either if the fault bounds the drain.
	Graceful, Eventual, Repair []Reason
	// Consolidation are the reasons against consolidation beside Graceful, Emptiness those
	// against deleting the node for being empty beside Graceful.
	Consolidation, Emptiness []Reason
	// Warnings are no obstacle, but worth knowing: pods that are lost, drains that take
	// long, annotations that are ignored.
	Warnings []Reason
}

// Empty reports whether no pod needs another node if this one goes. Unlike upstream (§13.2
// item 10), pods that cost nothing to evict still need one.
func (c *Candidate) Empty() bool { return len(c.Pods) == c.Disposable && c.Returning == 0 }

// Uninitialized reports whether the node has not come up yet, so that budgets neither count
// nor keep it.
func (c *Candidate) Uninitialized() bool {
	return c.keptBy(NotInitialized) && !c.keptBy(Rebooting)
}

func (c *Candidate) keptBy(codes ...Code) bool {
	return slices.ContainsFunc(c.Graceful, func(r Reason) bool { return slices.Contains(codes, r.Code) })
}

// Blocked are the reasons against disrupting the node for reason; none if it may go.
func (c *Candidate) Blocked(reason karpv1.DisruptionReason) []Reason {
	switch reason {
	case karpv1.DisruptionReasonEmpty:
		return append(c.Graceful[:len(c.Graceful):len(c.Graceful)], c.Emptiness...)
	case karpv1.DisruptionReasonUnderutilized:
		return append(c.Graceful[:len(c.Graceful):len(c.Graceful)], c.Consolidation...)
	case karpv1.DisruptionReasonUnhealthy:
		return c.Repair
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
	// NodeEmpty is against consolidation: an empty node goes for being empty, within the
	// budgets of that reason.
	NodeEmpty Code = "NodeEmpty"
	NoNode    Code = "NodeNotFound"
	Rebooting Code = "Rebooting"

	// NodeDoNotRepair and TooManyBroken are against replacing a node that is broken.
	NodeDoNotRepair Code = "NodeDoNotRepair"
	TooManyBroken   Code = "TooManyBroken"

	// Codes of warnings.
	NoOwner           Code = "PodWithoutOwner"
	DrainInRounds     Code = "DrainInRounds"
	InvalidAnnotation Code = "InvalidDoNotDisruptAnnotation"
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
