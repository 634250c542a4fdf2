package observe

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Work is a gauge of how long work has gone on that is not done yet. A duration is observed
// at the end only, so work that hangs is seen here alone.
type Work struct {
	desc *prometheus.Desc
	now  func() time.Time

	mu    sync.Mutex
	begun map[string]time.Time // by controller
}

func newWork(name, help string) *Work {
	return &Work{
		desc: prometheus.NewDesc(name, help, []string{"controller", "scheduling_id"}, nil),
		now:  time.Now, begun: map[string]time.Time{},
	}
}

// Begin says that a controller begins, and the result that it is done. A controller does one
// thing at a time.
func (w *Work) Begin(controller string) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[controller] = w.now()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.begun, controller)
	}
}

// Describe implements [prometheus.Collector].
func (w *Work) Describe(to chan<- *prometheus.Desc) { to <- w.desc }

// Collect implements [prometheus.Collector].
func (w *Work) Collect(to chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, controller := range slices.Sorted(maps.Keys(w.begun)) {
		to <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, w.now().Sub(w.begun[controller]).Seconds(), controller, "")
	}
}
