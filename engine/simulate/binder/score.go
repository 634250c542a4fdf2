package binder

import (
	"math"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Weights of kube-scheduler's default profile.
const (
	weightTaints   = 3
	weightAffinity = 2
	weightSpread   = 2
	weightPods     = 2
)

// best is the node of fit with the highest score, the first by name of equal ones; nil if
// there is none.
func (b *board) best(class *snapshot.Class, id int32, fit []*machine) *machine {
	if len(fit) < 2 {
		if len(fit) == 0 {
			return nil
		}
		return fit[0]
	}
	total := make([]float64, len(fit))
	add := func(weight float64, scores []float64) {
		for i, s := range scores {
			total[i] += weight * s
		}
	}
	raw := make([]float64, len(fit))
	for i, m := range fit {
		total[i] = roomy(class, m)
		raw[i] = -float64(snapshot.SoftUntolerated(class.Tolerations, m.node.Taints))
	}
	add(weightTaints, between(raw))
	if len(class.Preferred) > 0 {
		for i, m := range fit {
			raw[i] = 0
			for _, p := range class.Preferred {
				if snapshot.MatchesLabels(p.Term, m.node.Labels, m.node.Name) {
					raw[i] += float64(p.Weight)
				}
			}
		}
		add(weightAffinity, upTo(raw))
	}
	if len(class.SoftNear)+len(class.SoftApart) > 0 {
		for i, m := range fit {
			raw[i] = 0
			for _, t := range class.SoftNear {
				raw[i] += float64(int(t.Weight) * b.matching(counted{t.Selector, t.Key})[m.node.Labels[t.Key]])
			}
			for _, t := range class.SoftApart {
				raw[i] -= float64(int(t.Weight) * b.matching(counted{t.Selector, t.Key})[m.node.Labels[t.Key]])
			}
		}
		add(weightPods, between(raw))
	}
	b.scoreSpread(class, id, fit, add)
	at := 0
	for i := range total {
		if total[i] > total[at]+1e-9 {
			at = i
		}
	}
	return fit[at]
}

// scoreSpread prefers the domains with the fewest pods that soft constraints count.
func (b *board) scoreSpread(class *snapshot.Class, id int32, fit []*machine, add func(float64, []float64)) {
	raw := make([]float64, len(fit))
	found := false
	for i := range class.Spread {
		s := &class.Spread[i]
		if !s.Soft {
			continue
		}
		found = true
		st := b.spreadState(class, id, i)
		// Few domains weigh less: with more of them a pod more in one matters less.
		weight := math.Log(float64(len(st.counts) + 2))
		for j, m := range fit {
			raw[j] -= float64(st.counts[m.node.Labels[s.Key]])*weight + float64(s.MaxSkew-1)
		}
	}
	if found {
		add(weightSpread, between(raw))
	}
}

// roomy is LeastAllocated and BalancedAllocation together, each 0 to 100.
func roomy(class *snapshot.Class, m *machine) float64 {
	var least, fractions float64
	var used [len(scored)]float64
	for i, name := range scored {
		all := float64(m.node.Allocatable[name])
		if all <= 0 {
			continue
		}
		taken := all - float64(m.free[name]) + float64(class.Requests[name])
		used[i] = min(taken/all, 1)
		least += (1 - used[i]) * 100
		fractions++
	}
	if fractions == 0 {
		return 0
	}
	return least/fractions + (1-math.Abs(used[0]-used[1])/2)*100
}

// between maps the least score to 0 and the greatest to 100; all alike are 100.
func between(raw []float64) []float64 {
	low, high := raw[0], raw[0]
	for _, r := range raw {
		low, high = min(low, r), max(high, r)
	}
	out := make([]float64, len(raw))
	for i, r := range raw {
		out[i] = 100
		if high > low {
			out[i] = (r - low) / (high - low) * 100
		}
	}
	return out
}

// upTo maps 0 to 0 and the greatest score to 100.
func upTo(raw []float64) []float64 {
	high := 0.0
	for _, r := range raw {
		high = max(high, r)
	}
	out := make([]float64, len(raw))
	for i, r := range raw {
		if high > 0 {
			out[i] = r / high * 100
		}
	}
	return out
}
