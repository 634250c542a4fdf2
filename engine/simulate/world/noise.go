package world

import (
	"hash/fnv"
	"math"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// noise moves prices up and down, the same way for one seed.
type noise struct {
	amplitude    float64
	capacityType string
	seed         uint64
	step         int

	// made are the catalogues of the present step.
	made map[*catalog.Catalog]*catalog.Catalog
}

// Noise lets the prices of a capacity type, or all if it is empty, move within a fraction up
// and down, anew each period: prices differ from each other, and from those before.
func (w *World) Noise(amplitude float64, capacityType string, period time.Duration, seed uint64) {
	w.noise = &noise{amplitude: amplitude, capacityType: capacityType, seed: seed}
	var next func()
	next = func() {
		w.noise.step++
		w.noise.made = map[*catalog.Catalog]*catalog.Catalog{}
		w.marketChanged()
		w.queue.push(w.now.Add(period), next)
	}
	next()
}

// over is a catalogue at the prices of the present step.
func (n *noise) over(c *catalog.Catalog) *catalog.Catalog {
	if to := n.made[c]; to != nil {
		return to
	}
	types := c.Types()
	moved := make([]catalog.InstanceType, len(types))
	for i := range types {
		moved[i] = types[i]
		moved[i].Offerings = make([]catalog.Offering, len(types[i].Offerings))
		for j, o := range types[i].Offerings {
			if n.capacityType == "" || o.CapacityType == n.capacityType {
				o.Price = max(catalog.Price(math.Round(float64(o.Price)*(1+n.amplitude*n.draw(types[i].Name, &o)))), 1)
			}
			moved[i].Offerings[j] = o
		}
	}
	to, errs := catalog.New(moved)
	if len(errs) > 0 {
		to = c // prices are all that differ, so there are none
	}
	n.made[c] = to
	return to
}

// draw is a number from -1 to 1.
func (n *noise) draw(instanceType string, o *catalog.Offering) float64 {
	h := fnv.New64a()
	for _, s := range []string{instanceType, o.Zone, o.CapacityType, o.ReservationID} {
		_, _ = h.Write([]byte(s))
		_, _ = h.Write([]byte{0})
	}
	x := h.Sum64() ^ n.seed*0x9e3779b97f4a7c15 ^ uint64(n.step)*0xbf58476d1ce4e5b9
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11)/(1<<52) - 1
}
