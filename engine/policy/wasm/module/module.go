// Package module reads core WebAssembly modules, so that a host can check and
// rewrite them before anything is compiled or run.
//
// It understands the binary format of WebAssembly 2.0: multi-value, bulk memory,
// sign extension, saturating conversions, reference types and 128-bit SIMD.
// Everything later (threads, tail calls, exceptions, garbage collection, memory64,
// relaxed SIMD, components) is an error, because the meaning of bytes that the
// reader skips must never differ from what the compiler makes of them.
package module

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ValType is the type of a value, as its byte in the binary format.
type ValType byte

// The value types of WebAssembly 2.0.
const (
	I32       ValType = 0x7f
	I64       ValType = 0x7e
	F32       ValType = 0x7d
	F64       ValType = 0x7c
	V128      ValType = 0x7b
	FuncRef   ValType = 0x70
	ExternRef ValType = 0x6f
)

func (t ValType) String() string {
	switch t {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case F32:
		return "f32"
	case F64:
		return "f64"
	case V128:
		return "v128"
	case FuncRef:
		return "funcref"
	case ExternRef:
		return "externref"
	}
	return fmt.Sprintf("type 0x%02x", byte(t))
}

func (t ValType) valid() bool {
	return t >= V128 && t <= I32 || t == FuncRef || t == ExternRef
}

// Kind is what an import or an export names.
type Kind byte

// The kinds of WebAssembly 2.0.
const (
	KindFunc   Kind = 0
	KindTable  Kind = 1
	KindMemory Kind = 2
	KindGlobal Kind = 3
)

