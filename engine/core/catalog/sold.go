package catalog

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
)

// Sold is an offering of a catalogue: the index of its type in Types, and its own in the type's
// Offerings.
type Sold struct{ Type, Offering int32 }

// maxRemembered bounds the answers that a catalogue keeps.
const maxRemembered = 512

// Sold are the offerings that are available and can satisfy want, the requirements of a
// NodePool: labels that neither a type nor an offering has are the pool's own to give, but for
// those that only types define. Answers are kept, since plans ask the same again and again:
// they must not be changed.
func (c *Catalog) Sold(want requirements.Set) []Sold {
	if c == nil {
		return nil
	}
	key := question(want)
	c.mu.Lock()
	defer c.mu.Unlock()
	if list, ok := c.sold[key]; ok {
		return list
	}
	list := c.find(want)
	if c.sold == nil || len(c.sold) >= maxRemembered {
		c.sold = map[string][]Sold{}
	}
	c.sold[key] = list
	return list
}

// question is equal for requirements that allow the same.
func question(want requirements.Set) string {
	var b strings.Builder
	for _, key := range want.Keys() {
		r := want[key]
		b.WriteString(key)
		if r.IsImpossible() {
			b.WriteString("\x00!")
		}
		for _, e := range r.Entries() {
			b.WriteByte(0)
			b.WriteString(string(e.Operator))
			for _, v := range e.Values {
				b.WriteByte(1)
				b.WriteString(v)
			}
		}
		b.WriteByte(2)
	}
	return b.String()
}

func (c *Catalog) find(want requirements.Set) []Sold {
	zones, capacity := want.Get(corev1.LabelTopologyZone), want.Get(karpv1.CapacityTypeLabelKey)
	reservation := want.Get(ReservationIDLabel)
	rest := make([]requirements.Requirement, 0, len(want))
	for _, key := range want.Keys() {
		if key != corev1.LabelTopologyZone && key != karpv1.CapacityTypeLabelKey && key != ReservationIDLabel {
			rest = append(rest, want[key])
		}
	}
	var out []Sold
	for t := range c.types {
		it := &c.types[t]
		if !it.allows(rest) {
			continue
		}
		for o := range it.Offerings {
			of := &it.Offerings[o]
			if of.Unavailable || !zones.Has(of.Zone) || !capacity.Has(of.CapacityType) {
				continue
			}
			if of.ReservationID != "" && !reservation.Has(of.ReservationID) || of.ReservationID == "" && want.Has(ReservationIDLabel) && !reservation.AllowsAbsent() {
				continue
			}
			if of.Requirements == nil || of.allows(want) {
				out = append(out, Sold{int32(t), int32(o)})
			}
		}
	}
	return out
}

func (it *InstanceType) allows(want []requirements.Requirement) bool {
	for _, r := range want {
		if have, ok := it.Requirements[r.Key()]; ok {
			if !have.Intersects(r) {
				return false
			}
		} else if !r.AllowsAbsent() && definedByTypes(r.Key()) {
			return false
		}
	}
	return true
}

// definedByTypes reports whether a label comes from the instance type, so that a type
// without it cannot satisfy a requirement on it. Other labels come from the pool.
func definedByTypes(key string) bool {
	if key == corev1.LabelInstanceTypeStable || key == corev1.LabelArchStable {
		return true
	}
	return strings.HasPrefix(key, "karpenter.k8s.aws/instance-") || strings.HasPrefix(key, "karpenter.kwok.sh/instance-")
}

func (of *Offering) allows(want requirements.Set) bool {
	for key, r := range of.Requirements {
		if w, ok := want[key]; ok && !w.Intersects(r) {
			return false
		}
	}
	return true
}
