package binder

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// counted is what rules about other pods count: pods that a selector selects, or that have a
// rule with it, by the values of a node label.
type counted struct {
	selector int32
	key      string
}

// spreadOf is a spread constraint of a class.
type spreadOf struct {
	class int32
	index int
}

// spreadState is what a spread constraint counts.
type spreadState struct {
	counted
	eligible map[*machine]bool
	counts   map[string]int
}

// fits reports whether kube-scheduler's filters let a pod of class on m.
func (b *board) fits(class *snapshot.Class, id int32, m *machine) bool {
	for name, want := range class.Requests {
		if want > 0 && want > m.free[name] {
			return false
		}
	}
	if !snapshot.Tolerates(class.Tolerations, m.node.Taints) || !snapshot.MatchesNode(class.Terms, m.node) {
		return false
	}
	for _, p := range class.Ports {
		if slices.ContainsFunc(m.ports, p.Conflicts) {
			return false
		}
	}
	return b.attaches(class, m) && b.spreads(class, id, m) && b.keepsApart(class, m) && b.isNear(class, m)
}

// attaches reports whether the volumes of class can be attached to m.
func (b *board) attaches(class *snapshot.Class, m *machine) bool {
	if len(class.Volumes) == 0 {
		return true
	}
	if m.attached == nil {
		m.attached = map[string]map[string]bool{}
		for id, n := range m.classes {
			if n > 0 {
				for _, v := range b.snap.Classes[id].Volumes {
					if m.attached[v.Driver] == nil {
						m.attached[v.Driver] = map[string]bool{}
					}
					m.attached[v.Driver][v.ID] = true
				}
			}
		}
	}
	more := map[string]int64{}
	for _, v := range class.Volumes {
		switch {
		case !m.attached[v.Driver][v.ID]:
			more[v.Driver]++
		case v.Exclusive:
			return false
		}
	}
	for driver, n := range more {
		if limit, ok := m.node.AttachLimits[driver]; ok && int64(len(m.attached[driver]))+n > limit {
			return false
		}
	}
	return true
}

func (b *board) spreads(class *snapshot.Class, id int32, m *machine) bool {
	for i := range class.Spread {
		s := &class.Spread[i]
		if s.Soft {
			continue
		}
		here, ok := m.node.Labels[s.Key]
		if !ok {
			return false
		}
		st := b.spreadState(class, id, i)
		least := -1
		for _, n := range st.counts {
			if least < 0 || n < least {
				least = n
			}
		}
		if least < 0 || s.MinDomains > 0 && len(st.counts) < int(s.MinDomains) {
			least = 0
		}
		then := st.counts[here]
		if s.SelfMatch {
			then++
		}
		if then-least > int(s.MaxSkew) {
			return false
		}
	}
	return true
}

// spreadState counts the pods of a constraint by domain. Nodes without one of the keys do not
// count, and neither do those that the pod could not be on.
func (b *board) spreadState(class *snapshot.Class, id int32, index int) *spreadState {
	key := spreadOf{id, index}
	if st := b.spread[key]; st != nil {
		return st
	}
	s := &class.Spread[index]
	st := &spreadState{counted: counted{s.Selector, s.Key}, eligible: map[*machine]bool{}, counts: map[string]int{}}
	for _, m := range b.nodes {
		missing := slices.ContainsFunc(class.Spread, func(o snapshot.Spread) bool {
			_, ok := m.node.Labels[o.Key]
			return o.Soft == s.Soft && !ok
		})
		if missing || !s.IgnoreAffinity && !snapshot.MatchesNode(class.Affinity, m.node) ||
			s.HonorTaints && !snapshot.Tolerates(class.Tolerations, m.node.Taints) {
			continue
		}
		st.eligible[m] = true
		st.counts[m.node.Labels[s.Key]] += b.selected(m, s.Selector)
	}
	b.spread[key] = st
	return st
}

// selected is the number of pods on m that a selector selects.
func (b *board) selected(m *machine, selector int32) int {
	n := 0
	for id, have := range m.classes {
		if selects(b.snap.Classes[id], selector) {
			n += have
		}
	}
	return n
}

// matching counts the pods that a selector selects, by the values of a label.
func (b *board) matching(c counted) map[string]int {
	if have, ok := b.counts[c]; ok {
		return have
	}
	have := map[string]int{}
	total := 0
	for _, m := range b.nodes {
		n := b.selected(m, c.selector)
		total += n
		if value, ok := m.node.Labels[c.key]; ok && n > 0 {
			have[value] += n
		}
	}
	b.counts[c], b.totals[c.selector] = have, total
	return have
}

// keepers counts the pods with a required anti-affinity term, by the values of its label.
func (b *board) keepers(c counted) map[string]int {
	if have, ok := b.owners[c]; ok {
		return have
	}
	have := map[string]int{}
	for _, m := range b.nodes {
		value, ok := m.node.Labels[c.key]
		if !ok {
			continue
		}
		for id, n := range m.classes {
			for _, t := range b.snap.Classes[id].Apart {
				if t.Selector == c.selector && t.Key == c.key {
					have[value] += n
				}
			}
		}
	}
	b.owners[c] = have
	return have
}

func (b *board) keepsApart(class *snapshot.Class, m *machine) bool {
	for _, t := range class.Apart {
		if value, ok := m.node.Labels[t.Key]; ok && b.matching(counted{t.Selector, t.Key})[value] > 0 {
			return false
		}
	}
	for _, c := range b.apart {
		if !selects(class, c.selector) {
			continue
		}
		if value, ok := m.node.Labels[c.key]; ok && b.keepers(c)[value] > 0 {
			return false
		}
	}
	return true
}

func (b *board) isNear(class *snapshot.Class, m *machine) bool {
	if len(class.Near) == 0 {
		return true
	}
	first := true // nobody is there yet that any term asks for
	met := true
	for _, t := range class.Near {
		value, ok := m.node.Labels[t.Key]
		if !ok {
			return false
		}
		have := b.matching(counted{t.Selector, t.Key})
		met = met && have[value] > 0
		first = first && b.totals[t.Selector] == 0 && t.SelfMatch
	}
	return met || first
}

// note keeps counts in step with a pod of class that comes to m.
func (b *board) note(m *machine, class *snapshot.Class) {
	for c, have := range b.counts {
		if selects(class, c.selector) {
			if value, has := m.node.Labels[c.key]; has {
				have[value]++
			}
		}
	}
	for _, s := range class.Matches {
		if _, ok := b.totals[s]; ok {
			b.totals[s]++
		}
	}
	for c, have := range b.owners {
		for _, t := range class.Apart {
			if value, ok := m.node.Labels[c.key]; ok && t.Selector == c.selector && t.Key == c.key {
				have[value]++
			}
		}
	}
	for _, st := range b.spread {
		if selects(class, st.selector) && st.eligible[m] {
			st.counts[m.node.Labels[st.key]]++
		}
	}
}

// selects reports whether a selector selects the pods of a class.
func selects(class *snapshot.Class, selector int32) bool {
	_, ok := slices.BinarySearch(class.Matches, selector)
	return ok
}

// relative reports whether a class has rules about other pods, or is told of in theirs.
func relative(class *snapshot.Class) bool {
	return len(class.Spread)+len(class.Near)+len(class.Apart)+len(class.Matches) > 0
}

// scored are the resources that scores look at.
var scored = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
