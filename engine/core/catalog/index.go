package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Catalog is a set of instance types that does not change. The nil Catalog is empty.
type Catalog struct {
	types  []InstanceType // by name
	byName map[string]int
	digest func() string

	mu   sync.Mutex
	sold map[string][]Sold // by the text of requirements
}

// Problem is an instance type, or one of its offerings, that [New] had to leave out.
type Problem struct {
	InstanceType string
	// Field is the path inside the instance type, such as "offerings[3].price"; empty
	// if the type as a whole is meant.
	Field string
	// Message says what is wrong and what is required.
	Message string
}

func (p *Problem) Error() string {
	if p.Field == "" {
		return fmt.Sprintf("instance type %q: %s", p.InstanceType, p.Message)
	}
	return fmt.Sprintf("instance type %q: %s: %s", p.InstanceType, p.Field, p.Message)
}

// New makes a catalogue of types, which it copies. A type whose Requirements do not
// name it gets the label node.kubernetes.io/instance-type; nil Allocatable is Capacity.
//
// A type that cannot be used is left out with a [*Problem]: without a name, with the
// name of an earlier one, with negative resources, or without offerings. So is an
// offering that has a negative price, an unknown capacity type, the identity of an
// earlier offering, or no price. Reserved and unavailable offerings and those priced
// by a NodeOverlay may have a price of 0.
func New(types []InstanceType) (*Catalog, []error) {
	var errs []error
	out := make([]InstanceType, 0, len(types))
	seen := make(map[string]bool, len(types))
	for _, t := range types {
		report := func(field, format string, args ...any) {
			errs = append(errs, &Problem{InstanceType: t.Name, Field: field, Message: fmt.Sprintf(format, args...)})
		}
		switch {
		case t.Name == "":
			report("", "name: must not be empty")
			continue
		case seen[t.Name]:
			report("", "is there twice; the first one counts")
			continue
		}
		seen[t.Name] = true
		if t.Allocatable == nil {
			t.Allocatable = t.Capacity
		}
		bad := negative("capacity", t.Capacity, report) || negative("allocatable", t.Allocatable, report)
		for _, driver := range slices.Sorted(maps.Keys(t.AttachLimits)) {
			if n := t.AttachLimits[driver]; n < 0 {
				report("attachLimits["+driver+"]", "%d: must not be negative", n)
				bad = true
			}
		}
		switch have, ok := t.Requirements[corev1.LabelInstanceTypeStable]; {
		case !ok:
			t.Requirements = t.Requirements.Clone()
			t.Requirements.Add(requirements.In(corev1.LabelInstanceTypeStable, t.Name))
		case !have.Has(t.Name):
			report("requirements["+corev1.LabelInstanceTypeStable+"]", "%s: must be the type's name", have.Constraint())
			bad = true
		}
		if bad {
			continue
		}
		if t.Offerings = checkOfferings(t.Offerings, report); len(t.Offerings) == 0 {
			report("offerings", "must have at least one that is usable")
			continue
		}
		out = append(out, t)
	}
	return build(out), errs
}

// build indexes types, which become the catalogue's own.
func build(types []InstanceType) *Catalog {
	slices.SortFunc(types, func(a, b InstanceType) int { return strings.Compare(a.Name, b.Name) })
	c := &Catalog{types: types, byName: make(map[string]int, len(types))}
	for i := range types {
		c.byName[types[i].Name] = i
	}
	c.digest = sync.OnceValue(func() string { return digest(types) })
	return c
}

func negative(field string, l resources.List, report func(field, format string, args ...any)) bool {
	bad := false
	for _, v := range l {
		bad = bad || v < 0
	}
	if bad {
		for _, name := range l.Names() {
			if v := l[name]; v < 0 {
				q := resources.Quantity(name, v)
				report(field+"["+string(name)+"]", "%s: must not be negative", q.String())
			}
		}
	}
	return bad
}

// checkOfferings returns the usable ones in order, in a new slice.
func checkOfferings(in []Offering, report func(field, format string, args ...any)) []Offering {
	out := make([]Offering, 0, len(in))
	for i := range in {
		o := &in[i]
		field := func(name string) string { return fmt.Sprintf("offerings[%d].%s", i, name) }
		switch {
		case o.CapacityType != OnDemand && o.CapacityType != Spot && o.CapacityType != Reserved:
			report(field("capacityType"), "%q: must be %s, %s or %s", o.CapacityType, OnDemand, Spot, Reserved)
		case o.Price < 0:
			report(field("price"), "%.6f: must not be negative", o.Price.Dollars())
		case o.Price == 0 && o.CapacityType != Reserved && !o.Unavailable && !o.PriceOverlay:
			report(field("price"), "has no price")
		case o.ReservationCapacity < 0:
			report(field("reservationCapacity"), "%d: must not be negative", o.ReservationCapacity)
		default:
			out = append(out, *o)
		}
	}
	if slices.IsSortedFunc(out, compareOfferings) && !hasTwins(out) {
		return out
	}
	slices.SortStableFunc(out, compareOfferings)
	return slices.CompactFunc(out, func(a, b Offering) bool {
		if compareOfferings(a, b) != 0 {
			return false
		}
		report("offerings", "%s is there twice; the first one counts", b.describe())
		return true
	})
}

