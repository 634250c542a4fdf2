package fuel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

// Names that a rewritten module uses. A module that already uses one is refused.
const (
	// ImportModule and ImportName are the host function that a rewritten module
	// calls when its counter is below zero; it takes and returns nothing.
	ImportModule = "dovetail_fuel"
	ImportName   = "yield"
	// GlobalExport is the exported mutable i64 that counts down.
	GlobalExport = "__dv_fuel"
	// RefusedExport is the exported mutable i32 that becomes 1 when the module is
	// refused memory that it asks for.
	RefusedExport = "__dv_refused"
	// DepthExport is the exported mutable i32 that measures the stack.
	DepthExport = "__dv_depth"

	reserved = "__dv_"
)

// Chunk is how many units a guest may use before it calls the host. It keeps the
// time between two yields near a millisecond, and with it the time that a garbage
// collection of the whole process waits for a spinning guest.
const Chunk = 100_000

// ErrReserved is matched by errors about a module that uses a reserved name.
var ErrReserved = errors.New("reserved name")

// Limits bound the structure of a module, so that compiling it stays cheap:
// compilers are superlinear in most of these. A zero field means its default.
type Limits struct {
	Size         int // bytes of the module, default 16 MiB
	Functions    int // defined functions, default 20,000
	Body         int // bytes of one function, default 128 KiB
	Nesting      int // depth of blocks, default 1,024
	Blocks       int // blocks, loops, ifs, bulk instructions of one function, default 2,048
	Loops        int // loops of one function, default 512
	Locals       int // parameters and locals of one function, default 512
	LocalsBlocks int // their product with the blocks, default 250,000
	TableEntries int // entries of all tables, and of one that grows, default 65,536
	Branches     int // labels in the br_tables of one function, default 16,384
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.Size, 16<<20)
	set(&l.Functions, module.MaxFuncs)
	set(&l.Body, 128<<10)
	set(&l.Nesting, 1024)
	set(&l.Blocks, 2048)
	set(&l.Loops, 512)
	set(&l.Locals, 512)
	set(&l.LocalsBlocks, 250_000)
	set(&l.TableEntries, 65_536)
	set(&l.Branches, 16_384)
	return l
}

// Report says what [Rewrite] found: the largest figure of any function, and how
// many charges it wrote.
type Report struct {
	Functions, Body, Nesting, Blocks, Loops, Locals, Branches int
	Charges                                                   int
}

// Rewrite returns m in binary form, changed so that it counts what it does: see
// the package comment. Custom sections are left out. m is not changed.
//
// Errors match [module.ErrLimit], [module.ErrFormat] or [ErrReserved] and name the
// function.
func Rewrite(m *module.Module, limits Limits) ([]byte, Report, error) {
	limits = limits.withDefaults()
	w := &rewriter{m: m, limits: limits}
	if err := w.check(); err != nil {
		return nil, w.report, err
	}
	out, err := w.module()
	return out, w.report, err
}

type rewriter struct {
	m      *module.Module
	limits Limits
	report Report

	imports uint32 // imported functions: the index of yield, and where indices shift
	funcs   uint32 // functions before the rewrite
	globals uint32 // globals before the rewrite: the index of the counter
	types   []module.FuncType
	// cycles marks the functions that count their depth; wrap is the type of the block
	// around such a function with many results, by its results.
	cycles []bool
	wrap   map[string]uint32
	extra  []module.FuncType
}

func over(what string, have, limit int) error {
	return fmt.Errorf("%s: %d, at most %d: %w", what, have, limit, module.ErrLimit)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", module.ErrFormat, fmt.Sprintf(format, args...))
}

