package provision

import (
	"context"
	"sync"
	"time"
)

// batcher gathers triggers, so that pods that come together are planned together.
//
// The first trigger opens a window. It closes when no new key has come for idle, or when
// it has been open for most. A trigger that comes while nobody waits opens the next one.
type batcher struct {
	idle, most time.Duration

	mu   sync.Mutex
	seen map[string]bool
	wake chan struct{}
}

func newBatcher(idle, most time.Duration) *batcher {
	return &batcher{idle: idle, most: most, seen: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// trigger asks for a plan because of key. A key that the open window has seen does not
// keep it open.
func (b *batcher) trigger(key string) {
	b.mu.Lock()
	known := b.seen[key]
	b.seen[key] = true
	b.mu.Unlock()
	if known {
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// wait returns when a window has closed, or with false when ctx has ended.
func (b *batcher) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-b.wake:
	}
	most := time.NewTimer(b.most)
	defer most.Stop()
	idle := time.NewTimer(b.idle)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-b.wake:
			idle.Reset(b.idle)
			continue
		case <-idle.C:
		case <-most.C:
		}
		b.mu.Lock()
		clear(b.seen)
		b.mu.Unlock()
		return true
	}
}
