package main

import (
	"context"
	"fmt"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/simulate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// explain says why the pod that name means goes where it goes.
func explain(ctx context.Context, in *load.Result, out *simulate.Outcome, opts simulate.Options, name string) (*schedule.Explanation, error) {
	key, err := podKey(in, name)
	if err != nil {
		return nil, err
	}
	e, err := schedule.Explain(ctx, out.Snapshot, opts.Solve, key)
	if err != nil {
		return nil, fmt.Errorf("simulate: explain pod %s: %w", key, err)
	}
	// A plan under policies may have given up a node that the plan without them has.
	for _, u := range out.Plan.Unscheduled {
		if u.Pod == key {
			e.Node, e.New, e.Bought, e.Reasons = "", false, nil, u.Reasons
		}
	}
	return &e, nil
}
