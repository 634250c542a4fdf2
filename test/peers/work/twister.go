package work

import "math/bits"

// twister is the generator behind Python's random module (MT19937). The uniform pods
// are drawn with it, so that a bound or a packing computed by a script with
// random.seed(n) is about the very same pods.
type twister struct {
	state [624]uint32
	next  int
}

// newTwister is random.seed(seed) for 0 <= seed < 2^32.
func newTwister(seed uint32) *twister {
	t := &twister{next: len(state0)}
	t.state = state0
	i, n := 1, len(t.state)
	for range n {
		t.state[i] = (t.state[i] ^ (t.state[i-1]^t.state[i-1]>>30)*1664525) + seed
		if i++; i == n {
			t.state[0], i = t.state[n-1], 1
		}
	}
	for range n - 1 {
		t.state[i] = (t.state[i] ^ (t.state[i-1]^t.state[i-1]>>30)*1566083941) - uint32(i)
		if i++; i == n {
			t.state[0], i = t.state[n-1], 1
		}
	}
	t.state[0] = 1 << 31
	return t
}

// state0 is the state that seeding by an array starts from.
var state0 = func() (s [624]uint32) {
	s[0] = 19650218
	for i := 1; i < len(s); i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	return s
}()

func (t *twister) uint32() uint32 {
	n := len(t.state)
	if t.next == n {
		for i := range n {
			y := t.state[i]&(1<<31) | t.state[(i+1)%n]&(1<<31-1)
			v := t.state[(i+397)%n] ^ y>>1
			if y&1 != 0 {
				v ^= 0x9908b0df
			}
			t.state[i] = v
		}
		t.next = 0
	}
	y := t.state[t.next]
	t.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// below is random.randrange(n), the index that random.choice takes.
func (t *twister) below(n int) int {
	k := bits.Len(uint(n))
	for {
		if v := int(t.uint32() >> (32 - k)); v < n {
			return v
		}
	}
}