func (k Kind) String() string {
	switch k {
	case KindFunc:
		return "function"
	case KindTable:
		return "table"
	case KindMemory:
		return "memory"
	case KindGlobal:
		return "global"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

// FuncType is a function's signature.
type FuncType struct {
	Params, Results []ValType
}

// Equal reports whether two signatures are the same.
func (t FuncType) Equal(o FuncType) bool {
	return string(t.Key()) == string(o.Key())
}

// Key is a byte string that equal signatures have in common, and no others.
func (t FuncType) Key() []byte {
	b := make([]byte, 0, len(t.Params)+len(t.Results)+1)
	for _, p := range t.Params {
		b = append(b, byte(p))
	}
	b = append(b, 0)
	for _, r := range t.Results {
		b = append(b, byte(r))
	}
	return b
}

func (t FuncType) String() string {
	var b bytes.Buffer
	list := func(types []ValType) {
		b.WriteByte('(')
		for i, v := range types {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(v.String())
		}
		b.WriteByte(')')
	}
	list(t.Params)
	b.WriteString(" -> ")
	list(t.Results)
	return b.String()
}

// Limits bound a table (in entries) or a memory (in pages of 64 KiB).
type Limits struct {
	Min, Max uint32
	HasMax   bool
}

// Table is a declared or imported table.
type Table struct {
	Type ValType
	Limits
}

// Global is a declared or imported global. Init is the raw constant expression,
// its end included; it is nil for an import.
type Global struct {
	Type    ValType
	Mutable bool
	Init    []byte
}

// Import is one import. The field that belongs to Kind is set: Type is an index
// into Module.Types.
type Import struct {
	Module, Name string
	Kind         Kind
	Type         uint32
	Table        Table
	Memory       Limits
	Global       Global
}

// Export is one export.
type Export struct {
	Name  string
	Kind  Kind
	Index uint32
}

// Locals is a run of local variables of one type.
type Locals struct {
	Count uint32
	Type  ValType
}

// Code is the body of a defined function: its extra locals and its instructions,
// the final end included.
type Code struct {
	Locals []Locals
	Body   []byte
}

// Element is an element segment. Either Funcs or Exprs is used; Offset is nil
// unless the segment is active. All expressions are raw, their end included.
type Element struct {
	Flags  uint32
	Table  uint32
	Offset []byte
	// Kind is the element kind or reference type byte that the segment carries.
	Kind  byte
	Funcs []uint32
	Exprs [][]byte
}

// Data is a data segment; Offset is nil for a passive one.
type Data struct {
	Flags  uint32
	Offset []byte
	Init   []byte
}

// Custom is a custom section.
type Custom struct {
	Name string
	Data []byte
}

// Module is a decoded module. Byte slices point into the decoded input.
type Module struct {
	Types    []FuncType
	Imports  []Import
	Funcs    []uint32
	Tables   []Table
	Memories []Limits
	Globals  []Global
	Exports  []Export
	// Start is the index of the start function; nil without a start section.
	Start     *uint32
	Elements  []Element
	DataCount *uint32
	Code      []Code
	Data      []Data
	Customs   []Custom
}

// Limits of a module's parts. They keep the decoded form within a small multiple
// of the binary; honest modules stay far below.
const (
	MaxTypes    = 20_000
	MaxImports  = 1_000
	MaxFuncs    = 20_000
	MaxTables   = 8
	MaxGlobals  = 20_000
	MaxExports  = 20_000
	MaxElements = 10_000
	MaxEntries  = 65_536
	MaxData     = 65_536
	MaxCustoms  = 1_000
	MaxParams   = 512
	MaxResults  = 64
	maxGroups   = 512
	maxNameSize = 4_096
)

// ErrLimit is matched by errors about a part that exceeds one of the limits.
var ErrLimit = errors.New("limit exceeded")

// ErrFormat is matched by errors about bytes that are not a core module of
// WebAssembly 2.0.
var ErrFormat = errors.New("malformed module")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

func beyond(what string, have, limit uint64) error {
	return fmt.Errorf("%s: %d, at most %d: %w", what, have, limit, ErrLimit)
}

// NumImports counts the imports of a kind; they come first in its index space.
func (m *Module) NumImports(k Kind) uint32 {
	n := uint32(0)
	for i := range m.Imports {
		if m.Imports[i].Kind == k {
			n++
		}
	}
	return n
}

// FuncType is the signature of the function with the given index, imports
// included; ok is false if there is none.
func (m *Module) FuncType(index uint32) (t FuncType, ok bool) {
	for i := range m.Imports {
		if m.Imports[i].Kind != KindFunc {
			continue
		}
		if index == 0 {
			return m.Types[m.Imports[i].Type], true
		}
		index--
	}
	if uint64(index) >= uint64(len(m.Funcs)) {
		return FuncType{}, false
	}
	return m.Types[m.Funcs[index]], true
}

// Export finds an export by name.
func (m *Module) Export(name string) (Export, bool) {
	for _, e := range m.Exports {
		if e.Name == name {
			return e, true
		}
	}
	return Export{}, false
}

// Custom is the content of the first custom section with that name.
func (m *Module) Custom(name string) ([]byte, bool) {
	for _, c := range m.Customs {
		if c.Name == name {
			return c.Data, true
		}
	}
	return nil, false
}

// sections in the order in which they must appear.
var order = map[byte]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9, 12: 10, 10: 11, 11: 12}

// Decode reads a module. It checks the structure (sections, indices of types,
// functions and globals outside of code, sizes), not the types of instructions:
// that is the compiler's validation. Errors match [ErrFormat] or [ErrLimit].
func Decode(wasm []byte) (*Module, error) {
	r := &Reader{buf: wasm}
	if head, err := r.Bytes(8); err != nil || string(head[:4]) != "\x00asm" {
		return nil, malformed("no \\0asm magic")
	} else if string(head[4:]) != "\x01\x00\x00\x00" {
		if head[6] == 1 && head[7] == 0 {
			return nil, malformed("a component, want a core module")
		}
		return nil, malformed("version % x, want 1", head[4:])
	}
	m := &Module{}
	last := 0
	for !r.Done() {
		id, err := r.Byte()
		if err != nil {
			return nil, err
		}
		size, err := r.U32()
		if err != nil {
			return nil, err
		}
		body, err := r.Bytes(uint64(size))
		if err != nil {
			return nil, malformed("section %d: %d bytes at offset %d, past the end", id, size, r.pos)
		}
		s := &Reader{buf: body}
		if id == 0 {
			err = m.custom(s)
		} else {
			place, known := order[id]
			if !known {
				return nil, malformed("section %d is not known", id)
			}
			if place <= last {
				return nil, malformed("section %d is repeated or out of order", id)
			}
			last = place
			if err = m.section(id, s); err == nil && !s.Done() {
				err = malformed("%d bytes left over", len(s.buf)-s.pos)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("section %d: %w", id, err)
		}
	}
	return m, m.check()
}

func (m *Module) custom(r *Reader) error {
	name, err := r.Name()
	if err != nil {
		return err
	}
	if len(m.Customs) == MaxCustoms {
		return beyond("custom sections", MaxCustoms+1, MaxCustoms)
	}
	m.Customs = append(m.Customs, Custom{Name: name, Data: r.buf[r.pos:]})
	return nil
}

// vector reads a count, holds it against the limit, and calls each so often.
func vector(r *Reader, what string, limit uint32, each func(i uint32) error) error {
	n, err := r.U32()
	if err != nil {
		return err
	}
	if n > limit {
		return beyond(what, uint64(n), uint64(limit))
	}
	for i := range n {
		if err := each(i); err != nil {
			return fmt.Errorf("%s: item %d: %w", what, i, err)
		}
	}
	return nil
}

func (m *Module) section(id byte, r *Reader) error {
	switch id {
	case 1:
		return vector(r, "types", MaxTypes, func(uint32) error {
			form, err := r.Byte()
			if err != nil {
				return err
			}
			if form != 0x60 {
				return malformed("type form 0x%02x, want a function", form)
			}
			var t FuncType
			if t.Params, err = r.types("parameters", MaxParams); err != nil {
				return err
			}
			if t.Results, err = r.types("results", MaxResults); err != nil {
				return err
			}
			m.Types = append(m.Types, t)
			return nil
		})
	case 2:
		return vector(r, "imports", MaxImports, func(uint32) error {
			i, err := r.imported()
			if err != nil {
				return err
			}
			if i.Kind == KindFunc && uint64(i.Type) >= uint64(len(m.Types)) {
				return malformed("import %s.%s has type %d of %d", i.Module, i.Name, i.Type, len(m.Types))
			}
			m.Imports = append(m.Imports, i)
			return nil
		})
	case 3:
		return vector(r, "functions", MaxFuncs, func(uint32) error {
			t, err := r.U32()
			if err != nil {
				return err
			}
			if uint64(t) >= uint64(len(m.Types)) {
				return malformed("type %d of %d", t, len(m.Types))
			}
			m.Funcs = append(m.Funcs, t)
			return nil
		})
	case 4:
		return vector(r, "tables", MaxTables, func(uint32) error {
			t, err := r.table()
			m.Tables = append(m.Tables, t)
			return err
		})
	case 5:
		return vector(r, "memories", 1, func(uint32) error {
			l, err := r.limits()
			m.Memories = append(m.Memories, l)
			return err
		})
	case 6:
		return vector(r, "globals", MaxGlobals, func(uint32) error {
			g, err := r.global()
			if err != nil {
				return err
			}
			g.Init, err = r.ConstExpr()
			m.Globals = append(m.Globals, g)
			return err
		})
	case 7:
		seen := map[string]bool{}
		return vector(r, "exports", MaxExports, func(uint32) error {
			name, err := r.Name()
			if err != nil {
				return err
			}
			if seen[name] {
				return malformed("export %q is repeated", name)
			}
			seen[name] = true
			kind, err := r.Byte()
			if err != nil {
				return err
			}
			if kind > byte(KindGlobal) {
				return malformed("export %q has kind %d", name, kind)
			}
			index, err := r.U32()
			m.Exports = append(m.Exports, Export{Name: name, Kind: Kind(kind), Index: index})
			return err
		})
	case 8:
		index, err := r.U32()
		m.Start = &index
		return err
	case 9:
		entries := uint64(0)
		return vector(r, "element segments", MaxElements, func(uint32) error {
			e, err := r.element(&entries)
			m.Elements = append(m.Elements, e)
			return err
		})
	case 10:
		return vector(r, "function bodies", MaxFuncs, func(uint32) error {
			c, err := r.code()
			m.Code = append(m.Code, c)
			return err
		})
	case 11:
		return vector(r, "data segments", MaxData, func(uint32) error {
			d, err := r.data()
			m.Data = append(m.Data, d)
			return err
		})
	default: // 12
		n, err := r.U32()
		m.DataCount = &n
		return err
	}
}

// check holds the parts against each other.
func (m *Module) check() error {
	if len(m.Funcs) != len(m.Code) {
		return malformed("%d functions have %d bodies", len(m.Funcs), len(m.Code))
	}
	if m.DataCount != nil && uint64(*m.DataCount) != uint64(len(m.Data)) {
		return malformed("data count %d, but %d segments", *m.DataCount, len(m.Data))
	}
	if n := uint64(m.NumImports(KindMemory)) + uint64(len(m.Memories)); n > 1 {
		return beyond("memories", n, 1)
	}
	space := map[Kind]uint64{
		KindFunc:   uint64(m.NumImports(KindFunc)) + uint64(len(m.Funcs)),
		KindTable:  uint64(m.NumImports(KindTable)) + uint64(len(m.Tables)),
		KindMemory: uint64(m.NumImports(KindMemory)) + uint64(len(m.Memories)),
		KindGlobal: uint64(m.NumImports(KindGlobal)) + uint64(len(m.Globals)),
	}
	for _, e := range m.Exports {
		if uint64(e.Index) >= space[e.Kind] {
			return malformed("export %q is %s %d of %d", e.Name, e.Kind, e.Index, space[e.Kind])
		}
	}
	if m.Start != nil && uint64(*m.Start) >= space[KindFunc] {
		return malformed("start function %d of %d", *m.Start, space[KindFunc])
	}
	constant := func(what string, expr []byte) error {
		if expr == nil {
			return nil
		}
		r := &Reader{buf: expr}
		for !r.Done() {
			in, err := r.Next()
			if err != nil {
				return err
			}
			if in.Op == OpGlobalGet && uint64(in.Index) >= space[KindGlobal] {
				return malformed("%s reads global %d of %d", what, in.Index, space[KindGlobal])
			}
			if in.Op == OpRefFunc && uint64(in.Index) >= space[KindFunc] {
				return malformed("%s refers to function %d of %d", what, in.Index, space[KindFunc])
			}
		}
		return nil
	}
	for i := range m.Globals {
		if err := constant("a global", m.Globals[i].Init); err != nil {
			return err
		}
	}
	for i := range m.Elements {
		e := &m.Elements[i]
		if err := constant("an element offset", e.Offset); err != nil {
			return err
		}
		for _, f := range e.Funcs {
			if uint64(f) >= space[KindFunc] {
				return malformed("element segment %d names function %d of %d", i, f, space[KindFunc])
			}
		}
		for _, x := range e.Exprs {
			if err := constant("an element", x); err != nil {
				return err
			}
		}
	}
	for i := range m.Data {
		if err := constant("a data offset", m.Data[i].Offset); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) types(what string, limit uint32) ([]ValType, error) {
	var list []ValType
	err := vector(r, what, limit, func(uint32) error {
		b, err := r.Byte()
		if err != nil {
			return err
		}
		if !ValType(b).valid() {
			return malformed("value type 0x%02x", b)
		}
		list = append(list, ValType(b))
		return nil
	})
	return list, err
}

// Name reads a length-prefixed UTF-8 name.
func (r *Reader) Name() (string, error) {
	n, err := r.U32()
	if err != nil {
		return "", err
	}
	if n > maxNameSize {
		return "", beyond("name bytes", uint64(n), maxNameSize)
	}
	b, err := r.Bytes(uint64(n))
	if err != nil {
		return "", err
	}
	if !utf8.Valid(b) {
		return "", malformed("name %q is not UTF-8", b)
	}
	return string(b), nil
}

func (r *Reader) limits() (Limits, error) {
	flag, err := r.Byte()
	if err != nil {
		return Limits{}, err
	}
	if flag > 1 {
		return Limits{}, malformed("limits flag %d: shared and 64-bit limits are not supported", flag)
	}
	var l Limits
	if l.Min, err = r.U32(); err != nil {
		return Limits{}, err
	}
	if flag == 1 {
		l.HasMax = true
		if l.Max, err = r.U32(); err != nil {
			return Limits{}, err
		}
		if l.Max < l.Min {
			return Limits{}, malformed("limits from %d to %d", l.Min, l.Max)
		}
	}
	return l, nil
}

func (r *Reader) table() (Table, error) {
	b, err := r.Byte()
	if err != nil {
		return Table{}, err
	}
	if ValType(b) != FuncRef && ValType(b) != ExternRef {
		return Table{}, malformed("table of 0x%02x", b)
	}
	l, err := r.limits()
	return Table{Type: ValType(b), Limits: l}, err
}

func (r *Reader) global() (Global, error) {
	b, err := r.Bytes(2)
	if err != nil {
		return Global{}, err
	}
	if !ValType(b[0]).valid() || b[1] > 1 {
		return Global{}, malformed("global type % x", b)
	}
	return Global{Type: ValType(b[0]), Mutable: b[1] == 1}, nil
}

func (r *Reader) imported() (i Import, err error) {
	if i.Module, err = r.Name(); err != nil {
		return i, err
	}
	if i.Name, err = r.Name(); err != nil {
		return i, err
	}
	kind, err := r.Byte()
	if err != nil {
		return i, err
	}
	i.Kind = Kind(kind)
	switch i.Kind {
	case KindFunc:
		i.Type, err = r.U32()
	case KindTable:
		i.Table, err = r.table()
	case KindMemory:
		i.Memory, err = r.limits()
	case KindGlobal:
		i.Global, err = r.global()
	default:
		err = malformed("import %s.%s has kind %d", i.Module, i.Name, kind)
	}
	return i, err
}

func (r *Reader) element(entries *uint64) (e Element, err error) {
	if e.Flags, err = r.U32(); err != nil {
		return e, err
	}
	if e.Flags > 7 {
		return e, malformed("flags %d", e.Flags)
	}
	if e.Flags&1 == 0 { // active
		if e.Flags&2 != 0 {
			if e.Table, err = r.U32(); err != nil {
				return e, err
			}
		}
		if e.Offset, err = r.ConstExpr(); err != nil {
			return e, err
		}
	}
	if e.Flags&3 != 0 {
		if e.Kind, err = r.Byte(); err != nil {
			return e, err
		}
		if e.Flags&4 == 0 && e.Kind != 0 || e.Flags&4 != 0 && ValType(e.Kind) != FuncRef && ValType(e.Kind) != ExternRef {
			return e, malformed("element kind 0x%02x", e.Kind)
		}
	}
	err = vector(r, "entries", MaxEntries, func(uint32) error {
		if *entries++; *entries > MaxEntries {
			return beyond("element entries", *entries, MaxEntries)
		}
		if e.Flags&4 != 0 {
			x, err := r.ConstExpr()
			e.Exprs = append(e.Exprs, x)
			return err
		}
		f, err := r.U32()
		e.Funcs = append(e.Funcs, f)
		return err
	})
	return e, err
}

func (r *Reader) data() (d Data, err error) {
	if d.Flags, err = r.U32(); err != nil {
		return d, err
	}
	switch d.Flags {
	case 1:
	case 2:
		memory, err := r.U32()
		if err != nil {
			return d, err
		}
		if memory != 0 {
			return d, malformed("data for memory %d", memory)
		}
		fallthrough
	case 0:
		if d.Offset, err = r.ConstExpr(); err != nil {
			return d, err
		}
	default:
		return d, malformed("flags %d", d.Flags)
	}
	n, err := r.U32()
	if err != nil {
		return d, err
	}
	d.Init, err = r.Bytes(uint64(n))
	return d, err
}

func (r *Reader) code() (c Code, err error) {
	size, err := r.U32()
	if err != nil {
		return c, err
	}
	body, err := r.Bytes(uint64(size))
	if err != nil {
		return c, err
	}
	b := &Reader{buf: body}
	err = vector(b, "groups of locals", maxGroups, func(uint32) error {
		n, err := b.U32()
		if err != nil {
			return err
		}
		t, err := b.Byte()
		if err != nil {
			return err
		}
		if !ValType(t).valid() {
			return malformed("local of type 0x%02x", t)
		}
		c.Locals = append(c.Locals, Locals{Count: n, Type: ValType(t)})
		return nil
	})
	c.Body = body[b.pos:]
	return c, err
}
