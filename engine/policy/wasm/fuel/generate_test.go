package fuel_test

import (
	"math/rand/v2"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/asm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

// generator writes random valid code that ends: every loop counts down a local of
// its own, and functions only call those before them.
type generator struct {
	r      *rand.Rand
	left   int      // instructions to go
	labels []bool   // open blocks, innermost last; true is a loop
	loops  int      // loops opened so far: each has local 2+n
	callee []uint32 // functions of type i32 -> i32 that may be called
	depth  int
	self   uint32 // index of the function that is written, if it may call itself
}

const loopLocals = 6

// expr pushes one i32.
func (g *generator) expr(deep int) []byte {
	g.left--
	switch n := g.r.IntN(12); {
	case deep <= 0 || n < 2:
		return asm.I32C(int32(g.r.Uint32()))
	case n < 4:
		return asm.Get(uint32(g.r.IntN(2)))
	case n < 7:
		op := []byte{0x6a, 0x6b, 0x6c, 0x71, 0x72, 0x73, 0x74, 0x76, 0x48, 0x4d, 0x6e, 0x70}[g.r.IntN(12)]
		return asm.Cat(g.expr(deep-1), g.expr(deep-1), []byte{op})
	case n < 8: // load from anywhere in the page
		return asm.Cat(g.expr(deep-1), asm.I32C(0xffff), []byte{0x71, 0x2d, 0, 0})
	case n < 9 && len(g.callee) > 0:
		return asm.Cat(g.expr(deep-1), asm.Call(g.callee[g.r.IntN(len(g.callee))]))
	case n < 10: // if with a result
		return asm.Cat(g.expr(deep-1), []byte{0x04, 0x7f}, g.expr(deep-1), []byte{0x05}, g.expr(deep-1), []byte{0x0b})
	case n < 11:
		return []byte{0x23, 0}
	default: // through a vector
		return asm.Cat(g.expr(deep-1), []byte{0xfd, 17, 0xfd, 0xa0, 0x01, 0xfd, 27, byte(g.r.IntN(4))})
	}
}

// stmts is a run of statements that leave the stack as it was.
func (g *generator) stmts() []byte {
	var b []byte
	for n := 1 + g.r.IntN(6); n > 0 && g.left > 0; n-- {
		b = append(b, g.stmt()...)
	}
	return b
}

func (g *generator) inside(loop bool, body func() []byte) []byte {
	g.labels = append(g.labels, loop)
	g.depth++
	b := body()
	g.depth--
	g.labels = g.labels[:len(g.labels)-1]
	return b
}

// forward picks a label that is not a loop, or -1.
func (g *generator) forward() int {
	if len(g.labels) == 0 {
		return -1
	}
	l := g.r.IntN(len(g.labels))
	if g.labels[len(g.labels)-1-l] {
		return -1
	}
	return l
}

func (g *generator) stmt() []byte {
	g.left--
	switch n := g.r.IntN(15); {
	case n < 3:
		return asm.Cat(g.expr(3), asm.Set(uint32(g.r.IntN(2))))
	case n < 4:
		return asm.Cat(g.expr(2), asm.I32C(0xfff0), []byte{0x71}, g.expr(3), []byte{0x36, 0, 0})
	case n < 5:
		return asm.Cat(g.expr(2), []byte{0x24, 0})
	case n < 6: // fill of at most 63 bytes
		return asm.Cat(g.expr(1), asm.I32C(0x7fff), []byte{0x71}, g.expr(1), g.expr(1), asm.I32C(63), []byte{0x71, 0xfc, 0x0b, 0})
	case n < 7 && g.depth < 12:
		return g.inside(false, func() []byte { return asm.Cat([]byte{0x02, 0x40}, g.stmts(), []byte{0x0b}) })
	case n < 9 && g.depth < 12:
		cond := g.expr(3)
		return g.inside(false, func() []byte {
			if g.r.IntN(2) == 0 {
				return asm.Cat(cond, []byte{0x04, 0x40}, g.stmts(), []byte{0x0b})
			}
			return asm.Cat(cond, []byte{0x04, 0x40}, g.stmts(), []byte{0x05}, g.stmts(), []byte{0x0b})
		})
	case n < 10 && g.depth < 4 && g.loops < loopLocals:
		counter := uint32(2 + g.loops)
		g.loops++
		turns := asm.Cat(asm.I32C(int32(1+g.r.IntN(5))), asm.Set(counter))
		return asm.Cat(turns, g.inside(true, func() []byte {
			return asm.Cat([]byte{0x03, 0x40}, g.stmts(),
				asm.Get(counter), asm.I32C(1), []byte{0x6b}, asm.Tee(counter), asm.I32C(0), []byte{0x4a, 0x0d, 0, 0x0b})
		}))
	case n < 12:
		if l := g.forward(); l >= 0 {
			return asm.Cat(g.expr(2), []byte{0x0d}, asm.U(uint64(l)))
		}
	case n < 13:
		if l, d := g.forward(), g.forward(); l >= 0 && d >= 0 {
			// Everything after an unconditional branch is dead code, which must also
			// be valid.
			return asm.Cat(g.expr(2), []byte{0x0e, 1}, asm.U(uint64(l)), asm.U(uint64(d)))
		}
	case n < 14 && g.r.IntN(3) == 0: // leave the function
		if g.r.IntN(2) == 0 {
			return asm.Cat(g.expr(2), []byte{0x04, 0x40}, g.expr(2), []byte{0x0f, 0x0b})
		}
		return asm.Cat(g.expr(2), g.expr(2), []byte{0x0d}, asm.U(uint64(len(g.labels))), []byte{0x1a})
	case n < 14 && g.self > 0 && g.depth < 3: // call itself, at most so often
		return asm.Cat([]byte{0x23, 1}, asm.I32C(1), []byte{0x6b, 0x24, 1}, []byte{0x23, 1}, asm.I32C(0), []byte{0x4a, 0x04, 0x40},
			g.expr(1), asm.Call(g.self), asm.Set(0), []byte{0x0b})
	default: // growth, which is refused sooner or later
		return asm.Cat(asm.I32C(int32(g.r.IntN(3))), []byte{0x40, 0}, asm.Set(uint32(g.r.IntN(2))))
	}
	return []byte{0x01}
}

// generate is a module of about size instructions with run(i32) -> i32.
func generate(seed uint64, size int) []byte {
	g := &generator{r: rand.New(rand.NewPCG(seed, 2))}
	m := &asm.Module{}
	m.Memory(1, 4)
	m.Global(asm.I32, true, asm.I32C(3))
	m.Global(asm.I32, true, asm.I32C(200))
	locals := make(asm.T, 1+loopLocals)
	for i := range locals {
		locals[i] = asm.I32
	}
	var last uint32
	for i := range uint32(4) {
		g.left, g.loops, g.self = size/4+1, 0, i
		var body []byte
		for g.left > 0 {
			body = append(body, g.stmts()...)
		}
		last = m.Func(asm.T{asm.I32}, asm.T{asm.I32}, locals, body, g.expr(3))
		g.callee = append(g.callee, last)
	}
	m.Data(100, []byte("the quick brown fox"))
	m.Export("run", module.KindFunc, last)
	m.Export("memory", module.KindMemory, 0)
	return m.Bytes()
}
