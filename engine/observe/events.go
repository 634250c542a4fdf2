package observe

import (
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is what an event is about.
type Object interface {
	runtime.Object
	metav1.Object
}

// Sink publishes an event about an object.
type Sink func(about runtime.Object, eventType, reason, message string)

// Event is something that people who look at an object should know.
type Event struct {
	About Object
	// Warning is false for normal events.
	Warning bool
	// Reason is one of the Reason constants.
	Reason  string
	Message string
	// Every is how long an equal event (about, reason and Key) is not repeated.
	// Defaults to 2 minutes.
	Every time.Duration
	// Key tells events of one reason about one object apart. Defaults to the message.
	Key string
	// Limited events of one reason come at most 5 a second, after a burst of 10.
	Limited bool
}

// Events publishes events once. The zero value of a pointer to it publishes nothing.
type Events struct {
	sink Sink
	now  func() time.Time

	mu      sync.Mutex
	said    map[uint64]time.Time // until when not to repeat
	sweep   time.Time
	buckets map[string]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

const (
	defaultEvery  = 2 * time.Minute
	ratePerSecond = 5.0
	burst         = 10.0
)

// NewEvents publishes to sink; now is the clock.
func NewEvents(sink Sink, now func() time.Time) *Events {
	return &Events{sink: sink, now: now, said: map[uint64]time.Time{}, buckets: map[string]*bucket{}}
}

// Publish publishes events that are neither repetitions nor over the limit.
func (e *Events) Publish(events ...Event) {
	if e == nil {
		return
	}
	for i := range events {
		if ev := &events[i]; e.admit(ev) {
			kind := corev1.EventTypeNormal
			if ev.Warning {
				kind = corev1.EventTypeWarning
			}
			e.sink(ev.About, kind, ev.Reason, ev.Message)
		}
	}
}

func (e *Events) admit(ev *Event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	key := identity(ev)
	if until, ok := e.said[key]; ok && now.Before(until) {
		return false
	}
	if ev.Limited {
		b := e.buckets[ev.Reason]
		if b == nil {
			b = &bucket{tokens: burst, at: now}
			e.buckets[ev.Reason] = b
		}
		b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*ratePerSecond)
		b.at = now
		if b.tokens < 1 {
			return false
		}
		b.tokens--
	}
	every := ev.Every
	if every == 0 {
		every = defaultEvery
	}
	if now.After(e.sweep) {
		for k, until := range e.said {
			if !now.Before(until) {
				delete(e.said, k)
			}
		}
		e.sweep = now.Add(time.Minute)
	}
	e.said[key] = now.Add(every)
	return true
}

// identity hashes namespace and kind too: objects of one name in two namespaces are two.
func identity(ev *Event) uint64 {
	h := fnv.New64a()
	key := ev.Key
	if key == "" {
		key = ev.Message
	}
	for _, s := range [...]string{string(ev.About.GetUID()), ev.About.GetNamespace(), ev.About.GetName(), ev.Reason, key} {
		_, _ = h.Write([]byte(s))
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}
