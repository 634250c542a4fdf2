package nodeclaim

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// firstSight is how long a claim must have been in sight before it is too old, whatever its
// conditions say of its age. If the wall clock was set while this process was down, that
// age is wrong.
const firstSight = time.Minute

// ages tell for how long conditions of claims have had their status, also when the wall
// clock is set meanwhile: what passed before this process saw the status is read off the
// wall clock, and what has passed since then is measured.
type ages struct {
	elapsed func() time.Duration

	mu     sync.Mutex
	byName map[string]*sightings
}

// sightings are the conditions of one claim that were seen, by type.
type sightings struct {
	uid        types.UID
	conditions map[string]sighting
}

type sighting struct {
	// since is when the condition got its status, as it says itself.
	since time.Time
	// age is how long ago that was when it was first seen, at the time at.
	age, at time.Duration
}

func newAges(elapsed func() time.Duration) *ages {
	return &ages{elapsed: elapsed, byName: map[string]*sightings{}}
}

// see notes the present statuses of conditions. Those of a claim that is fresh, which is one
// that nobody has worked on, have no age yet: its creation was read off another clock.
func (a *ages) see(c *karpv1.NodeClaim, now time.Time, fresh bool, kinds ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range kinds {
		a.seen(c, now, fresh, kind)
	}
}

func (a *ages) seen(c *karpv1.NodeClaim, now time.Time, fresh bool, kind string) sighting {
	s := a.byName[c.Name]
	if s == nil || s.uid != c.UID {
		s = &sightings{c.UID, map[string]sighting{}}
		a.byName[c.Name] = s
	}
	since := c.Conditions().Since(kind)
	have, ok := s.conditions[kind]
	if !ok || !have.since.Equal(since) {
		have = sighting{since: since, at: a.elapsed()}
		if !fresh {
			have.age = max(now.Sub(since), 0)
		}
		s.conditions[kind] = have
	}
	return have
}

// left is how much of the time limit is left to a condition to change its status.
func (a *ages) left(c *karpv1.NodeClaim, now time.Time, kind string, limit time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	have := a.seen(c, now, false, kind)
	watched := a.elapsed() - have.at
	return max(limit-have.age-watched, min(firstSight, limit)-watched)
}

func (a *ages) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byName, name)
}
