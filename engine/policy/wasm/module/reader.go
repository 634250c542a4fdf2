package module

import "io"

// Opcodes that a rewriter looks at. Prefixed instructions are the prefix byte
// shifted left by eight, plus their number.
const (
	OpUnreachable  = 0x00
	OpBlock        = 0x02
	OpLoop         = 0x03
	OpIf           = 0x04
	OpElse         = 0x05
	OpEnd          = 0x0b
	OpBr           = 0x0c
	OpBrIf         = 0x0d
	OpBrTable      = 0x0e
	OpReturn       = 0x0f
	OpCall         = 0x10
	OpCallIndirect = 0x11
	OpLocalGet     = 0x20
	OpLocalSet     = 0x21
	OpLocalTee     = 0x22
	OpGlobalGet    = 0x23
	OpGlobalSet    = 0x24
	OpMemoryGrow   = 0x40
	OpRefFunc      = 0xd2
	OpMemoryInit   = 0xfc08
	OpMemoryCopy   = 0xfc0a
	OpMemoryFill   = 0xfc0b
	OpTableInit    = 0xfc0c
	OpTableCopy    = 0xfc0e
	OpTableGrow    = 0xfc0f
	OpTableFill    = 0xfc11
)

// Instr is one instruction: bytes Start to End of the reader's input.
type Instr struct {
	Op         uint32
	Start, End int
	// Index is the first index immediate: of a function, local, global, label,
	// type (of call_indirect) or segment. For a block it is its type index, or
	// NoIndex if the block has no type index.
	Index uint32
	// Targets are the labels of a br_table, the default last. The slice is reused
	// by the next call.
	Targets []uint32
}

// NoIndex is the Index of an instruction without one.
const NoIndex = ^uint32(0)

// Reader reads the binary format. Positions are offsets from the start of the
// input; every method fails rather than read past its end.
type Reader struct {
	buf     []byte
	pos     int
	targets []uint32
}

// NewReader reads b, which it does not change.
func NewReader(b []byte) *Reader { return &Reader{buf: b} }

// Done reports whether the input is used up.
func (r *Reader) Done() bool { return r.pos >= len(r.buf) }

// Byte reads one byte.
func (r *Reader) Byte() (byte, error) {
	if r.pos >= len(r.buf) {
		return 0, malformed("%v", io.ErrUnexpectedEOF)
	}
	r.pos++
	return r.buf[r.pos-1], nil
}

// Bytes reads n bytes; the result points into the input.
func (r *Reader) Bytes(n uint64) ([]byte, error) {
	if n > uint64(len(r.buf)-r.pos) {
		return nil, malformed("%d bytes wanted, %d left", n, len(r.buf)-r.pos)
	}
	r.pos += int(n)
	return r.buf[r.pos-int(n) : r.pos : r.pos], nil
}