func (w *rewriter) check() error {
	m := w.m
	if n := len(m.Funcs); n > w.limits.Functions {
		return over("functions", n, w.limits.Functions)
	}
	for _, i := range m.Imports {
		if i.Module == ImportModule {
			return fmt.Errorf("import %s.%s: %w", i.Module, i.Name, ErrReserved)
		}
	}
	for _, e := range m.Exports {
		if strings.HasPrefix(e.Name, reserved) {
			return fmt.Errorf("export %s: %w", e.Name, ErrReserved)
		}
	}
	entries := 0
	for _, t := range m.Tables {
		if uint64(entries)+uint64(t.Min) > uint64(w.limits.TableEntries) {
			return over("table entries", entries+int(t.Min), w.limits.TableEntries)
		}
		entries += int(t.Min)
	}
	w.imports = m.NumImports(module.KindFunc)
	w.funcs = w.imports + uint32(len(m.Funcs))
	w.globals = m.NumImports(module.KindGlobal) + uint32(len(m.Globals))
	for i := range w.funcs {
		t, _ := m.FuncType(i)
		w.types = append(w.types, t)
	}
	var err error
	if w.cycles, err = w.recursive(); err != nil {
		return err
	}
	w.wrap = map[string]uint32{}
	for i := w.imports; i < w.funcs; i++ {
		if t := (module.FuncType{Results: w.types[i].Results}); w.cycles[i] && len(t.Results) > 1 {
			if _, ok := w.wrap[string(t.Key())]; !ok {
				w.wrap[string(t.Key())] = uint32(len(m.Types) + 1 + len(w.extra))
				w.extra = append(w.extra, t)
			}
		}
	}
	return nil
}

// shift is the new index of a function.
func (w *rewriter) shift(f uint32) uint32 {
	if f >= w.imports {
		return f + 1
	}
	return f
}

func uleb(b []byte, v uint32) []byte { return binary.AppendUvarint(b, uint64(v)) }

func name(b []byte, s string) []byte { return append(uleb(b, uint32(len(s))), s...) }

func section(out []byte, id byte, body []byte) []byte {
	return append(uleb(append(out, id), uint32(len(body))), body...)
}

func limitsOf(b []byte, l module.Limits) []byte {
	if !l.HasMax {
		return uleb(append(b, 0), l.Min)
	}
	return uleb(uleb(append(b, 1), l.Min), l.Max)
}

func (w *rewriter) tableOf(b []byte, t module.Table) []byte {
	// Growth is bounded here, as the runtime only bounds memories.
	if most := uint32(w.limits.TableEntries); !t.HasMax || t.Max > most {
		t.HasMax, t.Max = true, most
	}
	return limitsOf(append(b, byte(t.Type)), t.Limits)
}

func globalOf(b []byte, g module.Global) []byte {
	mutable := byte(0)
	if g.Mutable {
		mutable = 1
	}
	return append(b, byte(g.Type), mutable)
}

func typeOf(b []byte, t module.FuncType) []byte {
	b = append(b, 0x60)
	for _, list := range [][]module.ValType{t.Params, t.Results} {
		b = uleb(b, uint32(len(list)))
		for _, v := range list {
			b = append(b, byte(v))
		}
	}
	return b
}

