package policy

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// DefaultRound is the time that the policies of one hook have in a [Round] together.
const DefaultRound = time.Second

// Round bounds the time that policies take in one round of decisions, such as the planning
// of one batch of pods, and keeps the records of what they decided. Decisions made with the
// same [Facts] share the round of those. All methods may be called at the same time.
type Round struct {
	limit time.Duration

	mu      sync.Mutex
	spent   map[Hook]time.Duration
	records []Record
}

// NewRound returns a round in which the policies of each hook have limit together. Zero is
// [DefaultRound]; negative is no bound but those of each policy.
func NewRound(limit time.Duration) *Round {
	if limit == 0 {
		limit = DefaultRound
	}
	return &Round{limit: limit, spent: map[Hook]time.Duration{}}
}

// Fresh returns a new round with the limit of r; nil gives one without a bound.
func (r *Round) Fresh() *Round {
	if r == nil {
		return NewRound(-1)
	}
	return NewRound(r.limit)
}

// Over says whether the policies of hook h have no time left.
func (r *Round) Over(h Hook) bool {
	_, err := r.left(h, 0)
	return err != nil
}

// Records are those of the decisions so far, in the order in which they were made.
func (r *Round) Records() []Record {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records)
}

func (r *Round) add(rec Record) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
}

// left is wall, or what the policies of hook h have left if that is less. The error says
// that they have nothing left.
func (r *Round) left(h Hook, wall time.Duration) (time.Duration, error) {
	if r == nil || r.limit < 0 {
		return wall, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.limit - r.spent[h]
	if left <= 0 {
		return 0, &Error{Class: ClassDeadline, Msg: fmt.Sprintf("not asked: the %s policies have used up the %s of this round", h, r.limit)}
	}
	return min(wall, left), nil
}

func (r *Round) spend(h Hook, d time.Duration) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spent[h] += d
}
