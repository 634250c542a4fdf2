package observe

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Live are gauges whose series follow objects. They are read off when somebody scrapes, and
// not kept: no series outlives its object, and nothing is computed that nobody reads.
type Live struct {
	descs []*prometheus.Desc
	read  atomic.Pointer[func(*Reading)]
}

// LiveGauge is one gauge of [Live].
type LiveGauge struct {
	desc *prometheus.Desc
	id   int
}

// gauge adds a gauge; none may be added once l is registered.
func (l *Live) gauge(name, help string, labels ...string) LiveGauge {
	d := prometheus.NewDesc(name, help, labels, nil)
	l.descs = append(l.descs, d)
	return LiveGauge{d, len(l.descs)}
}

// From makes f what series are read from. Before, and after nil, there are none. f may be
// called at any time, several times at once.
func (l *Live) From(f func(*Reading)) {
	if f == nil {
		l.read.Store(nil)
		return
	}
	l.read.Store(&f)
}

// Describe implements [prometheus.Collector].
func (l *Live) Describe(to chan<- *prometheus.Desc) {
	for _, d := range l.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (l *Live) Collect(to chan<- prometheus.Metric) {
	if f := l.read.Load(); f != nil {
		(*f)(&Reading{to: to, seen: map[string]bool{}})
	}
}

// Reading takes the series of one scrape.
type Reading struct {
	to   chan<- prometheus.Metric
	seen map[string]bool
	key  []byte
}

// Set gives a series of g its value. A series that was set already, and labels that are no
// valid text, are passed over: one object must not make all metrics unreadable.
func (r *Reading) Set(g LiveGauge, value float64, labels ...string) {
	r.key = append(r.key[:0], byte(g.id), byte(g.id>>8))
	for _, l := range labels {
		r.key = append(append(r.key, l...), 0xff) // in no valid text
	}
	if r.seen[string(r.key)] {
		return
	}
	m, err := prometheus.NewConstMetric(g.desc, prometheus.GaugeValue, value, labels...)
	if err != nil {
		return
	}
	r.seen[string(r.key)] = true
	r.to <- m
}
