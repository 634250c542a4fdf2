package disrupt

import (
	"slices"
	"time"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// history is what policies are told of disruptions: those of this process.
type history struct {
	now      func() time.Time
	moves    []moved
	failures []time.Time // failed launches
}

// moved is a node that was disrupted.
type moved struct {
	at         time.Time
	pool       string
	namespaces map[string]int64 // pods by namespace
	saving     catalog.Price    // of the command, with its first node
}

const day = 24 * time.Hour

func (h *history) forget() {
	now := h.now()
	h.moves = slices.DeleteFunc(h.moves, func(m moved) bool { return now.Sub(m.at) >= day })
	h.failures = slices.DeleteFunc(h.failures, func(at time.Time) bool { return now.Sub(at) >= 90*time.Minute })
}

// add fills in what f says of disruptions.
func (h *history) add(f *policy.History) {
	h.forget()
	now := h.now()
	f.Disruptions.ByPool, f.Disruptions.ByNamespace = map[string]policy.Counts{}, map[string]policy.Counts{}
	if f.Disruptions.ByTeam == nil {
		f.Disruptions.ByTeam = map[string]policy.Counts{}
	}
	f.SecondsSinceLastDisruption = map[string]int64{}
	count := func(c policy.Counts, at time.Time, n int64) policy.Counts {
		c.LastDay += n
		if now.Sub(at) < time.Hour {
			c.LastHour += n
		}
		return c
	}
	for _, m := range h.moves {
		f.Disruptions.Cluster = count(f.Disruptions.Cluster, m.at, 1)
		f.Disruptions.ByPool[m.pool] = count(f.Disruptions.ByPool[m.pool], m.at, 1)
		for ns, n := range m.namespaces {
			f.Disruptions.ByNamespace[ns] = count(f.Disruptions.ByNamespace[ns], m.at, n)
		}
		ago := int64(now.Sub(m.at) / time.Second)
		f.SecondsSinceLastDisruption[m.pool] = ago
		f.SecondsSinceLastDisruptionInCluster = &ago
		f.SavingsRealised24h += int64(m.saving)
	}
	f.LaunchFailures30m, f.LaunchFailures90m = 0, int64(len(h.failures))
	for _, at := range h.failures {
		if now.Sub(at) < 30*time.Minute {
			f.LaunchFailures30m++
		}
	}
}
