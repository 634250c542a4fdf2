package observe

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestLive(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := &Live{}
	a, b := l.gauge("a", "A.", "x", "y"), l.gauge("b", "B.")
	if err := reg.Register(l); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		from func(r *Reading)
		want []string
	}{
		"nothing before there is a source": {},
		"series of two gauges": {
			from: func(r *Reading) { r.Set(a, 1, "p", "q"); r.Set(a, 2, "pq", ""); r.Set(b, 3) },
			want: []string{"a p q 1", "a pq  2", "b 3"},
		},
		"what is not set again is gone":         {from: func(r *Reading) { r.Set(a, 2, "pq", "") }, want: []string{"a pq  2"}},
		"the first of two equal series counts":  {from: func(r *Reading) { r.Set(b, 1); r.Set(b, 2) }, want: []string{"b 1"}},
		"labels that are no text spoil nothing": {from: func(r *Reading) { r.Set(a, 1, "\xff", ""); r.Set(b, 1) }, want: []string{"b 1"}},
		"nor does a wrong number of labels":     {from: func(r *Reading) { r.Set(a, 1, "p"); r.Set(b, 1) }, want: []string{"b 1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l.From(tt.from)
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range families {
				for _, m := range f.GetMetric() {
					line := f.GetName()
					for _, label := range m.GetLabel() {
						line += " " + label.GetValue()
					}
					got = append(got, fmt.Sprint(line, " ", m.GetGauge().GetValue()))
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewObjects_labels(t *testing.T) {
	opts := ObjectOptions{WellKnown: []string{"kubernetes.io/arch", "a.b/some-Label", "other.io/arch", "bare"}, NodePool: "karpenter.sh/nodepool", Initialized: "karpenter.sh/initialized"}
	o, err := NewObjects(prometheus.NewRegistry(), opts)
	if err != nil {
		t.Fatal(err)
	}
	// Labels of two domains would have one name: the first counts.
	if diff := cmp.Diff([]string{"a.b/some-Label", "kubernetes.io/arch"}, o.NodeLabels()); diff != "" {
		t.Errorf("NodeLabels() (-want +got):\n%s", diff)
	}
	reg := prometheus.NewRegistry()
	if _, err := NewObjects(reg, opts); err != nil {
		t.Fatal(err)
	}
	if _, err := NewObjects(reg, opts); err == nil {
		t.Error("metrics can be registered twice")
	}
}
