package set

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

func TestActivity(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	a := &Activity{Now: func() time.Time { return now }}
	observe := func(r policy.PolicyResult) {
		r.Name = "a"
		a.Observe(policy.Record{Policies: []policy.PolicyResult{r, {Name: "other", Micros: 7}}}, nil)
	}
	observe(policy.PolicyResult{Micros: 1_000_000, Verdict: policy.VerdictError, Error: "x"})
	now = now.Add(time.Minute)
	for i := range 98 {
		observe(policy.PolicyResult{Micros: int64(i), Verdict: policy.VerdictNone})
	}
	observe(policy.PolicyResult{Micros: 500, Verdict: policy.VerdictDeny})
	observe(policy.PolicyResult{Micros: 600, Verdict: policy.VerdictDefer})
	observe(policy.PolicyResult{Cached: true, Micros: 1 << 40})
	want := &v1alpha1.PolicyActivity{Evaluations: 101, Denials: 2, Errors: 1, MedianMicros: 55, P99Micros: 639, MaxMicros: 1_000_000}
	if diff := cmp.Diff(want, a.LastHour("a")); diff != "" {
		t.Errorf("LastHour() (-want +got):\n%s", diff)
	}
	// The first minute leaves the hour.
	now = now.Add(59 * time.Minute)
	want = &v1alpha1.PolicyActivity{Evaluations: 100, Denials: 2, MedianMicros: 55, P99Micros: 511, MaxMicros: 600}
	if diff := cmp.Diff(want, a.LastHour("a")); diff != "" {
		t.Errorf("LastHour() an hour later (-want +got):\n%s", diff)
	}
	now = now.Add(time.Minute)
	if diff := cmp.Diff(&v1alpha1.PolicyActivity{}, a.LastHour("a")); diff != "" {
		t.Errorf("LastHour() of a quiet hour (-want +got):\n%s", diff)
	}
	observe(policy.PolicyResult{Micros: 3})
	a.Forget("a")
	if got := a.LastHour("a").Evaluations; got != 0 {
		t.Errorf("%d evaluations of a forgotten policy", got)
	}
}

func TestClass(t *testing.T) {
	last := -1
	for micros := range int64(100_000) {
		c := class(micros)
		if c < last || c > last+1 {
			t.Fatalf("class(%d) = %d after %d", micros, c, last)
		}
		if b := bound(c); b < micros || b*4 > max(micros, 1)*5+4 || class(b) != c || class(b+1) != c+1 {
			t.Fatalf("bound(class(%d)) = %d, want at least that and at most a quarter more", micros, b)
		}
		last = c
	}
	if got := class(1 << 62); got != classes-1 {
		t.Errorf("class of a huge duration = %d, want the last", got)
	}
}
