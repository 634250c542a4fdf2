package sim

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/dovetail-sh/dovetail/engine/cloud"
)

// feed hands announcements to everybody who listens. Those who come late get the earlier
// ones first, as far as their machines are still there.
type feed struct {
	mu        sync.Mutex
	last      int
	told      map[string][]told // by provider ID
	listeners map[*listener]bool
}

// told is an announcement with its place in their order.
type told struct {
	cloud.Interruption
	number int
}

// listener has what is still to be delivered to one who listens.
type listener struct {
	queue []cloud.Interruption // guarded by the feed's lock
	wake  chan struct{}
}

// add announces i, unless it was announced before.
func (f *feed) add(i cloud.Interruption) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.told[i.ProviderID], func(t told) bool { return t.Kind == i.Kind }) {
		return
	}
	if f.told == nil {
		f.told = map[string][]told{}
	}
	f.last++
	f.told[i.ProviderID] = append(f.told[i.ProviderID], told{i, f.last})
	for l := range f.listeners {
		l.queue = append(l.queue, i)
		select {
		case l.wake <- struct{}{}:
		default: // it has been woken already
		}
	}
}

// forget keeps what was announced of a machine from those who are not listening yet.
func (f *feed) forget(providerID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.told, providerID)
}

// join adds a listener.
func (f *feed) join() *listener {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := &listener{wake: make(chan struct{}, 1)}
	earlier := slices.Concat(slices.Collect(maps.Values(f.told))...)
	slices.SortFunc(earlier, func(a, b told) int { return a.number - b.number })
	for _, t := range earlier {
		l.queue = append(l.queue, t.Interruption)
	}
	if f.listeners == nil {
		f.listeners = map[*listener]bool{}
	}
	f.listeners[l] = true
	return l
}

func (f *feed) leave(l *listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.listeners, l)
}

// take empties the queue of a listener.
func (f *feed) take(l *listener) []cloud.Interruption {
	f.mu.Lock()
	defer f.mu.Unlock()
	queue := l.queue
	l.queue = nil
	return queue
}

// listen delivers announcements until ctx ends, and then closes the channel.
func (f *feed) listen(ctx context.Context) <-chan cloud.Interruption {
	out, l := make(chan cloud.Interruption), f.join()
	go func() {
		defer close(out)
		defer f.leave(l)
		for {
			for _, i := range f.take(l) {
				select {
				case out <- i:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-l.wake:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
