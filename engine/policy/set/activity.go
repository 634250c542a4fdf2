package set

import (
	"math/bits"
	"sync"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Activity counts the evaluations of each policy in the last hour. The zero value is ready
// to use. [Activity.Observe] belongs into [policy.Options.OnDecision].
type Activity struct {
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time

	mu       sync.Mutex
	policies map[string]*[60]minute
}

// minute counts the evaluations of one minute.
type minute struct {
	at                           int64 // minutes since 1970
	evaluations, denials, errors int64
	slowest                      int64
	// times counts durations by class.
	times [classes]int64
}

func (a *Activity) now() int64 {
	if a.Now != nil {
		return a.Now().Unix() / 60
	}
	return time.Now().Unix() / 60
}

// Observe counts the policies that were asked for a decision; answers from a cache do not
// count. The second argument is not used.
func (a *Activity) Observe(r policy.Record, _ any) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.policies == nil {
		a.policies = map[string]*[60]minute{}
	}
	for i := range r.Policies {
		p := &r.Policies[i]
		if p.Cached {
			continue
		}
		hour := a.policies[p.Name]
		if hour == nil {
			hour = &[60]minute{}
			a.policies[p.Name] = hour
		}
		m := &hour[now%60]
		if m.at != now {
			*m = minute{at: now}
		}
		m.evaluations++
		switch {
		case p.Error != "":
			m.errors++
		case p.Verdict == policy.VerdictDeny, p.Verdict == policy.VerdictDefer:
			m.denials++
		}
		m.slowest = max(m.slowest, p.Micros)
		m.times[class(p.Micros)]++
	}
}

// LastHour returns the counts of a policy.
func (a *Activity) LastHour(name string) *v1alpha1.PolicyActivity {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &v1alpha1.PolicyActivity{}
	hour := a.policies[name]
	if hour == nil {
		return out
	}
	var times [classes]int64
	for i := range hour {
		m := &hour[i]
		if m.at <= now-60 || m.at > now {
			continue
		}
		out.Evaluations += m.evaluations
		out.Denials += m.denials
		out.Errors += m.errors
		out.MaxMicros = max(out.MaxMicros, m.slowest)
		for c, n := range m.times {
			times[c] += n
		}
	}
	out.MedianMicros = min(quantile(&times, (out.Evaluations+1)/2), out.MaxMicros)
	out.P99Micros = min(quantile(&times, (out.Evaluations*99+99)/100), out.MaxMicros)
	return out
}

// Forget drops the counts of a policy.
func (a *Activity) Forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.policies, name)
}

// classes of durations: four for each power of two of microseconds, up to 2^28 (4.5 min).
const classes = 4 * 28

// class is the class of a duration: that of the smallest upper bound.
func class(micros int64) int {
	if micros < 4 {
		return int(max(micros, 0))
	}
	// The two bits below the highest tell the quarters of a power of two apart.
	high := bits.Len64(uint64(micros)) - 1
	c := 4*(high-1) + int(micros>>(high-2)&3)
	return min(c, classes-1)
}

// bound is the largest duration of a class.
func bound(c int) int64 {
	if c < 4 {
		return int64(c)
	}
	high := c/4 + 1
	return (int64(4+c%4)+1)<<(high-2) - 1
}

// quantile is the bound of the class that has the n-th of the sorted durations.
func quantile(times *[classes]int64, n int64) int64 {
	if n == 0 {
		return 0
	}
	for c, k := range times {
		if n -= k; n <= 0 {
			return bound(c)
		}
	}
	return bound(classes - 1)
}
