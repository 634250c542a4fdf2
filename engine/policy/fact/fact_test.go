package fact

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
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
