package set

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
)

// selfTestTime bounds the evaluations of a self-test together.
const selfTestTime = 2 * time.Second

// refused are the errors for which a policy is not put in force: they say that it is broken,
// whatever the question. Others may be due to the fixture, which is not what the policy was
// written for, or to a busy machine.
var refused = []policy.Class{policy.ClassFuel, policy.ClassBadResult, policy.ClassTrap}

// selfTest asks a policy about fixtures before it takes force: a large one, to see that it
// keeps within its budget and answers as the contract says, and a small one twice, to see
// that it gives one answer to one question.
func selfTest(ctx context.Context, hook policy.Hook, parameters map[string]any, ev policy.Evaluator) error {
	ctx, cancel := context.WithTimeout(ctx, selfTestTime)
	defer cancel()
	ask := func(small bool) ([]byte, error) {
		var answer any
		err := recovered(func() (err error) {
			answer, err = fixture(ctx, hook, parameters, ev, small)
			return err
		})
		if err != nil {
			return nil, err
		}
		return json.Marshal(answer)
	}
	var first []byte
	for i, small := range []bool{false, true, true} {
		b, err := ask(small)
		switch {
		case err != nil && slices.Contains(refused, policy.ClassOf(err)):
			var pe *policy.Error
			if errors.As(err, &pe) {
				c := *pe
				c.Msg = "self-test: " + c.Msg
				return &c
			}
			return fmt.Errorf("self-test: %w", err)
		case err != nil:
			return nil
		case i == 1:
			first = b
		case i == 2 && !bytes.Equal(first, b):
			return &policy.Error{Class: policy.ClassBadResult, Msg: "self-test: two answers to one question: a policy must depend on its input only"}
		}
	}
	return nil
}

// recovered turns a panic of an evaluator into an error.
func recovered(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &policy.Error{Class: policy.ClassTrap, Msg: fmt.Sprintf("evaluation panicked: %v", r)}
		}
	}()
	return f()
}

func fixture(ctx context.Context, hook policy.Hook, parameters map[string]any, ev policy.Evaluator, small bool) (any, error) {
	if hook == policy.Score {
		rows := 850
		if small {
			rows = 30
		}
		in := sample.Score(rows)
		in.Parameters = parameters
		a, _, err := ev.Score(ctx, in)
		return a, err
	}
	var in policy.GateInput
	switch hook {
	case policy.Disrupt:
		q := sample.Disrupt()
		q.Parameters, in = parameters, q
	case policy.Launch:
		q := sample.Launch()
		q.Parameters, in = parameters, q
	default:
		q := sample.Admit()
		q.Parameters, in = parameters, q
	}
	a, _, err := ev.Gate(ctx, in)
	return a, err
}
