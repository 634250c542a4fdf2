package hostile

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/fuel"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/asm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

const (
	testRows = 850 // of the self-test
	goodRows = 5   // the hook behaves
	badRows  = 7   // and here it does not

	answerAt = 1024  // frames: of the self-test, then of the good question
	extraAt  = 16384 // frame of a bad answer
	bufferAt = 65536 // the request
)

// guest is a module of the ABI whose parts a case replaces.
type guest struct {
	imports func(m *asm.Module)
	// extra adds functions and more before those of the ABI.
	extra func(m *asm.Module)
	// marker, alloc, score are bodies; the hook's runs only for the bad question.
	marker, alloc, score []byte
	locals               asm.T
	init, describe       []byte
	configure            []byte
	start                []byte
	data                 []byte // at extraAt
	test                 []byte // the answer of the self-test
	table                int64
	minPages             int64
	finish               func(m *asm.Module)
}

func (g guest) bytes() []byte {
	m := &asm.Module{}
	if g.imports != nil {
		g.imports(m)
	}
	if g.minPages == 0 {
		g.minPages = 5
	}
	if g.minPages > 0 {
		m.Memory(g.minPages, -1)
	}
	if g.table > 0 {
		m.Table(g.table, -1)
	}
	if g.extra != nil {
		g.extra(m)
	}
	body := func(b, def []byte) []byte {
		if b == nil {
			return def
		}
		return b
	}
	test, good := body(g.test, answerFrame(testRows)), answerFrame(goodRows)
	answer := func(at int, b []byte) []byte { return asm.I64C(int64(at)<<32 | int64(len(b))) }
	rows := asm.Cat(asm.Get(0), []byte{0x28, 2, 12})
	// if rows == 850 return the answer of the self-test; the same for the good question
	behave := asm.Cat(
		rows, asm.I32C(testRows), []byte{0x46, 0x04, 0x40}, answer(answerAt, test), []byte{0x0f, 0x0b},
		rows, asm.I32C(goodRows), []byte{0x46, 0x04, 0x40}, answer(answerAt+len(test), good), []byte{0x0f, 0x0b})
	m.Export("memory", module.KindMemory, 0)
	m.Export("dv_abi_1", module.KindFunc, m.Func(nil, asm.T{asm.I32}, nil, body(g.marker, asm.I32C(0))))
	m.Export("dv_alloc", module.KindFunc, m.Func(asm.T{asm.I32}, asm.T{asm.I32}, nil, body(g.alloc, asm.I32C(bufferAt))))
	m.Export("dv_score", module.KindFunc, m.Func(asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, g.locals, behave, body(g.score, unreachable)))
	if g.init != nil {
		m.Export("_initialize", module.KindFunc, m.Func(nil, nil, nil, g.init))
	}
	if g.describe != nil {
		m.Export("dv_describe", module.KindFunc, m.Func(nil, asm.T{asm.I64}, nil, g.describe))
	}
	if g.configure != nil {
		m.Export("dv_configure", module.KindFunc, m.Func(asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, nil, g.configure))
	}
	if g.start != nil {
		m.Start(m.Func(nil, nil, nil, g.start))
	}
	m.Data(answerAt, append(test, good...))
	if g.data != nil {
		m.Data(extraAt, g.data)
	}
	if g.finish != nil {
		g.finish(m)
	}
	return m.Bytes()
}

// Honest is a module that behaves.
func Honest() []byte { return guest{}.bytes() }

var (
	unreachable = []byte{0x00}
	spin        = []byte{0x03, 0x40, 0x0c, 0, 0x0b}
	spinI32     = asm.Cat(spin, asm.I32C(0))
	spinI64     = asm.Cat(spin, asm.I64C(0))
)

// forever repeats code that leaves the stack as it was.
func forever(code ...[]byte) []byte {
	return asm.Cat([]byte{0x03, 0x40}, asm.Cat(code...), []byte{0x0c, 0, 0x0b}, asm.I64C(0))
}

func answerFrame(rows int, columns ...frame.Column) []byte {
	s := &frame.Strings{}
	s.ID("x")
	b, err := frame.Encode(&frame.Table{Hook: frame.Score, Rows: rows, Columns: columns, Strings: s, Ordered: true})
	if err != nil {
		panic(err) // a mistake in this file
	}
	return b
}

// bad answers the bad question with a frame, changed at some offsets.
func bad(b []byte, changes ...uint32) guest {
	b = bytes.Clone(b)
	for i := 0; i+1 < len(changes); i += 2 {
		binary.LittleEndian.PutUint32(b[changes[i]:], changes[i+1])
	}
	return guest{data: b, score: asm.I64C(extraAt<<32 | int64(len(b)))}
}

