package fact

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

func TestWeek(t *testing.T) {
	at := func(s string) *string { return &s }
	hours := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Hour} }
	tests := map[string]struct {
		budgets            []karpv1.Budget
		wantOpen, wantFree int64 // of Underutilized
		wantEmptyOpen      int64
		wantErrors         int
	}{
		"the default bounds all and closes nothing": {wantOpen: weekMinutes, wantEmptyOpen: weekMinutes},
		"no budgets":     {budgets: []karpv1.Budget{}, wantOpen: weekMinutes, wantFree: weekMinutes, wantEmptyOpen: weekMinutes},
		"always closed":  {budgets: []karpv1.Budget{{Nodes: "0"}}},
		"for one reason": {budgets: []karpv1.Budget{{Nodes: "0", Reasons: []karpv1.DisruptionReason{"Underutilized"}}}, wantEmptyOpen: weekMinutes},
		"eight hours of each day, over midnight": {
			budgets:  []karpv1.Budget{{Nodes: "0%", Schedule: at("0 20 * * *"), Duration: hours(8)}},
			wantOpen: weekMinutes - 7*8*60, wantFree: weekMinutes - 7*8*60, wantEmptyOpen: weekMinutes - 7*8*60,
		},
		"a schedule that cannot be read": {budgets: []karpv1.Budget{{Nodes: "0", Schedule: at("daily"), Duration: hours(1)}}, wantOpen: weekMinutes, wantFree: weekMinutes, wantEmptyOpen: weekMinutes, wantErrors: 1},
		"a schedule without a duration":  {budgets: []karpv1.Budget{{Nodes: "0", Schedule: at("@daily")}}, wantOpen: weekMinutes, wantFree: weekMinutes, wantEmptyOpen: weekMinutes, wantErrors: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Week(karpv1.Disruption{Budgets: test.budgets}, time.Date(2026, 3, 4, 23, 30, 0, 0, time.UTC))
			if got.OpenMinutes["Underutilized"] != test.wantOpen || got.UnlimitedMinutes["Underutilized"] != test.wantFree ||
				got.OpenMinutes["Empty"] != test.wantEmptyOpen || len(got.Errors) != test.wantErrors {
				t.Errorf("Week() = %+v, want open %d, unlimited %d, open for Empty %d, %d errors", got, test.wantOpen, test.wantFree, test.wantEmptyOpen, test.wantErrors)
			}
		})
	}
}

func TestObjects_Budget(t *testing.T) {
	budget := func(name string, allowed int32, selector *metav1.LabelSelector) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}}
		b.Status.DisruptionsAllowed = allowed
		return b
	}
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	of := Objects{PodDisruptionBudgets: []*policyv1.PodDisruptionBudget{
		budget("b", 2, web), budget("a", 1, web), budget("c", 1, web),
		budget("broken", 0, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}}),
		budget("none", 0, nil),
	}}.Budget()
	pod := func(namespace, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": app}}}
	}
	if got := of(pod("shop", "web")); got == nil || *got != (policy.PDB{Name: "a", Allowed: 1}) {
		t.Errorf("budget %+v, want a, which allows the fewest", got)
	}
	if got := of(pod("shop", "db")); got != nil {
		t.Errorf("budget %+v of a pod that none selects", got)
	}
	if got := of(pod("other", "web")); got != nil {
		t.Errorf("budget %+v of another namespace", got)
	}
}

func TestReview(t *testing.T) {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	r, err := Review(np, nil, time.Now())
	if err != nil || r.Operation != "CREATE" || r.OldObject != nil || r.Object["metadata"].(map[string]any)["name"] != "web" || r.BudgetWeek.OpenMinutes["Empty"] != weekMinutes {
		t.Errorf("Review() = %+v, %v", r, err)
	}
	old := np.DeepCopy()
	old.Labels = map[string]string{"a": "b"}
	if r, err = Review(np, old, time.Now()); err != nil || r.Operation != "UPDATE" || r.OldObject["metadata"].(map[string]any)["labels"] == nil {
		t.Errorf("Review() of a change = %+v, %v", r, err)
	}
}
