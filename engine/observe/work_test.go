package observe

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestWork(t *testing.T) {
	now := time.Unix(1000, 0)
	w := newWork("work_seconds", "Help.")
	w.now = func() time.Time { return now }
	registry := prometheus.NewRegistry()
	registry.MustRegister(w)
	check := func(want ...float64) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got = append(got, m.GetGauge().GetValue())
			}
		}
		if len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check()
	done := w.Begin("provisioner")
	now = now.Add(90 * time.Second)
	check(90)
	done()
	check()
}
