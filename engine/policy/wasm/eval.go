package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/fuel"
)

// Module is a loaded policy. It is safe for concurrent use.
type Module struct {
	host        *Host
	opts        Options
	hooks       []frame.Hook
	digest      string
	report      fuel.Report
	description Description
	described   bool
	checked     bool // the parameters, against the schema
	minor       int32
	ready       bool // loaded: what the module says about itself stays

	cache    wazero.CompilationCache
	runtime  wazero.Runtime
	compiled wazero.CompiledModule

	slots  chan struct{} // one for each instance that may run
	mu     sync.Mutex
	idle   []*instance
	closed bool

	opened, discarded atomic.Int64
}

// Stats is what a call took.
type Stats struct {
	// Duration is wall time, the waiting for an instance included.
	Duration time.Duration
	// Fuel is in units of package fuel: equal for equal inputs on equally used instances.
	Fuel int64
	// Rows of the question.
	Rows int
	// ResultBytes is the size of the answer's frame.
	ResultBytes int
	// Log is what the guest logged, at most MaxLogLines; Dropped counts the rest.
	Log     []LogLine
	Dropped int
}

// Hooks are the hooks that the module implements, found by its exports.
func (m *Module) Hooks() []frame.Hook { return m.hooks }

// Digest identifies the module: "sha256:" and hexadecimal digits.
func (m *Module) Digest() string { return m.digest }

// Description is what the module says about itself; zero if it says nothing.
func (m *Module) Description() Description { return m.description }

// Minor is the minor version of the ABI for which the module says it was built.
func (m *Module) Minor() int { return int(m.minor) }

// Structure is what the module's code looks like: the largest figures of any function.
func (m *Module) Structure() fuel.Report { return m.report }

// Instances counts the instances opened and discarded so far.
func (m *Module) Instances() (opened, discarded int64) { return m.opened.Load(), m.discarded.Load() }

// instance is one instance of a module: for one call at a time.
type instance struct {
	m       *Module
	mod     api.Module
	state   state
	encoder frame.Encoder
	alloc   api.Function
	hooks   map[frame.Hook]api.Function
	calls   int
}

func (i *instance) close() {
	i.m.discarded.Add(1)
	// Closing releases memory only; there is nothing to report.
	_ = i.mod.Close(context.Background())
}

// fail makes an error of the policy.
func (m *Module) fail(class policy.Class, rule string, err error, format string, args ...any) *policy.Error {
	return &policy.Error{Class: class, Policy: m.opts.Name, Rule: rule, Msg: fmt.Sprintf(format, args...), Err: err}
}

// trapped makes an error of what ended a guest's function.
func (m *Module) trapped(function string, c *call, mod api.Module, err error) *policy.Error {
	c.finish()
	switch {
	case errors.Is(err, fuel.ErrExhausted):
		return m.fail(policy.ClassFuel, "", fuel.ErrExhausted, "%s: out of fuel after %d units", function, c.meter.Budget)
	case errors.Is(err, context.DeadlineExceeded):
		return m.fail(policy.ClassDeadline, "", context.DeadlineExceeded, "%s: not done at its deadline", function)
	case errors.Is(err, context.Canceled):
		return m.fail(policy.ClassCanceled, "", context.Canceled, "%s: canceled", function)
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	first = strings.TrimSuffix(first, " (recovered by wazero)")
	if said := c.complaint(); said != "" {
		first += ": " + said
	}
	if mod == nil {
		mod = c.mod
	}
	if mod != nil {
		if g := mod.ExportedGlobal(fuel.RefusedExport); g != nil && g.Get() != 0 {
			return m.fail(policy.ClassMemory, "", err, "%s: out of memory, of which it may have %d KiB: %s", function, m.opts.MemoryPages*PageSize>>10, first)
		}
	}
	return m.fail(policy.ClassTrap, "", err, "%s: %s", function, first)
}

// guard turns a panic of the runtime, which only a fault in it can cause, into an error.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the runtime panicked: %v", r)
		}
	}()
	return f()
}

