// Package health says which Nodes are broken for good, by what their cloud tells of that.
//
// A restart in place is not done: a policy that asks for one gets a replacement.
package health

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
)

// oneOf is the breaker: at most one node of so many, rounded up, may be broken for any to be
// replaced. More than that are not broken machines but a broken cluster.
const oneOf = 5

// perRank is how much longer a fault must have been due to come before one whose policy has
// the next higher priority.
const perRank = 30 * time.Minute

// Rules are the repair policies of a cloud.
type Rules struct{ list []rule }

// rule is a policy with its expression; nil matches what no other rule of the condition
// and status does. Rank is the place of its priority among those of all.
type rule struct {
	cloud.RepairPolicy
	reason *regexp.Regexp
	rank   int
}

// New reads the policies of a cloud. The error says what is wrong with them, or that there
// are none: then there is nothing to repair by.
func New(provider cloud.Provider) (*Rules, error) {
	repairer, ok := cloud.As[cloud.Repairer](provider)
	if !ok {
		return nil, fmt.Errorf("node repair: cloud %s does not tell which nodes are broken", provider.Name())
	}
	rules, err := compile(repairer.RepairPolicies())
	if err != nil {
		return nil, fmt.Errorf("node repair: policies of cloud %s: %w", provider.Name(), err)
	}
	return rules, nil
}

func compile(policies []cloud.RepairPolicy) (*Rules, error) {
	if len(policies) == 0 {
		return nil, errors.New("there are none")
	}
	var errs []error
	var priorities []int
	list := make([]rule, len(policies))
	for i, p := range policies {
		list[i].RepairPolicy = p
		priorities = append(priorities, p.Priority)
		fault := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("policy %d (%s is %s): %s", i, p.Condition, p.Status, fmt.Sprintf(format, args...)))
		}
		if p.Condition == "" || p.Status == "" {
			fault("condition and status must be set")
		}
		if p.Toleration < 0 || p.Drain != nil && *p.Drain < 0 {
			fault("toleration and drain must not be negative")
		}
		if p.Priority < 0 || p.Priority > 100 {
			fault("priority %d is not between 0 and 100", p.Priority)
		}
		if p.Reason == "" {
			if p.Reboot {
				fault("what any reason matches must be replaced, not restarted")
			}
			continue
		}
		re, err := regexp.Compile(p.Reason)
		if err != nil {
			fault("reason: %v", err)
		}
		list[i].reason = re
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	for i := range list {
		list[i].rank, _ = slices.BinarySearch(priorities, list[i].Priority)
	}
	return &Rules{list}, errors.Join(errs...)
}

// Fault is a condition of a Node that a policy calls broken.
type Fault struct {
	rule
	Seen corev1.NodeCondition
}

func (f *Fault) String() string {
	s := fmt.Sprintf("%s is %s", f.Seen.Type, f.Seen.Status)
	if f.Seen.Reason != "" {
		s += " (" + f.Seen.Reason + ")"
	}
	return s
}

// Faults are what is broken about a Node, in the order of its conditions. A rule for any
// reason that is the only one of all is also for every other condition that has rules.
func (r *Rules) Faults(n *corev1.Node) []Fault {
	var out []Fault
	for _, cond := range n.Status.Conditions {
		known := false
		var any, all *rule
		alls, before := 0, len(out)
		for i := range r.list {
			r := &r.list[i]
			same := r.Condition == cond.Type && r.Status == cond.Status
			known = known || same
			switch {
			case r.reason == nil:
				all = r
				alls++
				if same {
					any = r
				}
			case same && r.reason.MatchString(cond.Reason):
				out = append(out, Fault{*r, cond})
			}
		}
		if any == nil && alls == 1 {
			any = all
		}
		if known && len(out) == before && any != nil {
			out = append(out, Fault{*any, cond})
		}
	}
	return out
}

// Eligible is when a fault has lasted long enough.
func (f *Fault) Eligible(n *corev1.Node, claim *karpv1.NodeClaim) time.Time {
	since := f.Seen.LastTransitionTime.Time
	for _, t := range []time.Time{n.CreationTimestamp.Time, claim.Conditions().Since(karpv1.ConditionRebooting)} {
		if t.After(since) {
			since = t
		}
	}
	return since.Add(f.Toleration)
}

// Due sorts the faults of a Node: those that have lasted long enough, the most urgent first,
// and when the next of the others has; zero if there is none.
func (r *Rules) Due(n *corev1.Node, claim *karpv1.NodeClaim, now time.Time) (due []Fault, next time.Time) {
	for _, f := range r.Faults(n) {
		if at := f.Eligible(n, claim); !at.After(now) {
			due = append(due, f)
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	slices.SortStableFunc(due, func(a, b Fault) int {
		return cmp.Or(-cmp.Compare(a.rank, b.rank), a.Eligible(n, claim).Compare(b.Eligible(n, claim)), cmp.Compare(a.Seen.Type, b.Seen.Type))
	})
	return due, next
}

// Fault is what candidates are told of a Node with faults that are due, which is not empty:
// the shortest drain of all, and the greatest urgency.
func (r *Rules) Fault(due []Fault, n *corev1.Node, claim *karpv1.NodeClaim, now time.Time) candidate.Fault {
	out := candidate.Fault{Condition: string(due[0].Seen.Type), Message: due[0].String(), Drain: Drain(due)}
	for i := range due {
		age := float64(now.Sub(due[i].Eligible(n, claim))) / float64(perRank)
		out.Urgency = max(out.Urgency, float64(due[i].rank)+age)
	}
	return out
}

// Drain is the shortest time that faults leave for the drain; nil is no bound.
func Drain(due []Fault) *time.Duration {
	var out *time.Duration
	for i := range due {
		if d := due[i].Drain; d != nil && (out == nil || *d < *out) {
			out = d
		}
	}
	return out
}

// Tripped says why the breaker is open for a group of nodes, in words, or "".
func Tripped(broken, total int, group string) string {
	most := (total + oneOf - 1) / oneOf
	if broken <= most {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes of %s are broken, and none is replaced while there are more than %d", broken, total, group, most)
}

// Bound stamps on a claim when its drain ends at the latest, as long as that is sooner than
// what it says already. What the claim itself bounds it by counts too.
func Bound(claim *karpv1.NodeClaim, now time.Time, left time.Duration) {
	if own := claim.Spec.TerminationGracePeriod; own != nil {
		left = min(left, own.Duration)
	}
	end := now.Add(left)
	const key = karpv1.NodeClaimTerminationTimestampAnnotationKey
	if have, err := time.Parse(time.RFC3339, claim.Annotations[key]); err == nil && !end.Before(have) {
		return
	}
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[key] = end.UTC().Format(time.RFC3339)
}
