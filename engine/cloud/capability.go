package cloud

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// Repairer is a provider that says which node conditions mean a broken machine.
type Repairer interface {
	RepairPolicies() []RepairPolicy
}

// RepairPolicy says when a node is broken for good.
type RepairPolicy struct {
	Condition corev1.NodeConditionType
	Status    corev1.ConditionStatus
	// Reason is a regular expression on the condition's reason; empty matches those that
	// no other policy of the same condition and status matches.
	Reason string
	// Toleration is how long the condition must last.
	Toleration time.Duration
	// Priority is 0 to 100; a higher one is repaired first.
	Priority int
	// Reboot asks for a restart in place instead of a replacement.
	Reboot bool
	// Drain bounds the drain; nil leaves it to the claim, 0 skips it.
	Drain *time.Duration
}

// Rebooter is a provider that can restart a machine in place.
type Rebooter interface {
	// Reboot restarts the claim's machine once per operation.
	Reboot(ctx context.Context, claim *karpv1.NodeClaim, operation string) error
}

// Registrar is a provider with work of its own between a node's appearance and its
// registration.
type Registrar interface {
	// Registered returns the names of what is still pending, and when to ask again.
	Registered(ctx context.Context, claim *karpv1.NodeClaim, node *corev1.Node) (pending []string, after time.Duration, err error)
}

// Interrupter is a provider that announces the end of machines.
type Interrupter interface {
	// Interruptions delivers announcements until ctx ends. One may come more than once.
	Interruptions(ctx context.Context) <-chan Interruption
}

// Interruption announces the end of a machine.
type Interruption struct {
	ProviderID string
	// Kind is "SpotInterruption", "RebalanceRecommendation", "ScheduledChange",
	// "InstanceStopping" or "InstanceTerminating".
	Kind string
	// At is when the machine ends; zero if unknown.
	At time.Time
}

// As returns the capability C of p, also of a provider that p wraps: one that has a
// method Unwrap() Provider.
func As[C any](p Provider) (C, bool) {
	for p != nil {
		if c, ok := p.(C); ok {
			return c, true
		}
		w, ok := p.(interface{ Unwrap() Provider })
		if !ok {
			break
		}
		p = w.Unwrap()
	}
	var none C
	return none, false
}