func hasTwins(sorted []Offering) bool {
	for i := 1; i < len(sorted); i++ {
		if compareOfferings(sorted[i-1], sorted[i]) == 0 {
			return true
		}
	}
	return false
}

// compareOfferings orders by what identifies an offering within its type.
func compareOfferings(a, b Offering) int {
	c := cmp.Or(strings.Compare(a.Zone, b.Zone), strings.Compare(a.CapacityType, b.CapacityType), strings.Compare(a.ReservationID, b.ReservationID))
	if c == 0 && (len(a.Requirements) > 0 || len(b.Requirements) > 0) {
		c = strings.Compare(exact(a.Requirements), exact(b.Requirements))
	}
	return c
}

// exact is all of s as text; Set.String cuts long lists.
func exact(s requirements.Set) string { return fmt.Sprintf("%q", s.NodeSelectorRequirements()) }

func (o *Offering) describe() string {
	s := fmt.Sprintf("%s in zone %q", o.CapacityType, o.Zone)
	if o.ReservationID != "" {
		s += " of reservation " + o.ReservationID
	}
	return s
}

// Types are the instance types in order of their names, offerings in order of zone,
// capacity type and reservation. They are shared and must not be changed.
func (c *Catalog) Types() []InstanceType {
	if c == nil {
		return nil
	}
	return slices.Clip(c.types)
}

// Len is the number of instance types.
func (c *Catalog) Len() int { return len(c.Types()) }

// ByName finds an instance type. It is shared and must not be changed.
func (c *Catalog) ByName(name string) (*InstanceType, bool) {
	if c == nil {
		return nil, false
	}
	i, ok := c.byName[name]
	if !ok {
		return nil, false
	}
	return &c.types[i], true
}

// Hash is a digest of everything in the catalogue: equal for equal contents, in
// hexadecimal. It is computed at the first call.
func (c *Catalog) Hash() string {
	if c == nil {
		return digest(nil)
	}
	return c.digest()
}

// digester writes fields with their lengths, so that no two contents look alike.
type digester struct {
	hash.Hash
	buf []byte
}

func (d *digester) ints(vs ...int64) {
	for _, v := range vs {
		d.buf = binary.AppendVarint(d.buf, v)
	}
}

func (d *digester) strings(ss ...string) {
	for _, s := range ss {
		d.buf = append(binary.AppendVarint(d.buf, int64(len(s))), s...)
	}
}

func (d *digester) list(l resources.List) {
	d.ints(int64(len(l)))
	for _, name := range l.Names() {
		d.strings(string(name))
		d.ints(l[name])
	}
}

func (d *digester) set(s requirements.Set) {
	d.ints(int64(len(s)))
	for _, e := range s.Entries() {
		d.strings(e.Key, string(e.Operator))
		d.ints(int64(len(e.Values)))
		d.strings(e.Values...)
		if e.MinValues != nil {
			d.ints(int64(*e.MinValues))
		}
	}
}

func (d *digester) bool(b bool) {
	if b {
		d.ints(1)
	} else {
		d.ints(0)
	}
}

func digest(types []InstanceType) string {
	d := &digester{Hash: sha256.New()}
	d.ints(int64(len(types)))
	for i := range types {
		t := &types[i]
		d.strings(t.Name)
		d.set(t.Requirements)
		d.list(t.Capacity)
		d.list(t.Allocatable)
		d.ints(int64(len(t.AttachLimits)))
		for _, driver := range slices.Sorted(maps.Keys(t.AttachLimits)) {
			d.strings(driver)
			d.ints(t.AttachLimits[driver])
		}
		d.bool(t.CapacityOverlay)
		d.ints(int64(len(t.Offerings)))
		for j := range t.Offerings {
			o := &t.Offerings[j]
			d.strings(o.Zone, o.CapacityType, o.ReservationID)
			d.ints(int64(o.Price), int64(o.ReservationCapacity))
			d.bool(o.Unavailable)
			d.bool(o.PriceOverlay)
			d.set(o.Requirements)
		}
		d.Write(d.buf)
		d.buf = d.buf[:0]
	}
	d.Write(d.buf) // the header, if there are no types
	return hex.EncodeToString(d.Sum(nil))
}
