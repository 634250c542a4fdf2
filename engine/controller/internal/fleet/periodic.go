package fleet

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// Periodic does something again and again while this process leads.
type Periodic struct {
	Name string
	// Every is the longest time between two runs, and the time before the first.
	Every time.Duration
	// Do returns when it wants to be done again; zero is after Every. Errors are logged.
	Do func(ctx context.Context) (time.Duration, error)
}

// NeedLeaderElection reports true.
func (p Periodic) NeedLeaderElection() bool { return true }

// Start runs until ctx ends.
func (p Periodic) Start(ctx context.Context) error {
	log := ctrl.LoggerFrom(ctx).WithName(p.Name)
	ctx = ctrl.LoggerInto(ctx, log)
	timer := time.NewTimer(p.Every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		next, err := p.Do(ctx)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "a run failed, and is repeated")
		}
		if next <= 0 || next > p.Every {
			next = p.Every
		}
		timer.Reset(next)
	}
}
