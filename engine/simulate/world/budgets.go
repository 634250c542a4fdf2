package world

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/dovetail-sh/dovetail/engine/core/candidate"
)

// countBudgets brings the status of PodDisruptionBudgets up to date, as their controller does.
// Within one instant they are counted once: evictions take from them themselves.
func (w *World) countBudgets() {
	if !w.budgetsStale() {
		return
	}
	w.budgets, w.budgetsAt = w.version, w.now
	type guard struct {
		sel            labels.Selector
		healthy, total int
	}
	guards := make([]guard, len(w.rest.PodDisruptionBudgets))
	of := map[string][]int{}
	for i, b := range w.rest.PodDisruptionBudgets {
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			sel = labels.Nothing()
		}
		guards[i].sel = sel
		of[b.Namespace] = append(of[b.Namespace], i)
	}
	for _, p := range w.pods {
		if candidate.Terminal(p) || candidate.Terminating(p) {
			continue
		}
		for _, i := range of[p.Namespace] {
			if guards[i].sel.Matches(labels.Set(p.Labels)) {
				guards[i].total++
				if p.Spec.NodeName != "" {
					guards[i].healthy++
				}
			}
		}
	}
	for i, b := range w.rest.PodDisruptionBudgets {
		g := guards[i]
		desired := desiredHealthy(&b.Spec, g.total)
		allowed := int32(max(g.healthy-desired, 0))
		if b.Status.DisruptionsAllowed == allowed && int(b.Status.CurrentHealthy) == g.healthy && int(b.Status.ExpectedPods) == g.total {
			continue
		}
		q := b.DeepCopy()
		q.Status.DisruptionsAllowed, q.Status.CurrentHealthy = allowed, int32(g.healthy)
		q.Status.DesiredHealthy, q.Status.ExpectedPods, q.Status.ObservedGeneration = int32(desired), int32(g.total), q.Generation
		w.rest.PodDisruptionBudgets[i] = q
	}
}

// desiredHealthy is how many of the pods of a budget must stay.
func desiredHealthy(s *policyv1.PodDisruptionBudgetSpec, total int) int {
	switch {
	case s.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(s.MinAvailable, total, true)
		if err != nil {
			return total
		}
		return n
	case s.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(s.MaxUnavailable, total, true)
		if err != nil {
			return total
		}
		return max(total-n, 0)
	}
	return total
}

// budgetsStale reports whether PodDisruptionBudgets have to be counted.
func (w *World) budgetsStale() bool {
	return len(w.rest.PodDisruptionBudgets) > 0 && w.budgets != w.version && (w.budgets < 0 || !w.budgetsAt.Equal(w.now))
}
