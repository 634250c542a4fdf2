package fuel_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/fuel"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/asm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

func rewrite(t testing.TB, wasm []byte, limits fuel.Limits) ([]byte, error) {
	t.Helper()
	m, err := module.Decode(wasm)
	if err != nil {
		return nil, err
	}
	out, _, err := fuel.Rewrite(m, limits)
	return out, err
}

func newRuntime(t testing.TB) wazero.Runtime {
	t.Helper()
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().
		WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(16))
	t.Cleanup(func() { rt.Close(ctx) })
	if err := fuel.Instantiate(ctx, rt); err != nil {
		t.Fatal(err)
	}
	return rt
}

// metered rewrites and instantiates a module.
func metered(t testing.TB, rt wazero.Runtime, wasm []byte) api.Module {
	t.Helper()
	out, err := rewrite(t, wasm, fuel.Limits{})
	if err != nil {
		t.Fatalf("Rewrite: %v", err)
	}
	m := &fuel.Meter{Budget: 1 << 40}
	m.Start()
	ctx := fuel.With(context.Background(), m)
	c, err := rt.CompileModule(ctx, out)
	if err != nil {
		t.Fatalf("compile the rewritten module: %v", err)
	}
	mod, err := rt.InstantiateModule(ctx, c, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		t.Fatalf("instantiate the rewritten module: %v", err)
	}
	return mod
}

// call runs an exported function of a metered instance.
func call(mod api.Module, budget int64, name string, args ...uint64) (results []uint64, used int64, err error) {
	m := &fuel.Meter{Budget: budget}
	m.Begin(mod)
	results, err = mod.ExportedFunction(name).Call(fuel.With(context.Background(), m), args...)
	return results, m.Used(), err
}

func loop(body ...[]byte) []byte {
	return asm.Cat([]byte{0x03, 0x40}, asm.Cat(body...), []byte{0x0b})
}

// countdown is a loop that runs local 0 down to zero; extra is run in each turn.
func countdown(extra ...byte) []byte {
	return loop(extra, asm.Get(0), asm.I32C(1), []byte{0x6b}, asm.Tee(0), []byte{0x0d, 0})
}

func export(code ...[]byte) []byte {
	m := &asm.Module{}
	m.Memory(1, -1)
	f := m.Func(asm.T{asm.I32}, nil, nil, code...)
	m.Export("run", module.KindFunc, f)
	return m.Bytes()
}

func TestRewriteUnits(t *testing.T) {
	rt := newRuntime(t)
	tests := map[string]struct {
		wasm []byte
		arg  uint64
		want int64
	}{
		"an empty function costs one unit":                        {export(), 0, 1},
		"each turn of a small loop costs one unit more":           {export(countdown()), 1000, 1 + 1000},
		"a long straight body is paid for by its length":          {export(asm.Repeat(6400, 0x01)), 0, 100},
		"a long body inside a loop is paid for in each turn":      {export(countdown(asm.Repeat(6400, 0x01)...)), 10, 1 + 10*101},
		"code that a branch jumps over is not paid for, if large": {export([]byte{0x02, 0x40, 0x0c, 0}, asm.Repeat(6400, 0x01), []byte{0x0b}), 0, 2},
		"a small arm is paid for whether it runs or not":          {export(asm.Get(0), []byte{0x04, 0x40}, asm.Repeat(60, 0x01), []byte{0x0b}), 0, 1},
		"a fill is paid for by its bytes": {
			export(asm.I32C(0), asm.I32C(7), asm.I32C(16000), []byte{0xfc, 0x0b, 0}), 0, 1 + 1000,
		},
		"a copy in a loop is paid for in each turn": {
			export(countdown(asm.Cat(asm.I32C(0), asm.I32C(0), asm.I32C(1600), []byte{0xfc, 0x0a, 0, 0})...)), 5, 1 + 5*101,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			mod := metered(t, rt, test.wasm)
			for range 3 {
				_, used, err := call(mod, 1<<40, "run", test.arg)
				if err != nil {
					t.Fatal(err)
				}
				if used != test.want {
					t.Errorf("units = %d, want %d", used, test.want)
				}
			}
		})
	}
}

