package sim_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
)

func neg() *resource.Quantity {
	q := resource.MustParse("-1")
	return &q
}

// history launches machines, steps from one event to the next as a simulation does, and
// tells what happened, by seconds since the start. terminate is by name, in seconds.
func (w *world) history(t *testing.T, names []string, terminate map[string]int, until time.Duration) []string {
	t.Helper()
	start := w.Now()
	for _, name := range names {
		if _, err := w.provider.Launch(t.Context(), claim(name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listener := w.provider.Interruptions(ctx)
	claims, noticed, known := map[string]string{}, map[string]int{}, 0
	note := func(in *v1alpha1.SimInstance) {
		claims[in.Spec.ProviderID] = in.Spec.Claim.Name
		noticed[in.Name] = len(in.Status.Interruptions)
	}
	var out []string
	for {
		for name, at := range terminate {
			if w.Now().Sub(start) == time.Duration(at)*time.Second {
				if err := w.provider.Terminate(t.Context(), claim(name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		events, next, err := w.provider.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second := fmt.Sprintf("%gs", w.Now().Sub(start).Seconds())
		var nodes []string
		for _, e := range events {
			what := "ended"
			if e.Node != nil {
				what = "node"
			}
			nodes = append(nodes, second+" "+e.Instance.Spec.Claim.Name+" "+what)
			note(e.Instance)
		}
		slices.Sort(nodes) // they are in order of the machines' IDs
		all, err := w.memory.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range all {
			note(in)
		}
		notices := 0
		for _, n := range noticed {
			notices += n
		}
		for ; known < notices; known++ {
			i := <-listener
			end := "never"
			if !i.At.IsZero() {
				end = fmt.Sprintf("%gs", i.At.Sub(start).Seconds())
			}
			out = append(out, fmt.Sprintf("%s %s %s, ends %s", second, claims[i.ProviderID], i.Kind, end))
		}
		out = append(out, nodes...)
		for _, at := range terminate {
			at := start.Add(time.Duration(at) * time.Second)
			if at.After(w.Now()) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		if next.IsZero() || next.Sub(start) > until {
			return out
		}
		if !next.After(w.Now()) {
			t.Fatalf("the next step is at %v, which is not after %v", next, w.Now())
		}
		w.Add(next.Sub(w.Now()))
	}
}

func TestProvider_Step(t *testing.T) {
	tests := map[string]struct {
		spec      string
		names     []string
		terminate map[string]int
		want      []string
	}{
		"at once":                  {spec: "{}", names: []string{"a"}, terminate: map[string]int{"a": 9}, want: []string{"0s a node", "9s a ended"}},
		"latencies":                {spec: "{launchLatency: {base: 10s}, registrationLatency: {base: 20s}, terminateLatency: {base: 5s}}", names: []string{"a"}, terminate: map[string]int{"a": 60}, want: []string{"30s a node", "65s a ended"}},
		"terminated before it ran": {spec: "{launchLatency: {base: 10s}, terminateLatency: {base: 5s}}", names: []string{"a"}, terminate: map[string]int{"a": 9}, want: []string{"14s a ended"}},
		"never registers":          {spec: "{failures: [{kind: NeverRegisters}]}", names: []string{"a"}, terminate: map[string]int{"a": 900}, want: []string{"900s a ended"}},
		"listed too long":          {spec: "{failures: [{kind: LateNotFound, for: 1m}]}", names: []string{"a"}, terminate: map[string]int{"a": 9}, want: []string{"0s a node", "9s a ended"}},
		"a spot interruption": {
			spec: "{interruptions: [{after: 1m}], terminateLatency: {base: 5s}}", names: []string{"a"},
			want: []string{"0s a node", "60s a SpotInterruption, ends 180s", "185s a ended"},
		},
		"an interruption of one machine at a time": {
			spec: "{interruptions: [{claims: [b], at: 1m, kind: ScheduledChange, warning: 10s}]}", names: []string{"a", "b"},
			want: []string{"0s a node", "0s b node", "60s b ScheduledChange, ends 70s", "70s b ended"},
		},
		"a recommendation ends nothing": {
			spec: "{interruptions: [{after: 1m, kind: RebalanceRecommendation, warning: 10s}]}", names: []string{"a"},
			want: []string{"0s a node", "60s a RebalanceRecommendation, ends never"},
		},
		"several of them": {
			spec:  "{interruptions: [{after: 30s, kind: RebalanceRecommendation}, {after: 1m}, {after: 70s, kind: InstanceStopping}, {after: 20m}]}",
			names: []string{"a"},
			want:  []string{"0s a node", "30s a RebalanceRecommendation, ends never", "60s a SpotInterruption, ends 180s", "70s a InstanceStopping, ends 70s", "70s a ended"},
		},
		"of others":                           {spec: "{interruptions: [{zones: [b], after: 1s}, {capacityTypes: [on-demand], after: 1s}, {claims: [x], after: 1s}, {percent: 0, after: 1s}]}", names: []string{"a"}, want: []string{"0s a node"}},
		"of machines that were not there yet": {spec: "{interruptions: [{at: '2026-01-01T00:00:00Z'}]}", names: []string{"a"}, want: []string{"0s a node"}},
		"terminated in time":                  {spec: "{interruptions: [{after: 1m}]}", names: []string{"a"}, terminate: map[string]int{"a": 100}, want: []string{"0s a node", "60s a SpotInterruption, ends 180s", "100s a ended"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := newWorld(t, tt.spec).history(t, tt.names, tt.terminate, time.Hour)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProvider_Jitter checks that latencies differ between machines, stay in their range,
// and are the same in every run.
func TestProvider_Jitter(t *testing.T) {
	run := func() map[string]time.Duration {
		w := newWorld(t, "{launchLatency: {base: 10s, jitter: 10s}, registrationLatency: {jitter: 5s}}")
		out := map[string]time.Duration{}
		for i := range 50 {
			if _, err := w.provider.Launch(t.Context(), claim(fmt.Sprint("c", i))); err != nil {
				t.Fatal(err)
			}
		}
		all, err := w.memory.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range all {
			if d := in.Spec.LaunchLatency.Duration; d < 10*time.Second || d >= 20*time.Second {
				t.Errorf("launch latency %s", d)
			}
			if d := in.Spec.RegistrationLatency.Duration; d < 0 || d >= 5*time.Second {
				t.Errorf("registration latency %s", d)
			}
			out[in.Spec.Claim.Name] = in.Spec.LaunchLatency.Duration + in.Spec.RegistrationLatency.Duration
		}
		return out
	}
	first := run()
	different := map[time.Duration]bool{}
	for _, d := range first {
		different[d] = true
	}
	if len(different) < 40 {
		t.Errorf("%d latencies of 50 machines differ", len(different))
	}
	if diff := cmp.Diff(first, run()); diff != "" {
		t.Errorf("another run (-first +second):\n%s", diff)
	}
}

// TestProvider_Interruptions checks who is told what.
func TestProvider_Interruptions(t *testing.T) {
	w := newWorld(t, "{interruptions: [{claims: [a]}, {claims: [b], after: 1m}]}")
	for _, name := range []string{"a", "b"} {
		if _, err := w.provider.Launch(t.Context(), claim(name)); err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		t.Helper()
		if _, _, err := w.provider.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(from <-chan cloud.Interruption) string {
		t.Helper()
		select {
		case i, ok := <-from:
			if !ok {
				return "closed"
			}
			m, err := w.provider.Get(t.Context(), i.ProviderID)
			if err != nil {
				t.Fatal(err)
			}
			return m.ClaimName
		case <-time.After(10 * time.Second):
			return "nothing"
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	early := w.provider.Interruptions(ctx)
	step()
	step() // an announcement is not repeated
	w.Add(time.Minute)
	step()
	late := w.provider.Interruptions(ctx)
	for name, listener := range map[string]<-chan cloud.Interruption{"early": early, "late": late} {
		if got := []string{receive(listener), receive(listener)}; !cmp.Equal(got, []string{"a", "b"}) {
			t.Errorf("the %s listener is told of %v, want a and b", name, got)
		}
	}
	// Of machines that are gone nobody is told any more.
	w.Add(time.Minute)
	step()
	last := w.provider.Interruptions(ctx)
	if got := receive(last); got != "b" {
		t.Errorf("the last listener is told of %s, want b: a is gone", got)
	}
	cancel()
	for _, listener := range []<-chan cloud.Interruption{early, late, last} {
		if got := receive(listener); got != "closed" {
			t.Errorf("after the end of its context a listener gets %s", got)
		}
	}
}
