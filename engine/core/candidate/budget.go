package candidate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Reasons are those that budgets bound, in the order of allowances.
func Reasons() []karpv1.DisruptionReason {
	return []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonUnderutilized, karpv1.DisruptionReasonDrifted, karpv1.DisruptionReasonUnhealthy}
}

// Allowance is how many nodes of a NodePool may go now for one reason.
type Allowance struct {
	Pool   string
	Reason karpv1.DisruptionReason
	// Nodes are the counted ones: managed, initialized or rebooting, with a machine that is
	// not ending. Allowed is the smallest of the budgets, and all of Nodes without a bound.
	// Consumed are disrupted already, or not ready. Left is what remains, never negative.
	Nodes, Allowed, Consumed, Left int
	// Unlimited is true if no budget is active for the reason.
	Unlimited bool
	// Budget is the index of the budget that decides, -1 if none does. Without budgets the
	// API server's default is the first.
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

// Allowances says for every NodePool and reason how many nodes may go, by pool and in the
// order of [Reasons]. The candidates are those of [Examine] for the same objects.
//
// A budget with a fault lets nothing go for the reasons it is for, which are all if it names
// none, or one that does not exist. Other pools are not affected.
func Allowances(objs snapshot.Objects, facts Facts, candidates []Candidate) []Allowance {
	counts := count(objs, candidates)
	pools := slices.Clone(objs.NodePools)
	slices.SortStableFunc(pools, func(a, b *karpv1.NodePool) int { return strings.Compare(a.Name, b.Name) })
	pools = slices.CompactFunc(pools, func(a, b *karpv1.NodePool) bool { return a.Name == b.Name })
	out := make([]Allowance, 0, len(pools)*len(Reasons()))
	for _, np := range pools {
		limits := limitsOf(np.Spec.Disruption.Budgets)
		for _, r := range Reasons() {
			out = append(out, limits.allowance(np.Name, r, counts[np.Name], facts.Now))
		}
	}
	return out
}

// tallied are the counted nodes of a pool.
type tallied struct {
	nodes, disrupted, notReady int
}

// count counts nodes by pool. A disrupted node that is not ready counts as disrupted.
func count(objs snapshot.Objects, candidates []Candidate) map[string]tallied {
	nodes := make(map[string]*corev1.Node, len(objs.Nodes))
	for _, n := range objs.Nodes {
		nodes[n.Name] = n
	}
	ending := map[string]bool{}
	for _, c := range objs.NodeClaims {
		if d := condition(c, karpv1.ConditionInstanceTerminating); d != nil && d.Status == metav1.ConditionTrue {
			ending[c.Name] = true
		}
	}
	out := map[string]tallied{}
	for i := range candidates {
		c := &candidates[i]
		if c.Claim == "" || c.Pool == "" || ending[c.Claim] || c.keptBy(NoClaim, NoNode) || c.Uninitialized() {
			continue
		}
		n := out[c.Pool]
		n.nodes++
		switch {
		case c.keptBy(Deleting, Rebooting):
			n.disrupted++
		case !ready(nodes[c.Node]):
			n.notReady++
		}
		out[c.Pool] = n
	}
	return out
}

// ready reports whether a Node is not said to be anything else.
func ready(n *corev1.Node) bool {
	if n == nil {
		return true
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

// limit is a budget that can be read.
type limit struct {
	index  int
	budget karpv1.Budget
	window Window
	// end is when the window ends that is active at asked, which is asked for each reason.
	asked, end time.Time
}

// endOf is when the window ends that is active at a time.
func (b *limit) endOf(at time.Time) time.Time {
	if !b.asked.Equal(at) {
		b.asked, b.end = at, b.window.End(at)
	}
	return b.end
}

// limits are the budgets of a NodePool.
type limits struct {
	usable []limit
	// faults are of the others, in their order.
	faults []budgetFault
}

type budgetFault struct {
	index int
	err   *BudgetError
	// reasons are those for which nothing may go because of it; none is all.
	reasons []karpv1.DisruptionReason
}

func (f *budgetFault) path() string {
	return fmt.Sprintf("spec.disruption.budgets[%d].%s", f.index, f.err.Field)
}

func (f *budgetFault) appliesTo(r karpv1.DisruptionReason) bool {
	return len(f.reasons) == 0 || slices.Contains(f.reasons, r)
}

// limitsOf reads budgets. Nil is the API server's default.
func limitsOf(budgets []karpv1.Budget) limits {
	var out limits
	if budgets == nil {
		budgets = []karpv1.Budget{{}}
	}
	for i := range budgets {
		b := budgets[i]
		b.Nodes = cmp.Or(b.Nodes, karpv1.DefaultBudgetNodes)
		window, faults := readWindow(&b)
		if _, err := b.Allowed(0); err != nil {
			faults = append(faults, &BudgetError{"nodes", fmt.Sprintf("%q: want a number, or a percentage from 0%% to 100%%", b.Nodes)})
		}
		reasons := b.Reasons
		for n, r := range b.Reasons {
			if !slices.Contains(Reasons(), r) {
				// What it was meant to bound is not known.
				reasons = nil
				faults = append(faults, &BudgetError{fmt.Sprintf("reasons[%d]", n), fmt.Sprintf("%q: must be one of Empty, Underutilized, Drifted, Unhealthy", r)})
			}
		}
		for _, f := range faults {
			out.faults = append(out.faults, budgetFault{index: i, err: f, reasons: reasons})
		}
		if len(faults) == 0 {
			out.usable = append(out.usable, limit{index: i, budget: b, window: window})
		}
	}
	return out
}

// allowance is how many of a pool's nodes may go for a reason.
func (l *limits) allowance(pool string, reason karpv1.DisruptionReason, n tallied, now time.Time) Allowance {
	a := Allowance{Pool: pool, Reason: reason, Nodes: n.nodes, Consumed: n.disrupted, Budget: -1}
	if reason != karpv1.DisruptionReasonUnhealthy {
		a.Consumed += n.notReady
	}
	for i := range l.faults {
		if f := &l.faults[i]; f.appliesTo(reason) {
			a.Budget = f.index
			a.Problem = fmt.Sprintf("%s: no node of NodePool %s may be disrupted until a budget is corrected: %s: %s", reason, pool, f.path(), f.err.Message)
			return a
		}
	}
	for i := range l.usable {
		b := &l.usable[i]
		if !b.budget.AppliesTo(reason) || !b.window.Active(now) {
			continue
		}
		if most := b.most(n.nodes); a.Budget < 0 || most < a.Allowed {
			a.Allowed, a.Budget = most, b.index
		}
	}
	if a.Budget < 0 {
		a.Unlimited, a.Allowed, a.Left = true, n.nodes, n.nodes
		return a
	}
	a.Left = max(a.Allowed-a.Consumed, 0)
	a.Opens, _ = l.free(now, func(b *limit) bool { return b.budget.AppliesTo(reason) && b.most(n.nodes) <= a.Allowed })
	return a
}

// most is how many of a number of nodes the budget allows.
func (b *limit) most(nodes int) int {
	n, err := b.budget.Allowed(nodes)
	if err != nil {
		return 0
	}
	return n
}

// maxSteps bounds how often free looks at windows that take turns.
const maxSteps = 2000

// free is the first time from now on at which no budget that counts is active; ok is false
// if there is none until they all repeat themselves.
func (l *limits) free(now time.Time, counts func(*limit) bool) (at time.Time, ok bool) {
	at = now
	for range maxSteps {
		latest, ahead := at, time.Duration(0)
		for i := range l.usable {
			b := &l.usable[i]
			if !counts(b) {
				continue
			}
			if !b.window.Always() {
				ahead = max(ahead, b.window.horizon()+b.window.length)
			}
			if !b.window.Active(at) {
				continue
			}
			end := b.endOf(at)
			if end.IsZero() {
				return time.Time{}, false
			}
			if end.After(latest) {
				latest = end
			}
		}
		if latest.Equal(at) {
			return at, true
		}
		if at = latest; at.Sub(now) > ahead {
			break
		}
	}
	return time.Time{}, false
}
