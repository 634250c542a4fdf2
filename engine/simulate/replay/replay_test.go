package replay

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

const trace = `name,cpu_milli,memory_mib,creation_time,deletion_time
a,3500,4096,0,7200
b,3500,4096,60,3600
c,500,512,120,
d,9000,9000,300,300
`

const cloud = `
instanceTypes:
- {name: small, labels: {kubernetes.io/arch: amd64}, capacity: {cpu: 4, memory: 8Gi, pods: 110}, offerings: [{zones: [a], capacityType: on-demand, price: 0.2}]}
- {name: large, labels: {kubernetes.io/arch: amd64}, capacity: {cpu: 8, memory: 16Gi, pods: 110}, offerings: [{zones: [a], capacityType: on-demand, price: 0.4}]}
`

func input(t *testing.T) Input {
	t.Helper()
	cat, errs := sim.ReadFile(strings.NewReader(cloud), "cloud.yaml")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	stays, problems := load.Replay(load.Input{Name: "trace.csv", Data: []byte(trace)})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return Input{Cluster: load.Read(nil), Stays: stays, World: world.Options{Catalog: cat}}
}

func TestRun(t *testing.T) {
	in := input(t)
	r, err := Run(t.Context(), in, Setting{})
	if err != nil {
		t.Fatal(err)
	}
	if want := in.Stays[0].To + After; r.End.Sub(r.Start) != want {
		t.Errorf("it lasts %s, want %s: the last pod goes then", r.End.Sub(r.Start), want)
	}
	if r.Pods.Placed != 3 || len(r.Pods.Pending) != 0 {
		t.Errorf("%d pods got a node and %d wait, want 3 and 0: one goes at once", r.Pods.Placed, len(r.Pods.Pending))
	}
	// The curve is the cost: its mean is what was paid per hour.
	sum := 0.0
	for _, s := range r.Cost.Curve {
		sum += s.Hourly
	}
	if mean := sum / float64(len(r.Cost.Curve)); math.Abs(mean-r.Cost.Mean) > 0.001 {
		t.Errorf("the curve's mean is $%.4f/h, the cost $%.4f/h", mean, r.Cost.Mean)
	}
	for name, parts := range map[string]map[string]float64{"pool": r.Cost.ByPool, "type": r.Cost.ByType, "capacity type": r.Cost.ByCapacity} {
		sum := 0.0
		for _, p := range parts {
			sum += p
		}
		if math.Abs(sum-r.Cost.Total) > 0.001 {
			t.Errorf("the parts by %s are $%.4f together, the cost $%.4f", name, sum, r.Cost.Total)
		}
	}
	if len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Message, "no NodePool") {
		t.Errorf("problems %v, want a note on the NodePool that is assumed", r.Problems)
	}
}

// TestRun_Again checks that equal input gives equal output.
func TestRun_Again(t *testing.T) {
	text := func() string {
		r, err := Run(t.Context(), input(t), Setting{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := text()
	for range 3 {
		if diff := cmp.Diff(first, text()); diff != "" {
			t.Fatalf("another run (-first +other):\n%s", diff)
		}
	}
}

func TestSetting(t *testing.T) {
	in := input(t)
	tests := map[string]struct {
		s         Setting
		wantNodes int // at the end
		wantErr   string
	}{
		"as written":         {Setting{}, 1, ""},
		"off keeps nodes":    {Setting{Consolidation: Off}, 2, ""},
		"after a while":      {Setting{After: new(24 * time.Hour)}, 2, ""},
		"only empty ones":    {Setting{Consolidation: "WhenEmpty"}, 1, ""},
		"an unknown setting": {Setting{Consolidation: "Maybe"}, 0, `consolidation "Maybe": must be one of`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), in, tt.s)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("Run() error = %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := r.Nodes.Bought - r.Nodes.Gone; n != tt.wantNodes {
				t.Errorf("%d nodes are left, want %d\n%v", n, tt.wantNodes, r.Timeline)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	run := func(name string, cost float64, evictions int) *Report {
		return &Report{Setting: name, Cost: Cost{Total: cost, Mean: cost / 10}, Evictions: evictions}
	}
	got := Compare(run("", 100, 2), run("b", 60, 12), run("c", 120, 0)).Differences
	want := []Difference{
		{Setting: "b", Cost: -40, Percent: -40, Monthly: -2920, Evictions: 10, PerEviction: new(4.0)},
		{Setting: "c", Cost: 20, Percent: 20, Monthly: 1460, Evictions: -2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Compare() (-want +got):\n%s", diff)
	}
}

func TestCurve(t *testing.T) {
	start := time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)
	points := []world.Point{{At: start, Nodes: 1, Cost: catalog.FromDollars(1)}, {At: start.Add(90 * time.Second), Nodes: 3, Cost: catalog.FromDollars(3)}}
	got := curve(points, start, start.Add(400*time.Minute))
	if len(got) != samples {
		t.Fatalf("curve() has %d samples, want %d", len(got), samples)
	}
	if got[0].Nodes != 1 || got[1].Nodes != 2 || got[2].Nodes != 3 || got[samples-1].Hourly != 3 {
		t.Errorf("curve() begins with %v, %v, %v nodes and ends with $%v/h, want 1, 2, 3 and 3", got[0].Nodes, got[1].Nodes, got[2].Nodes, got[samples-1].Hourly)
	}
}

func TestReport_WriteTable(t *testing.T) {
	r, err := Run(t.Context(), input(t), Setting{})
	if err != nil {
		t.Fatal(err)
	}
	var short, wide bytes.Buffer
	if err := r.WriteTable(&short, false); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(&wide, true); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"in all", "Evictions", "Timeline:", "decided", "Notes:"} {
		if !strings.Contains(short.String(), words) {
			t.Errorf("the table has no %q:\n%s", words, short.String())
		}
	}
	if strings.Contains(short.String(), "  gone ") || !strings.Contains(wide.String(), "  gone ") {
		t.Errorf("only the wide table tells when nodes are gone:\n%s\n%s", short.String(), wide.String())
	}
}