func i64s(v int64) []int64 {
	list := make([]int64, badRows)
	for i := range list {
		list[i] = v
	}
	return list
}

// raw is a module of the ABI with one more function of a raw body.
func raw(body ...byte) []byte {
	return guest{extra: func(m *asm.Module) { m.FuncRaw(m.Type(nil, nil), body) }}.bytes()
}

func importing(mod, field string, params, results asm.T) []byte {
	return guest{imports: func(m *asm.Module) { m.Import(mod, field, params, results) }}.bytes()
}

// calls is a guest that imports a function and runs code with its index, 0.
func calls(mod, field string, params, results asm.T, score ...[]byte) guest {
	return guest{imports: func(m *asm.Module) { m.Import(mod, field, params, results) }, score: asm.Cat(score...)}
}

// bare is a module without the ABI but for what f adds.
func bare(f func(m *asm.Module)) []byte {
	m := &asm.Module{}
	m.Memory(1, -1)
	m.Export("memory", module.KindMemory, 0)
	f(m)
	return m.Bytes()
}

func export(m *asm.Module, name string, params, results asm.T, code ...[]byte) {
	m.Export(name, module.KindFunc, m.Func(params, results, nil, code...))
}

// heavy is many functions, each just inside the limits of one.
func heavy(functions int) []byte {
	return guest{extra: func(m *asm.Module) {
		locals := make(asm.T, 120)
		for i := range locals {
			locals[i] = asm.I64
		}
		var body []byte
		for i := range 2000 {
			l := uint32(i % len(locals))
			body = asm.Cat(body, asm.Get(l), []byte{0xa7, 0x04, 0x40}, asm.Get((l+1)%120), asm.Get((l+7)%120), []byte{0x7c}, asm.Set(l), []byte{0x0b})
		}
		for range functions {
			m.Func(nil, nil, locals, body)
		}
	}}.bytes()
}

