package script

import (
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

func TestRead(t *testing.T) {
	tests := map[string]struct {
		text string
		want []string // times and texts
		err  []string
	}{
		"a list": {
			text: "- at: 10m scale deploy/web to 30\n- at: 2025-06-04T13:00:00Z delete node a\n",
			want: []string{"10m0s scale deploy/web to 30", "1h0m0s delete node a"},
		},
		"below a key":              {text: "events: [{at: 0s noise 3% every 1m seed 4}]", want: []string{"0s noise 3% every 1m seed 4"}},
		"one of each":              {text: "- at: 1s price type=a,b zone=z 120%\n- at: 1s price $0.5\n- at: 1s capacity type=a known 3 for 5m\n- at: 1s fail launch for 1m\n- at: 1s fail register\n- at: 1s interrupt 50% capacity=spot\n- at: 1s interrupt node n\n- at: 1s delete pod a/b\n- {at: 1s apply, manifests: '{apiVersion: v1, kind: Namespace, metadata: {name: x}}'}\n", want: make([]string, 9)},
		"no time":                  {text: "- at: scale deploy/web to 3", err: []string{`"scale" is neither a duration`}},
		"no verb":                  {text: "- at: 10m explode", err: []string{"must be one of apply, capacity"}},
		"too much":                 {text: "- at: 10m scale deploy/web to 3 now", err: []string{`"now" is too much`}},
		"an odd price":             {text: "- at: 1s price cheap", err: []string{"write price type=NAME"}},
		"an odd place":             {text: "- at: 1s price region=x 3%", err: []string{"region=x: must be type=, zone= or capacity="}},
		"an odd kind":              {text: "- at: 1s delete secret x", err: []string{`"secret" cannot be deleted`}},
		"two mistakes":             {text: "- at: 1s scale web\n- at: 1s noise 3\n", err: []string{"[0].at", "[1].at"}},
		"a file that is not there": {text: "- at: 1s apply no.yaml", err: []string{"no.yaml"}},
		"unknown fields":           {text: "- {at: 1s fail launch, why: x}", err: []string{"why"}},
		"broken manifests":         {text: "- {at: 1s apply, manifests: '{}'}", err: []string{"expected a Kubernetes object"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			events, err := Read(load.Input{Name: "e.yaml", Data: []byte(tt.text)})
			if (err != nil) != (tt.err != nil) {
				t.Fatalf("Read() error = %v, want one with %q", err, tt.err)
			}
			for _, words := range tt.err {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("Read() error = %v, want %q in it", err, words)
				}
			}
			if len(events) != len(tt.want) {
				t.Fatalf("Read() = %d events, want %d", len(events), len(tt.want))
			}
			start := time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)
			for i, want := range tt.want {
				if got := events[i].Time(start).Sub(start).String() + " " + events[i].Text; want != "" && got != want {
					t.Errorf("event %d is %q, want %q", i, got, want)
				}
			}
		})
	}
}

// TestEvent_Schedule checks that a failing event says which it was, and when.
func TestEvent_Schedule(t *testing.T) {
	events, err := Read(load.Input{Name: "e.yaml", Data: []byte("- at: 10m scale deploy/web to 3\n")})
	if err != nil {
		t.Fatal(err)
	}
	w, err := world.New(snapshot.Objects{}, world.Options{})
	if err != nil {
		t.Fatal(err)
	}
	events[0].Schedule(w, w.Now())
	err = w.Run(t.Context(), w.Now().Add(time.Hour))
	if want := `at 2025-06-04T12:10:00Z: events e.yaml: [0].at: "scale deploy/web to 3": there is no workload`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Run() error = %v, want %q", err, want)
	}
}