// open brings up an instance, within the module's budget for that.
func (m *Module) open(ctx context.Context) (*instance, error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Init.Timeout)
	defer cancel()
	if err := fuel.Expired(ctx); err != nil {
		return nil, m.trapped("start", &call{}, nil, err)
	}
	i := &instance{m: m, hooks: map[frame.Hook]api.Function{}}
	c := &call{state: &i.state, random: randomSeed}
	c.meter.Budget = m.opts.Init.Fuel
	c.meter.Start()
	err := guard(func() (err error) {
		i.mod, err = m.runtime.InstantiateModule(c.context(ctx), m.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
		return err
	})
	m.opened.Add(1)
	if err != nil {
		m.discarded.Add(1)
		return nil, m.trapped("start", c, nil, err)
	}
	c.attach(i.mod)
	if err := m.bringUp(ctx, i, c); err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

// attach lets the meter read the counter of an instance that came up without it.
func (c *call) attach(mod api.Module) {
	if mod.ExportedGlobal(fuel.GlobalExport) != nil {
		c.meter.Attach(mod)
	}
}

// bringUp initializes, describes and configures a new instance, on the account of c.
func (m *Module) bringUp(ctx context.Context, i *instance, c *call) *policy.Error {
	run := func(name string, args ...uint64) (uint64, *policy.Error) {
		var results []uint64
		err := guard(func() (err error) {
			results, err = i.mod.ExportedFunction(name).Call(c.context(ctx), args...)
			return err
		})
		if err != nil {
			return 0, m.trapped(name, c, i.mod, err)
		}
		if len(results) == 0 {
			return 0, nil
		}
		return results[0], nil
	}
	if i.mod.ExportedFunction(initExport) != nil {
		if _, err := run(initExport); err != nil {
			return err
		}
	}
	minor, err := run(markerExport)
	if err != nil {
		return err
	}
	if int32(uint32(minor)) < 0 {
		return m.fail(policy.ClassLoad, "", ErrABI, "%s returns %d, want a minor version", markerExport, int32(uint32(minor)))
	}
	if !m.ready {
		m.minor = int32(uint32(minor))
	}
	i.alloc = i.mod.ExportedFunction(allocExport)
	for _, h := range m.hooks {
		i.hooks[h] = i.mod.ExportedFunction(h.Export())
	}
	if i.mod.ExportedFunction(describeExport) != nil && !m.described && !m.ready {
		packed, err := run(describeExport)
		if err != nil {
			return err
		}
		b, err := m.result(i, describeExport, packed, maxDescription)
		if err != nil {
			return err
		}
		d, bad := parseDescription(b)
		if bad != nil {
			return m.fail(policy.ClassBadResult, "", bad, "%s: %v", describeExport, bad)
		}
		m.description, m.described = d, true
	}
	if schema := m.description.SettingsSchema; len(schema) > 0 && !m.checked {
		if m.host.opts.CheckParameters == nil {
			return m.fail(policy.ClassLoad, "", nil, "settingsSchema: this host cannot hold parameters against a schema")
		}
		if err := m.host.opts.CheckParameters(schema, m.opts.Parameters); err != nil {
			return m.fail(policy.ClassLoad, "parameters", err, "parameters do not match settingsSchema: %v", err)
		}
		m.checked = true
	}
	if i.mod.ExportedFunction(configureExport) != nil {
		ptr, err := m.deliver(c.context(ctx), i, c, m.opts.Parameters)
		if err != nil {
			return err
		}
		packed, err := run(configureExport, uint64(ptr), uint64(len(m.opts.Parameters)))
		if err != nil {
			return err
		}
		if packed != 0 {
			b, err := m.result(i, configureExport, packed, m.opts.ResultBytes)
			if err != nil {
				return err
			}
			_, bad := frame.DecodeAnswer(b, frame.Failure, 0)
			var guest *frame.GuestError
			if errors.As(bad, &guest) {
				return m.fail(policy.ClassLoad, "", guest, "%s: parameters refused: %v", configureExport, guest)
			}
			return m.fail(policy.ClassBadResult, "", bad, "%s: neither 0 nor an error frame: %v", configureExport, bad)
		}
	}
	return nil
}

// deliver copies bytes into a buffer of the guest.
func (m *Module) deliver(ctx context.Context, i *instance, c *call, b []byte) (uint32, *policy.Error) {
	var results [1]uint64
	results[0] = uint64(len(b))
	err := guard(func() error { return i.alloc.CallWithStack(ctx, results[:]) })
	if err != nil {
		return 0, m.trapped(allocExport, c, i.mod, err)
	}
	ptr := uint32(results[0])
	if ptr == 0 {
		return 0, m.fail(policy.ClassMemory, "", nil, "%s: no memory for %d bytes", allocExport, len(b))
	}
	if ptr%8 != 0 {
		return 0, m.fail(policy.ClassBadResult, "", nil, "%s: buffer at %d is not 8-aligned", allocExport, ptr)
	}
	if !i.mod.Memory().Write(ptr, b) {
		return 0, m.fail(policy.ClassBadResult, "", nil, "%s: buffer of %d bytes at %d is outside of the memory of %d bytes", allocExport, len(b), ptr, i.mod.Memory().Size())
	}
	return ptr, nil
}

// result copies what a guest returned as ptr<<32 | len.
func (m *Module) result(i *instance, function string, packed uint64, most int) ([]byte, *policy.Error) {
	ptr, size := uint32(packed>>32), uint32(packed)
	if uint64(size) > uint64(most) {
		return nil, m.fail(policy.ClassBadResult, "", nil, "%s: result of %d bytes, at most %d are allowed", function, size, most)
	}
	b, ok := i.mod.Memory().Read(ptr, size)
	if !ok {
		return nil, m.fail(policy.ClassBadResult, "", nil, "%s: result of %d bytes at %d is outside of the memory of %d bytes", function, size, ptr, i.mod.Memory().Size())
	}
	return bytes.Clone(b), nil
}

// Eval asks the module a question of a hook. The error is a [*policy.Error]; it matches
// [frame.GuestError] if the guest reported it itself.
//
// ctx may end the call earlier than its budget does. t is only read.
func (m *Module) Eval(ctx context.Context, hook frame.Hook, t *frame.Table) (frame.Answer, Stats, error) {
	start := time.Now()
	answer, stats, err := m.eval(ctx, hook, t)
	stats.Duration, stats.Rows = time.Since(start), t.Rows
	if err != nil {
		return frame.Answer{}, stats, err
	}
	return answer, stats, nil
}

func (m *Module) eval(ctx context.Context, hook frame.Hook, t *frame.Table) (frame.Answer, Stats, error) {
	budget, ok := m.opts.Budgets[hook]
	if !ok || !m.implements(hook) {
		return frame.Answer{}, Stats{}, m.fail(policy.ClassUndefined, "", nil, "no hook %s: the module exports no %s", hook, hook.Export())
	}
	ctx, cancel := context.WithTimeout(ctx, budget.wall(t.Rows))
	defer cancel()
	for _, slots := range []chan struct{}{m.slots, m.host.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return frame.Answer{}, Stats{}, m.trapped("wait for an instance", &call{}, nil, ctx.Err())
		}
	}
	i, err := m.take(ctx)
	if err != nil {
		return frame.Answer{}, Stats{}, err
	}
	answer, stats, err := m.evaluate(ctx, i, hook, t)
	var guest *frame.GuestError
	if err != nil && !errors.As(err, &guest) || m.opts.Fresh {
		i.close()
	} else {
		m.put(i)
	}
	return answer, stats, err
}

