package sim

import (
	"cmp"
	"context"
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
	listeners map[chan struct{}]bool
}

// told is an announcement with its place in their order.
type told struct {
	cloud.Interruption
	number int
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
	for wake := range f.listeners {
		select {
		case wake <- struct{}{}:
		default: // it has been woken already
		}
	}
}

// forget drops what was announced of a machine.
func (f *feed) forget(providerID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.told, providerID)
}

// since are the announcements after a number, in their order.
func (f *feed) since(number int) []told {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []told
	for _, list := range f.told {
		for _, t := range list {
			if t.number > number {
				out = append(out, t)
			}
		}
	}
	slices.SortFunc(out, func(a, b told) int { return cmp.Compare(a.number, b.number) })
	return out
}

// listen delivers announcements until ctx ends, and then closes the channel.
func (f *feed) listen(ctx context.Context) <-chan cloud.Interruption {
	out, wake := make(chan cloud.Interruption), make(chan struct{}, 1)
	f.mu.Lock()
	if f.listeners == nil {
		f.listeners = map[chan struct{}]bool{}
	}
	f.listeners[wake] = true
	f.mu.Unlock()
	go func() {
		defer close(out)
		defer func() {
			f.mu.Lock()
			delete(f.listeners, wake)
			f.mu.Unlock()
		}()
		number := 0
		for {
			for _, t := range f.since(number) {
				select {
				case out <- t.Interruption:
					number = t.number
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
