// Package requirements is the algebra of label constraints: what a pod asks of a
// node's labels, and what labels a NodePool or an instance type can give.
//
// A [Requirement] constrains one label. It stands for the set of label values that
// satisfy it, and it also says whether a node without the label satisfies it, as
// kube-scheduler has it: NotIn and DoesNotExist accept a missing label; In, Exists
// and the comparisons do not.
package requirements

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Operator relates a label to the values of a requirement.
type Operator = corev1.NodeSelectorOperator

// Operators that Karpenter's API has beside those of Kubernetes. Like Gt and Lt they
// take one integer; the bound itself is included.
const (
	Gte Operator = "Gte"
	Lte Operator = "Lte"
)

// normalized maps deprecated label keys to those that replaced them.
var normalized = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
}

// NormalizeKey is the key that stands for key in requirements: deprecated keys such
// as beta.kubernetes.io/arch are replaced by their successors.
func NormalizeKey(key string) string {
	if n, ok := normalized[key]; ok {
		return n
	}
	return key
}

// Requirement constrains the value of one label. It is an immutable value; methods
// that combine requirements return a new one. The zero Requirement is impossible:
// nothing satisfies it.
//
// Bounds admit decimal integers from 0 to 2⁶³−1, because a label value cannot start
// with a sign.
type Requirement struct {
	key string
	// values are sorted, without duplicates, and never changed: the members of the
	// set, or of its complement.
	values     []string
	gte, lte   int64
	minValues  int
	complement bool
	// absent is true if a node without the label satisfies the requirement.
	absent         bool
	hasGte, hasLte bool
}

// New makes a requirement. In needs at least one value; Gt, Lt, Gte and Lte need
// exactly one, an integer; Exists and DoesNotExist ignore values. An unknown
// operator or an empty key is an error. The key is normalised ([NormalizeKey]).
func New(key string, op Operator, values ...string) (Requirement, error) {
	r := Requirement{key: NormalizeKey(key)}
	if key == "" {
		return r, fmt.Errorf("requirement: key: must not be empty")
	}
	switch op {
	case corev1.NodeSelectorOpIn:
		if len(values) == 0 {
			return r, fmt.Errorf("requirement %s: operator In: needs at least one value", key)
		}
		r.values = sortedSet(values)
	case corev1.NodeSelectorOpNotIn:
		r.complement, r.absent, r.values = true, true, sortedSet(values)
	case corev1.NodeSelectorOpExists:
		r.complement = true
	case corev1.NodeSelectorOpDoesNotExist:
		r.absent = true
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt, Gte, Lte:
		if len(values) != 1 {
			return r, fmt.Errorf("requirement %s: operator %s: has %d values, needs exactly one", key, op, len(values))
		}
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil {
			return r, fmt.Errorf("requirement %s: operator %s: value %q: must be an integer of 64 bits", key, op, values[0])
		}
		return bounded(r.key, op, n), nil
	default:
		return r, fmt.Errorf("requirement %s: operator %q: must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte, Lte", key, op)
	}
	return r, nil
}

func bounded(key string, op Operator, n int64) Requirement {
	r := Requirement{key: key, complement: true}
	switch op {
	case corev1.NodeSelectorOpGt:
		if n == math.MaxInt64 {
			return Requirement{key: key}
		}
		r.hasGte, r.gte = true, max(n+1, 0)
	case Gte:
		r.hasGte, r.gte = true, max(n, 0)
	case corev1.NodeSelectorOpLt:
		if n <= 0 {
			return Requirement{key: key}
		}
		r.hasLte, r.lte = true, n-1
	case Lte:
		if n < 0 {
			return Requirement{key: key}
		}
		r.hasLte, r.lte = true, n
	}
	return r
}

// In is the requirement that the label has one of values. Without values it is
// impossible.
func In(key string, values ...string) Requirement {
	return Requirement{key: NormalizeKey(key), values: sortedSet(values)}
}