// TestNoPathIsFree walks a body in which every block is left by a branch that avoids
// the place where straight code would be paid for.
func TestNoPathIsFree(t *testing.T) {
	rt := newRuntime(t)
	var body []byte
	const blocks = 400
	for range blocks {
		body = asm.Cat(body, []byte{0x02, 0x40}, asm.Repeat(60, 0x01), []byte{0x0c, 0}, asm.Repeat(60, 0x01), []byte{0x0b})
	}
	mod := metered(t, rt, export(body))
	_, used, err := call(mod, 1<<40, "run", 0)
	if err != nil {
		t.Fatal(err)
	}
	if least := int64(blocks * 60 / 64); used < least {
		t.Errorf("units = %d for %d instructions, want at least %d", used, blocks*61, least)
	}
}

func TestMeterStops(t *testing.T) {
	rt := newRuntime(t)
	spin := metered(t, rt, export(loop([]byte{0x0c, 0})))
	fill := metered(t, rt, export(asm.Repeat(400, asm.Cat(asm.I32C(0), asm.I32C(7), asm.I32C(65536), []byte{0xfc, 0x0b, 0})...)))

	t.Run("a spinning loop ends with its budget", func(t *testing.T) {
		_, used, err := call(spin, 250_000, "run", 0)
		if !errors.Is(err, fuel.ErrExhausted) {
			t.Fatalf("error = %v, want %v", err, fuel.ErrExhausted)
		}
		if used != 250_001 {
			t.Errorf("units = %d, want the budget and one", used)
		}
	})
	t.Run("a straight run of fills ends with its budget", func(t *testing.T) {
		_, used, err := call(fill, 10_000, "run", 0)
		if !errors.Is(err, fuel.ErrExhausted) {
			t.Fatalf("error = %v, want %v", err, fuel.ErrExhausted)
		}
		if used > 10_000+4_200 {
			t.Errorf("units = %d: more than one fill past the budget", used)
		}
	})
	t.Run("a budget that is used up exactly suffices", func(t *testing.T) {
		mod := metered(t, rt, export(countdown()))
		if _, _, err := call(mod, 1001, "run", 1000); err != nil {
			t.Errorf("1001 units for 1001 units of work: %v", err)
		}
		if _, _, err := call(mod, 1000, "run", 1000); !errors.Is(err, fuel.ErrExhausted) {
			t.Errorf("1000 units for 1001 units of work: error %v, want %v", err, fuel.ErrExhausted)
		}
	})
	t.Run("a deadline ends a spinning loop", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		m := &fuel.Meter{Budget: 1 << 60}
		m.Begin(spin)
		start := time.Now()
		_, err := spin.ExportedFunction("run").Call(fuel.With(ctx, m), 0)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v, want %v", err, context.DeadlineExceeded)
		}
		if took := time.Since(start); took > 40*time.Millisecond {
			t.Errorf("took %v for a deadline of 20ms", took)
		}
	})
	t.Run("a cancelled call ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		m := &fuel.Meter{Budget: 1 << 60}
		m.Begin(spin)
		if _, err := spin.ExportedFunction("run").Call(fuel.With(ctx, m), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want %v", err, context.Canceled)
		}
	})
}

func TestRecursionEnds(t *testing.T) {
	rt := newRuntime(t)
	direct := &asm.Module{}
	f := direct.Func(asm.T{asm.I32}, asm.T{asm.I32, asm.I32}, nil, asm.Get(0), []byte{0x45, 0x04, 0x40}, asm.I32C(1), asm.I32C(2), []byte{0x0f, 0x0b},
		asm.Get(0), asm.I32C(1), []byte{0x6b}, asm.Call(0))
	direct.Export("run", module.KindFunc, f)
	mutual := &asm.Module{}
	mutual.Func(asm.T{asm.I32}, nil, nil, asm.Get(0), asm.Call(1))
	mutual.Func(asm.T{asm.I32}, nil, nil, asm.Get(0), asm.Call(0))
	mutual.Export("run", module.KindFunc, 0)
	indirect := &asm.Module{}
	indirect.Table(1, 1)
	indirect.Func(asm.T{asm.I32}, nil, nil, asm.Get(0), asm.I32C(0), []byte{0x11, 0, 0})
	indirect.Element(0, 0)
	indirect.Export("run", module.KindFunc, 0)
	for name, wasm := range map[string][]byte{"direct": direct.Bytes(), "mutual": mutual.Bytes(), "indirect": indirect.Bytes()} {
		t.Run(name, func(t *testing.T) {
			mod := metered(t, rt, wasm)
			start := time.Now()
			if _, _, err := call(mod, 1<<40, "run", 1<<31); !errors.Is(err, fuel.ErrDepth) {
				t.Errorf("error = %v, want %v", err, fuel.ErrDepth)
			}
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("took %v", took)
			}
		})
	}
	t.Run("the depth is given back", func(t *testing.T) {
		mod := metered(t, rt, direct.Bytes())
		for range 100 {
			if _, _, err := call(mod, 1<<40, "run", 10_000); err != nil {
				t.Fatal(err)
			}
			if d := mod.ExportedGlobal(fuel.DepthExport).Get(); d != 0 {
				t.Fatalf("depth after a call = %d", d)
			}
		}
	})
}

