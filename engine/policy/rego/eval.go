package rego

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// grace is how long after its deadline an evaluation may still come back by itself.
const grace = 5 * time.Millisecond

// Score is part of [policy.Evaluator].
func (m *Module) Score(ctx context.Context, in *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	var a policy.ScoreAnswer
	st, err := m.eval(ctx, in.Candidates.Len(), func() ast.Value { return m.input(in) }, func(d *decoder, answer ast.Object) error {
		return d.score(answer, &a)
	})
	if err == nil {
		err = m.named(a.Check(in.Candidates.Len()))
	}
	if err != nil {
		return policy.ScoreAnswer{}, st, err
	}
	return a, st, nil
}

// Gate is part of [policy.Evaluator].
func (m *Module) Gate(ctx context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	var a policy.GateAnswer
	rows := len(in.Known())
	st, err := m.eval(ctx, rows, func() ast.Value { return m.input(in) }, func(d *decoder, answer ast.Object) error {
		return d.gate(answer, &a)
	})
	if err == nil {
		err = m.named(a.Check(in))
	}
	if err != nil {
		return policy.GateAnswer{}, st, err
	}
	return a, st, nil
}

func (m *Module) named(err error) error {
	if pe, ok := err.(*policy.Error); ok {
		pe.Policy = m.name
	}
	return err
}

// input is the part of in that the policy reads.
func (m *Module) input(in any) ast.Value {
	score, _ := in.(*policy.ScoreInput)
	return structObject(reflect.ValueOf(in).Elem(), m.tree, func(name string, c *policy.Tree) *ast.Term {
		switch {
		case name == "parameters":
			return m.params
		case name == "candidates" && score != nil && score.Candidates != nil:
			return m.rowTerms(score, c)
		}
		return nil
	})
}

// eval evaluates the policy. It runs in a goroutine of its own, because an operation
// inside OPA (comparing two values, say) cannot be interrupted.
func (m *Module) eval(ctx context.Context, rows int, input func() ast.Value, decode func(*decoder, ast.Object) error) (policy.Stats, error) {
	m.mu.Lock()
	stuck := m.stuck
	m.mu.Unlock()
	if stuck > 0 {
		return policy.Stats{}, &policy.Error{Class: policy.ClassTrap, Policy: m.name, Msg: "an earlier evaluation has not come back yet"}
	}
	ctx, cancel := context.WithTimeout(ctx, m.limits.Wall(rows))
	defer cancel()
	type result struct {
		st  policy.Stats
		err error
	}
	begin := time.Now()
	done := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- result{policy.Stats{Rows: rows}, &policy.Error{Class: policy.ClassTrap, Policy: m.name, Msg: fmt.Sprintf("evaluation panicked: %v", r)}}
			}
		}()
		st, err := m.evaluate(ctx, rows, input, decode)
		done <- result{st, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case r = <-done:
		case <-timer.C:
			m.mu.Lock()
			m.stuck++
			m.mu.Unlock()
			go func() {
				<-done
				m.mu.Lock()
				m.stuck--
				m.mu.Unlock()
			}()
			r.st.Rows = rows
			class := policy.ClassDeadline
			if errors.Is(ctx.Err(), context.Canceled) {
				class = policy.ClassCanceled
			}
			r.err = &policy.Error{Class: class, Policy: m.name, Msg: "not back at its deadline: one operation takes too long", Err: ctx.Err()}
		}
	}
	r.st.Duration = time.Since(begin)
	return r.st, r.err
}

func (m *Module) evaluate(ctx context.Context, rows int, input func() ast.Value, decode func(*decoder, ast.Object) error) (policy.Stats, error) {
	// Honest policies allocate in proportion to the rows.
	g := newGuard(ctx, m.limits.Steps+m.limits.StepsPerRow*int64(rows), m.limits.AllocBytes+8<<10*int64(max(0, rows-1000)))
	st := policy.Stats{Rows: rows}
	var answer ast.Value
	rs, err := m.query.Eval(context.WithoutCancel(ctx),
		rego.EvalParsedInput(input()),
		rego.EvalExternalCancel(g),
		rego.EvalGenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) {
			if o, ok := t.Value.(ast.Object); ok {
				answer = o
			}
			return nil, nil
		}),
	)
	st.Steps = g.steps
	if err != nil {
		return st, m.failure(g, rows, err)
	}
	o, ok := answer.(ast.Object)
	if !ok || len(rs) != 1 {
		return st, &policy.Error{Class: policy.ClassUndefined, Policy: m.name, Msg: "the policy has no answer"}
	}
	size := m.limits.Result(rows)
	d := &decoder{left: size}
	err = decode(d, o)
	st.ResultBytes = size - d.left
	return st, m.named(err)
}

// failure says in which way an evaluation failed.
func (m *Module) failure(g *guard, rows int, err error) error {
	out := &policy.Error{Policy: m.name, Class: policy.ClassTrap, Msg: err.Error(), Err: err}
	var te *topdown.Error
	if errors.As(err, &te) {
		out.Msg = te.Message
		if te.Location != nil {
			out.File, out.Line = te.Location.File, te.Location.Row
		}
		switch te.Code {
		case topdown.ConflictErr:
			out.Class = policy.ClassConflict
		case topdown.BuiltinErr, topdown.TypeErr, topdown.WithMergeErr:
			out.Class = policy.ClassBuiltin
		}
	}
	var le *limitError
	if errors.As(err, &le) {
		out.Class = le.class
		return out
	}
	if g.stopped != "" && topdown.IsCancel(err) {
		out.Class = g.stopped
		switch g.stopped {
		case policy.ClassFuel:
			out.Msg = fmt.Sprintf("out of steps after %d", g.maxSteps)
		case policy.ClassDeadline:
			out.Msg = fmt.Sprintf("stopped at the deadline of %s after %d steps", m.limits.Wall(rows), g.steps)
		case policy.ClassMemory:
			out.Msg = fmt.Sprintf("stopped after allocating %d bytes", g.maxAlloc)
		case policy.ClassCanceled:
			out.Msg = "canceled"
		}
	}
	return out
}