// Any is satisfied by every value of the label, and by its absence.
func Any(key string) Requirement {
	return Requirement{key: NormalizeKey(key), complement: true, absent: true}
}

// DoesNotExist is satisfied only by the absence of the label.
func DoesNotExist(key string) Requirement {
	return Requirement{key: NormalizeKey(key), absent: true}
}

func sortedSet(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	out := slices.Clone(values)
	slices.Sort(out)
	return slices.Compact(out)
}

// Key is the label's key.
func (r Requirement) Key() string { return r.key }

// Complement reports whether r admits all values but [Requirement.Excluded], within
// its bounds. Otherwise it admits exactly [Requirement.Values].
func (r Requirement) Complement() bool { return r.complement }

// Values are the admitted values in order, nil if r is a complement. The slice is
// shared and must not be changed.
func (r Requirement) Values() []string {
	if r.complement {
		return nil
	}
	return slices.Clip(r.values)
}

// Excluded are the values a complement does not admit, in order. Within bounds only
// values that the bounds would admit are kept. The slice is shared and must not be
// changed.
func (r Requirement) Excluded() []string {
	if !r.complement {
		return nil
	}
	return slices.Clip(r.values)
}

// Bounds are the smallest and the largest integer r admits; nil means unbounded. Only
// complements have bounds.
func (r Requirement) Bounds() (gte, lte *int64) {
	if r.hasGte {
		gte = new(r.gte)
	}
	if r.hasLte {
		lte = new(r.lte)
	}
	return gte, lte
}

// MinValues is the number of distinct values that must remain to choose from; 0
// means none is asked for.
func (r Requirement) MinValues() int { return r.minValues }

// WithMinValues returns r asking for n distinct values; n ≤ 0 takes the demand away.
func (r Requirement) WithMinValues(n int) Requirement {
	r.minValues = max(n, 0)
	return r
}

// AllowsAbsent reports whether a node without the label satisfies r.
func (r Requirement) AllowsAbsent() bool { return r.absent }

// IsEmpty reports whether no value satisfies r: it is DoesNotExist or impossible.
func (r Requirement) IsEmpty() bool { return !r.complement && len(r.values) == 0 }

// IsImpossible reports whether neither a value nor the absence of the label
// satisfies r.
func (r Requirement) IsImpossible() bool { return r.IsEmpty() && !r.absent }

// IsSingle returns the only value of a requirement that admits exactly one value.
func (r Requirement) IsSingle() (string, bool) {
	if r.complement || len(r.values) != 1 {
		return "", false
	}
	return r.values[0], true
}

// Has reports whether value satisfies r. Bounds admit integers only; leading zeros
// do not matter to them.
func (r Requirement) Has(value string) bool {
	if r.complement == r.lists(value) {
		return false
	}
	return r.inBounds(value)
}

// lists reports whether value is in r.values, members or exclusions.
func (r *Requirement) lists(value string) bool {
	if len(r.values) <= 4 {
		for _, v := range r.values {
			if v == value {
				return true
			}
		}
		return false
	}
	_, ok := slices.BinarySearch(r.values, value)
	return ok
}

func (r *Requirement) isBounded() bool { return r.hasGte || r.hasLte }

func (r *Requirement) inBounds(value string) bool {
	if !r.isBounded() {
		return true
	}
	n, ok := parse(value)
	return ok && (!r.hasGte || n >= r.gte) && (!r.hasLte || n <= r.lte)
}

