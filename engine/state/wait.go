package state

import (
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Wait is a pod's way to a node; times that have not come are zero.
type Wait struct {
	// Wanted is when the pod was first seen to need a node, Decided when a plan first had
	// an answer for it.
	Wanted, Decided time.Time
	// Placed is since when plans have had a node for it; one that has none ends that.
	Placed time.Time
}

// Decide tells of a plan: placed are the pods that it has a node for, refused those that it
// has none for. It returns how long each of those that had no answer before has waited for
// one.
func (c *Cluster) Decide(placed, refused []snapshot.PodKey) []time.Duration {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var waited []time.Duration
	decide := func(pk snapshot.PodKey) *Wait {
		p := c.pods[tableKey(pk)]
		if p == nil {
			return nil
		}
		if p.wait.Decided.IsZero() {
			p.wait.Decided = now
			if !p.wait.Wanted.IsZero() {
				waited = append(waited, now.Sub(p.wait.Wanted))
			}
		}
		return &p.wait
	}
	for _, pk := range placed {
		if w := decide(pk); w != nil && w.Placed.IsZero() {
			w.Placed = now
		}
	}
	for _, pk := range refused {
		if w := decide(pk); w != nil {
			w.Placed = time.Time{}
		}
	}
	return waited
}

// WaitOf is a pod's way to a node so far; the zero Wait if the pod is not known.
func (c *Cluster) WaitOf(pod snapshot.PodKey) Wait {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pods[tableKey(pod)]; p != nil {
		return p.wait
	}
	return Wait{}
}
