package candidate

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // schedules mean the same on machines without zone files
	"unicode"

	"github.com/robfig/cron/v3"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// Window is when a budget is active. The zero value is always.
type Window struct {
	schedule *cron.SpecSchedule
	length   time.Duration
}

// maxLength is more than lies between any two hits, so longer windows never end either.
const maxLength = 10 * 365 * 24 * time.Hour

// Span is from From to before To.
type Span struct{ From, To time.Time }

// BudgetError is a fault in a field of a budget.
type BudgetError struct {
	// Field is the name of the field: nodes, reasons, schedule or duration.
	Field string
	// Message says what is wrong and what is allowed.
	Message string
}

func (e *BudgetError) Error() string { return e.Field + ": " + e.Message }

// WindowOf reads when a budget is active. Schedules are in UTC, unless they start with
// "CRON_TZ=Zone " or "TZ=Zone ", which only Dovetail reads. Every fault is a [BudgetError].
func WindowOf(b *karpv1.Budget) (Window, error) {
	w, faults := readWindow(b)
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return w, errors.Join(errs...)
}

// readWindow returns the zero Window if there are faults.
func readWindow(b *karpv1.Budget) (Window, []*BudgetError) {
	if b.Schedule == nil && b.Duration == nil {
		return Window{}, nil
	}
	var faults []*BudgetError
	if b.Schedule == nil {
		faults = append(faults, &BudgetError{"schedule", "a duration needs a schedule that says when it starts"})
	}
	if b.Duration == nil {
		faults = append(faults, &BudgetError{"duration", "a schedule needs a duration that says how long the budget is active"})
	}
	var w Window
	if b.Schedule != nil {
		s, err := parseSchedule(*b.Schedule)
		if err != nil {
			faults = append(faults, &BudgetError{"schedule", fmt.Sprintf("%q: %v", *b.Schedule, err)})
		}
		w.schedule = s
	}
	if b.Duration != nil {
		if b.Duration.Duration < time.Minute {
			faults = append(faults, &BudgetError{"duration", fmt.Sprintf("%s: must be at least a minute", b.Duration.Duration)})
		}
		w.length = min(b.Duration.Duration, maxLength)
	}
	if len(faults) > 0 {
		return Window{}, faults
	}
	return w, nil
}

// NewWindow reads a schedule as [WindowOf] does, for windows that are not of budgets.
func NewWindow(schedule string, length time.Duration) (Window, error) {
	s, err := parseSchedule(schedule)
	if err == nil && length < time.Minute {
		err = fmt.Errorf("duration %s: must be at least a minute", length)
	}
	if err != nil {
		return Window{}, err
	}
	return Window{s, min(length, maxLength)}, nil
}

// parseSchedule reads five cron fields or a name such as @daily.
func parseSchedule(text string) (*cron.SpecSchedule, error) {
	rest, zone := strings.TrimSpace(text), "UTC"
	if strings.HasPrefix(rest, "CRON_TZ=") || strings.HasPrefix(rest, "TZ=") {
		_, rest, _ = strings.Cut(rest, "=")
		i := strings.IndexFunc(rest, unicode.IsSpace)
		if i <= 0 {
			return nil, errors.New("want a time zone such as Europe/Berlin, a space and the schedule")
		}
		zone, rest = rest[:i], strings.TrimSpace(rest[i:])
	}
	switch {
	case zone == "Local":
		return nil, errors.New("the time zone Local depends on the machine: name one such as Europe/Berlin")
	case strings.HasPrefix(rest, "@every"):
		return nil, errors.New("@every has no beginning: want five cron fields, or a name such as @daily")
	}
	parsed, err := cron.ParseStandard("CRON_TZ=" + zone + " " + rest)
	if err != nil {
		if strings.Contains(err.Error(), "beyond end of range") {
			return nil, fmt.Errorf("%w: ranges do not wrap around, and weeks start on Sunday; list the parts instead, such as sat,sun", err)
		}
		return nil, err
	}
	s, ok := parsed.(*cron.SpecSchedule)
	if !ok || s.Minute == 0 || s.Hour == 0 || s.Dom == 0 || s.Month == 0 || s.Dow == 0 {
		return nil, errors.New("a field names no value")
	}
	return s, nil
}

// Always reports whether the budget is active at all times without a schedule.
func (w Window) Always() bool { return w.schedule == nil }

// Active reports whether the budget is active at a time: from a hit of the schedule until
// before its duration has passed.
func (w Window) Active(at time.Time) bool {
	if w.schedule == nil {
		return true
	}
	hit := w.schedule.Next(at.Add(-w.length))
	return !hit.IsZero() && !hit.After(at)
}

// Next is the first hit after a time; zero if there is none within five years, or no
// schedule.
func (w Window) Next(after time.Time) time.Time {
	if w.schedule == nil {
		return time.Time{}
	}
	return w.schedule.Next(after)
}

// End is when the budget stops being active if it is at a time; zero if it is not active or
// seems to stay so for ever.
func (w Window) End(at time.Time) time.Time {
	if w.schedule == nil || !w.Active(at) {
		return time.Time{}
	}
	horizon := at.Add(w.horizon())
	if past := at.Add(w.length); past.After(horizon) {
		horizon = past
	}
	for {
		end := w.last(at).Add(w.length)
		if !w.Active(end) {
			return end
		}
		if end.After(horizon) {
			return time.Time{}
		}
		at = end
	}
}

// anyValue is set in a field of a schedule that accepts every value.
const anyValue = 1 << 63

// horizon is after how long a schedule repeats itself, leap years apart.
func (w Window) horizon() time.Duration {
	if w.schedule.Dom&anyValue != 0 && w.schedule.Month&anyValue != 0 {
		return 8 * 24 * time.Hour
	}
	return 400 * 24 * time.Hour
}

// last is the latest hit at or before a time at which the budget is active.
func (w Window) last(at time.Time) time.Time {
	found := func(back time.Duration) (time.Time, bool) {
		hit := w.schedule.Next(at.Add(-back))
		return hit, !hit.IsZero() && !hit.After(at)
	}
	low, high := time.Duration(0), time.Minute
	for ; high < w.length; low, high = high, 2*high {
		if _, ok := found(high); ok {
			break
		}
	}
	high = min(high, w.length)
	for high-low > time.Minute { // hits are a minute apart
		if middle := low + (high-low)/2; hitAt(found(middle)) {
			high = middle
		} else {
			low = middle
		}
	}
	hit, _ := found(high)
	return hit
}

func hitAt(_ time.Time, ok bool) bool { return ok }

// Spans are the times between from and to at which the budget is active, those that touch
// as one.
func (w Window) Spans(from, to time.Time) []Span {
	if w.schedule == nil {
		return []Span{{from, to}}
	}
	var out []Span
	at := from
	for at.Before(to) {
		if !w.Active(at) {
			if at = w.schedule.Next(at); at.IsZero() || !at.Before(to) {
				break
			}
		}
		end := w.End(at)
		if end.IsZero() || end.After(to) {
			end = to
		}
		out = append(out, Span{at, end})
		at = end
	}
	return out
}