// parse reads an unsigned decimal of at most 2⁶³−1 without allocating.
func parse(s string) (n int64, ok bool) {
	if s == "" {
		return 0, false
	}
	for i := range len(s) {
		d := int64(s[i]) - '0'
		if d < 0 || d > 9 || n > (math.MaxInt64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// narrow sets r's bounds to those that satisfy both a and b.
func (r *Requirement) narrow(a, b *Requirement) {
	for _, x := range [...]*Requirement{a, b} {
		if x.hasGte && (!r.hasGte || x.gte > r.gte) {
			r.hasGte, r.gte = true, x.gte
		}
		if x.hasLte && (!r.hasLte || x.lte < r.lte) {
			r.hasLte, r.lte = true, x.lte
		}
	}
}

// leaves reports whether r's bounds admit an integer that neither a nor b excludes.
// Integers count in their usual spelling, without leading zeros.
func (r *Requirement) leaves(a, b *Requirement) bool {
	if !r.isBounded() {
		return true
	}
	lo, hi := int64(0), int64(math.MaxInt64)
	if r.hasGte {
		lo = r.gte
	}
	if r.hasLte {
		hi = r.lte
	}
	if lo > hi {
		return false
	}
	size := uint64(hi-lo) + 1
	if size > uint64(len(a.values)+len(b.values)) {
		return true
	}
	excluded := uint64(0)
	for _, v := range a.values {
		if isUsual(v) && r.inBounds(v) {
			excluded++
		}
	}
	for _, v := range b.values {
		if isUsual(v) && r.inBounds(v) && !a.lists(v) {
			excluded++
		}
	}
	return size > excluded
}

func isUsual(number string) bool { return number == "0" || number[:min(1, len(number))] > "0" }

// Intersect is satisfied by what satisfies both r and o. Its MinValues is the larger
// one. The keys should be equal; the result has r's.
func (r Requirement) Intersect(o Requirement) Requirement {
	out := Requirement{
		key:        r.key,
		minValues:  max(r.minValues, o.minValues),
		complement: r.complement && o.complement,
		absent:     r.absent && o.absent,
	}
	if out.complement {
		out.narrow(&r, &o)
		switch {
		case !out.leaves(&r, &o):
			out.complement, out.hasGte, out.hasLte, out.gte, out.lte = false, false, false, 0, 0
		case len(o.values) == 0 && !o.isBounded():
			out.values = r.values
		case len(r.values) == 0 && !r.isBounded():
			out.values = o.values
		default:
			out.values = union(r.values, o.values)
			if out.isBounded() {
				out.values = slices.DeleteFunc(out.values, func(v string) bool { return !out.inBounds(v) })
			}
			if len(out.values) == 0 {
				out.values = nil
			}
		}
		return out
	}
	set, other := &r, &o
	if r.complement || !o.complement && len(o.values) < len(r.values) {
		set, other = &o, &r
	}
	kept := 0
	for _, v := range set.values {
		if other.Has(v) {
			kept++
		}
	}
	if kept == len(set.values) {
		out.values = set.values
		return out
	}
	if kept > 0 {
		out.values = make([]string, 0, kept)
		for _, v := range set.values {
			if other.Has(v) {
				out.values = append(out.values, v)
			}
		}
	}
	return out
}

func union(a, b []string) []string {
	out := make([]string, 0, len(a)+len(b))
	out = append(append(out, a...), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Intersects reports whether a value, or the absence of the label, satisfies both r
// and o.
func (r Requirement) Intersects(o Requirement) bool { return intersects(&r, &o) }

func intersects(r, o *Requirement) bool {
	if r.absent && o.absent {
		return true
	}
	if r.complement && o.complement {
		var both Requirement
		both.narrow(r, o)
		return both.leaves(r, o)
	}
	set, other := r, o
	if r.complement || !o.complement && len(o.values) < len(r.values) {
		set, other = o, r
	}
	for _, v := range set.values {
		if other.complement != other.lists(v) && other.inBounds(v) {
			return true
		}
	}
	return false
}

// Operator is the Kubernetes operator closest to r: In for a set with values,
// DoesNotExist for one without, NotIn for a complement with exclusions, Exists for
// one without. Bounds do not change it; [Requirement.Entries] is exact.
func (r Requirement) Operator() Operator {
	switch {
	case !r.complement && len(r.values) > 0:
		return corev1.NodeSelectorOpIn
	case !r.complement:
		return corev1.NodeSelectorOpDoesNotExist
	case len(r.values) > 0:
		return corev1.NodeSelectorOpNotIn
	}
	return corev1.NodeSelectorOpExists
}

// Equal reports whether r and o are the same requirement.
func (r Requirement) Equal(o Requirement) bool {
	return r.key == o.key && r.complement == o.complement && r.absent == o.absent && r.minValues == o.minValues &&
		r.hasGte == o.hasGte && r.hasLte == o.hasLte && r.gte == o.gte && r.lte == o.lte && slices.Equal(r.values, o.values)
}

// Entry is one requirement as Karpenter's API writes it. Several entries on one key
// all hold.
type Entry struct {
	Key      string
	Operator Operator
	Values   []string
	// MinValues is nil if no number of values is asked for.
	MinValues *int
}

// Requirement reads e like [New]. A MinValues below 1 is an error.
func (e Entry) Requirement() (Requirement, error) {
	r, err := New(e.Key, e.Operator, e.Values...)
	if err != nil || e.MinValues == nil {
		return r, err
	}
	if *e.MinValues < 1 {
		return r, fmt.Errorf("requirement %s: minValues: %d: must be at least 1", e.Key, *e.MinValues)
	}
	return r.WithMinValues(*e.MinValues), nil
}

// Entries writes r so that reading the entries and intersecting them gives r again.
// MinValues is on the first entry. Nothing in them is shared with r.
func (r Requirement) Entries() []Entry {
	var out []Entry
	add := func(op Operator, values ...string) {
		out = append(out, Entry{Key: r.key, Operator: op, Values: values})
	}
	if r.hasGte {
		add(Gte, strconv.FormatInt(r.gte, 10))
	}
	if r.hasLte {
		add(Lte, strconv.FormatInt(r.lte, 10))
	}
	switch {
	case !r.complement && len(r.values) > 0:
		add(corev1.NodeSelectorOpIn, slices.Clone(r.values)...)
	case !r.complement:
		add(corev1.NodeSelectorOpDoesNotExist)
		if !r.absent { // a contradiction, which no single operator can say
			add(corev1.NodeSelectorOpExists)
		}
	default:
		if !r.absent && !r.isBounded() {
			add(corev1.NodeSelectorOpExists)
		}
		if len(r.values) > 0 || r.absent {
			add(corev1.NodeSelectorOpNotIn, slices.Clone(r.values)...)
		}
	}
	if r.minValues > 0 {
		out[0].MinValues = new(r.minValues)
	}
	return out
}

// maxShown is the number of values String prints.
const maxShown = 5

// String formats r for people, such as "cpu Gte 4, Lte 16, NotIn [12]". Long lists of
// values are cut.
func (r Requirement) String() string {
	var b strings.Builder
	b.WriteString(r.key)
	b.WriteByte(' ')
	b.WriteString(r.Constraint())
	return b.String()
}

// Constraint is [Requirement.String] without the key.
func (r Requirement) Constraint() string {
	if r.IsImpossible() {
		return "impossible"
	}
	if r.complement && r.absent && len(r.values) == 0 {
		return "Any"
	}
	var b strings.Builder
	for i, e := range r.Entries() {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(e.Operator))
		switch e.Operator {
		case Gte, Lte:
			b.WriteByte(' ')
			b.WriteString(e.Values[0])
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			b.WriteString(" [")
			for j, v := range e.Values {
				if j == maxShown && len(e.Values) > maxShown+1 {
					fmt.Fprintf(&b, " and %d others", len(e.Values)-maxShown)
					break
				}
				if j > 0 {
					b.WriteByte(' ')
				}
				if v == "" {
					v = `""`
				}
				b.WriteString(v)
			}
			b.WriteByte(']')
		}
	}
	if r.minValues > 0 {
		fmt.Fprintf(&b, ", minValues %d", r.minValues)
	}
	return b.String()
}
