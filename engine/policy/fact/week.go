package fact

import (
	"fmt"
	"slices"
	"strings"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

const weekMinutes = 7 * 24 * 60

// Week says when in the week after now the budgets of d let each voluntary reason happen,
// and when nothing bounds it. A budget that cannot be read is in Errors, and bounds nothing.
func Week(d karpv1.Disruption, now time.Time) policy.BudgetWeek {
	out := policy.BudgetWeek{Errors: []string{}, OpenMinutes: map[string]int64{}, UnlimitedMinutes: map[string]int64{}}
	begin := now.UTC().Truncate(time.Minute)
	type window struct {
		active  []bool // nil is always
		closed  bool
		reasons []string
	}
	var windows []window
	budgets := d.Budgets
	if budgets == nil {
		budgets = []karpv1.Budget{{Nodes: "10%"}}
	}
	for i, b := range budgets {
		w := window{closed: strings.TrimSuffix(b.Nodes, "%") == "0"}
		for _, r := range b.Reasons {
			w.reasons = append(w.reasons, string(r))
		}
		active, err := candidate.WindowOf(&b)
		if err != nil {
			out.Errors = append(out.Errors, fmt.Sprintf("budget %d: %s", i, strings.ReplaceAll(err.Error(), "\n", "; ")))
			continue
		}
		if !active.Always() {
			w.active = make([]bool, weekMinutes)
			for _, s := range active.Spans(begin, begin.Add(weekMinutes*time.Minute)) {
				for m := s.From.Sub(begin) / time.Minute; m < s.To.Sub(begin)/time.Minute; m++ {
					w.active[m] = true
				}
			}
		}
		windows = append(windows, w)
	}
	for _, reason := range []string{policy.Empty, policy.Underutilized, policy.Drifted} {
		open, unlimited := int64(0), int64(0)
		for m := range weekMinutes {
			closed, bound := false, false
			for i := range windows {
				w := &windows[i]
				if len(w.active) > 0 && !w.active[m] || len(w.reasons) > 0 && !slices.Contains(w.reasons, reason) {
					continue
				}
				bound = true
				closed = closed || w.closed
			}
			if !closed {
				open++
			}
			if !bound {
				unlimited++
			}
		}
		out.OpenMinutes[reason], out.UnlimitedMinutes[reason] = open, unlimited
	}
	return out
}
