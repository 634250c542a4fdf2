package fuel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// ErrExhausted is a guest that used up its units. Errors of calls into a module
// match it with errors.Is.
var ErrExhausted = errors.New("out of fuel")

// ErrDepth is a guest whose calls are nested too deeply. Errors of calls into a module
// match it with errors.Is.
var ErrDepth = errors.New("calls are nested too deeply")

// Meter accounts for one call into a rewritten module, its instantiation included.
// It belongs to one call at a time.
type Meter struct {
	// Budget is how many units the call may use.
	Budget int64

	granted int64 // units put into the counter so far
	counter api.MutableGlobal
	yields  int
}

type meterKey struct{}

// With returns a context that carries the meter to the host functions of a call.
// The runtime gives host functions nothing else that belongs to the call.
func With(ctx context.Context, m *Meter) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// From is the meter that ctx carries, or nil.
func From(ctx context.Context) *Meter {
	m, _ := ctx.Value(meterKey{}).(*Meter)
	return m
}

// Instantiate adds to rt the host module that rewritten modules import. Calls into
// them need a context from [With].
func Instantiate(ctx context.Context, rt wazero.Runtime) error {
	_, err := rt.NewHostModuleBuilder(ImportModule).
		NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(yield), nil, nil).Export(ImportName).
		Instantiate(ctx)
	if err != nil {
		return fmt.Errorf("host module %s: %w", ImportModule, err)
	}
	return nil
}

func yield(ctx context.Context, mod api.Module, _ []uint64) {
	m := From(ctx)
	if m == nil {
		panic(errors.New("fuel: a metered module was called without a meter"))
	}
	if depth := mod.ExportedGlobal(DepthExport); int32(depth.Get()) > maxDepth {
		panic(fmt.Errorf("%w: more than %d MiB of stack", ErrDepth, maxDepth*frameUnit>>20))
	}
	if err := m.refill(ctx, mod); err != nil {
		panic(err)
	}
}

// attach finds the counter. A module that is being instantiated has it already.
func (m *Meter) attach(mod api.Module) {
	if m.counter == nil {
		m.counter = mod.ExportedGlobal(GlobalExport).(api.MutableGlobal)
	}
}

// Start begins the account of an instantiation. The counter starts with a chunk.
func (m *Meter) Start() { *m = Meter{Budget: m.Budget, granted: Chunk} }

// Begin begins the account of calls into an instance.
func (m *Meter) Begin(mod api.Module) {
	*m = Meter{Budget: m.Budget}
	m.attach(mod)
	m.grant(0)
}

// grant lets the guest use another chunk, or what is left of the budget.
func (m *Meter) grant(used int64) {
	n := max(0, min(Chunk, m.Budget-used))
	m.granted = used + n
	m.counter.Set(uint64(n))
}

// Used is how many units were used since Begin or Start. It may exceed the budget
// by what the guest did between two checks.
func (m *Meter) Used() int64 {
	if m.counter == nil {
		return 0
	}
	return m.granted - int64(m.counter.Get())
}

// Attach lets Used read the counter of an instance that was just instantiated.
func (m *Meter) Attach(mod api.Module) { m.attach(mod) }

// Yields counts how often the guest came back to the host for more units.
func (m *Meter) Yields() int { return m.yields }

// Charge takes units for work that a host function does for the guest. It returns
// the error with which the function must stop the guest, by a panic, or nil.
func (m *Meter) Charge(ctx context.Context, mod api.Module, units int64) error {
	m.attach(mod)
	left := int64(m.counter.Get()) - units
	m.counter.Set(uint64(left))
	if left >= 0 {
		return nil
	}
	return m.refill(ctx, mod)
}

func (m *Meter) refill(ctx context.Context, mod api.Module) error {
	m.attach(mod)
	m.yields++
	used := m.Used()
	if used > m.Budget {
		return fmt.Errorf("%w after %d units", ErrExhausted, m.Budget)
	}
	if err := Expired(ctx); err != nil {
		return err
	}
	m.grant(used)
	return nil
}

// Expired is the error of a context that is done. It looks at the clock itself: the
// timer behind ctx may be late while guests keep every processor busy.
func Expired(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		return context.DeadlineExceeded
	}
	return nil
}
