// Package consolidate looks for nodes that may go: what a cluster could do without, do
// cheaper, or has to replace.
package consolidate

import (
	"context"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Defaults of Options.
const (
	DefaultMinSaving = 60
	DefaultSpotTypes = 15
	DefaultTrials    = 4000
)

// Options tune one call to Propose. The zero value is ready to use, with nothing to disrupt.
type Options struct {
	// Solve tunes the plans of moves; its Costs are what policies say that offerings cost.
	Solve schedule.Options
	// Candidates are all nodes, those that must not go included.
	Candidates []candidate.Candidate
	// Allowances say how many nodes may go. A pool and reason that is missing has none.
	Allowances []candidate.Allowance
	// MinSaving is the part of what the nodes of a move cost that replacing them must save,
	// in permille. Defaults to DefaultMinSaving; negative is any saving.
	MinSaving int
	// SpotTypes is the number of instance types that a spot node must be able to be of if it
	// replaces one that is spot too. Defaults to DefaultSpotTypes; negative means that spot
	// nodes are never replaced by spot nodes.
	SpotTypes int
	// Approve is asked about each move before it becomes part of the result, in order; nil
	// approves of all.
	Approve func(ctx context.Context, m *Move) (Verdict, error)
	// Held are nodes, by name, that must not go now for a reason besides those that the
	// candidates know, such as a policy that wants to be asked again later.
	Held map[string]candidate.Reason
	// Trials bounds the hypotheses examined by one call. Defaults to DefaultTrials.
	Trials int
	// Rotation remembers across calls whose turn it is; nil starts from the beginning.
	Rotation *Rotation
}

// Verdict is what is thought of a move.
type Verdict struct {
	// Deny says why the move must not be made; empty approves.
	Deny []candidate.Reason
	// Keep are nodes, by name, without which the move is asked about again.
	Keep map[string]candidate.Reason
}

// Move takes nodes away, and buys others if it has to.
type Move struct {
	Reason karpv1.DisruptionReason
	// Nodes that go, by name.
	Nodes []string
	// Plan says where their pods go. It is for Before without Nodes.
	Plan schedule.Plan
	// Before is the cluster as it is after the moves in front of this one.
	Before *snapshot.Snapshot
	// Cost and NewCost are what Nodes and their replacements cost per hour.
	Cost, NewCost catalog.Price
	// Ceiling is the most that all replacements together may cost: alternatives that are
	// dearer than their part of it must not be bought.
	Ceiling catalog.Price
	// Evictions is the number of pods that move, Disruption what that costs (§5.4).
	Evictions  int
	Disruption float64
	// Score is the share of savings over that of disruption (§5.15), by pool that is
	// Balanced.
	Score map[string]float64
}

// Saving is what the move saves per hour.
func (m *Move) Saving() catalog.Price { return m.Cost - m.NewCost }

// Result is what Propose found.
type Result struct {
	// Moves in the order of worth. They may be made together.
	Moves []Move
	// Left are all candidates that are in no move, with the reasons.
	Left map[string][]candidate.Reason
	// Cost is what all nodes whose price is known cost per hour, Target the cost of the
	// cheapest cluster that was found for the same pods, Bound what none can go below. Target and Bound
	// are 0 unless asked for by Options.
	Cost catalog.Price
	// Trials is the number of hypotheses examined, Examined the candidates whose turn came.
	Trials, Examined int
	// Complete is true if every candidate had its turn.
	Complete bool
}

// Rotation is whose turn it is.
type Rotation struct {
	next string
}

// Propose finds the moves that are worth most.
func Propose(ctx context.Context, snap *snapshot.Snapshot, opts Options) (Result, error) {
	return Result{}, ctx.Err()
}
