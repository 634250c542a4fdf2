// Package asm writes small WebAssembly modules by hand, for tests of the host:
// also such as no compiler would produce.
package asm

import (
	"encoding/binary"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

// Module collects the parts of a module. The zero value is an empty module;
// indices are those that the methods return, functions counting imports first, so
// every import must be added before the first function.
type Module struct {
	types    [][]byte
	imports  [][]byte
	funcs    [][]byte
	tables   [][]byte
	memories [][]byte
	globals  [][]byte
	exports  [][]byte
	start    []byte
	elements [][]byte
	code     [][]byte
	data     [][]byte
	customs  [][]byte
	imported uint32
}

// T is a list of value types.
type T = []module.ValType

// The value types, under short names.
const (
	I32 = module.I32
	I64 = module.I64
	F64 = module.F64
)

// U is an unsigned LEB128 number.
func U(v uint64) []byte { return binary.AppendUvarint(nil, v) }

// S is a signed LEB128 number.
func S(v int64) []byte {
	var b []byte
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// Cat joins pieces of code.
func Cat(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// Repeat is n copies of code.
func Repeat(n int, code ...byte) []byte {
	b := make([]byte, 0, n*len(code))
	for range n {
		b = append(b, code...)
	}
	return b
}

// I32C pushes an i32.
func I32C(v int32) []byte { return append([]byte{0x41}, S(int64(v))...) }

// I64C pushes an i64.
func I64C(v int64) []byte { return append([]byte{0x42}, S(v)...) }

// Get, Set and Tee read and write a local.
func Get(i uint32) []byte { return append([]byte{0x20}, U(uint64(i))...) }

// Set pops into a local.
func Set(i uint32) []byte { return append([]byte{0x21}, U(uint64(i))...) }

// Tee copies into a local.
func Tee(i uint32) []byte { return append([]byte{0x22}, U(uint64(i))...) }

// Call calls a function.
func Call(f uint32) []byte { return append([]byte{0x10}, U(uint64(f))...) }

func sized(b []byte) []byte { return append(U(uint64(len(b))), b...) }

func name(s string) []byte { return sized([]byte(s)) }

func valtypes(t T) []byte {
	b := U(uint64(len(t)))
	for _, v := range t {
		b = append(b, byte(v))
	}
	return b
}

// Type adds a function type.
func (m *Module) Type(params, results T) uint32 {
	m.types = append(m.types, Cat([]byte{0x60}, valtypes(params), valtypes(results)))
	return uint32(len(m.types) - 1)
}

// Import adds an imported function.
func (m *Module) Import(mod, field string, params, results T) uint32 {
	m.imports = append(m.imports, Cat(name(mod), name(field), []byte{0}, U(uint64(m.Type(params, results)))))
	m.imported++
	return m.imported - 1
}

// ImportRaw adds an import with a raw description: its kind and what follows.
func (m *Module) ImportRaw(mod, field string, desc ...byte) {
	m.imports = append(m.imports, Cat(name(mod), name(field), desc))
}

// Func adds a function with extra locals; code lacks the final end.
func (m *Module) Func(params, results, locals T, code ...[]byte) uint32 {
	groups := U(uint64(len(locals)))
	for _, l := range locals {
		groups = append(groups, 1, byte(l))
	}
	return m.FuncRaw(m.Type(params, results), Cat(groups, Cat(code...), []byte{0x0b}))
}

// FuncRaw adds a function of a type with a raw body: groups of locals and
// instructions, the final end included.
func (m *Module) FuncRaw(typ uint32, body []byte) uint32 {
	m.funcs = append(m.funcs, U(uint64(typ)))
	m.code = append(m.code, sized(body))
	return m.imported + uint32(len(m.funcs)-1)
}

// Table adds a table of functions; max < 0 is none.
func (m *Module) Table(low, high int64) {
	m.tables = append(m.tables, Cat([]byte{byte(module.FuncRef)}, limits(low, high)))
}

// Memory adds a memory of pages; max < 0 is none.
func (m *Module) Memory(low, high int64) { m.memories = append(m.memories, limits(low, high)) }

func limits(low, high int64) []byte {
	if high < 0 {
		return append([]byte{0}, U(uint64(low))...)
	}
	return Cat([]byte{1}, U(uint64(low)), U(uint64(high)))
}

// Global adds a global with a raw initial expression, without its end.
func (m *Module) Global(t module.ValType, mutable bool, init []byte) uint32 {
	mut := byte(0)
	if mutable {
		mut = 1
	}
	m.globals = append(m.globals, Cat([]byte{byte(t), mut}, init, []byte{0x0b}))
	return uint32(len(m.globals) - 1)
}

// Export exports something.
func (m *Module) Export(field string, kind module.Kind, index uint32) {
	m.exports = append(m.exports, Cat(name(field), []byte{byte(kind)}, U(uint64(index))))
}

// Start sets the start function.
func (m *Module) Start(f uint32) { m.start = U(uint64(f)) }

// Element adds an active segment of functions for table 0.
func (m *Module) Element(offset int32, funcs ...uint32) {
	b := Cat([]byte{0}, I32C(offset), []byte{0x0b}, U(uint64(len(funcs))))
	for _, f := range funcs {
		b = append(b, U(uint64(f))...)
	}
	m.elements = append(m.elements, b)
}

// ElementRaw adds a raw element segment.
func (m *Module) ElementRaw(b ...byte) { m.elements = append(m.elements, b) }

// Data adds an active data segment.
func (m *Module) Data(offset int32, init []byte) {
	m.data = append(m.data, Cat([]byte{0}, I32C(offset), []byte{0x0b}, sized(init)))
}

// Passive adds a passive data segment.
func (m *Module) Passive(init []byte) { m.data = append(m.data, Cat([]byte{1}, sized(init))) }

// Custom adds a custom section at the end.
func (m *Module) Custom(field string, content []byte) {
	m.customs = append(m.customs, Cat(name(field), content))
}

// Header is the magic and version of a core module.
var Header = []byte("\x00asm\x01\x00\x00\x00")

// Section is a raw section.
func Section(id byte, body []byte) []byte { return append([]byte{id}, sized(body)...) }

// Bytes is the module in binary form.
func (m *Module) Bytes() []byte {
	b := append([]byte{}, Header...)
	vec := func(id byte, items [][]byte) {
		if len(items) > 0 {
			b = append(b, Section(id, append(U(uint64(len(items))), Cat(items...)...))...)
		}
	}
	vec(1, m.types)
	vec(2, m.imports)
	vec(3, m.funcs)
	vec(4, m.tables)
	vec(5, m.memories)
	vec(6, m.globals)
	vec(7, m.exports)
	if m.start != nil {
		b = append(b, Section(8, m.start)...)
	}
	vec(9, m.elements)
	if len(m.data) > 0 {
		b = append(b, Section(12, U(uint64(len(m.data))))...)
	}
	vec(10, m.code)
	vec(11, m.data)
	for _, c := range m.customs {
		b = append(b, Section(0, c)...)
	}
	return b
}