func TestStartFunctionIsMetered(t *testing.T) {
	rt := newRuntime(t)
	m := &asm.Module{}
	f := m.Func(nil, nil, nil, loop([]byte{0x0c, 0}))
	m.Start(f)
	out, err := rewrite(t, m.Bytes(), fuel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	meter := &fuel.Meter{Budget: 300_000}
	meter.Start()
	ctx := fuel.With(context.Background(), meter)
	c, err := rt.CompileModule(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = rt.InstantiateModule(ctx, c, wazero.NewModuleConfig().WithName("")); !errors.Is(err, fuel.ErrExhausted) {
		t.Errorf("error = %v, want %v", err, fuel.ErrExhausted)
	}
}

func TestRefusedMemoryIsMarked(t *testing.T) {
	rt := newRuntime(t)
	grow := func(pages int32) uint64 {
		mod := metered(t, rt, export(asm.I32C(pages), []byte{0x40, 0, 0x1a}))
		if _, _, err := call(mod, 1<<30, "run", 0); err != nil {
			t.Fatal(err)
		}
		return mod.ExportedGlobal(fuel.RefusedExport).Get()
	}
	if got := grow(3); got != 0 {
		t.Errorf("mark after a growth that fits = %d, want 0", got)
	}
	if got := grow(4000); got != 1 {
		t.Errorf("mark after a growth past the limit = %d, want 1", got)
	}
}

func TestTablesCannotGrowPastTheirLimit(t *testing.T) {
	rt := newRuntime(t)
	m := &asm.Module{}
	m.Table(1, -1)
	f := m.Func(asm.T{asm.I32}, asm.T{asm.I32}, nil, []byte{0xd0, 0x70}, asm.Get(0), []byte{0xfc, 0x0f, 0})
	m.Export("grow", module.KindFunc, f)
	mod := metered(t, rt, m.Bytes())
	for _, step := range []struct{ by, want uint64 }{{1000, 1}, {100_000, 0xffffffff}, {64_535, 1001}, {1, 0xffffffff}} {
		got, _, err := call(mod, 1<<30, "grow", step.by)
		if err != nil {
			t.Fatal(err)
		}
		if got[0] != step.want {
			t.Errorf("grow by %d = %d, want %d", step.by, got[0], step.want)
		}
	}
}

// raw is a module with one function of the given body, its end included.
func raw(body ...byte) []byte {
	m := &asm.Module{}
	m.FuncRaw(m.Type(nil, nil), append([]byte{0}, body...))
	return m.Bytes()
}

func TestRewriteRefuses(t *testing.T) {
	locals := func(n uint64) []byte {
		m := &asm.Module{}
		m.FuncRaw(m.Type(nil, nil), asm.Cat(asm.U(1), asm.U(n), []byte{0x7f, 0x0b}))
		return m.Bytes()
	}
	global := func(op byte, index uint64) []byte {
		m := &asm.Module{}
		m.Global(asm.I64, true, asm.I64C(0))
		m.Func(nil, nil, nil, asm.I64C(1<<40), []byte{op}, asm.U(index))
		return m.Bytes()
	}
	table := func(n int64) []byte {
		m := &asm.Module{}
		m.Table(n, -1)
		return m.Bytes()
	}
	tests := map[string]struct {
		wasm    []byte
		want    error
		mention string
	}{
		"setting the counter":                  {global(0x24, 1), module.ErrFormat, "global 1 of 1"},
		"reading the counter":                  {global(0x23, 1), module.ErrFormat, "global 1 of 1"},
		"calling past the last function":       {raw(0x10, 1, 0x0b), module.ErrFormat, "function 1 of 1"},
		"a local past the last":                {raw(0x20, 0, 0x1a, 0x0b), module.ErrFormat, "local 0 of 0"},
		"a branch past the outermost block":    {raw(0x0c, 1, 0x0b), module.ErrFormat, "label 1 of 1"},
		"code after the end":                   {raw(0x0b, 0x03, 0x40, 0x0c, 0, 0x0b), module.ErrFormat, "after the end"},
		"a body without an end":                {raw(0x01), module.ErrFormat, ""},
		"a padded number of a SIMD opcode":     {raw(asm.Cat([]byte{0xfd, 0x8c, 0x00}, asm.Repeat(16, 0x01), []byte{0x1a, 0x0b})...), module.ErrFormat, "0xfd 0x8c 0x00"},
		"a padded number of a prefixed opcode": {raw(0xfc, 0x8b, 0x00, 0x00, 0x0b), module.ErrFormat, "0xfc 0x8b"},
		"a tail call":                          {raw(0x12, 0, 0x0b), module.ErrFormat, "0x12"},
		"an exception handler":                 {raw(0x06, 0x40, 0x0b, 0x0b), module.ErrFormat, "0x06"},
		"an atomic instruction":                {raw(0xfe, 0x03, 0x00, 0x0b), module.ErrFormat, "0xfe"},
		"too many locals":                      {locals(513), module.ErrLimit, "locals: 513, at most 512"},
		"locals whose number overflows":        {locals(0xffffffff), module.ErrLimit, "locals"},
		"deep nesting":                         {raw(asm.Cat(asm.Repeat(1025, 0x02, 0x40), asm.Repeat(1026, 0x0b))...), module.ErrLimit, "nested blocks: 1025, at most 1024"},
		"many blocks":                          {raw(asm.Cat(asm.Repeat(2049, 0x02, 0x40, 0x0b), []byte{0x0b})...), module.ErrLimit, "blocks: 2049"},
		"many loops":                           {raw(asm.Cat(asm.Repeat(513, 0x03, 0x40, 0x0b), []byte{0x0b})...), module.ErrLimit, "loops: 513"},
		"a long body":                          {raw(asm.Cat(asm.Repeat(128<<10, 0x01), []byte{0x0b})...), module.ErrLimit, "bytes: 131073"},
		"a large br_table":                     {raw(asm.Cat([]byte{0x41, 0, 0x0e}, asm.U(20_000), asm.Repeat(20_001, 0), []byte{0x0b})...), module.ErrLimit, "branch labels"},
		"a large table":                        {table(70_000), module.ErrLimit, "table entries: 70000"},
		"the counter's export name": {func() []byte {
			m := &asm.Module{}
			m.Global(asm.I64, true, asm.I64C(0))
			m.Export("__dv_fuel", module.KindGlobal, 0)
			return m.Bytes()
		}(), fuel.ErrReserved, "__dv_fuel"},
		"the yield import": {func() []byte {
			m := &asm.Module{}
			m.Import("dovetail_fuel", "yield", nil, nil)
			return m.Bytes()
		}(), fuel.ErrReserved, "dovetail_fuel.yield"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := rewrite(t, test.wasm, fuel.Limits{})
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.mention) {
				t.Errorf("error = %v, want %v with %q", err, test.want, test.mention)
			}
		})
	}
}

