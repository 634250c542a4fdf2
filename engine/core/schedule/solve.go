package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// DefaultImproveSteps is the number of times that Solve takes nodes apart to look for a
// cheaper set.
const DefaultImproveSteps = 400

// DefaultMaxAlternatives is the default of Options.MaxAlternatives.
const DefaultMaxAlternatives = 600

func (o Options) withDefaults() Options {
	if o.Preferences == "" {
		o.Preferences = Respect
	}
	if o.MinValues == "" {
		o.MinValues = Strict
	}
	if o.MaxAlternatives == 0 {
		o.MaxAlternatives = DefaultMaxAlternatives
	}
	if o.ImproveSteps == 0 {
		o.ImproveSteps = DefaultImproveSteps
	}
	return o
}

// Validate names every field that holds a value which is not allowed.
func (o Options) Validate() error {
	var errs []error
	if o.Preferences != "" && o.Preferences != Respect && o.Preferences != Ignore {
		errs = append(errs, fmt.Errorf("preferences: %q: must be %s or %s", o.Preferences, Respect, Ignore))
	}
	if o.MinValues != "" && o.MinValues != Strict && o.MinValues != BestEffort {
		errs = append(errs, fmt.Errorf("minValues: %q: must be %s or %s", o.MinValues, Strict, BestEffort))
	}
	if o.MaxAlternatives < 0 {
		errs = append(errs, fmt.Errorf("maxAlternatives: %d: must not be negative", o.MaxAlternatives))
	}
	return errors.Join(errs...)
}

// Solve places the pending pods of snap on its nodes, or on new nodes of the cheapest
// offerings that hold them, and returns the plan.
//
// Solve is pure: it reads no clock, starts no goroutine, and does not change snap, so
// equal arguments give equal plans, whatever the order of the objects snap was built
// from. ctx only cancels.
//
// A pod that fits nowhere is not an error: it is in Plan.Unscheduled with its reasons.
// Solve returns the error of [Options.Validate] or ctx.Err(); the plan is then zero.
func Solve(ctx context.Context, snap *snapshot.Snapshot, opts Options) (Plan, error) {
	if err := opts.Validate(); err != nil {
		return Plan{}, err
	}
	s, err := solve(ctx, snap, opts.withDefaults())
	if err != nil {
		return Plan{}, err
	}
	return s.plan(), nil
}

// solve runs the stages and returns the solver with all pods placed that can be.
func solve(ctx context.Context, snap *snapshot.Snapshot, opts Options) (*solver, error) {
	s := newSolver(ctx, snap, opts)
	s.run(false)
	if s.short() && s.priorities() > 1 && slices.ContainsFunc(s.limits, func(l *limit) bool { return l != nil }) {
		// A limit left some pods out: buy again, the most important pods first.
		s = newSolver(ctx, snap, opts)
		s.run(true)
	}
	return s, ctx.Err()
}

func (s *solver) run(byPriority bool) {
	s.useExisting()
	classes := s.order()
	for len(classes) > 0 && s.ctx.Err() == nil {
		n := len(classes)
		if byPriority {
			n = 1
			for n < len(classes) && classes[n].snap.Priority == classes[0].snap.Priority {
				n++
			}
		}
		s.buy(classes[:n])
		classes = classes[n:]
	}
	s.serveSingly()
	if s.short() && slices.ContainsFunc(s.limits, func(l *limit) bool { return l != nil }) {
		s.shrink() // smaller nodes leave more of the limits
		s.serveSingly()
	}
	if len(s.groups) == 0 {
		return
	}
	before := total(s.placed)
	s.replay()
	if total(s.placed) < before {
		s.serveSingly()
	}
}

// short reports whether a pod is without a place.
func (s *solver) short() bool {
	return slices.ContainsFunc(s.demand, func(n int) bool { return n > 0 })
}

func (s *solver) priorities() int {
	seen := map[int32]bool{}
	for _, c := range s.classes {
		if c != nil {
			seen[c.snap.Priority] = true
		}
	}
	return len(seen)
}
