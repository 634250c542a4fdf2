// Package consolidate looks for nodes that may go: what a cluster could do without, what it
// could do cheaper, and what has to be replaced.
//
// Propose tries hypotheses: the cluster without some nodes, whose pods go to free room on
// others or to new nodes that cost less. Each is planned by the same rules as pods that are
// pending (a [schedule.Planner]), so no move ends with a pod that has no place. Moves of one
// result follow one another: each is planned on what the ones before leave.
//
// # What is tried
//
// Waste is what a node costs beyond what its pods are worth, which is the least that new
// nodes for them could cost together with all others (the dual of the packing problem). It
// bounds what can be saved: a node without waste need not be looked at. Nodes are tried in the
// order of waste per eviction, first for going without a replacement, onto nodes that are
// worth keeping; then alone and together with others of much waste, up to MaxNodes of them,
// for a cheaper set of new nodes: right-sizing, merging, splitting and N to M are the same.
//
// # Why it comes to rest
//
// A move must lower the sum of costs, and that of cost and bias; a replacement must save
// MinSaving of what it replaces, at the present prices and at the worst ones of the last
// minutes (BandWindow). So no move undoes another, and prices that tremble move nothing.
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
	// DefaultMinSaving is more than prices that move 3 % up or down can differ.
	DefaultMinSaving = 60
	// DefaultSpotTypes is as upstream's.
	DefaultSpotTypes = 15
	DefaultTrials    = 1200
	DefaultMaxNodes  = 16
)

// BalancedScore is the score from which on a move of a Balanced NodePool is worth it (§5.15).
const BalancedScore = 0.5

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
	// MaxNodes is the largest number of nodes that one move replaces. Defaults to
	// DefaultMaxNodes.
	MaxNodes int
	// MaxMoves is the largest number of moves of a result; what is left is found by the next
	// call. 0 is any number.
	MaxMoves int
	// Trials bounds the hypotheses examined by one call. Defaults to DefaultTrials.
	Trials int
	// Approve is asked about each move before it becomes part of the result, in order; nil
	// approves of all. A move that is denied is not made, and the search goes on.
	Approve func(ctx context.Context, m *Move) (Verdict, error)
	// Held are nodes, by name, that must not go now for a reason besides those that the
	// candidates know, such as a policy that wants to be asked again later.
	Held map[string]candidate.Reason
	// Memory is what earlier calls left; nil remembers nothing.
	Memory *Memory
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
	// Plan says where their pods go, on the cluster that the moves before this one leave. It
	// has no Bound and no Unscheduled.
	Plan schedule.Plan
	// Cost and NewCost are what Nodes and their replacements cost per hour. Bias and NewBias
	// only rank. Cost is 0 for nodes whose price is not known.
	Cost, NewCost catalog.Price
	Bias, NewBias catalog.Price
	// Ceiling is the most that all replacements together may cost; 0 is any amount.
	Ceiling catalog.Price
	// Evictions is the number of pods that move, Disruption what moving them costs (§5.4).
	Evictions  int
	Disruption float64
	// Score is the share of savings over that of disruption (§5.15), by the name of each
	// NodePool that is Balanced.
	Score map[string]float64
}

// Saving is what the move saves per hour. It is negative if it costs.
func (m *Move) Saving() catalog.Price { return m.Cost - m.NewCost }

// Share is the most that one new node of the move may cost whichever offering it is launched
// as: the ceiling is divided as the planned costs are. It is 0 for any amount.
func (m *Move) Share(n *schedule.NewNode) catalog.Price {
	switch {
	case m.Ceiling <= 0:
		return 0
	case m.NewCost <= 0:
		return m.Ceiling / catalog.Price(max(len(m.Plan.NewNodes), 1))
	}
	return max(n.Planned.Cost, catalog.Price(float64(m.Ceiling)*float64(n.Planned.Cost)/float64(m.NewCost)))
}

