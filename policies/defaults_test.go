package policies

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefaults(t *testing.T) {
	want := []string{
		"score/burstable_baseline", "disrupt/churn_cap", "disrupt/keep_one_replica", "disrupt/minimum_saving",
		"launch/no_giants", "admit/nodepool_hygiene", "admit/price_ceiling",
	}
	got := Defaults()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the safe defaults of README.md differ (-want +got):\n%s", d)
	}
	for _, p := range got {
		if _, err := Source(p); err != nil {
			t.Errorf("Source(%q): %v", p, err)
		}
	}
	if _, err := Source("score/none"); err == nil {
		t.Error("Source() of an unknown policy succeeded")
	}
}