// U32 reads an unsigned LEB128 number of at most five bytes.
func (r *Reader) U32() (uint32, error) {
	var v uint32
	for shift := 0; ; shift += 7 {
		b, err := r.Byte()
		if err != nil {
			return 0, err
		}
		if shift == 28 && b > 0x0f {
			return 0, malformed("number at offset %d does not fit 32 bits", r.pos)
		}
		v |= uint32(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
}

// signed reads a signed LEB128 number of the given width in bits.
func (r *Reader) signed(bits int) (int64, error) {
	var v int64
	for shift := 0; ; shift += 7 {
		b, err := r.Byte()
		if err != nil {
			return 0, err
		}
		if left := bits - shift; left < 7 {
			// The bits past the width must repeat the sign, and nothing may follow.
			high := b & 0x7f >> (left - 1)
			if b >= 0x80 || high != 0 && high != 0x7f>>(left-1) {
				return 0, malformed("number at offset %d does not fit %d bits", r.pos, bits)
			}
		}
		v |= int64(b&0x7f) << shift
		if b < 0x80 {
			if shift+7 < 64 && b&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			return v, nil
		}
	}
}

// ConstExpr reads a constant expression and returns it raw, its end included.
func (r *Reader) ConstExpr() ([]byte, error) {
	start := r.pos
	for {
		in, err := r.Next()
		if err != nil {
			return nil, err
		}
		switch in.Op {
		case OpEnd:
			return r.buf[start:r.pos:r.pos], nil
		case 0x41, 0x42, 0x43, 0x44, OpGlobalGet, 0xd0, OpRefFunc, 0xfd0c:
		default:
			return nil, malformed("instruction 0x%02x in a constant expression", in.Op)
		}
	}
}

// Next reads one instruction. Unknown instructions are an error, since what
// follows them could not be found.
func (r *Reader) Next() (Instr, error) {
	in := Instr{Start: r.pos, Index: NoIndex}
	b, err := r.Byte()
	if err != nil {
		return in, err
	}
	in.Op = uint32(b)
	switch {
	case b == OpBlock, b == OpLoop, b == OpIf:
		var t int64
		if t, err = r.signed(33); err != nil {
			break
		}
		if t >= 0 {
			in.Index = uint32(t)
		} else if t < -64 || t != -64 && !ValType(t&0x7f).valid() {
			err = malformed("block type %d at offset %d", t, in.Start)
		}
	case b == OpBr, b == OpBrIf, b == OpCall, b >= OpLocalGet && b <= OpGlobalSet, b == 0x25, b == 0x26, b == OpRefFunc:
		in.Index, err = r.U32()
	case b == OpBrTable:
		var n uint32
		if n, err = r.U32(); err != nil {
			break
		}
		if uint64(n) > uint64(len(r.buf)-r.pos) {
			err = malformed("br_table of %d labels at offset %d", n, in.Start)
			break
		}
		r.targets = r.targets[:0]
		for range uint64(n) + 1 {
			var l uint32
			if l, err = r.U32(); err != nil {
				break
			}
			r.targets = append(r.targets, l)
		}
		in.Targets = r.targets
	case b == OpCallIndirect:
		if in.Index, err = r.U32(); err == nil {
			_, err = r.U32()
		}
	case b <= 0x01, b == OpElse, b == OpEnd, b == OpReturn, b == 0x1a, b == 0x1b, b >= 0x45 && b <= 0xc4, b == 0xd1:
	case b == 0x1c:
		var list []ValType
		if list, err = r.types("select types", 1); err == nil && len(list) != 1 {
			err = malformed("select without a type at offset %d", in.Start)
		}
	case b >= 0x28 && b <= 0x3e:
		err = r.memarg()
	case b == 0x3f, b == OpMemoryGrow:
		err = r.zero()
	case b == 0x41:
		_, err = r.signed(32)
	case b == 0x42:
		_, err = r.signed(64)
	case b == 0x43:
		_, err = r.Bytes(4)
	case b == 0x44:
		_, err = r.Bytes(8)
	case b == 0xd0:
		var t byte
		if t, err = r.Byte(); err == nil && ValType(t) != FuncRef && ValType(t) != ExternRef {
			err = malformed("null of type 0x%02x at offset %d", t, in.Start)
		}
	case b == 0xfc:
		err = r.misc(&in)
	case b == 0xfd:
		err = r.vector(&in)
	default:
		err = malformed("instruction 0x%02x at offset %d is not part of WebAssembly 2.0", b, in.Start)
	}
	in.End = r.pos
	return in, err
}

// zero reads a memory index, of which there is only one, in one byte.
func (r *Reader) zero() error {
	b, err := r.Byte()
	if err == nil && b != 0 {
		err = malformed("memory %d at offset %d", b, r.pos)
	}
	return err
}

func (r *Reader) memarg() error {
	align, err := r.U32()
	if err != nil {
		return err
	}
	if align > 16 {
		return malformed("alignment 2^%d at offset %d", align, r.pos)
	}
	_, err = r.U32()
	return err
}

func (r *Reader) misc(in *Instr) error {
	// One byte only: compilers disagree about padded numbers of prefixed
	// instructions, and what they disagree about could hide a loop.
	b, err := r.Byte()
	if err != nil {
		return err
	}
	in.Op = 0xfc00 | uint32(b)
	switch b {
	case 0, 1, 2, 3, 4, 5, 6, 7:
	case 8: // memory.init
		if in.Index, err = r.U32(); err == nil {
			err = r.zero()
		}
	case 9, 13, 15, 16, 17:
		in.Index, err = r.U32()
	case 10: // memory.copy
		if err = r.zero(); err == nil {
			err = r.zero()
		}
	case 11:
		err = r.zero()
	case 12, 14:
		if in.Index, err = r.U32(); err == nil {
			_, err = r.U32()
		}
	default:
		err = malformed("instruction 0xfc 0x%02x at offset %d is not part of WebAssembly 2.0", b, in.Start)
	}
	return err
}

func (r *Reader) vector(in *Instr) error {
	b, err := r.Byte()
	if err != nil {
		return err
	}
	if b >= 0x80 {
		second, err := r.Byte()
		if err != nil {
			return err
		}
		if second != 0x01 {
			return malformed("instruction 0xfd 0x%02x 0x%02x at offset %d is not part of WebAssembly 2.0", b, second, in.Start)
		}
	}
	in.Op = 0xfd00 | uint32(b)
	switch {
	case b <= 11, b == 92, b == 93:
		err = r.memarg()
	case b == 12, b == 13:
		_, err = r.Bytes(16)
	case b >= 21 && b <= 34:
		_, err = r.Byte()
	case b >= 84 && b <= 91:
		if err = r.memarg(); err == nil {
			_, err = r.Byte()
		}
	}
	return err
}