// Result is what Propose found.
type Result struct {
	// Moves may be made together, in this order.
	Moves []Move
	// Left are all candidates that are in no move, by name, with the reasons.
	Left map[string][]candidate.Reason
	// Cost is what all nodes whose price is known cost per hour.
	Cost catalog.Price
	// Trials is the number of hypotheses examined.
	Trials int
	// Complete is true if every candidate had its turn.
	Complete bool
}

// Memory is what calls remember: whose turn it is, what prices were of late, and what was
// planned before. It is changed by Propose; the zero value is ready to use.
type Memory struct {
	// away and swap are the names of the nodes that come next for going without a
	// replacement, and with one.
	away, swap string
	// denied are the nodes that were denied since all nodes had their turn: others come
	// before them.
	denied map[string]bool
	prices bands
	// fragile are nodes whose moves were not robust when a search found nothing, and state is
	// the state of nodes and pods then: while that lasts, other prices do not make them so.
	fragile map[string]bool
	state   uint64
	// memo is what was planned before.
	memo schedule.Memo
}

// Codes of reasons that nodes are left for, beside those of package candidate.
const (
	// PolicyDenied: a policy denies what could be done.
	PolicyDenied candidate.Code = "PolicyDenied"
	// BudgetClosed: the NodePool's budgets allow no more nodes to go.
	BudgetClosed candidate.Code = "DisruptionBudget"
	// NoPlace: pods would have no place without the node.
	NoPlace candidate.Code = "PodsHaveNoPlace"
	// SavingTooSmall: the pods are worth what the node costs, or nearly.
	SavingTooSmall candidate.Code = "SavingTooSmall"
	// TooFewSpotTypes: a spot node would have too few instance types to choose from.
	TooFewSpotTypes candidate.Code = "TooFewSpotTypes"
	// BalancedTooLow: the score is too low for the NodePool's policy Balanced.
	BalancedTooLow candidate.Code = "BalancedScoreTooLow"
	// Busy: the node takes pods of another move.
	Busy candidate.Code = "TakesPods"
	// NotReached: the node's turn comes in a later round.
	NotReached candidate.Code = "NotExamined"
	// NothingToGain: the node costs nothing.
	NothingToGain candidate.Code = "CostsNothing"
)

// Propose finds moves: nodes that are broken, all that can go for nothing, drifted nodes in the
// order of their age, then what saves most per eviction. It is pure: equal arguments give equal results,
// whatever the order of objects and candidates. The error is ctx.Err(), that of Approve or of
// the options.
func Propose(ctx context.Context, snap *snapshot.Snapshot, opts Options) (Result, error) {
	s, err := newSearch(ctx, snap, opts)
	if err != nil {
		return Result{}, err
	}
	for _, stage := range []func() error{s.takeBroken, s.takeEmpty, s.takeDrifted, s.takeAway, s.replace} {
		if err := stage(); err != nil {
			return Result{}, err
		}
	}
	return s.result(), ctx.Err()
}

// Target is the cheapest cluster that was found for the pods on the nodes that leave says may
// go: what they cost now and what the plan's new nodes would.
type Target struct {
	Cost catalog.Price
	Plan schedule.Plan
}

// Best plans the pods of all nodes that somebody manages anew, as if they could all go at once.
// Its Plan has the Bound that no set of new nodes can go below. It takes as long as a plan for
// all pods.
func Best(ctx context.Context, snap *snapshot.Snapshot, candidates []candidate.Candidate, opts schedule.Options) (Target, error) {
	t := Target{}
	without := map[string]bool{}
	costs := priceList(snap, opts.Costs)
	for i := range candidates {
		c := &candidates[i]
		if p, ok := costs.of(c); ok {
			without[c.Node] = true
			t.Cost += p.cost
		}
	}
	plan, err := schedule.Solve(ctx, snap.Fork(without), opts)
	t.Plan = plan
	return t, err
}
