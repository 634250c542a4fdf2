package frame

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Hook is the question of a frame, by its number in the ABI.
type Hook uint16

// The hooks, and the mark of a frame that reports a guest's error.
const (
	Score   Hook = 1
	Disrupt Hook = 2
	Admit   Hook = 3
	Launch  Hook = 4

	Failure Hook = 0xffff
)

// Hooks lists all hooks.
func Hooks() []Hook { return []Hook{Score, Disrupt, Admit, Launch} }

func (h Hook) String() string {
	switch h {
	case Score:
		return "score"
	case Disrupt:
		return "disrupt"
	case Admit:
		return "admit"
	case Launch:
		return "launch"
	case Failure:
		return "failure"
	}
	return fmt.Sprintf("hook %d", uint16(h))
}

// Export is the name of the function that a module exports for the hook.
func (h Hook) Export() string { return "dv_" + h.String() }

// Type is the type of a column or of a context value.
type Type uint8

// The types. String values are indices into the frame's string table.
const (
	I32    Type = 1
	I64    Type = 2
	F64    Type = 3
	String Type = 4
	U8     Type = 5
)

func (t Type) String() string {
	switch t {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case F64:
		return "f64"
	case String:
		return "string"
	case U8:
		return "u8"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

func (t Type) size() int {
	switch t {
	case I32, String:
		return 4
	case I64, F64:
		return 8
	case U8:
		return 1
	}
	return 0
}

const (
	// Magic is the first word of a frame, "DVF1".
	Magic = 0x31465644
	// Minor is the minor version of the ABI that this package writes.
	Minor = 0
	// MaxRows is the largest number of rows.
	MaxRows = 65536
	// MaxColumns is the largest number of columns.
	MaxColumns = 256
	// None is the string id of a row without a value.
	None = ^uint32(0)
	// NoI32 and NoI64 are the values of a row without a value.
	NoI32 = math.MinInt32
	NoI64 = math.MinInt64

	headerSize = 40
	columnSize = 8
	valueSize  = 16
)

// Strings is a set of strings that columns refer to by index. One set may serve many
// frames, so that a catalogue is interned once; a frame carries the strings it uses.
// Adding is not safe while another goroutine uses the set. The zero value is empty.
type Strings struct {
	list []string
	ids  map[string]uint32
}

// ID is the index of s, which is added if it is new. Bytes that are not UTF-8 become
// replacement characters.
func (s *Strings) ID(text string) uint32 {
	if id, ok := s.ids[text]; ok {
		return id
	}
	if valid := strings.ToValidUTF8(text, "\uFFFD"); valid != text {
		return s.ID(valid)
	}
	if s.ids == nil {
		s.ids = map[string]uint32{}
	}
	id := uint32(len(s.list))
	s.list = append(s.list, text)
	s.ids[text] = id
	return id
}

// Text is the string with that index, or "" if there is none.
func (s *Strings) Text(id uint32) string {
	if s == nil || uint64(id) >= uint64(len(s.list)) {
		return ""
	}
	return s.list[id]
}

// Len is the number of strings.
func (s *Strings) Len() int {
	if s == nil {
		return 0
	}
	return len(s.list)
}

// Column is one column of a table: the slice that belongs to Type, a value for each row.
// Str holds indices into the table's Strings, or [None].
type Column struct {
	ID   uint16
	Type Type
	I32  []int32
	I64  []int64
	F64  []float64
	Str  []uint32
	U8   []uint8
}

// Len is the number of values.
func (c *Column) Len() int {
	switch c.Type {
	case I32:
		return len(c.I32)
	case I64:
		return len(c.I64)
	case F64:
		return len(c.F64)
	case String:
		return len(c.Str)
	case U8:
		return len(c.U8)
	}
	return 0
}

// Value is one entry of the context: the field that belongs to Type. Int holds the
// integer types; a U8 is a boolean, 0 or 1.
type Value struct {
	Key   string
	Type  Type
	Int   int64
	Float float64
	Text  string
}

// Table is the content of a frame.
type Table struct {
	Hook Hook
	// Minor version of the ABI. [Encode] writes it as it is.
	Minor uint16
	// Rows is the length of every column, at most [MaxRows].
	Rows    int
	Columns []Column
	// Context is what is not a row. [Encode] sorts the context of a question by key, and
	// refuses repeated keys; in an answer the order has a meaning and is kept.
	Context []Value
	// Strings that string columns refer to; may be nil without such columns.
	Strings *Strings
	// Ordered keeps Context as it is: for answers.
	Ordered bool
}

// Column finds a column.
func (t *Table) Column(id uint16) *Column {
	for i := range t.Columns {
		if t.Columns[i].ID == id {
			return &t.Columns[i]
		}
	}
	return nil
}

// Encoder writes frames into a buffer that it keeps. It is not safe for concurrent use.
// The zero value is ready.
type Encoder struct {
	buf   []byte
	ids   []uint32 // by index into Table.Strings, plus one; 0 is unused so far
	used  []string
	extra map[string]uint32
	cols  []int
	vals  []int
}

// Encode is t as a frame: see [Encoder.Encode].
func Encode(t *Table) ([]byte, error) { return new(Encoder).Encode(t) }

func bad(format string, args ...any) error { return fmt.Errorf("frame: "+format, args...) }

// Encode returns t as a frame. The bytes are valid until the next call. It is an error
// if a column has another length than the table, ids or keys are repeated, a type is not
// known, or a float is not finite.
func (e *Encoder) Encode(t *Table) ([]byte, error) {
	if t.Rows < 0 || t.Rows > MaxRows {
		return nil, bad("%d rows, 0 to %d are allowed", t.Rows, MaxRows)
	}
	if len(t.Columns) > MaxColumns {
		return nil, bad("%d columns, at most %d are allowed", len(t.Columns), MaxColumns)
	}
	e.ids = append(e.ids[:0], make([]uint32, t.Strings.Len())...)
	e.used = e.used[:0]
	clear(e.extra)

	e.cols = e.cols[:0]
	for i := range t.Columns {
		e.cols = append(e.cols, i)
	}
	slices.SortFunc(e.cols, func(a, b int) int { return int(t.Columns[a].ID) - int(t.Columns[b].ID) })
	e.vals = e.vals[:0]
	for i := range t.Context {
		e.vals = append(e.vals, i)
	}
	if !t.Ordered {
		slices.SortStableFunc(e.vals, func(a, b int) int { return strings.Compare(t.Context[a].Key, t.Context[b].Key) })
	}

	b := append(e.buf[:0], make([]byte, headerSize)...)
	directory := len(b)
	b = append(b, make([]byte, columnSize*len(e.cols))...)
	values := len(b)
	for n, i := range e.vals {
		v := &t.Context[i]
		if n > 0 && !t.Ordered && t.Context[e.vals[n-1]].Key == v.Key {
			return nil, bad("key %q is repeated", v.Key)
		}
		var bits uint64
		switch v.Type {
		case I32, I64, U8:
			bits = uint64(v.Int)
		case F64:
			if math.IsNaN(v.Float) || math.IsInf(v.Float, 0) {
				return nil, bad("key %q is %v", v.Key, v.Float)
			}
			bits = math.Float64bits(v.Float)
		case String:
		default:
			return nil, bad("key %q has %s", v.Key, v.Type)
		}
		b = binary.LittleEndian.AppendUint32(b, e.text(t.Strings, v.Key))
		b = binary.LittleEndian.AppendUint32(b, uint32(v.Type))
		if v.Type == String {
			bits = uint64(e.text(t.Strings, v.Text))
		}
		b = binary.LittleEndian.AppendUint64(b, bits)
	}
	for n, i := range e.cols {
		c := &t.Columns[i]
		if n > 0 && t.Columns[e.cols[n-1]].ID == c.ID {
			return nil, bad("column %d is repeated", c.ID)
		}
		if c.Type.size() == 0 {
			return nil, bad("column %d has %s", c.ID, c.Type)
		}
		if c.Len() != t.Rows {
			return nil, bad("column %d has %d values for %d rows", c.ID, c.Len(), t.Rows)
		}
		at := directory + columnSize*n
		binary.LittleEndian.PutUint16(b[at:], c.ID)
		b[at+2] = byte(c.Type)
		binary.LittleEndian.PutUint32(b[at+4:], uint32(len(b)))
		var err error
		if b, err = e.column(b, t.Strings, c); err != nil {
			return nil, err
		}
		b = pad(b)
	}
	texts := len(b)
	at := uint32(0)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, s := range e.used {
		at += uint32(len(s))
		b = binary.LittleEndian.AppendUint32(b, at)
	}
	for _, s := range e.used {
		b = append(b, s...)
	}
	b = pad(b)
	e.buf = b
	if len(b) > math.MaxInt32 {
		return nil, bad("%d bytes are too large", len(b))
	}

	le := binary.LittleEndian
	le.PutUint32(b[0:], Magic)
	le.PutUint16(b[4:], uint16(t.Hook))
	le.PutUint16(b[6:], t.Minor)
	le.PutUint32(b[8:], uint32(len(b)))
	le.PutUint32(b[12:], uint32(t.Rows))
	le.PutUint32(b[16:], uint32(len(e.cols)))
	le.PutUint32(b[20:], uint32(directory))
	le.PutUint32(b[24:], uint32(len(e.vals)))
	le.PutUint32(b[28:], uint32(values))
	le.PutUint32(b[32:], uint32(len(e.used)))
	le.PutUint32(b[36:], uint32(texts))
	return b, nil
}

func pad(b []byte) []byte {
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// text is the id in the frame of a string that may not be in the set.
func (e *Encoder) text(set *Strings, s string) uint32 {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if set != nil {
		if id, ok := set.ids[s]; ok {
			return e.number(set, id)
		}
	}
	if id, ok := e.extra[s]; ok {
		return id
	}
	if e.extra == nil {
		e.extra = map[string]uint32{}
	}
	id := uint32(len(e.used))
	e.extra[s] = id
	e.used = append(e.used, s)
	return id
}

// number is the id in the frame of a string of the set: strings are numbered in the order
// of their first use, so that the order of the set does not show.
func (e *Encoder) number(set *Strings, id uint32) uint32 {
	if n := e.ids[id]; n != 0 {
		return n - 1
	}
	n := uint32(len(e.used))
	e.ids[id] = n + 1
	e.used = append(e.used, set.list[id])
	return n
}

func (e *Encoder) column(b []byte, set *Strings, c *Column) ([]byte, error) {
	from := len(b)
	size := c.Type.size()
	b = slices.Grow(b, size*c.Len())[:from+size*c.Len()]
	to := b[from:]
	le := binary.LittleEndian
	switch c.Type {
	case I32:
		for i, v := range c.I32 {
			le.PutUint32(to[4*i:], uint32(v))
		}
	case I64:
		for i, v := range c.I64 {
			le.PutUint64(to[8*i:], uint64(v))
		}
	case F64:
		for i, v := range c.F64 {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, bad("column %d, row %d is %v", c.ID, i, v)
			}
			le.PutUint64(to[8*i:], math.Float64bits(v))
		}
	case String:
		for i, id := range c.Str {
			n := None
			if id != None {
				if uint64(id) >= uint64(len(e.ids)) {
					return nil, bad("column %d, row %d: string %d of %d", c.ID, i, id, len(e.ids))
				}
				n = e.number(set, id)
			}
			le.PutUint32(to[4*i:], n)
		}
	case U8:
		copy(to, c.U8)
	}
	return b, nil
}

// Frame is a checked frame of bytes that it does not change, and that must not change
// while it is used.
type Frame struct {
	Hook    Hook
	Minor   uint16
	Rows    int
	buf     []byte
	columns []column
	values  []byte // the context's entries
	count   int    // strings
	offsets []byte // of the strings, one more than there are
	text    string
}

type column struct {
	id   uint16
	kind Type
	data []byte
}

// section returns count items of size bytes at offset.
func section(b []byte, what string, offset uint32, count, size uint64) ([]byte, error) {
	if count == 0 {
		return nil, nil
	}
	if offset%8 != 0 {
		return nil, bad("%s: offset %d is not a multiple of 8", what, offset)
	}
	if n := uint64(len(b)); uint64(offset) < headerSize || uint64(offset) > n || count > (n-uint64(offset))/size {
		return nil, bad("%s: %d × %d bytes at offset %d are outside the frame of %d bytes", what, count, size, offset, n)
	}
	return b[offset : uint64(offset)+count*size], nil
}

// Decode checks a frame. Columns of types that are not known are left out. The result
// refers to b.
func Decode(b []byte) (*Frame, error) {
	if len(b) < headerSize {
		return nil, bad("%d bytes, a header has %d", len(b), headerSize)
	}
	le := binary.LittleEndian
	if m := le.Uint32(b); m != Magic {
		return nil, bad("magic 0x%08x, want 0x%08x", m, uint32(Magic))
	}
	f := &Frame{Hook: Hook(le.Uint16(b[4:])), Minor: le.Uint16(b[6:]), buf: b}
	if n := le.Uint32(b[8:]); uint64(n) != uint64(len(b)) {
		return nil, bad("length %d in a frame of %d bytes", n, len(b))
	}
	rows := le.Uint32(b[12:])
	if rows > MaxRows {
		return nil, bad("%d rows, at most %d are allowed", rows, MaxRows)
	}
	f.Rows = int(rows)

	count := le.Uint32(b[32:])
	offset := le.Uint32(b[36:])
	if count > 0 {
		var err error
		if f.offsets, err = section(b, "string table", offset, uint64(count)+1, 4); err != nil {
			return nil, err
		}
		f.count = int(count)
		text := b[int(offset)+len(f.offsets):]
		last := uint32(0)
		for i := range f.count + 1 {
			at := le.Uint32(f.offsets[4*i:])
			if at < last || uint64(at) > uint64(len(text)) || i == 0 && at != 0 {
				return nil, bad("string %d: offset %d after %d, with %d bytes of text", i, at, last, len(text))
			}
			last = at
		}
		f.text = string(text[:last])
		if !utf8.ValidString(f.text) {
			return nil, bad("strings are not UTF-8")
		}
		for i := range f.count {
			// Every string must be UTF-8, not only their concatenation.
			if at := le.Uint32(f.offsets[4*i:]); at < last && !utf8.RuneStart(f.text[at]) {
				return nil, bad("string %d is not UTF-8", i)
			}
		}
	}

	count = le.Uint32(b[16:])
	if count > MaxColumns {
		return nil, bad("%d columns, at most %d are allowed", count, MaxColumns)
	}
	directory, err := section(b, "column directory", le.Uint32(b[20:]), uint64(count), columnSize)
	if err != nil {
		return nil, err
	}
	for i := range int(count) {
		d := directory[columnSize*i:]
		c := column{id: le.Uint16(d), kind: Type(d[2])}
		if f.find(c.id) != nil {
			return nil, bad("column %d is repeated", c.id)
		}
		size := c.kind.size()
		if size == 0 {
			continue
		}
		if c.data, err = section(b, fmt.Sprintf("column %d", c.id), le.Uint32(d[4:]), uint64(rows), uint64(size)); err != nil {
			return nil, err
		}
		if c.kind == String {
			for r := range f.Rows {
				if id := le.Uint32(c.data[4*r:]); id != None && uint64(id) >= uint64(f.count) {
					return nil, bad("column %d, row %d: string %d of %d", c.id, r, id, f.count)
				}
			}
		}
		f.columns = append(f.columns, c)
	}

	count = le.Uint32(b[24:])
	if f.values, err = section(b, "context", le.Uint32(b[28:]), uint64(count), valueSize); err != nil {
		return nil, err
	}
	for i := range len(f.values) / valueSize {
		v := f.values[valueSize*i:]
		if id := le.Uint32(v); uint64(id) >= uint64(f.count) {
			return nil, bad("context entry %d: key is string %d of %d", i, id, f.count)
		}
		if le.Uint32(v[4:]) == uint32(String) && le.Uint64(v[8:]) >= uint64(f.count) {
			return nil, bad("context entry %d: string %d of %d", i, le.Uint64(v[8:]), f.count)
		}
	}
	return f, nil
}

func (f *Frame) find(id uint16) *column {
	for i := range f.columns {
		if f.columns[i].id == id {
			return &f.columns[i]
		}
	}
	return nil
}

// Text is a string of the table; "" for [None].
func (f *Frame) Text(id uint32) string {
	if uint64(id) >= uint64(f.count) {
		return ""
	}
	le := binary.LittleEndian
	return f.text[le.Uint32(f.offsets[4*id:]):le.Uint32(f.offsets[4*id+4:])]
}

// Values is the number of context entries.
func (f *Frame) Values() int { return len(f.values) / valueSize }

// Value is a context entry. Its Type may be one that is not known; then only the key is
// set.
func (f *Frame) Value(i int) Value {
	le := binary.LittleEndian
	b := f.values[valueSize*i:]
	kind, bits := le.Uint32(b[4:]), le.Uint64(b[8:])
	v := Value{Key: f.Text(le.Uint32(b))}
	if kind > math.MaxUint8 {
		return v
	}
	switch Type(kind) {
	case I32:
		v.Type, v.Int = I32, int64(int32(bits))
	case I64:
		v.Type, v.Int = I64, int64(bits)
	case U8:
		v.Type, v.Int = U8, int64(uint8(bits))
	case F64:
		v.Type, v.Float = F64, math.Float64frombits(bits)
	case String:
		v.Type, v.Text = String, f.Text(uint32(bits))
	}
	return v
}

// Table copies the frame into a table of its own.
func (f *Frame) Table() *Table {
	t := &Table{Hook: f.Hook, Minor: f.Minor, Rows: f.Rows, Strings: &Strings{}, Ordered: true}
	le := binary.LittleEndian
	for _, c := range f.columns {
		out := Column{ID: c.id, Type: c.kind}
		for r := range f.Rows {
			switch c.kind {
			case I32:
				out.I32 = append(out.I32, int32(le.Uint32(c.data[4*r:])))
			case I64:
				out.I64 = append(out.I64, int64(le.Uint64(c.data[8*r:])))
			case F64:
				out.F64 = append(out.F64, math.Float64frombits(le.Uint64(c.data[8*r:])))
			case U8:
				out.U8 = append(out.U8, c.data[r])
			case String:
				id := le.Uint32(c.data[4*r:])
				if id != None {
					id = t.Strings.ID(f.Text(id))
				}
				out.Str = append(out.Str, id)
			}
		}
		t.Columns = append(t.Columns, out)
	}
	for i := range f.Values() {
		t.Context = append(t.Context, f.Value(i))
	}
	return t
}
