package v1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// AppliesTo reports whether the budget bounds disruptions for a reason. A budget without
// reasons bounds all.
func (b *Budget) AppliesTo(reason DisruptionReason) bool {
	return len(b.Reasons) == 0 || slices.Contains(b.Reasons, reason)
}

// Allowed is how many of the given number of nodes the budget lets be disrupted while it
// is active. A percentage is rounded up, as PodDisruptionBudgets do. An error means that
// the field nodes is malformed; nothing is allowed then.
func (b *Budget) Allowed(nodes int) (int, error) {
	number, percent := strings.CutSuffix(b.Nodes, "%")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 || (percent && n > 100) || strings.HasPrefix(number, "+") {
		return 0, fmt.Errorf("budget nodes %q: want a number, or a percentage from 0%% to 100%%", b.Nodes)
	}
	if !percent {
		return int(n), nil
	}
	return int((n*int64(nodes) + 99) / 100), nil
}
