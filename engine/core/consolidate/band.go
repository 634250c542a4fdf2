package consolidate

import (
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// BandWindow is how long a price counts after it changed: a replacement must save enough if
// the old nodes cost the least and the new ones the most that they did in this time, at least,
// and twice this time, at most. So prices that go up and down move nothing.
const BandWindow = 5 * time.Minute

// bands are the lowest and highest list prices of late, by NodePool. Pools with one catalogue
// share them.
type bands struct {
	began time.Time
	pools map[string]*history
}

// history is that of the offerings of one catalogue.
type history struct {
	seen   *catalog.Catalog
	offers map[offering]*band
}

type offering struct{ name, zone, capacityType, reservation string }

// band is the lowest and highest price in this window and in the one before.
type band struct{ low, high, lastLow, lastHigh catalog.Price }

// observe notes the prices of snap.
func (b *bands) observe(snap *snapshot.Snapshot) {
	age := snap.Now.Sub(b.began)
	if b.pools == nil || age < 0 || age >= 2*BandWindow {
		b.pools, b.began, age = map[string]*history{}, snap.Now, 0
	}
	turn := age >= BandWindow
	if turn {
		b.began = snap.Now
	}
	type key struct {
		from *history
		to   *catalog.Catalog
	}
	done := map[key]*history{}
	pools := make(map[string]*history, len(snap.Pools))
	for _, p := range snap.Pools {
		if p.Catalog == nil {
			continue
		}
		k := key{b.pools[p.Name], p.Catalog}
		h := done[k]
		if h == nil {
			if h = k.from; h == nil {
				h = &history{offers: map[offering]*band{}}
			} else if h.seen != p.Catalog { // others may have shared it, and no longer do
				h = h.clone()
			}
			h.observe(p.Catalog, turn)
			done[k] = h
		}
		pools[p.Name] = h
	}
	b.pools = pools
}

func (h *history) clone() *history {
	out := &history{seen: h.seen, offers: make(map[offering]*band, len(h.offers))}
	for k, b := range h.offers {
		c := *b
		out.offers[k] = &c
	}
	return out
}

func (h *history) observe(c *catalog.Catalog, turn bool) {
	if h.seen == c && !turn {
		return
	}
	h.seen = c
	types := c.Types()
	for i := range types {
		for j := range types[i].Offerings {
			o := &types[i].Offerings[j]
			k := offering{types[i].Name, o.Zone, o.CapacityType, o.ReservationID}
			b := h.offers[k]
			switch {
			case b == nil:
				h.offers[k] = &band{o.Price, o.Price, o.Price, o.Price}
			case turn:
				*b = band{o.Price, o.Price, min(b.low, o.Price), max(b.high, o.Price)}
			default:
				b.low, b.high = min(b.low, o.Price), max(b.high, o.Price)
			}
		}
	}
}

// of is how far the price of an offering was below and above what it is now, as a factor.
func (b *bands) of(pool string, k offering) (low, high float64) {
	h := b.pools[pool]
	if h == nil {
		return 1, 1
	}
	known := h.offers[k]
	if known == nil {
		return 1, 1
	}
	it, ok := h.seen.ByName(k.name)
	if !ok {
		return 1, 1
	}
	for i := range it.Offerings {
		o := &it.Offerings[i]
		if o.Zone == k.zone && o.CapacityType == k.capacityType && o.ReservationID == k.reservation && o.Price > 0 {
			return float64(min(known.low, known.lastLow)) / float64(o.Price), float64(max(known.high, known.lastHigh)) / float64(o.Price)
		}
	}
	return 1, 1
}

// least is the least that a running node cost of late.
func (b *bands) least(c *candidate.Candidate, cost catalog.Price) catalog.Price {
	low, _ := b.of(c.Pool, offering{c.InstanceType, c.Zone, c.CapacityType, c.ReservationID})
	return catalog.Price(float64(cost) * low)
}

// most is the most that a planned node would have cost of late.
func (b *bands) most(n *schedule.NewNode) catalog.Price {
	_, high := b.of(n.Pool, offering{n.Planned.InstanceType, n.Planned.Zone, n.Planned.CapacityType, n.Planned.ReservationID})
	return catalog.Price(float64(n.Planned.Cost) * high)
}
