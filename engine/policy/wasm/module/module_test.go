package module_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/asm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

func TestDecode(t *testing.T) {
	b := &asm.Module{}
	log := b.Import("dovetail_v1", "log", asm.T{asm.I32, asm.I32, asm.I32}, nil)
	b.Table(2, 9)
	b.Memory(1, -1)
	b.Global(asm.I64, true, asm.I64C(-5))
	f := b.Func(asm.T{asm.I64}, asm.T{asm.I64}, asm.T{asm.I32}, asm.Get(0))
	b.Element(1, f, log)
	b.Data(16, []byte("text"))
	b.Passive([]byte("more"))
	b.Export("f", module.KindFunc, f)
	b.Start(log)
	b.Custom("dovetail.policy", []byte("{}"))

	m, err := module.Decode(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	two, start := uint32(2), uint32(0)
	want := &module.Module{
		Types:     []module.FuncType{{Params: asm.T{asm.I32, asm.I32, asm.I32}}, {Params: asm.T{asm.I64}, Results: asm.T{asm.I64}}},
		Imports:   []module.Import{{Module: "dovetail_v1", Name: "log"}},
		Funcs:     []uint32{1},
		Tables:    []module.Table{{Type: module.FuncRef, Limits: module.Limits{Min: 2, Max: 9, HasMax: true}}},
		Memories:  []module.Limits{{Min: 1}},
		Globals:   []module.Global{{Type: asm.I64, Mutable: true, Init: []byte{0x42, 0x7b, 0x0b}}},
		Exports:   []module.Export{{Name: "f", Index: 1}},
		Start:     &start,
		Elements:  []module.Element{{Offset: []byte{0x41, 1, 0x0b}, Funcs: []uint32{1, 0}}},
		DataCount: &two,
		Code:      []module.Code{{Locals: []module.Locals{{Count: 1, Type: asm.I32}}, Body: []byte{0x20, 0, 0x0b}}},
		Data:      []module.Data{{Offset: []byte{0x41, 16, 0x0b}, Init: []byte("text")}, {Flags: 1, Init: []byte("more")}},
		Customs:   []module.Custom{{Name: "dovetail.policy", Data: []byte("{}")}},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("Decode() (-want +got):\n%s", diff)
	}
	for index, want := range map[uint32]string{0: "(i32, i32, i32) -> ()", 1: "(i64) -> (i64)"} {
		if got, ok := m.FuncType(index); !ok || got.String() != want {
			t.Errorf("FuncType(%d) = %s, %t, want %s", index, got, ok, want)
		}
	}
	if _, ok := m.FuncType(2); ok {
		t.Error("there is a function 2 of 2")
	}
	if got, ok := m.Custom("dovetail.policy"); !ok || string(got) != "{}" {
		t.Errorf("Custom() = %q, %t", got, ok)
	}
}

func TestNumbers(t *testing.T) {
	for _, want := range []uint32{0, 1, 127, 128, 300, math.MaxUint32} {
		if got, err := module.NewReader(asm.U(uint64(want))).U32(); err != nil || got != want {
			t.Errorf("U32 of %d = %d, %v", want, got, err)
		}
	}
	tests := map[string]struct {
		number []byte
		ok     bool
	}{
		"padded to five bytes":                {[]byte{0x81, 0x80, 0x80, 0x80, 0x00}, true},
		"six bytes":                           {[]byte{0x81, 0x80, 0x80, 0x80, 0x80, 0x00}, false},
		"a bit too many":                      {[]byte{0xff, 0xff, 0xff, 0xff, 0x1f}, false},
		"a cut number":                        {[]byte{0x80}, false},
		"i32.const of the least number":       {[]byte{0x41, 0x80, 0x80, 0x80, 0x80, 0x78}, true},
		"i32.const beyond the least number":   {[]byte{0x41, 0x80, 0x80, 0x80, 0x80, 0x70}, false},
		"i32.const of six bytes":              {[]byte{0x41, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00}, false},
		"i64.const of the least number":       {[]byte{0x42, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f}, true},
		"i64.const beyond the largest number": {[]byte{0x42, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, false},
		"a block of an unknown type":          {[]byte{0x02, 0x41}, false},
		"a block of a type index":             {[]byte{0x02, 0x05}, true},
		"a block of no type":                  {[]byte{0x02, 0x40}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := module.NewReader(test.number)
			var err error
			if test.number[0] == 0x41 || test.number[0] == 0x42 || test.number[0] == 0x02 {
				_, err = r.Next()
			} else {
				_, err = r.U32()
			}
			if (err == nil) != test.ok || err == nil && !r.Done() {
				t.Errorf("error = %v, want ok = %t and all bytes used", err, test.ok)
			}
		})
	}
}

func TestInstructions(t *testing.T) {
	tests := map[string]struct {
		code    []byte
		op      uint32
		index   uint32
		targets []uint32
	}{
		"call":              {[]byte{0x10, 0x87, 0x00}, module.OpCall, 7, nil},
		"call_indirect":     {[]byte{0x11, 3, 1}, module.OpCallIndirect, 3, nil},
		"br_table":          {[]byte{0x0e, 2, 5, 6, 7}, module.OpBrTable, module.NoIndex, []uint32{5, 6, 7}},
		"i32.load":          {[]byte{0x28, 2, 0x80, 1}, 0x28, module.NoIndex, nil},
		"select with type":  {[]byte{0x1c, 1, 0x7f}, 0x1c, module.NoIndex, nil},
		"memory.init":       {[]byte{0xfc, 8, 4, 0}, module.OpMemoryInit, 4, nil},
		"table.copy":        {[]byte{0xfc, 14, 1, 0}, module.OpTableCopy, 1, nil},
		"v128.const":        {append([]byte{0xfd, 12}, make([]byte, 16)...), 0xfd0c, module.NoIndex, nil},
		"i8x16.shuffle":     {append([]byte{0xfd, 13}, make([]byte, 16)...), 0xfd0d, module.NoIndex, nil},
		"v128.load32_lane":  {[]byte{0xfd, 86, 2, 0, 3}, 0xfd56, module.NoIndex, nil},
		"v128.load64_zero":  {[]byte{0xfd, 93, 3, 0}, 0xfd5d, module.NoIndex, nil},
		"i32x4.extract":     {[]byte{0xfd, 27, 2}, 0xfd1b, module.NoIndex, nil},
		"f64x2.sqrt":        {[]byte{0xfd, 0xef, 0x01}, 0xfdef, module.NoIndex, nil},
		"i64.trunc_sat_f64": {[]byte{0xfc, 6}, 0xfc06, module.NoIndex, nil},
		"ref.func":          {[]byte{0xd2, 9}, module.OpRefFunc, 9, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := module.NewReader(test.code)
			in, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if in.Op != test.op || in.Index != test.index || !slices.Equal(in.Targets, test.targets) || in.End != len(test.code) {
				t.Errorf("Next() = %+v, want op %#x, index %d, targets %v, %d bytes", in, test.op, test.index, test.targets, len(test.code))
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	change := func(f func(b *asm.Module)) []byte {
		b := &asm.Module{}
		f(b)
		return b.Bytes()
	}
	tests := map[string]struct {
		wasm    []byte
		want    error
		mention string
	}{
		"a function of an unknown type": {change(func(b *asm.Module) { b.FuncRaw(5, []byte{0, 0x0b}) }), module.ErrFormat, "type 5 of 0"},
		"an export of nothing":          {change(func(b *asm.Module) { b.Export("f", module.KindFunc, 0) }), module.ErrFormat, `export "f" is function 0 of 0`},
		"a repeated export": {change(func(b *asm.Module) {
			b.Memory(1, 1)
			b.Export("m", module.KindMemory, 0)
			b.Export("m", module.KindMemory, 0)
		}), module.ErrFormat, `"m" is repeated`},
		"a start function of nothing":             {change(func(b *asm.Module) { b.Start(3) }), module.ErrFormat, "start function 3 of 0"},
		"an element of nothing":                   {change(func(b *asm.Module) { b.Table(1, 1); b.Element(0, 4) }), module.ErrFormat, "function 4 of 0"},
		"a global that reads a later global":      {change(func(b *asm.Module) { b.Global(asm.I64, false, []byte{0x23, 7}) }), module.ErrFormat, "global 7 of 1"},
		"a call in a constant":                    {change(func(b *asm.Module) { b.Global(asm.I64, false, []byte{0x10, 0}) }), module.ErrFormat, "0x10 in a constant"},
		"a limit below its minimum":               {change(func(b *asm.Module) { b.Memory(5, 2) }), module.ErrFormat, "from 5 to 2"},
		"a data count that is not true":           {slices.Concat(asm.Header, asm.Section(12, []byte{3})), module.ErrFormat, "data count 3"},
		"bytes left over in a section":            {slices.Concat(asm.Header, asm.Section(1, []byte{0, 1, 2})), module.ErrFormat, "left over"},
		"a name that is not UTF-8":                {slices.Concat(asm.Header, asm.Section(0, []byte{1, 0xff})), module.ErrFormat, "UTF-8"},
		"a name of 5,000 bytes":                   {slices.Concat(asm.Header, asm.Section(0, slices.Concat(asm.U(5000), make([]byte, 5000)))), module.ErrLimit, "name bytes"},
		"more parameters than bytes":              {slices.Concat(asm.Header, asm.Section(1, []byte{1, 0x60, 100})), module.ErrFormat, ""},
		"a table of numbers":                      {slices.Concat(asm.Header, asm.Section(4, []byte{1, 0x7f, 0, 1})), module.ErrFormat, "table of 0x7f"},
		"data for a second memory":                {slices.Concat(asm.Header, asm.Section(11, []byte{1, 2, 1, 0x41, 0, 0x0b, 0})), module.ErrFormat, "memory 1"},
		"an element segment with an unknown form": {slices.Concat(asm.Header, asm.Section(9, []byte{1, 8})), module.ErrFormat, "flags 8"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := module.Decode(test.wasm)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.mention) {
				t.Errorf("Decode() error = %v, want %v with %q", err, test.want, test.mention)
			}
		})
	}
}

// FuzzDecode: no bytes make the reader panic or take much more memory than they have.
func FuzzDecode(f *testing.F) {
	b := &asm.Module{}
	b.Memory(1, -1)
	b.Func(asm.T{asm.I64}, asm.T{asm.I64}, asm.T{asm.I32}, asm.Get(0))
	b.Data(16, []byte("text"))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, wasm []byte) {
		m, err := module.Decode(wasm)
		if err != nil {
			if !errors.Is(err, module.ErrFormat) && !errors.Is(err, module.ErrLimit) {
				t.Fatalf("error %v is of neither kind", err)
			}
			return
		}
		for _, c := range m.Code {
			for r := module.NewReader(c.Body); !r.Done(); {
				if _, err := r.Next(); err != nil {
					break
				}
			}
		}
	})
}