// Cases lists all cases.
func Cases() []Case {
	load := func(name string, w []byte, is error, mention string) Case {
		return Case{Name: name, Wasm: w, Class: policy.ClassLoad, Is: is, Mention: mention}
	}
	starts := func(name string, g guest, class policy.Class, mention string, units int64) Case {
		return Case{Name: name, Wasm: g.bytes(), Class: class, Mention: mention, Fuel: units}
	}
	runs := func(name string, g guest, class policy.Class, mention string) Case {
		return Case{Name: name, Wasm: g.bytes(), Class: class, Mention: mention, Loads: true}
	}
	fueled := func(c Case, units int64) Case {
		c.Fuel = units
		return c
	}
	compiles := func(c Case) Case {
		c.Compiles = true
		return c
	}
	limit, format := module.ErrLimit, module.ErrFormat
	honest := Honest()
	cases := []Case{
		// Not a module.
		load("nothing at all", nil, format, ""),
		load("a text", []byte("package policy\n\nallow := true\n"), format, ""),
		load("a cut header", honest[:6], format, ""),
		load("a component", []byte("\x00asm\x0d\x00\x01\x00"), format, "component"),
		load("a later version of the format", []byte("\x00asm\x02\x00\x00\x00"), format, "version"),
		load("a cut module", honest[:len(honest)-20], format, ""),
		load("a section past the end", asm.Cat(asm.Header, []byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f}), format, "section 1"),
		load("sections out of order", asm.Cat(asm.Header, asm.Section(3, []byte{0}), asm.Section(1, []byte{0})), format, "out of order"),
		load("a repeated section", asm.Cat(asm.Header, asm.Section(1, []byte{0}), asm.Section(1, []byte{0})), format, "repeated"),
		load("an unknown section", asm.Cat(asm.Header, asm.Section(13, []byte{0})), format, "section 13"),
		load("a count of four thousand million types", asm.Cat(asm.Header, asm.Section(1, []byte{0xff, 0xff, 0xff, 0xff, 0x0f})), limit, "types"),
		load("a count of bodies without functions", asm.Cat(asm.Header, asm.Section(10, []byte{1, 2, 0, 0x0b})), format, "bodies"),
		load("a number of too many bytes", asm.Cat(asm.Header, asm.Section(1, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0})), format, ""),
		load("a module of 17 MiB", asm.Cat(honest, asm.Section(0, asm.Cat([]byte{1, 'x'}, make([]byte, 17<<20)))), limit, "bytes"),
		load("a hundred thousand custom sections", asm.Cat(honest, asm.Repeat(100_000, 0, 1, 0)), limit, "custom sections"),

		// Not WebAssembly 2.0, or not valid.
		load("a tail call", raw(0, 0x12, 0, 0x0b), format, "0x12"),
		load("an exception handler", raw(0, 0x06, 0x40, 0x0b, 0x0b), format, "0x06"),
		load("an atomic instruction", raw(0, 0xfe, 0x03, 0, 0x0b), format, "0xfe"),
		load("a loop hidden in a padded vector instruction", raw(asm.Cat([]byte{0, 0xfd, 0x8c, 0}, asm.Repeat(16, 1), []byte{0x1a, 0x0b})...), format, "0xfd"),
		load("a write to the fuel counter", raw(asm.Cat([]byte{0}, asm.I64C(math.MaxInt64), []byte{0x24, 0, 0x0b})...), format, "global 0"),
		load("a call of the yield function", raw(asm.Cat([]byte{0}, asm.Call(4), []byte{0x0b})...), format, "function 4"),
		load("code after the end of a body", raw(asm.Cat([]byte{0, 0x0b}, spin, []byte{0x0b})...), format, "after the end"),
		compiles(load("an operand of the wrong type", raw(asm.Cat([]byte{0}, asm.I32C(0), asm.I64C(0), []byte{0x6a, 0x1a, 0x0b})...), wasm.ErrCompile, "type mismatch")),
		compiles(load("an empty operand stack", raw(0, 0x6a, 0x1a, 0x0b), wasm.ErrCompile, "")),
		load("a memory of 64-bit addresses", asm.Cat(asm.Header, asm.Section(5, []byte{1, 4, 1})), format, "64-bit"),
		load("a shared memory", asm.Cat(asm.Header, asm.Section(5, []byte{1, 3, 1, 1})), format, "shared"),
		load("two memories", guest{finish: func(m *asm.Module) { m.Memory(1, -1) }}.bytes(), limit, "memories"),

		// Bombs for the compiler.
		load("20,000 nested blocks", raw(asm.Cat([]byte{0}, asm.Repeat(20_000, 0x02, 0x40), asm.Repeat(20_001, 0x0b))...), limit, "nested blocks"),
		load("50,000 nested blocks", raw(asm.Cat([]byte{0}, asm.Repeat(40_000, 0x02, 0x40), asm.Repeat(40_001, 0x0b))...), limit, "nested blocks"),
		load("15,000 loops in one function", raw(asm.Cat([]byte{0}, asm.Repeat(15_000, 0x03, 0x40, 0x0b), []byte{0x0b})...), limit, "loops"),
		load("3,000 locals and 10,000 ifs", raw(asm.Cat(asm.U(1), asm.U(3000), []byte{0x7f}, asm.Repeat(10_000, 0x20, 0, 0x04, 0x40, 0x0b), []byte{0x0b})...), limit, "locals"),
		load("500 locals and 2,000 ifs", raw(asm.Cat(asm.U(1), asm.U(500), []byte{0x7f}, asm.Repeat(2_000, 0x20, 0, 0x04, 0x40, 0x0b), []byte{0x0b})...), limit, "locals times blocks"),
		load("four thousand million locals", raw(asm.Cat(asm.U(1), asm.U(math.MaxUint32), []byte{0x7f, 0x0b})...), limit, "locals"),
		load("a body of 1 MiB", raw(asm.Cat([]byte{0}, asm.Repeat(1<<20, 0x01), []byte{0x0b})...), limit, "bytes"),
		load("a br_table of 100,000 labels", raw(asm.Cat([]byte{0}, asm.I32C(0), []byte{0x0e}, asm.U(100_000), asm.Repeat(100_001, 0), []byte{0x0b})...), limit, "branch labels"),
		load("a br_table that claims four thousand million labels", raw(asm.Cat([]byte{0}, asm.I32C(0), []byte{0x0e}, asm.U(math.MaxUint32), []byte{0, 0x0b})...), format, "br_table"),
		load("25,000 functions", guest{extra: func(m *asm.Module) {
			for range 25_000 {
				m.FuncRaw(0, []byte{0, 0x0b})
			}
		}}.bytes(), limit, "functions"),
		load("a signature of 1,000 parameters", bare(func(m *asm.Module) { m.Type(make(asm.T, 1000), nil) }), limit, "parameters"),
		compiles(load("functions that are each within the limits, and too many", heavy(240), wasm.ErrCompile, "compiling takes more than")),

		// Bombs for the memory.
		load("a table of four thousand million entries", guest{table: math.MaxUint32}.bytes(), limit, "table entries"),
		load("nine tables", bare(func(m *asm.Module) {
			for range 9 {
				m.Table(1, -1)
			}
		}), limit, "tables"),
		load("an element segment of four thousand million entries", bare(func(m *asm.Module) {
			m.Table(1, -1)
			m.ElementRaw(asm.Cat([]byte{0}, asm.I32C(0), []byte{0x0b}, asm.U(math.MaxUint32))...)
		}), limit, "entries"),
		compiles(load("a memory of 4 GiB at start", guest{minPages: 65536}.bytes(), wasm.ErrCompile, "over limit")),
		compiles(load("a memory just above the limit", guest{minPages: pages + 1}.bytes(), wasm.ErrCompile, "over limit")),
		starts("a data segment outside of the memory", guest{finish: func(m *asm.Module) { m.Data(-4, []byte("data")) }}, policy.ClassTrap, "out of bounds", 0),
		load("a body of 5,000 fills", raw(asm.Cat([]byte{0}, asm.Repeat(5000, asm.Cat(asm.I32C(0), asm.I32C(0), asm.I32C(0), []byte{0xfc, 0x0b, 0})...), []byte{0x0b})...), limit, "blocks"),

		// Imports that it must not have.
		load("a file system", importing("wasi_snapshot_preview1", "path_open", asm.T{asm.I32, asm.I32, asm.I32, asm.I32, asm.I32, asm.I64, asm.I64, asm.I32, asm.I32}, asm.T{asm.I32}), wasm.ErrImport, "path_open"),
		load("a socket", importing("wasi_snapshot_preview1", "sock_accept", asm.T{asm.I32, asm.I32, asm.I32}, asm.T{asm.I32}), wasm.ErrImport, "sock_accept"),
		load("the yield function", importing("dovetail_fuel", "yield", nil, nil), wasm.ErrImport, "dovetail_fuel.yield"),
		load("a function of its own fancy", importing("env", "system", asm.T{asm.I32}, asm.T{asm.I32}), wasm.ErrImport, "env.system"),
		load("a memory of the host", guest{minPages: -1, imports: func(m *asm.Module) { m.ImportRaw("env", "memory", 2, 0, 1) }}.bytes(), wasm.ErrImport, "memory env.memory"),
		load("a table of the host", guest{imports: func(m *asm.Module) { m.ImportRaw("env", "table", 1, 0x70, 0, 1) }}.bytes(), wasm.ErrImport, "table env.table"),
		load("a global of the host", guest{imports: func(m *asm.Module) { m.ImportRaw("env", "g", 3, 0x7e, 1) }}.bytes(), wasm.ErrImport, "global env.g"),
		load("the log with another signature", importing("dovetail_v1", "log", asm.T{asm.I64}, nil), wasm.ErrSignature, "dovetail_v1.log"),
		load("the export of the fuel counter", guest{finish: func(m *asm.Module) {
			m.Export("__dv_fuel", module.KindGlobal, m.Global(asm.I64, true, asm.I64C(0)))
		}}.bytes(), fuel.ErrReserved, "__dv_fuel"),

		// Not the ABI.
		load("no marker", bare(func(m *asm.Module) { export(m, "dv_alloc", asm.T{asm.I32}, asm.T{asm.I32}, asm.I32C(0)) }), wasm.ErrABI, "no export dv_abi_1"),
		load("a later ABI only", bare(func(m *asm.Module) { export(m, "dv_abi_2", nil, asm.T{asm.I32}, asm.I32C(0)) }), wasm.ErrABI, "has dv_abi_2"),
		load("no memory", func() []byte {
			m := &asm.Module{}
			export(m, "dv_abi_1", nil, asm.T{asm.I32}, asm.I32C(0))
			export(m, "dv_alloc", asm.T{asm.I32}, asm.T{asm.I32}, asm.I32C(8))
			export(m, "dv_score", asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, asm.I64C(0))
			return m.Bytes()
		}(), wasm.ErrABI, "memory"),
		load("no allocator", bare(func(m *asm.Module) {
			export(m, "dv_abi_1", nil, asm.T{asm.I32}, asm.I32C(0))
			export(m, "dv_score", asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, asm.I64C(0))
		}), wasm.ErrABI, "dv_alloc"),
		load("no hook", bare(func(m *asm.Module) {
			export(m, "dv_abi_1", nil, asm.T{asm.I32}, asm.I32C(0))
			export(m, "dv_alloc", asm.T{asm.I32}, asm.T{asm.I32}, asm.I32C(8))
			export(m, "dv_scores", asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, asm.I64C(0))
		}), wasm.ErrABI, "none of the hooks"),
		load("a hook with another signature", bare(func(m *asm.Module) {
			export(m, "dv_abi_1", nil, asm.T{asm.I32}, asm.I32C(0))
			export(m, "dv_alloc", asm.T{asm.I32}, asm.T{asm.I32}, asm.I32C(8))
			export(m, "dv_score", asm.T{asm.I32}, asm.T{asm.I64}, asm.I64C(0))
		}), wasm.ErrSignature, "dv_score"),
		load("a hook that is a memory", guest{finish: func(m *asm.Module) { m.Export("dv_admit", module.KindMemory, 0) }}.bytes(), wasm.ErrSignature, "dv_admit"),
		load("a command", guest{finish: func(m *asm.Module) { m.Export("_start", module.KindFunc, 0) }}.bytes(), wasm.ErrABI, "_start"),
		load("a description that is not JSON", guest{finish: func(m *asm.Module) { m.Custom("dovetail.policy", []byte("{")) }}.bytes(), nil, "description"),
		load("a description of 100 KiB", guest{finish: func(m *asm.Module) { m.Custom("dovetail.policy", make([]byte, 100<<10)) }}.bytes(), nil, "description"),

		// Harm while starting.
		starts("a start function that spins", guest{start: spin}, policy.ClassDeadline, "start", 0),
		starts("a start function that burns its fuel", guest{start: spin}, policy.ClassFuel, "start", 1_000_000),
		starts("a start function that traps", guest{start: unreachable}, policy.ClassTrap, "unreachable", 0),
		starts("a start function that takes all memory and traps", guest{start: asm.Cat([]byte{0x03, 0x40}, asm.I32C(1), []byte{0x40, 0}, asm.I32C(-1), []byte{0x47, 0x0d, 0, 0x0b, 0x00})}, policy.ClassTrap, "start", 0),
		starts("an initializer that spins", guest{init: spin}, policy.ClassDeadline, "_initialize", 0),
		starts("a marker that spins", guest{marker: spinI32}, policy.ClassDeadline, "dv_abi_1", 0),
		starts("a marker with a negative version", guest{marker: asm.I32C(-1)}, policy.ClassLoad, "dv_abi_1", 0),
		starts("a description of 4 GiB", guest{describe: asm.I64C(0xffffffff)}, policy.ClassBadResult, "dv_describe", 0),
		starts("a description at a wild pointer", guest{describe: asm.I64C(-1<<32 | 100)}, policy.ClassBadResult, "outside", 0),
		starts("a description of zeros", guest{describe: asm.I64C(100)}, policy.ClassBadResult, "description", 0),
		starts("settings that spin", guest{configure: spinI64}, policy.ClassDeadline, "dv_configure", 0),
		starts("settings that answer with garbage", guest{configure: asm.I64C(1<<40 | 50)}, policy.ClassBadResult, "dv_configure", 0),
		starts("an allocator without memory", guest{alloc: asm.I32C(0)}, policy.ClassMemory, "dv_alloc", 0),
		starts("an allocator with a wild pointer", guest{alloc: asm.I32C(-8)}, policy.ClassBadResult, "dv_alloc", 0),
		starts("an allocator with an odd pointer", guest{alloc: asm.I32C(bufferAt + 4)}, policy.ClassBadResult, "8-aligned", 0),
		starts("an allocator that spins", guest{alloc: spinI32}, policy.ClassDeadline, "dv_alloc", 0),
		load("an answer that changes from call to call", guest{
			extra: func(m *asm.Module) { m.Global(asm.I32, true, asm.I32C(0)) },
			// The first bias is how often the allocator was called.
			alloc: asm.Cat([]byte{0x23, 0}, asm.I32C(1), []byte{0x6a, 0x24, 0}, asm.I32C(answerAt+valuesAt), []byte{0x23, 0, 0x36, 2, 0}, asm.I32C(bufferAt)),
			test:  answerFrame(testRows, frame.Column{ID: frame.AnswerBias, Type: frame.I64, I64: make([]int64, testRows)}),
		}.bytes(), wasm.ErrUnstable, "self-test"),

		// Spinning in the hook.
		runs("an empty loop", guest{score: spinI64}, policy.ClassDeadline, "dv_score"),
		fueled(runs("an empty loop with little fuel", guest{score: spinI64}, policy.ClassFuel, "dv_score"), 2_000_000),
		runs("a loop of 100 KiB of divisions", guest{score: forever(asm.Repeat(6000, asm.Cat([]byte{0x44}, make([]byte, 8), []byte{0x44}, make([]byte, 8), []byte{0xa3, 0x1a})...))}, policy.ClassDeadline, ""),
		runs("a loop of integer remainders", guest{score: forever(asm.Repeat(8000, asm.Cat(asm.Get(0), asm.Get(1), []byte{0x70, 0x1a})...))}, policy.ClassDeadline, ""),
		runs("a loop of vector square roots", guest{score: forever(asm.Repeat(5000, asm.Cat(asm.Get(0), []byte{0xfd, 0x11, 0xfd, 0xef, 0x01, 0x1a})...))}, policy.ClassDeadline, ""),
		runs("a loop of memory growths", guest{score: forever(asm.Repeat(1500, asm.Cat(asm.I32C(0), []byte{0x40, 0, 0x1a})...))}, policy.ClassDeadline, ""),
		runs("a loop of refused memory growths", guest{score: forever(asm.Repeat(1500, asm.Cat(asm.I32C(60000), []byte{0x40, 0, 0x1a})...))}, policy.ClassDeadline, ""),
		runs("a loop around blocks that jump over every charge", guest{score: forever(asm.Repeat(500, asm.Cat([]byte{0x02, 0x40}, asm.Repeat(60, 0x01), []byte{0x0c, 0}, asm.Repeat(60, 0x01), []byte{0x0b})...))}, policy.ClassDeadline, ""),
		runs("fills of all memory in a straight line", guest{score: asm.Cat(asm.Repeat(2000, asm.Cat(asm.I32C(0), asm.I32C(0), asm.I32C(262144), []byte{0xfc, 0x0b, 0})...), spinI64)}, policy.ClassDeadline, ""),
		runs("copies of all memory in a loop", guest{score: forever(asm.I32C(8), asm.I32C(0), asm.I32C(262136), []byte{0xfc, 0x0a, 0, 0})}, policy.ClassDeadline, ""),
		runs("a call tree without end", guest{extra: tree, score: asm.Cat(asm.I32C(60), asm.Call(0), []byte{0x1a}, asm.I64C(0))}, policy.ClassDeadline, ""),
		runs("a jump table in a loop", guest{score: asm.Cat([]byte{0x03, 0x40, 0x02, 0x40, 0x02, 0x40}, asm.I32C(1), []byte{0x0e, 2, 0, 1, 2, 0x0b, 0x0b, 0x0c, 0, 0x0b}, asm.I64C(0))}, policy.ClassDeadline, ""),

		// Recursion.
		runs("recursion without end", guest{extra: func(m *asm.Module) { m.Func(asm.T{asm.I32}, asm.T{asm.I32}, nil, asm.Get(0), asm.Call(0)) }, score: asm.Cat(asm.I32C(1), asm.Call(0), []byte{0x1a}, asm.I64C(0))}, policy.ClassTrap, "nested too deeply"),
		runs("recursion through a table", guest{table: 1, extra: func(m *asm.Module) {
			m.Func(nil, nil, nil, asm.I32C(0), []byte{0x11}, asm.U(0), asm.U(0))
			m.Element(0, 0)
		}, score: asm.Cat(asm.Call(0), asm.I64C(0))}, policy.ClassTrap, "nested too deeply"),
		runs("recursion with large frames", guest{extra: func(m *asm.Module) {
			locals := make(asm.T, 400)
			for i := range locals {
				locals[i] = asm.I64
			}
			var body []byte
			for i := range uint32(400) {
				body = asm.Cat(body, asm.Get(0), []byte{0xad}, asm.Set(1+i))
			}
			body = asm.Cat(body, asm.Get(0), asm.Call(0), []byte{0x1a})
			for i := range uint32(400) {
				body = asm.Cat(body, asm.Get(1+i), []byte{0x1a})
			}
			m.Func(asm.T{asm.I32}, asm.T{asm.I32}, locals, body, asm.Get(0))
		}, score: asm.Cat(asm.I32C(1), asm.Call(0), []byte{0x1a}, asm.I64C(0))}, policy.ClassTrap, "nested too deeply"),

		// Traps.
		runs("an unreachable instruction", guest{score: unreachable}, policy.ClassTrap, "unreachable"),
		runs("a division by zero", guest{score: asm.Cat(asm.I64C(1), asm.I64C(0), []byte{0x7f})}, policy.ClassTrap, "divide by zero"),
		runs("an overflowing division", guest{score: asm.Cat(asm.I64C(math.MinInt64), asm.I64C(-1), []byte{0x7f})}, policy.ClassTrap, "overflow"),
		runs("a conversion of infinity", guest{score: asm.Cat([]byte{0x44, 0, 0, 0, 0, 0, 0, 0xf0, 0x7f, 0xb0})}, policy.ClassTrap, ""),
		runs("a load past the end", guest{score: asm.Cat(asm.I32C(-8), []byte{0x29, 3, 0})}, policy.ClassTrap, "out of bounds"),
		runs("a store whose offset overflows", guest{score: asm.Cat(asm.I32C(-1), asm.I64C(0), []byte{0x37, 3}, asm.U(math.MaxUint32), asm.I64C(0))}, policy.ClassTrap, "out of bounds"),
		runs("a fill past the end", guest{score: asm.Cat(asm.I32C(0), asm.I32C(0), asm.I32C(-1), []byte{0xfc, 0x0b, 0}, asm.I64C(0))}, policy.ClassTrap, ""),
		runs("a call of an empty table entry", guest{table: 4, score: asm.Cat(asm.I32C(1), []byte{0x11}, asm.U(0), asm.U(0), unreachable)}, policy.ClassTrap, ""),
		runs("a call past the end of a table", guest{table: 4, score: asm.Cat(asm.I32C(99), []byte{0x11}, asm.U(0), asm.U(0), unreachable)}, policy.ClassTrap, ""),
		runs("a call of another type", guest{table: 1, extra: func(m *asm.Module) {
			m.Func(nil, nil, nil)
			m.Type(asm.T{asm.I64}, nil)
			m.Element(0, 0)
		}, score: asm.Cat(asm.I64C(0), asm.I32C(0), []byte{0x11}, asm.U(1), asm.U(0), unreachable)}, policy.ClassTrap, "type mismatch"),

		// Memory in the hook.
		runs("all memory, then a trap", guest{score: asm.Cat([]byte{0x03, 0x40}, asm.I32C(1), []byte{0x40, 0}, asm.I32C(-1), []byte{0x47, 0x0d, 0, 0x0b, 0x00})}, policy.ClassMemory, "out of memory"),
		runs("4 GiB at once, then a trap", guest{score: asm.Cat(asm.I32C(65535), []byte{0x40, 0, 0x1a, 0x00})}, policy.ClassMemory, "out of memory"),
		runs("a table that grows without end", guest{table: 1, score: forever([]byte{0xd0, 0x70}, asm.I32C(1_000_000), []byte{0xfc, 0x0f, 0, 0x1a})}, policy.ClassDeadline, ""),

		// Host functions.
		runs("a log in a loop", calls("dovetail_v1", "log", asm.T{asm.I32, asm.I32, asm.I32}, nil, forever(asm.I32C(1), asm.I32C(0), asm.I32C(1<<20), asm.Call(0))), policy.ClassDeadline, ""),
		runs("a log in a straight line, in a loop", calls("dovetail_v1", "log", asm.T{asm.I32, asm.I32, asm.I32}, nil, forever(asm.Repeat(10_000, asm.Cat(asm.I32C(1), asm.I32C(0), asm.I32C(9), asm.Call(0))...))), policy.ClassDeadline, ""),
		runs("a log at a wild pointer", calls("dovetail_v1", "log", asm.T{asm.I32, asm.I32, asm.I32}, nil, asm.I32C(1), asm.I32C(-5), asm.I32C(100), asm.Call(0), asm.I64C(0)), policy.ClassTrap, "pointer outside"),
		runs("an exit", calls("wasi_snapshot_preview1", "proc_exit", asm.T{asm.I32}, nil, asm.I32C(0), asm.Call(0), asm.I64C(0)), policy.ClassTrap, "exit with code 0"),
		runs("random bytes for all memory, in a loop", calls("wasi_snapshot_preview1", "random_get", asm.T{asm.I32, asm.I32}, asm.T{asm.I32}, forever(asm.I32C(0), asm.I32C(262144), asm.Call(0), []byte{0x1a})), policy.ClassDeadline, ""),
		runs("random bytes at a wild pointer, in a loop", calls("wasi_snapshot_preview1", "random_get", asm.T{asm.I32, asm.I32}, asm.T{asm.I32}, forever(asm.I32C(-1), asm.I32C(-1), asm.Call(0), []byte{0x1a})), policy.ClassDeadline, ""),
		runs("sleeps for ever", calls("wasi_snapshot_preview1", "poll_oneoff", asm.T{asm.I32, asm.I32, asm.I32, asm.I32}, asm.T{asm.I32}, forever(asm.I32C(0), asm.I32C(65536), asm.I32C(1000), asm.I32C(200000), asm.Call(0), []byte{0x1a})), policy.ClassDeadline, ""),
		runs("output without end", calls("wasi_snapshot_preview1", "fd_write", asm.T{asm.I32, asm.I32, asm.I32, asm.I32}, asm.T{asm.I32}, forever(asm.I32C(2), asm.I32C(4096), asm.I32C(1024), asm.I32C(0), asm.Call(0), []byte{0x1a})), policy.ClassDeadline, ""),
		runs("output of huge vectors", func() guest {
			g := calls("wasi_snapshot_preview1", "fd_write", asm.T{asm.I32, asm.I32, asm.I32, asm.I32}, asm.T{asm.I32}, forever(asm.I32C(1), asm.I32C(extraAt), asm.I32C(64), asm.I32C(0), asm.Call(0), []byte{0x1a}))
			g.data = bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 4, 0}, 64) // 64 × 256 KiB
			return g
		}(), policy.ClassDeadline, ""),
		runs("an abort", calls("env", "abort", asm.T{asm.I32, asm.I32, asm.I32, asm.I32}, nil, asm.I32C(-2), asm.I32C(3), asm.I32C(7), asm.I32C(9), asm.Call(0), asm.I64C(0)), policy.ClassTrap, "abort"),

		// Answers.
		runs("no answer", guest{score: asm.I64C(0)}, policy.ClassTrap, "without a message"),
		runs("an answer of 4 GiB", guest{score: asm.I64C(0xffffffff)}, policy.ClassBadResult, "at most"),
		runs("an answer of 10 MiB", guest{score: asm.I64C(10 << 20)}, policy.ClassBadResult, "at most"),
		runs("an answer at a wild pointer", guest{score: asm.I64C(-1<<32 | 64)}, policy.ClassBadResult, "outside"),
		runs("an answer across the end of memory", guest{score: asm.I64C((327680-8)<<32 | 64)}, policy.ClassBadResult, "outside"),
		runs("an answer of one byte", guest{score: asm.I64C(1<<32 | 1)}, policy.ClassBadResult, "header"),
		runs("an answer of zeros", guest{score: asm.I64C(250000<<32 | 400)}, policy.ClassBadResult, "magic"),
		runs("the question as the answer", guest{score: asm.Cat(asm.Get(0), []byte{0xad}, asm.I64C(32), []byte{0x86}, asm.Get(1), []byte{0xad, 0x84})}, policy.ClassBadResult, "reason: column of i32"),
		runs("an answer of another hook", bad(answerFrame(badRows), 4, 3), policy.ClassBadResult, "admit"),
		runs("an answer of too few rows", bad(answerFrame(badRows-1)), policy.ClassBadResult, "6 rows, want 7"),
		runs("an answer of four thousand million rows", bad(answerFrame(badRows), 12, math.MaxUint32), policy.ClassBadResult, "rows"),
		runs("an answer of four thousand million columns", bad(answerFrame(badRows), 16, math.MaxUint32), policy.ClassBadResult, "columns"),
		runs("an answer with a directory in its header", bad(answerFrame(badRows), 16, 4, 20, 0), policy.ClassBadResult, "directory"),
		runs("an answer with four thousand million context entries", bad(answerFrame(badRows), 24, math.MaxUint32), policy.ClassBadResult, "context"),
		runs("an answer whose string table is elsewhere", bad(answerFrame(badRows), 32, 10, 36, 0xfffffff8), policy.ClassBadResult, "string table"),
		runs("an answer with strings that run backwards", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerReason, Type: frame.String, Str: make([]uint32, badRows)}), 80, 9, 84, 2), policy.ClassBadResult, "string"),
		runs("a negative cost", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerCost, Type: frame.I64, I64: i64s(-1)})), policy.ClassBadResult, "cost: row 0: value -1"),
		runs("a cost of all money", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerCost, Type: frame.I64, I64: i64s(math.MaxInt64)})), policy.ClassBadResult, "cost"),
		runs("a cost that is a string", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerCost, Type: frame.String, Str: make([]uint32, badRows)})), policy.ClassBadResult, "column of string, want i64"),
		runs("a cost that is not a number", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerCost, Type: frame.F64, F64: make([]float64, badRows)}), valuesAt, 0, valuesAt+4, 0x7ff80000), policy.ClassBadResult, "column of f64, want i64"),
		runs("a denial without a reason", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerDeny, Type: frame.U8, U8: bytes.Repeat([]byte{1}, badRows)})), policy.ClassBadResult, "without a reason"),
		runs("a reason outside of the string table", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerReason, Type: frame.String, Str: make([]uint32, badRows)}), valuesAt, 77), policy.ClassBadResult, "string 77"),
		runs("an error in broken UTF-8", bad(answerFrame(badRows, frame.Column{ID: frame.AnswerReason, Type: frame.String, Str: make([]uint32, badRows)}), 88, 0xffffffff), policy.ClassBadResult, "UTF-8"),
	}
	return cases
}

// valuesAt is where the values of an answer's only column begin.
const valuesAt = 48

// tree adds a function that calls itself twice, as function 0.
func tree(m *asm.Module) {
	m.Func(asm.T{asm.I32}, asm.T{asm.I32}, nil,
		asm.Get(0), []byte{0x45, 0x04, 0x40}, asm.I32C(1), []byte{0x0f, 0x0b},
		asm.Get(0), asm.I32C(1), []byte{0x6b}, asm.Call(0),
		asm.Get(0), asm.I32C(1), []byte{0x6b}, asm.Call(0), []byte{0x6a})
}
