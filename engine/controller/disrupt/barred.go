package disrupt

import (
	"slices"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Launches that find no capacity are tried again after firstRetry, then after twice as long
// each time, up to lastRetry.
const firstRetry, lastRetry = 2 * time.Minute, 30 * time.Minute

// backoff is how long to wait after the nth failure in a row.
func backoff(n int) time.Duration {
	d := firstRetry
	for ; n > 1 && d < lastRetry; n-- {
		d *= 2
	}
	return min(d, lastRetry)
}

// barred are offerings that could not be had when they were bought to replace nodes. They
// are left out of plans for a while, so that other moves are found instead. Each NodePool has
// its own: what one is refused may be another's reservation or quota.
type barred struct {
	now  func() time.Time
	list map[barKey]*bar
	// made are the catalogues without what is barred, by NodePool: the same each time, as long
	// as what they are made from is.
	made map[string]madeCatalog
}

type barKey struct {
	pool  string
	offer cloud.Offering
}

type bar struct {
	failures int
	until    time.Time
}

type madeCatalog struct {
	from, catalog *catalog.Catalog
	without       string
}

// fail bars offerings that a NodePool could not buy.
func (b *barred) fail(pool string, offers []cloud.Offering) {
	if b.list == nil {
		b.list = map[barKey]*bar{}
	}
	for _, o := range offers {
		k := barKey{pool, o}
		if b.list[k] == nil {
			b.list[k] = &bar{}
		}
		b.list[k].failures++
		b.list[k].until = b.now().Add(backoff(b.list[k].failures))
	}
}

// succeed forgets failures of offerings that a NodePool could buy.
func (b *barred) succeed(pool string, offers []cloud.Offering) {
	for _, o := range offers {
		delete(b.list, barKey{pool, o})
	}
}

// apply returns snap without the offerings that are barred now.
func (b *barred) apply(snap *snapshot.Snapshot) *snapshot.Snapshot {
	now := b.now()
	byPool := map[string][]cloud.Offering{}
	for k, v := range b.list {
		switch {
		case now.Before(v.until):
			byPool[k.pool] = append(byPool[k.pool], k.offer)
		case now.Sub(v.until) > lastRetry:
			delete(b.list, k)
		}
	}
	if len(byPool) == 0 {
		b.made = nil
		return snap
	}
	out := *snap
	out.Pools = slices.Clone(snap.Pools)
	kept := map[string]madeCatalog{}
	for i, p := range out.Pools {
		offers := byPool[p.Name]
		if len(offers) == 0 || p.Catalog == nil {
			continue
		}
		slices.SortFunc(offers, func(a, b cloud.Offering) int { return strings.Compare(a.String(), b.String()) })
		names := make([]string, len(offers))
		for i := range offers {
			names[i] = offers[i].String()
		}
		key := strings.Join(names, ",")
		m := b.made[p.Name]
		if m.from != p.Catalog || m.without != key {
			m = madeCatalog{p.Catalog, without(p.Catalog, offers), key}
		}
		kept[p.Name] = m
		q := *p
		q.Catalog = m.catalog
		out.Pools[i] = &q
	}
	b.made = kept
	return &out
}

// without is a catalogue in which some offerings cannot be had.
func without(c *catalog.Catalog, offers []cloud.Offering) *catalog.Catalog {
	gone := map[cloud.Offering]bool{}
	for _, o := range offers {
		gone[o] = true
	}
	types := slices.Clone(c.Types())
	for i := range types {
		t := &types[i]
		copied := false
		for j := range t.Offerings {
			o := &t.Offerings[j]
			if !gone[cloud.Offering{InstanceType: t.Name, Zone: o.Zone, CapacityType: o.CapacityType, ReservationID: o.ReservationID}] || o.Unavailable {
				continue
			}
			if !copied {
				t.Offerings, copied = slices.Clone(t.Offerings), true
			}
			t.Offerings[j].Unavailable = true
		}
	}
	out, _ := catalog.New(types) // its problems were told when c was made
	return out
}
