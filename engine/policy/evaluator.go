package policy

import (
	"context"
	"time"
)

// Evaluator is one loaded policy. Runtimes implement it; all methods may be called at
// the same time.
//
// An evaluator never panics and never runs on past the deadline of ctx by more than a
// few milliseconds: whatever a guest does ends as an [*Error].
type Evaluator interface {
	// Score asks the policy about the rows of in. The answer has been checked with
	// [ScoreAnswer.Check].
	Score(ctx context.Context, in *ScoreInput) (ScoreAnswer, Stats, error)
	// Gate asks the policy a question of one of the other hooks. The answer has been
	// checked with [GateAnswer.Check].
	Gate(ctx context.Context, in GateInput) (GateAnswer, Stats, error)
	// Reads says which parts of the input the policy looks at; nil means all.
	Reads() Reads
}

// GateInput is the input of a hook other than score: a *[DisruptInput], *[LaunchInput] or
// *[AdmitInput].
type GateInput interface {
	// Question is the hook.
	Question() Hook
	// Terms returns the part that all inputs share.
	Terms() *Meta
	// Known returns the names that an answer may use for nodes or claims; nil for hooks
	// that have none.
	Known() map[string]bool

	withMeta(Meta) GateInput
}

// Question is Disrupt.
func (in *DisruptInput) Question() Hook { return Disrupt }

// Terms returns in.Meta.
func (in *DisruptInput) Terms() *Meta { return &in.Meta }

// Known are the names of the nodes.
func (in *DisruptInput) Known() map[string]bool {
	out := make(map[string]bool, len(in.Command.Candidates))
	for i := range in.Command.Candidates {
		out[in.Command.Candidates[i].Node] = true
	}
	return out
}

func (in *DisruptInput) withMeta(m Meta) GateInput {
	out := *in
	out.Meta = m
	return &out
}

// Question is Launch.
func (in *LaunchInput) Question() Hook { return Launch }

// Terms returns in.Meta.
func (in *LaunchInput) Terms() *Meta { return &in.Meta }

// Known are the names of the claims.
func (in *LaunchInput) Known() map[string]bool {
	out := make(map[string]bool, len(in.Claims))
	for i := range in.Claims {
		out[in.Claims[i].Name] = true
	}
	return out
}

func (in *LaunchInput) withMeta(m Meta) GateInput {
	out := *in
	out.Meta = m
	return &out
}

// Question is Admit.
func (in *AdmitInput) Question() Hook { return Admit }

// Terms returns in.Meta.
func (in *AdmitInput) Terms() *Meta { return &in.Meta }

// Known is nil: admission concerns one object.
func (in *AdmitInput) Known() map[string]bool { return nil }

func (in *AdmitInput) withMeta(m Meta) GateInput {
	out := *in
	out.Meta = m
	return &out
}

// CostAt returns the cost of row i as left by the policies before.
func (in *ScoreInput) CostAt(i int) int64 {
	if in.chain != nil {
		return in.chain.Cost[i]
	}
	return in.Candidates.Rows[i].Offering.ListPrice
}

// BiasAt returns the bias of row i as left by the policies before.
func (in *ScoreInput) BiasAt(i int) int64 {
	if in.chain != nil {
		return in.chain.Bias[i]
	}
	return 0
}

// Chained is true if policies before have changed a cost or bias, so that [CostAt] and
// BiasAt may differ from the rows of Candidates.
func (in *ScoreInput) Chained() bool { return in.chain != nil && in.chain.changed }

// Stats is what an evaluation took.
type Stats struct {
	// Duration is wall time.
	Duration time.Duration `json:"duration"`
	// Steps are evaluation steps (Rego) and equal for equal inputs.
	Steps int64 `json:"steps,omitempty"`
	// Fuel are fuel units (Wasm) and equal for equal inputs.
	Fuel int64 `json:"fuel,omitempty"`
	// ResultBytes is the size of the answer.
	ResultBytes int64 `json:"resultBytes,omitempty"`
	// Rows of the input.
	Rows int `json:"rows,omitempty"`
}
