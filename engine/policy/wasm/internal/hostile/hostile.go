// Package hostile is a collection of WebAssembly modules that mean harm, with what the
// host must make of each, and the judge that holds the host to it.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
)

const (
	// Deadline is what a call of a hostile hook may take, Slack what it may take more.
	Deadline = 60 * time.Millisecond
	Slack    = 20 * time.Millisecond
	// InitDeadline is the same for bringing up an instance.
	InitDeadline = 150 * time.Millisecond
	// Memory is how much the heap may keep after a case.
	Memory = 8 << 20

	pages = 64 // 4 MiB of guest memory
)

// Case is a module that means harm.
type Case struct {
	// Name is a sentence about what it does.
	Name string
	Wasm []byte
	// Loads is true if the module loads, and does harm when its hook is called.
	Loads bool
	// Class of the error.
	Class policy.Class
	// Is is what the error matches, or nil.
	Is error
	// Mention is part of its message.
	Mention string
	// Fuel of the hook's budget; 0 is without bound, so that the deadline decides.
	Fuel int64
	// Compiles is true if the case is only found out by compiling.
	Compiles bool
}

// Result is what became of a case.
type Result struct {
	Case
	// Took is the time of the call, or of bringing up an instance: without the time that
	// loading an honest module takes.
	Took time.Duration
	// Overrun is Took in parts of the deadline.
	Overrun float64
	// Err is the host's error.
	Err error
	// Problem says why the case is not contained; empty if it is.
	Problem string
}

// Judge runs cases on a host.
type Judge struct {
	host   *wasm.Host
	honest time.Duration // of loading an honest module
}

// NewJudge measures how long loading takes on this machine.
func NewJudge(ctx context.Context, host *wasm.Host) (*Judge, error) {
	j := &Judge{host: host, honest: time.Hour}
	for range 3 {
		start := time.Now()
		m, err := host.Load(ctx, j.options(Case{Name: "honest", Wasm: Honest()}))
		if err != nil {
			return nil, fmt.Errorf("load an honest module: %w", err)
		}
		j.honest = min(j.honest, time.Since(start))
		_, _, err = m.Eval(ctx, frame.Score, question(goodRows))
		m.Close()
		if err != nil {
			return nil, fmt.Errorf("call an honest module: %w", err)
		}
	}
	return j, nil
}

func (j *Judge) options(c Case) wasm.Options {
	units := c.Fuel
	if units == 0 {
		units = 1 << 50
	}
	return wasm.Options{
		Name: c.Name, Wasm: c.Wasm, MemoryPages: pages, Instances: 1,
		Budgets: map[frame.Hook]wasm.Budget{frame.Score: {Timeout: Deadline, Fuel: units}},
		Init:    wasm.Budget{Timeout: InitDeadline, Fuel: units},
	}
}

// question is a score question of a few columns.
func question(rows int) *frame.Table {
	t := &frame.Table{Hook: frame.Score, Rows: rows, Strings: &frame.Strings{}}
	cost := frame.Column{ID: 1, Type: frame.I64}
	rate := frame.Column{ID: 3, Type: frame.I32}
	for i := range rows {
		cost.I64 = append(cost.I64, int64(i))
		rate.I32 = append(rate.I32, int32(i))
	}
	t.Columns = []frame.Column{cost, rate}
	return t
}

// Run judges one case. A case that took too long, or whose honest part did, is tried
// again, at most twice: the machine may have been busy with others.
func (j *Judge) Run(ctx context.Context, c Case) Result {
	var r Result
	for range 3 {
		r = j.once(ctx, c)
		late := strings.HasPrefix(r.Problem, "took ") || c.Loads && errors.Is(r.Err, context.DeadlineExceeded) && r.Took == 0
		if r.Problem == "" || !late {
			break
		}
	}
	return r
}

func (j *Judge) once(ctx context.Context, c Case) (r Result) {
	r.Case = c
	goroutines, before := runtime.NumGoroutine(), heap()
	fail := func(format string, args ...any) {
		if r.Problem == "" {
			r.Problem = fmt.Sprintf(format, args...)
		}
	}
	defer func() {
		for range 100 { // a goroutine that is ending needs a moment
			if runtime.NumGoroutine() <= goroutines {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			fail("%d goroutines are left behind", n-goroutines)
		}
		if now := heap(); now > before+Memory {
			fail("%d MiB of memory are left behind", (now-before)>>20)
		}
	}()

	start := time.Now()
	m, err := j.host.Load(ctx, j.options(c))
	took := time.Since(start)
	if !c.Loads {
		if err == nil {
			m.Close()
			fail("it was loaded")
			return r
		}
		r.Err = err
		j.judge(&r, fail)
		if !c.Compiles {
			// Whatever runs while loading runs before or after an honest load's work.
			j.time(&r, took-j.honest, InitDeadline, fail)
		}
		return r
	}
	if err != nil {
		r.Err = err
		fail("it was not loaded: %v", err)
		return r
	}
	defer m.Close()
	start = time.Now()
	_, _, r.Err = m.Eval(ctx, frame.Score, question(badRows))
	j.time(&r, time.Since(start), Deadline, fail)
	j.judge(&r, fail)
	if _, _, err := m.Eval(ctx, frame.Score, question(goodRows)); err != nil {
		fail("the next call: %v", err)
	}
	return r
}

func (j *Judge) time(r *Result, took, deadline time.Duration, fail func(string, ...any)) {
	r.Took = max(0, took)
	r.Overrun = float64(r.Took) / float64(deadline)
	if r.Took > deadline+Slack {
		fail("took %v, with a deadline of %v", r.Took, deadline)
	}
}

func (j *Judge) judge(r *Result, fail func(string, ...any)) {
	var e *policy.Error
	switch {
	case r.Err == nil:
		fail("no error")
	case !errors.As(r.Err, &e):
		fail("error %v is not one of a policy", r.Err)
	case e.Policy != r.Name:
		fail("error %v names policy %q", r.Err, e.Policy)
	case e.Class != r.Class:
		fail("class %s, want %s: %v", e.Class, r.Class, r.Err)
	case r.Is != nil && !errors.Is(r.Err, r.Is):
		fail("error %v does not match %v", r.Err, r.Is)
	case !strings.Contains(r.Err.Error(), r.Mention):
		fail("error %v does not say %q", r.Err, r.Mention)
	}
}

// heap is how much memory is in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first may only have run finalizers
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
