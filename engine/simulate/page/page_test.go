package page

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/simulate/replay"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

func report(name string, cost float64) *replay.Report {
	start := time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)
	r := &replay.Report{Setting: name, Start: start, End: start.Add(4 * time.Hour), Hours: 4, Evictions: 3, EvictionsBy: map[string]int{"Underutilized": 3}}
	r.Cost = replay.Cost{Total: cost, Mean: cost / 4, ByPool: map[string]float64{"web <b>": cost}, ByCapacity: map[string]float64{"on-demand": cost}, ByType: map[string]float64{}}
	for i := range 20 {
		r.Cost.ByType[strings.Repeat("x", i+1)] = cost / 20
		r.Cost.Curve = append(r.Cost.Curve, replay.Sample{At: start.Add(time.Duration(i) * 12 * time.Minute), Hourly: cost / 4, Nodes: float64(i)})
	}
	r.Pods.Pending = map[string]string{"default/stuck": "no room"}
	r.Timeline = []world.Entry{
		{At: start.Add(time.Hour), Kind: world.Decided, Object: "n1", Text: "delete 1 node", Why: "nothing runs there", Reason: "Empty", Delta: -0.5},
		{At: start.Add(2 * time.Hour), Kind: world.Gone, Object: "n1"},
	}
	return r
}

func TestWrite(t *testing.T) {
	tests := map[string]struct {
		runs []*replay.Report
		want []string
		not  []string
	}{
		"one run": {
			runs: []*replay.Report{report("", 1234.5)},
			want: []string{"$1,234", "3 Underutilized", "Cost per hour", "default/stuck", "no room", "delete 1 node", "Empty: 1 decision,", "8 more", "web &lt;b&gt;"},
			not:  []string{"Side by side", "<b>web", "<script", "src=", "http://", "https://", "@import", "ZgotmplZ"},
		},
		"two runs": {
			runs: []*replay.Report{report("", 100), report("off", 150)},
			want: []string{"Side by side", "as written", "off costs $50.00, 50.0 % more than as written", `class="s2"`},
			not:  []string{"<script", "ZgotmplZ"},
		},
		"nothing happened": {
			runs: []*replay.Report{{Start: time.Unix(0, 0), End: time.Unix(0, 0)}},
			want: []string{"no pod had to move"},
			not:  []string{"<svg", "NaN", "Inf"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Write(&b, tt.runs...); err != nil {
				t.Fatal(err)
			}
			for _, words := range tt.want {
				if !strings.Contains(b.String(), words) {
					t.Errorf("the page has no %q", words)
				}
			}
			for _, words := range tt.not {
				if strings.Contains(b.String(), words) {
					t.Errorf("the page has %q", words)
				}
			}
		})
	}
}

func TestDollars(t *testing.T) {
	for f, want := range map[float64]string{0: "$0", 0.08: "$0.0800", 12.5: "$12.50", 1234567.8: "$1,234,568", -3: "−$3.00"} {
		if got := dollars(f); got != want {
			t.Errorf("dollars(%v) = %q, want %q", f, got, want)
		}
	}
}

func TestNiceStep(t *testing.T) {
	for highest, want := range map[float64]float64{0: 1, 4: 1, 7: 2, 10: 2.5, 100: 25, 0.3: 0.1} {
		if got := niceStep(highest); got != want {
			t.Errorf("niceStep(%v) = %v, want %v", highest, got, want)
		}
	}
}
