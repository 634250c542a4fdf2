package fuel

import (
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

const (
	// perUnit is the cost of plain instructions that one unit stands for.
	perUnit = 64
	// small is the cost up to which a stretch of code of a small function is paid
	// for as a whole, also for what a branch then skips.
	small = 512
	// large is the same for functions that cost more than small: compilers that
	// turn a function into one loop around a br_table jump over most of it.
	large = 128
)

// cost estimates an instruction in units of a plain one. What the guest makes the
// host do, and what a bulk instruction moves, is charged where it happens.
func cost(op uint32) int {
	switch op {
	case module.OpBlock, module.OpLoop, module.OpEnd:
		return 0 // brackets: no code
	case module.OpMemoryGrow, module.OpTableGrow:
		return 512
	case module.OpCall, module.OpCallIndirect, module.OpMemoryInit, module.OpMemoryCopy, module.OpMemoryFill,
		module.OpTableInit, module.OpTableCopy, module.OpTableFill:
		return 16
	case 0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, // integer division
		0x91, 0x95, 0x9f, 0xa3: // square roots and divisions of floats
		return 8
	case 0xfde3, 0xfde7, 0xfdef, 0xfdf3: // the same of vectors
		return 16
	}
	if op >= 0xfd00 {
		return 2
	}
	return 1
}

// block is an open block while a body is read.
type block struct {
	op    uint32
	start int // instruction index of its opening
}

// charge is a place before an instruction where units are taken.
type charge struct {
	at    int // index of the instruction that follows
	units int
	check bool // call the host if the counter is below zero
}

// instr is what the rewriter keeps of an instruction.
type instr struct {
	op, index  uint32
	start, end int
}

// code rewrites one body.
func (w *rewriter) code(i int) ([]byte, error) {
	c := &w.m.Code[i]
	params := len(w.types[w.imports+uint32(i)].Params)
	if n := len(c.Body); n > w.limits.Body {
		return nil, over("bytes", n, w.limits.Body)
	}
	locals := uint64(params)
	for _, l := range c.Locals {
		locals += uint64(l.Count)
		if locals > uint64(w.limits.Locals) {
			return nil, over("locals", int(min(locals, 1<<32)), w.limits.Locals)
		}
	}
	list, err := w.instructions(c.Body, uint32(locals))
	if err != nil {
		return nil, err
	}
	charges := place(list)
	w.report.Charges += len(charges)

	scratch := false
	for _, in := range list {
		scratch = scratch || needsScratch(in.op)
	}
	groups := uint32(len(c.Locals))
	if scratch {
		groups++
	}
	out := uleb(make([]byte, 0, len(c.Body)+len(c.Body)/4+64), groups)
	for _, l := range c.Locals {
		out = append(uleb(out, l.Count), byte(l.Type))
	}
	if scratch {
		out = append(out, 1, byte(module.I32))
	}
	index := w.imports + uint32(i)
	if !w.cycles[index] {
		return w.emit(out, c.Body, list, charges, uint32(locals), 0), nil
	}
	d := depth(int(locals), len(list))
	out = w.deepen(out, d)
	out = append(out, module.OpBlock)
	switch results := w.types[index].Results; len(results) {
	case 0:
		out = append(out, 0x40)
	case 1:
		out = append(out, byte(results[0]))
	default:
		out = uleb(out, w.wrap[string(module.FuncType{Results: results}.Key())])
	}
	// The block takes the place of the body, so that branches out of the body come to its
	// end and pass what follows.
	out = w.emit(out, c.Body, list, charges, uint32(locals), d)
	return append(w.deeper(out, -d), module.OpEnd), nil
}

// deeper adds a constant to the depth.
func (w *rewriter) deeper(out []byte, d int) []byte {
	out = uleb(append(out, module.OpGlobalGet), w.globals+2)
	out = append(sleb(append(out, 0x41), int64(d)), 0x6a)
	return uleb(append(out, module.OpGlobalSet), w.globals+2)
}

// deepen adds to the depth and calls the host if it is too much.
func (w *rewriter) deepen(out []byte, d int) []byte {
	out = w.deeper(out, d)
	out = uleb(append(out, module.OpGlobalGet), w.globals+2)
	out = append(sleb(append(out, 0x41), maxDepth), 0x4a, module.OpIf, 0x40, module.OpCall)
	return append(uleb(out, w.imports), module.OpEnd)
}

func needsScratch(op uint32) bool {
	switch op {
	case module.OpMemoryInit, module.OpMemoryCopy, module.OpMemoryFill, module.OpTableInit, module.OpTableCopy,
		module.OpTableFill, module.OpMemoryGrow:
		return true
	}
	return false
}

// instructions reads a body and holds it against the limits and index spaces. The
// indices matter: one past the end would, after the rewrite, name the counter.
func (w *rewriter) instructions(body []byte, locals uint32) ([]instr, error) {
	r := module.NewReader(body)
	list := make([]instr, 0, len(body)/2+1)
	depth, blocks, loops, branches := 1, 0, 0, 0
	for depth > 0 {
		in, err := r.Next()
		if err != nil {
			return nil, err
		}
		switch in.Op {
		case module.OpBlock, module.OpLoop, module.OpIf:
			depth++
			blocks++
			if in.Op == module.OpLoop {
				loops++
			}
			if in.Index != module.NoIndex && uint64(in.Index) >= uint64(len(w.m.Types)) {
				return nil, malformed("block of type %d of %d", in.Index, len(w.m.Types))
			}
			w.report.Nesting = max(w.report.Nesting, depth-1)
			if depth-1 > w.limits.Nesting {
				return nil, over("nested blocks", depth-1, w.limits.Nesting)
			}
		case module.OpEnd:
			depth--
		case module.OpBrTable:
			branches += len(in.Targets)
			for _, l := range in.Targets {
				if uint64(l) >= uint64(depth) {
					return nil, malformed("branch to label %d of %d", l, depth)
				}
			}
		case module.OpBr, module.OpBrIf:
			if uint64(in.Index) >= uint64(depth) {
				return nil, malformed("branch to label %d of %d", in.Index, depth)
			}
		case module.OpCall, module.OpRefFunc:
			if in.Index >= w.funcs {
				return nil, malformed("function %d of %d", in.Index, w.funcs)
			}
		case module.OpCallIndirect:
			if uint64(in.Index) >= uint64(len(w.m.Types)) {
				return nil, malformed("call of type %d of %d", in.Index, len(w.m.Types))
			}
		case module.OpGlobalGet, module.OpGlobalSet:
			if in.Index >= w.globals {
				return nil, malformed("global %d of %d", in.Index, w.globals)
			}
		case module.OpLocalGet, module.OpLocalSet, module.OpLocalTee:
			if in.Index >= locals {
				return nil, malformed("local %d of %d", in.Index, locals)
			}
		}
		if needsScratch(in.Op) {
			blocks++ // the check that goes with it is one
		}
		list = append(list, instr{op: in.Op, index: in.Index, start: in.Start, end: in.End})
	}
	if !r.Done() {
		return nil, malformed("instructions after the end of the body")
	}
	rep := &w.report
	rep.Functions++
	rep.Body, rep.Blocks, rep.Loops = max(rep.Body, len(body)), max(rep.Blocks, blocks), max(rep.Loops, loops)
	rep.Locals, rep.Branches = max(rep.Locals, int(locals)), max(rep.Branches, branches)
	switch {
	case blocks > w.limits.Blocks:
		return nil, over("blocks", blocks, w.limits.Blocks)
	case loops > w.limits.Loops:
		return nil, over("loops", loops, w.limits.Loops)
	case branches > w.limits.Branches:
		return nil, over("branch labels", branches, w.limits.Branches)
	case int(locals)*blocks > w.limits.LocalsBlocks:
		return nil, over("locals times blocks", int(locals)*blocks, w.limits.LocalsBlocks)
	}
	return list, nil
}

// place decides where a body pays, so that whatever path is taken, every
// instruction on it has been paid for.
//
// A charge pays for the code from its place to the next charge. There is one at
// the function's entry and one at each loop's header. A branch forward could land
// in the middle of a stretch that it has not paid for: so the end of a block that
// began before the stretch starts a new stretch, and so does an else. A block that
// lies wholly inside a stretch needs no charge. A stretch also ends with its loop,
// so that no iteration pays for what follows the loop, and where it grows too dear.
func place(list []instr) []charge {
	total := 0
	for _, in := range list {
		total += cost(in.op)
	}
	limit := small
	if total > small {
		limit = large
	}
	var charges []charge
	var open []block
	first, sum := 0, 0 // the stretch: its first instruction, its cost so far
	check := true
	cut := func(at int, next bool) {
		// Nothing is owed for code that was only brackets, unless a loop turns
		// around in it or the function is entered.
		if check || sum > 0 {
			charges = append(charges, charge{at: first, units: max(1, (sum+perUnit-1)/perUnit), check: check})
		}
		first, sum, check = at, 0, next
	}
	for i, in := range list {
		if sum >= limit {
			cut(i, false)
		}
		sum += cost(in.op)
		switch in.op {
		case module.OpBlock, module.OpIf:
			open = append(open, block{op: in.op, start: i})
		case module.OpLoop:
			open = append(open, block{op: in.op, start: i})
			cut(i+1, true)
		case module.OpElse:
			if n := len(open); n > 0 && open[n-1].start < first {
				cut(i+1, false)
			}
		case module.OpEnd:
			n := len(open)
			if n == 0 {
				break
			}
			if b := open[n-1]; b.op == module.OpLoop || b.start < first {
				cut(i+1, false)
			}
			open = open[:n-1]
		}
	}
	cut(len(list), false)
	return charges
}

// emit writes the instructions of a body with its charges. d is the depth that the
// function takes back where it returns.
func (w *rewriter) emit(out, body []byte, list []instr, charges []charge, scratch uint32, d int) []byte {
	for i, in := range list {
		for len(charges) > 0 && charges[0].at == i {
			out = w.take(out, int64(charges[0].units))
			if charges[0].check {
				out = w.yield(out)
			}
			charges = charges[1:]
		}
		switch in.op {
		case module.OpCall, module.OpRefFunc:
			out = uleb(append(out, byte(in.op)), w.shift(in.index))
			continue
		case module.OpReturn:
			if d > 0 {
				out = w.deeper(out, -d)
			}
		case module.OpMemoryInit, module.OpMemoryCopy, module.OpMemoryFill:
			out = w.bulk(out, scratch, 4)
		case module.OpTableInit, module.OpTableCopy, module.OpTableFill:
			out = w.bulk(out, scratch, 1)
		}
		out = append(out, body[in.start:in.end]...)
		if in.op == module.OpMemoryGrow {
			// Leave a mark if it was refused: a guest without memory usually traps
			// next, and only the mark tells why.
			out = uleb(append(out, module.OpLocalTee), scratch)
			out = append(out, 0x41, 0x7f, 0x46, module.OpIf, 0x40, 0x41, 0x01)
			out = append(uleb(append(out, module.OpGlobalSet), w.globals+1), module.OpEnd)
			out = uleb(append(out, module.OpLocalGet), scratch)
		}
	}
	return out
}

// take subtracts a constant from the counter.
func (w *rewriter) take(out []byte, units int64) []byte {
	out = uleb(append(out, module.OpGlobalGet), w.globals)
	out = append(sleb(append(out, 0x42), units), 0x7d)
	return uleb(append(out, module.OpGlobalSet), w.globals)
}

// yield calls the host if the counter is below zero.
func (w *rewriter) yield(out []byte) []byte {
	out = uleb(append(out, module.OpGlobalGet), w.globals)
	out = append(out, 0x42, 0x00, 0x53, module.OpIf, 0x40, module.OpCall)
	return append(uleb(out, w.imports), module.OpEnd)
}

// bulk charges for the length on top of the stack, shifted right.
func (w *rewriter) bulk(out []byte, scratch uint32, shift byte) []byte {
	out = uleb(append(out, module.OpLocalTee), scratch)
	out = uleb(append(out, module.OpGlobalGet), w.globals)
	out = uleb(append(out, module.OpLocalGet), scratch)
	out = append(out, 0xad, 0x42, shift, 0x88, 0x7d)
	return w.yield(uleb(append(out, module.OpGlobalSet), w.globals))
}