// TestRewriteKeepsReferences checks the index shift where functions are named: calls,
// references, element segments, exports and the start function.
func TestRewriteKeepsReferences(t *testing.T) {
	rt := newRuntime(t)
	ctx := context.Background()
	if _, err := rt.NewHostModuleBuilder("env").NewFunctionBuilder().
		WithGoFunction(api.GoFunc(func(_ context.Context, s []uint64) { s[0] = 7 }), nil, []api.ValueType{api.ValueTypeI32}).
		Export("seven").Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	m := &asm.Module{}
	seven := m.Import("env", "seven", nil, asm.T{asm.I32})
	m.Memory(1, 1)
	m.Table(8, 8)
	typ := m.Type(nil, asm.T{asm.I32})
	eleven := m.Func(nil, asm.T{asm.I32}, nil, asm.I32C(11))
	m.Global(module.FuncRef, false, append([]byte{0xd2}, asm.U(uint64(eleven))...))
	start := m.Func(nil, nil, nil, asm.I32C(16), asm.I32C(99), []byte{0x36, 2, 0})
	indirect := func(i int32) []byte {
		return asm.Cat(asm.I32C(i), []byte{0x11}, asm.U(uint64(typ)), asm.U(0))
	}
	add := []byte{0x6a}
	f := m.Func(nil, asm.T{asm.I32}, nil,
		asm.Call(seven), asm.Call(eleven), add, indirect(1), add, indirect(2), add,
		asm.I32C(3), []byte{0x23, 0, 0x26, 0}, indirect(3), add, // table.set from the global
		asm.I32C(4), []byte{0xd2}, asm.U(uint64(seven)), []byte{0x26, 0}, indirect(4), add,
		asm.I32C(16), []byte{0x28, 2, 0}, add)
	m.Element(1, seven, eleven)
	m.ElementRaw(asm.Cat([]byte{5, 0x70}, asm.U(1), []byte{0xd2}, asm.U(uint64(eleven)), []byte{0x0b})...)
	m.Start(start)
	m.Export("run", module.KindFunc, f)
	m.Export("seven", module.KindFunc, seven)

	got, _, err := call(metered(t, rt, m.Bytes()), 1<<30, "run")
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(7 + 11 + 7 + 11 + 11 + 7 + 99); got[0] != want {
		t.Errorf("run() = %d, want %d", got[0], want)
	}
}

