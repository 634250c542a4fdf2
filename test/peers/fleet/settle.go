package fleet

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// Round is what an engine did in one pass over a fleet.
type Round struct {
	// Think is the time to decide, and CPU what that used of all CPUs, without what the
	// fleet takes to change.
	Think, CPU time.Duration
	// Removed and Launched count nodes. Rescued are those of Launched that were bought
	// afterwards, for pods that found no room where they were planned.
	Removed, Launched, Rescued int
	// More is true if the engine has not looked at every node.
	More bool
	// Cost is what all nodes cost per hour after the round, Evictions what the fleet has
	// counted by then. Settle fills both in.
	Cost      catalog.Price
	Evictions int
}

// Engine takes nodes of the fleet it was made for away, and buys others.
type Engine interface {
	// Round decides once, and changes the fleet accordingly.
	Round(ctx context.Context) (Round, error)
}

// stalled is the number of rounds in a row that may leave the fleet no cheaper than it has
// been before: an engine that goes on undoes what it did, and would not end.
const stalled = 10

// Limits end rounds before the fleet is settled. Zero is no limit.
type Limits struct {
	Rounds int
	// Think is what rounds may take together, as Round.Think counts it. The round that
	// passes it is the last one.
	Think time.Duration
}

// Outcome is what an engine made of a fleet.
type Outcome struct {
	// Rounds are those that took nodes away, and Idle those that found none to take.
	Rounds []Round
	Idle   []Round
	// Settled is true if two rounds in a row looked at everything and found nothing, Stalled
	// if the last rounds took nodes away in vain.
	Settled, Stalled bool
	// Before and After are what all nodes cost per hour.
	Before, After catalog.Price
	// Nodes are those that are left, Pending the pods that have none.
	Nodes, Pending int
	// Evictions counts pods, the rest nodes as Round does.
	Evictions, Removed, Launched, Rescued int
}

// Settle lets the engine go on until two rounds in a row change nothing, ten in a row make
// the fleet no cheaper, or up to the limits, and checks what is left. Progress is told each
// round if it is not nil.
func (f *Fleet) Settle(ctx context.Context, e Engine, limits Limits, progress func(Round)) (Outcome, error) {
	before := f.Clone()
	out := Outcome{Before: f.Cost()}
	think, idle, vain, lowest := time.Duration(0), 0, 0, out.Before
	for n := 0; (limits.Rounds == 0 || n < limits.Rounds) && (limits.Think == 0 || think < limits.Think); n++ {
		r, err := e.Round(ctx)
		if err != nil {
			return out, fmt.Errorf("round %d: %w", n+1, err)
		}
		r.Cost, r.Evictions = f.Cost(), f.Evictions
		if progress != nil {
			progress(r)
		}
		think += r.Think
		if r.Removed > 0 {
			out.Rounds, idle = append(out.Rounds, r), 0
			out.Removed, out.Launched, out.Rescued = out.Removed+r.Removed, out.Launched+r.Launched, out.Rescued+r.Rescued
			if r.Cost < lowest {
				lowest, vain = r.Cost, 0
			} else if vain++; vain == stalled {
				out.Stalled = true
				break
			}
			continue
		}
		if out.Idle = append(out.Idle, r); r.More {
			continue
		}
		idle++
		if out.Settled = idle == 2; out.Settled {
			break
		}
	}
	out.After, out.Evictions, out.Nodes, out.Pending = f.Cost(), f.Evictions, len(f.Nodes), len(f.Pending())
	return out, f.Check(before)
}

// Watch starts to measure one decision; the function it returns adds it to the round.
func Watch(r *Round) (stop func()) {
	cpu, start := cpuTime(), time.Now()
	return func() {
		r.Think += time.Since(start)
		r.CPU += cpuTime() - cpu
	}
}

// cpuTime is what the process has used of all CPUs so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