func (m *Module) implements(hook frame.Hook) bool {
	for _, h := range m.hooks {
		if h == hook {
			return true
		}
	}
	return false
}

// take returns an idle instance or a new one; the caller holds a slot.
func (m *Module) take(ctx context.Context) (*instance, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, m.fail(policy.ClassLoad, "", nil, "the module is closed")
	}
	if n := len(m.idle); n > 0 {
		i := m.idle[n-1]
		m.idle = m.idle[:n-1]
		m.mu.Unlock()
		return i, nil
	}
	m.mu.Unlock()
	return m.open(ctx)
}

// put keeps an instance for the next call, unless it is worn out.
func (m *Module) put(i *instance) {
	// An instance that has little memory left would fail a call that a new one could do.
	worn := i.calls >= m.opts.Calls || uint64(i.mod.Memory().Size())*4 > uint64(m.opts.MemoryPages)*PageSize*3
	m.mu.Lock()
	keep := !m.closed && !worn && !m.opts.Fresh && len(m.idle) < m.opts.Instances
	if keep {
		m.idle = append(m.idle, i)
	}
	m.mu.Unlock()
	if !keep {
		i.close()
	}
}

// evaluate asks one instance. ctx has the deadline.
func (m *Module) evaluate(ctx context.Context, i *instance, hook frame.Hook, t *frame.Table) (frame.Answer, Stats, error) {
	question, err := i.encoder.Encode(t)
	if err != nil {
		return frame.Answer{}, Stats{}, m.fail(policy.ClassBadResult, "input", err, "%v", err)
	}
	if err := fuel.Expired(ctx); err != nil {
		return frame.Answer{}, Stats{}, m.trapped(hook.Export(), &call{}, nil, err)
	}
	i.calls++
	c := &call{state: &i.state, random: randomSeed}
	c.meter.Budget = m.opts.Budgets[hook].Fuel
	if !m.opts.Unmetered {
		c.meter.Begin(i.mod)
	}
	b, failed := m.ask(c.context(ctx), i, c, hook, question, m.opts.ResultBytes+256*max(0, t.Rows-1000))
	c.finish()
	stats := Stats{Fuel: c.meter.Used(), Rows: t.Rows, ResultBytes: len(b), Log: c.lines, Dropped: c.dropped}
	if failed != nil {
		return frame.Answer{}, stats, failed
	}
	answer, err := frame.DecodeAnswer(b, hook, t.Rows)
	if err != nil {
		var guest *frame.GuestError
		if errors.As(err, &guest) {
			return frame.Answer{}, stats, m.fail(policy.ClassTrap, "", guest, "the policy reports: %v", guest)
		}
		var bad *frame.AnswerError
		if errors.As(err, &bad) {
			return frame.Answer{}, stats, m.fail(policy.ClassBadResult, bad.Part, err, "%s", bad.Problem)
		}
		return frame.Answer{}, stats, m.fail(policy.ClassBadResult, "", err, "%v", err)
	}
	return answer, stats, nil
}

