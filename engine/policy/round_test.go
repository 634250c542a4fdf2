package policy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
)

// waits answers when its time is up.
type waits struct{ fake }

func (w *waits) Gate(ctx context.Context, _ policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	w.calls.Add(1)
	<-ctx.Done()
	return policy.GateAnswer{}, policy.Stats{}, &policy.Error{Class: policy.ClassDeadline, Msg: "too slow", Err: ctx.Err()}
}

// TestRound holds that the policies of a hook share their time: those after a slow one fail,
// as their failure policy says, and are not held to have failed by themselves.
func TestRound(t *testing.T) {
	slow, next, other := &waits{}, &fake{gate: func(policy.GateInput) (policy.GateAnswer, error) { return policy.GateAnswer{}, nil }}, &fake{gate: func(policy.GateInput) (policy.GateAnswer, error) { return policy.GateAnswer{}, nil }}
	e := engine(t,
		policy.Policy{Name: "a", Hook: policy.Launch, Evaluator: slow, Limits: policy.Limits{Deadline: time.Hour}},
		policy.Policy{Name: "b", Hook: policy.Launch, Evaluator: next, Failure: policy.Deny},
		policy.Policy{Name: "c", Hook: policy.Admit, Evaluator: other},
	)
	var in policy.Inputs
	facts := policy.Facts{Round: policy.NewRound(30 * time.Millisecond)}
	s := snap(t, snapshot.Objects{Pods: pods(1)})
	plan := solve(t, s, nil)
	for range 5 {
		v, err := e.Launch(t.Context(), in.Launch(s, &plan, nil, facts))
		if err != nil {
			t.Fatal(err)
		}
		if v.Allowed || len(v.Deny) == 0 || !strings.Contains(v.Deny[0].Msg, "used up the 30ms") {
			t.Fatalf("verdict %s, want that of a policy without time left", v.Text())
		}
	}
	if slow.calls.Load() != 1 || next.calls.Load() != 0 {
		t.Errorf("%d and %d calls, want 1 and 0", slow.calls.Load(), next.calls.Load())
	}
	if _, err := e.Admit(t.Context(), in.Admit(s, pool("web"), policy.Review{}, facts)); err != nil || other.calls.Load() != 1 {
		t.Errorf("another hook: %d calls, error %v; want 1 and none", other.calls.Load(), err)
	}
	if got := len(facts.Round.Records()); got != 6 {
		t.Errorf("%d records, want those of the 6 decisions", got)
	}
	// The next round has its own time, and five times without an answer have not shut b out.
	facts.Round = facts.Round.Fresh()
	if _, err := e.Launch(t.Context(), in.Launch(s, &plan, nil, facts)); err != nil {
		t.Fatal(err)
	}
	if slow.calls.Load() != 2 {
		t.Errorf("%d calls in the next round, want one more", slow.calls.Load())
	}
	q := sample.Launch()
	if _, err := engine(t, policy.Policy{Name: "b", Hook: policy.Launch, Evaluator: next}).Launch(t.Context(), q); err != nil || next.calls.Load() != 1 {
		t.Errorf("without a round: %d calls, error %v", next.calls.Load(), err)
	}
}
