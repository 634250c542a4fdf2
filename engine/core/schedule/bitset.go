package schedule

import (
	"math/bits"
	"slices"
)

// bitset is a set of small integers, such as column indexes.
type bitset []uint64

func newBits(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitset) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) clear(i int)    { b[i/64] &^= 1 << (i % 64) }
func (b bitset) clone() bitset  { return slices.Clone(b) }

func (b bitset) any() bool {
	return slices.ContainsFunc(b, func(w uint64) bool { return w != 0 })
}

// meets reports whether b and o have a member in common.
func (b bitset) meets(o bitset) bool {
	for i := range b {
		if b[i]&o[i] != 0 {
			return true
		}
	}
	return false
}

func (b bitset) and(o bitset) {
	for i := range b {
		b[i] &= o[i]
	}
}

// each calls f for every member, ascending.
func (b bitset) each(f func(i int)) {
	for w, word := range b {
		for word != 0 {
			f(w*64 + bits.TrailingZeros64(word))
			word &= word - 1
		}
	}
}