func (m *Module) ask(ctx context.Context, i *instance, c *call, hook frame.Hook, question []byte, most int) ([]byte, *policy.Error) {
	ptr, failed := m.deliver(ctx, i, c, question)
	if failed != nil {
		return nil, failed
	}
	stack := [2]uint64{uint64(ptr), uint64(len(question))}
	err := guard(func() error { return i.hooks[hook].CallWithStack(ctx, stack[:]) })
	if err != nil {
		return nil, m.trapped(hook.Export(), c, i.mod, err)
	}
	if stack[0] == 0 {
		return nil, m.fail(policy.ClassTrap, "", nil, "%s: failed without a message", hook.Export())
	}
	return m.result(i, hook.Export(), stack[0], most)
}

// Close waits for the calls that are running and releases the module. Calls that come
// later fail. Closing again does nothing.
func (m *Module) Close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	idle := m.idle
	m.idle = nil
	m.mu.Unlock()
	for range cap(m.slots) {
		m.slots <- struct{}{}
	}
	for _, i := range idle {
		i.close()
	}
	ctx := context.Background()
	if m.compiled != nil {
		_ = m.compiled.Close(ctx)
	}
	if m.runtime != nil {
		_ = m.runtime.Close(ctx)
	}
	if m.cache != nil {
		_ = m.cache.Close(ctx)
	}
	for range cap(m.slots) {
		<-m.slots
	}
	runtime.KeepAlive(m)
}
