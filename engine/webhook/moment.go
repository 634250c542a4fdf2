package webhook

import (
	"context"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// momentLimit bounds one look at the state, whoever waits for it.
const momentLimit = 30 * time.Second

// moments keeps the state at hand. A request does not wait for a look that takes long, since
// what it gets meanwhile is at most a few moments old.
type moments struct {
	get func(context.Context) (Moment, error)

	mu   sync.Mutex
	last *Moment
	// looking is closed when the look that is under way is done; nil if there is none.
	looking chan struct{}
	err     error
}

// at returns the state, nil if none is known. Up to wait, it is as of now.
func (m *moments) at(ctx context.Context, wait time.Duration) *Moment {
	done := m.look(ctx)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// look returns a channel that is closed after a look at the state that begins now, or that
// was under way: what the API server asks about is not stored yet.
func (m *moments) look(ctx context.Context) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.looking != nil {
		return m.looking
	}
	done := make(chan struct{})
	m.looking = done
	ctx = context.WithoutCancel(ctx)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, momentLimit)
		defer cancel()
		got, err := m.get(ctx)
		m.mu.Lock()
		if m.err = err; err == nil {
			m.last = &got
		}
		m.looking = nil
		m.mu.Unlock()
		close(done)
	}()
	return done
}

// refresh looks at the state from time to time.
func (w *Webhook) refresh(ctx context.Context) error {
	log := ctrl.Log.WithName("webhook")
	wait := time.Second // until the first look that succeeds
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.moments.look(ctx):
		}
		w.moments.mu.Lock()
		known, err := w.moments.last != nil, w.moments.err
		w.moments.mu.Unlock()
		if known {
			wait = w.opts.RefreshEvery
		}
		if err != nil {
			log.V(1).Info("the state is not to be had", "cause", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}
