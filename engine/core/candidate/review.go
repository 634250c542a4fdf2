package candidate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// Severity says what a finding is.
type Severity string

// Severities.
const (
	// Error is a fault: nothing is disrupted for what it is about.
	Error Severity = "error"
	// Warning is allowed, and seldom what was meant.
	Warning Severity = "warning"
	// Info is worth knowing.
	Info Severity = "info"
)

// Codes of findings. Each is stable.
const (
	BudgetInvalid     Code = "BudgetInvalid"
	BudgetNeverActive Code = "BudgetNeverActive"
	BudgetNeverOpens  Code = "BudgetNeverOpens"
	BudgetNoEffect    Code = "BudgetWithoutEffect"
	BudgetUnbounded   Code = "BudgetUnbounded"
	BudgetRoundsUp    Code = "BudgetRoundsUp"
)

// Finding is something about the disruption budgets of a NodePool.
type Finding struct {
	Severity Severity `json:"severity"`
	Code     Code     `json:"code"`
	// Field is where, such as spec.disruption.budgets[1].schedule.
	Field   string `json:"field"`
	Message string `json:"message"`
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Severity, f.Field, f.Message) }

const budgetsField = "spec.disruption.budgets"

// Review finds what is wrong, or probably not meant, in the disruption budgets of a NodePool,
// errors first. Times in messages are the next after now.
func Review(pool *karpv1.NodePool, now time.Time) []Finding {
	budgets := pool.Spec.Disruption.Budgets
	limits := limitsOf(budgets)
	var out []Finding
	for i := range limits.faults {
		f := &limits.faults[i]
		out = append(out, Finding{Error, BudgetInvalid, f.path(), f.err.Message})
	}
	nodes := 0
	if pool.Status.Nodes != nil {
		nodes = int(*pool.Status.Nodes)
	}
	for i := range limits.usable {
		out = append(out, limits.about(i, nodes, now)...)
	}
	out = append(out, limits.shut(now)...)
	return append(out, limits.unbounded(now)...)
}

// about are the findings about one budget.
func (l *limits) about(i, nodes int, now time.Time) []Finding {
	b := &l.usable[i]
	field := fmt.Sprintf("%s[%d]", budgetsField, b.index)
	if !b.window.Always() && !b.window.Active(now) && b.window.Next(now).IsZero() {
		return []Finding{{Warning, BudgetNeverActive, field + ".schedule", fmt.Sprintf("%q never comes: the budget has no effect", *b.budget.Schedule)}}
	}
	var out []Finding
	for j := range l.usable {
		if o := &l.usable[j]; j != i && o.covers(b) && (!b.covers(o) || j < i) {
			out = append(out, Finding{Warning, BudgetNoEffect, field, fmt.Sprintf("it has no effect, since the smallest budget counts: %s[%d] allows no more (nodes %q) whenever this one is active", budgetsField, o.index, o.budget.Nodes)})
			break
		}
	}
	if share, ok := strings.CutSuffix(b.budget.Nodes, "%"); ok && nodes > 0 && b.most(nodes) == 1 && b.most(100)*nodes < 100 {
		out = append(out, Finding{Info, BudgetRoundsUp, field + ".nodes", fmt.Sprintf("%s%% of %d nodes is rounded up to 1", share, nodes)})
	}
	return out
}

// covers reports whether b allows no more than o whenever o counts.
func (b *limit) covers(o *limit) bool {
	if len(b.budget.Reasons) > 0 {
		if len(o.budget.Reasons) == 0 || slices.ContainsFunc(o.budget.Reasons, func(r karpv1.DisruptionReason) bool { return !b.budget.AppliesTo(r) }) {
			return false
		}
	}
	if !b.window.Always() && (o.window.Always() || *b.budget.Schedule != *o.budget.Schedule || b.window.length < o.window.length) {
		return false
	}
	// A number and a share can be compared only if one of them is the least or the most.
	bShare, oShare := strings.HasSuffix(b.budget.Nodes, "%"), strings.HasSuffix(o.budget.Nodes, "%")
	return b.closed() || oShare && o.most(100) == 100 || bShare == oShare && b.most(100) <= o.most(100)
}

// closed reports whether the budget lets nothing go while it is active.
func (b *limit) closed() bool { return b.most(100) == 0 }

// shut finds the reasons for which no time comes at which a node may go.
func (l *limits) shut(now time.Time) []Finding {
	var never []string
	field := ""
	for _, r := range l.unfailing() {
		closed := func(b *limit) bool { return b.closed() && b.budget.AppliesTo(r) }
		if _, ok := l.free(now, closed); ok {
			continue
		}
		never = append(never, string(r))
		if i := slices.IndexFunc(l.usable, func(b limit) bool { return closed(&b) }); field == "" {
			field = fmt.Sprintf("%s[%d].nodes", budgetsField, l.usable[i].index)
		}
	}
	if never == nil {
		return nil
	}
	return []Finding{{Warning, BudgetNeverOpens, field, "at no time may a node be disrupted for " + strings.Join(never, ", ")}}
}

// unbounded finds the reasons for which at some time no budget is active.
func (l *limits) unbounded(now time.Time) []Finding {
	byMessage := map[string][]string{}
	var messages []string
	for _, r := range l.unfailing() {
		applies := func(b *limit) bool { return b.budget.AppliesTo(r) }
		at, ok := l.free(now, applies)
		if !ok {
			continue
		}
		message := ", since no budget is for it"
		if slices.ContainsFunc(l.usable, func(b limit) bool { return applies(&b) && (b.window.Active(now) || !b.window.Next(now).IsZero()) }) {
			message = " while no budget for it is active, such as at " + at.UTC().Format(time.RFC3339)
		}
		if byMessage[message] == nil {
			messages = append(messages, message)
		}
		byMessage[message] = append(byMessage[message], string(r))
	}
	var out []Finding
	for _, m := range messages {
		out = append(out, Finding{Warning, BudgetUnbounded, budgetsField, fmt.Sprintf("%s: any number of nodes may be disrupted at a time%s", strings.Join(byMessage[m], ", "), m)})
	}
	return out
}

// unfailing are the reasons for which no budget has a fault.
func (l *limits) unfailing() []karpv1.DisruptionReason {
	return slices.DeleteFunc(Reasons(), func(r karpv1.DisruptionReason) bool {
		return slices.ContainsFunc(l.faults, func(f budgetFault) bool { return f.appliesTo(r) })
	})
}
