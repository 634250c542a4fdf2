package pack

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// memoSize is how many results a generation of a Memo has.
const memoSize = 4096

// Memo remembers the results of problems: equal ones have equal results, and many look alike
// that are asked again and again. The zero value is ready to use.
type Memo struct {
	// young are the results that were asked for last; old are dropped when young is full.
	young, old map[[sha256.Size]byte]Result
	buf        []byte
}

// Solve is [Solve] of p, which must have no Ledger. What it returns is shared.
func (m *Memo) Solve(p *Problem, opts Options) Result {
	key := m.key(p, opts)
	if r, ok := m.young[key]; ok {
		return r
	}
	r, ok := m.old[key]
	if !ok {
		r = Solve(p, opts)
	}
	if m.young == nil || len(m.young) >= memoSize {
		m.young, m.old = make(map[[sha256.Size]byte]Result, memoSize/8), m.young
	}
	m.young[key] = r
	return r
}

// key names all that the result depends on.
func (m *Memo) key(p *Problem, opts Options) [sha256.Size]byte {
	b := m.buf[:0]
	number := func(n int) { b = binary.LittleEndian.AppendUint64(b, uint64(n)) }
	amount := func(f float64) { b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f)) }
	list := func(l []int32) {
		number(len(l))
		for _, n := range l {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		}
	}
	finite := 0
	if p.Finite {
		finite = 1
	}
	for _, n := range []int{opts.DualSteps, opts.Improve, p.Dims, p.Groups, finite, len(p.Items), len(p.Columns)} {
		number(n)
	}
	for i := range p.Items {
		it := &p.Items[i]
		number(it.Count)
		for _, q := range it.Req {
			amount(q)
		}
		number(len(it.Own))
		for _, o := range it.Own {
			self := 0
			if o.Self {
				self = 1
			}
			list([]int32{o.Group, o.Max, int32(self)})
		}
		list(it.Adds)
		list(it.Guards)
		list(it.Blocked)
		list(p.Fits[i])
	}
	classes := map[int32]int{} // only which columns are alike matters
	for k := range p.Columns {
		c := &p.Columns[k]
		class, ok := classes[c.Class]
		if !ok {
			class = len(classes)
			classes[c.Class] = class
		}
		number(class)
		amount(c.Price)
		amount(c.Shadow)
		for _, a := range c.Alloc {
			amount(a)
		}
	}
	m.buf = b
	return sha256.Sum256(b)
}
