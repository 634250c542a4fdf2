package candidate

import (
	"fmt"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// Expiry is what a NodePool wants of nodes that have reached their age.
type Expiry struct {
	// Graceful is false if they are deleted at once, whatever budgets say.
	Graceful bool
	// Problems are annotations that cannot be read, each with what is expected. A window
	// that cannot be read is shut: its author did not want nodes to go at any time.
	Problems []string

	window   Window
	shut     bool
	deadline *time.Duration
}

// ExpiryOf reads the annotations of a NodePool. The zero value, which is also that of nil, is
// Karpenter's way.
func ExpiryOf(np *karpv1.NodePool) Expiry {
	var e Expiry
	if np == nil {
		return e
	}
	problem := func(key, format string, args ...any) {
		e.Problems = append(e.Problems, fmt.Sprintf("annotation %s: %s", key, fmt.Sprintf(format, args...)))
	}
	switch way, ok := np.Annotations[v1alpha1.ExpirationAnnotation]; {
	case !ok:
		return e
	case way != v1alpha1.ExpirationGraceful:
		problem(v1alpha1.ExpirationAnnotation, "%q: must be %q; nodes are deleted at their age", way, v1alpha1.ExpirationGraceful)
		return e
	}
	e.Graceful = true
	if text, ok := np.Annotations[v1alpha1.ExpirationWindowAnnotation]; ok {
		if err := e.setWindow(text); err != nil {
			e.shut = true
			problem(v1alpha1.ExpirationWindowAnnotation, "%v; no window is open", err)
		}
	}
	if text, ok := np.Annotations[v1alpha1.ExpirationDeadlineAnnotation]; ok {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			problem(v1alpha1.ExpirationDeadlineAnnotation, "%q: must be a duration such as 72h; there is no deadline", text)
		} else {
			e.deadline = &d
		}
	}
	return e
}

func (e *Expiry) setWindow(text string) error {
	i := strings.LastIndex(text, "/")
	if i < 0 {
		return fmt.Errorf(`%q: must be a cron schedule, a slash and a duration, such as "0 2 * * sun/4h"`, text)
	}
	d, err := time.ParseDuration(strings.TrimSpace(text[i+1:]))
	if err != nil || d <= 0 {
		return fmt.Errorf(`%q: %q is no duration such as 4h`, text, text[i+1:])
	}
	w, err := NewWindow(text[:i], d)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	e.window = w
	return nil
}

// At is when a claim reaches its age; ok is false if it has none.
func (e Expiry) At(c *karpv1.NodeClaim) (at time.Time, ok bool) {
	age, ok := c.Spec.ExpireAfter.Value()
	return c.CreationTimestamp.Add(age), ok
}

// Forced is when a claim is deleted whatever budgets and window say; ok is false for never.
func (e Expiry) Forced(c *karpv1.NodeClaim) (at time.Time, ok bool) {
	at, ok = e.At(c)
	switch {
	case !ok || !e.Graceful:
		return at, ok
	case e.deadline == nil:
		return time.Time{}, false
	}
	return at.Add(*e.deadline), true
}

// Open reports whether expired nodes may be replaced at a time.
func (e Expiry) Open(at time.Time) bool {
	return e.Graceful && !e.shut && e.window.Active(at)
}

// Opens is when the window opens next after a time; zero for never, or if it has no window.
func (e Expiry) Opens(after time.Time) time.Time {
	if e.shut {
		return time.Time{}
	}
	return e.window.Next(after)
}
