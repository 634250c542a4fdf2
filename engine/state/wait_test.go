package state

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestCluster_Decide(t *testing.T) {
	s := newStage(t, pool("pool"))
	s.Update(pod("p"))
	s.Update(pod("q", refused))
	start := s.now
	s.now = s.now.Add(2 * time.Second)
	// A pod that was not known to need a node has waited for nothing.
	if diff := cmp.Diff([]time.Duration{2 * time.Second}, s.Decide(keys("p"), keys("q", "gone"))); diff != "" {
		t.Errorf("Decide() (-want +got):\n%s", diff)
	}
	want := Wait{Wanted: start, Decided: s.now}
	if got := s.WaitOf(keys("q")[0]); got != want {
		t.Errorf("after a refusal: %+v, want %+v", got, want)
	}
	s.now = s.now.Add(time.Second)
	if again := s.Decide(keys("q"), nil); len(again) != 0 {
		t.Errorf("a second decision is counted: %v", again)
	}
	if want.Placed = s.now; s.WaitOf(keys("q")[0]) != want {
		t.Errorf("after a place was found: %+v, want %+v", s.WaitOf(keys("q")[0]), want)
	}
	s.now = s.now.Add(time.Second)
	s.Decide(keys("q"), nil)
	if s.WaitOf(keys("q")[0]) != want {
		t.Errorf("a place that was confirmed: %+v, want %+v", s.WaitOf(keys("q")[0]), want)
	}
	s.Decide(nil, keys("q"))
	if want.Placed = (time.Time{}); s.WaitOf(keys("q")[0]) != want {
		t.Errorf("after the place was lost: %+v, want %+v", s.WaitOf(keys("q")[0]), want)
	}
	if got := s.WaitOf(keys("gone")[0]); got != (Wait{}) {
		t.Errorf("of a pod that is not known: %+v", got)
	}
	if got := len(s.Pods()); got != 2 {
		t.Errorf("Pods() has %d pods, want 2", got)
	}
	s.Remove(pod("q", func(p *corev1.Pod) { p.UID = s.Pods()[1].UID }))
	if got := s.WaitOf(keys("q")[0]); got != (Wait{}) {
		t.Errorf("of a pod that is gone: %+v", got)
	}
}