func (w *rewriter) module() ([]byte, error) {
	m := w.m
	out := append([]byte{}, "\x00asm\x01\x00\x00\x00"...)

	b := uleb(nil, uint32(len(m.Types)+1+len(w.extra)))
	for _, t := range m.Types {
		b = typeOf(b, t)
	}
	b = typeOf(b, module.FuncType{})
	for _, t := range w.extra {
		b = typeOf(b, t)
	}
	out = section(out, 1, b)

	b = uleb(nil, uint32(len(m.Imports))+1)
	for _, i := range m.Imports {
		b = append(name(name(b, i.Module), i.Name), byte(i.Kind))
		switch i.Kind {
		case module.KindFunc:
			b = uleb(b, i.Type)
		case module.KindTable:
			b = limitsOf(append(b, byte(i.Table.Type)), i.Table.Limits)
		case module.KindMemory:
			b = limitsOf(b, i.Memory)
		case module.KindGlobal:
			b = globalOf(b, i.Global)
		}
	}
	b = append(name(name(b, ImportModule), ImportName), byte(module.KindFunc))
	out = section(out, 2, uleb(b, uint32(len(m.Types))))

	b = uleb(nil, uint32(len(m.Funcs)))
	for _, t := range m.Funcs {
		b = uleb(b, t)
	}
	out = section(out, 3, b)

	if len(m.Tables) > 0 {
		b = uleb(nil, uint32(len(m.Tables)))
		for _, t := range m.Tables {
			b = w.tableOf(b, t)
		}
		out = section(out, 4, b)
	}
	if len(m.Memories) > 0 {
		b = uleb(nil, uint32(len(m.Memories)))
		for _, l := range m.Memories {
			b = limitsOf(b, l)
		}
		out = section(out, 5, b)
	}

	b = uleb(nil, uint32(len(m.Globals))+3)
	for _, g := range m.Globals {
		init, err := w.constant(g.Init)
		if err != nil {
			return nil, err
		}
		b = append(globalOf(b, g), init...)
	}
	// The counter starts with a chunk, or a start function would find it empty.
	b = append(b, byte(module.I64), 1, 0x42)
	b = append(sleb(b, Chunk), 0x0b)
	b = append(b, byte(module.I32), 1, 0x41, 0, 0x0b)
	out = section(out, 6, append(b, byte(module.I32), 1, 0x41, 0, 0x0b))

	b = uleb(nil, uint32(len(m.Exports))+3)
	for _, e := range m.Exports {
		index := e.Index
		if e.Kind == module.KindFunc {
			index = w.shift(index)
		}
		b = uleb(append(name(b, e.Name), byte(e.Kind)), index)
	}
	b = uleb(append(name(b, GlobalExport), byte(module.KindGlobal)), w.globals)
	b = uleb(append(name(b, RefusedExport), byte(module.KindGlobal)), w.globals+1)
	out = section(out, 7, uleb(append(name(b, DepthExport), byte(module.KindGlobal)), w.globals+2))

	if m.Start != nil {
		out = section(out, 8, uleb(nil, w.shift(*m.Start)))
	}
	if len(m.Elements) > 0 {
		b, err := w.elements()
		if err != nil {
			return nil, err
		}
		out = section(out, 9, b)
	}
	if m.DataCount != nil {
		out = section(out, 12, uleb(nil, *m.DataCount))
	}
	b = uleb(nil, uint32(len(m.Code)))
	for i := range m.Code {
		body, err := w.code(i)
		if err != nil {
			return nil, fmt.Errorf("function %d: %w", w.imports+uint32(i), err)
		}
		b = append(uleb(b, uint32(len(body))), body...)
	}
	out = section(out, 10, b)
	if len(m.Data) > 0 {
		b = uleb(nil, uint32(len(m.Data)))
		for _, d := range m.Data {
			b = uleb(b, d.Flags)
			if d.Flags == 2 {
				b = append(b, 0)
			}
			offset, err := w.constant(d.Offset)
			if err != nil {
				return nil, err
			}
			b = append(uleb(append(b, offset...), uint32(len(d.Init))), d.Init...)
		}
		out = section(out, 11, b)
	}
	return out, nil
}

// constant shifts the function references of a constant expression.
func (w *rewriter) constant(expr []byte) ([]byte, error) {
	r := module.NewReader(expr)
	var out []byte
	for !r.Done() {
		in, err := r.Next()
		if err != nil {
			return nil, err
		}
		if in.Op == module.OpRefFunc {
			out = uleb(append(out, module.OpRefFunc), w.shift(in.Index))
		} else {
			out = append(out, expr[in.Start:in.End]...)
		}
	}
	return out, nil
}

func (w *rewriter) elements() ([]byte, error) {
	b := uleb(nil, uint32(len(w.m.Elements)))
	for _, e := range w.m.Elements {
		b = uleb(b, e.Flags)
		if e.Flags&1 == 0 {
			if e.Flags&2 != 0 {
				b = uleb(b, e.Table)
			}
			offset, err := w.constant(e.Offset)
			if err != nil {
				return nil, err
			}
			b = append(b, offset...)
		}
		if e.Flags&3 != 0 {
			b = append(b, e.Kind)
		}
		if e.Flags&4 != 0 {
			b = uleb(b, uint32(len(e.Exprs)))
			for _, x := range e.Exprs {
				expr, err := w.constant(x)
				if err != nil {
					return nil, err
				}
				b = append(b, expr...)
			}
			continue
		}
		b = uleb(b, uint32(len(e.Funcs)))
		for _, f := range e.Funcs {
			b = uleb(b, w.shift(f))
		}
	}
	return b, nil
}

func sleb(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