// FuzzRewrite: a module that the compiler takes is taken rewritten as well, gives
// equal results and memory, and uses equal units in two instances.
func FuzzRewrite(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint16(300))
	}
	rt := newRuntime(f)
	ctx := context.Background()
	f.Fuzz(func(t *testing.T, seed uint64, size uint16) {
		wasm := generate(seed, int(size%2000)+1)
		c, err := rt.CompileModule(ctx, wasm)
		if err != nil {
			t.Fatalf("the generator made an invalid module: %v", err)
		}
		defer c.Close(ctx)
		plain, err := rt.InstantiateModule(ctx, c, wazero.NewModuleConfig().WithName(""))
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close(ctx)
		first, second := metered(t, rt, wasm), metered(t, rt, wasm)
		defer first.Close(ctx)
		defer second.Close(ctx)
		for arg := range uint64(4) {
			want, wantErr := plain.ExportedFunction("run").Call(ctx, arg)
			got, used, err := call(first, 1<<40, "run", arg)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("run(%d): error %v, want %v", arg, err, wantErr)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("run(%d) (-want +got):\n%s", arg, diff)
			}
			a, _ := plain.Memory().Read(0, 65536)
			b, _ := first.Memory().Read(0, 65536)
			if string(a) != string(b) {
				t.Fatalf("run(%d): memory differs", arg)
			}
			if d := first.ExportedGlobal(fuel.DepthExport).Get(); err == nil && d != 0 {
				t.Fatalf("run(%d): depth after the call is %d", arg, int32(d))
			}
			_, again, _ := call(second, 1<<40, "run", arg)
			if used != again || used < 1 {
				t.Fatalf("run(%d): %d units, then %d", arg, used, again)
			}
			if err != nil {
				return // an instance that trapped is of no further use
			}
		}
	})
}

// FuzzDecode: arbitrary bytes never panic, and what the rewriter makes of them never
// crashes the compiler.
func FuzzDecode(f *testing.F) {
	f.Add(generate(1, 100))
	f.Add(generate(2, 1000))
	f.Add(export(countdown()))
	rt := newRuntime(f)
	f.Fuzz(func(t *testing.T, wasm []byte) {
		out, err := rewrite(t, wasm, fuel.Limits{})
		if err != nil {
			return
		}
		c, err := rt.CompileModule(context.Background(), out)
		if err != nil {
			return
		}
		c.Close(context.Background())
		if p, err := rt.CompileModule(context.Background(), wasm); err != nil {
			if strings.Contains(err.Error(), "custom section") {
				return // the rewriter leaves those out
			}
			t.Errorf("the compiler refuses the module (%v) but takes it rewritten", err)
		} else {
			p.Close(context.Background())
		}
	})
}
