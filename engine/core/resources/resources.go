// Package resources measures what pods ask for and what nodes offer, in integers.
//
// A [List] counts every resource in the unit kube-scheduler uses: CPU in
// millicores, memory and ephemeral storage in bytes, everything else in whole
// units. Rounding follows kube-scheduler: fractions of a unit round up.
package resources

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// List maps a resource name to an amount in its canonical unit (see the package
// comment). A missing name is zero. The nil List is empty and may be read.
type List map[corev1.ResourceName]int64

// MaxAmount is the largest amount a List holds, 2⁵⁰: a PiB, or a trillion cores. Larger
// quantities saturate, so that the sums over thousands of absurd pods cannot overflow.
const MaxAmount = 1 << 50

// Amount is q in the canonical unit of name, rounded up and clamped to
// ±[MaxAmount].
func Amount(name corev1.ResourceName, q resource.Quantity) int64 {
	unit, scale := int64(1), resource.Scale(0)
	if name == corev1.ResourceCPU {
		unit, scale = 1000, resource.Milli
	}
	if v, ok := q.AsInt64(); ok {
		if v > MaxAmount/unit {
			return MaxAmount
		}
		if v < -MaxAmount/unit {
			return -MaxAmount
		}
		return v * unit
	}
	// Beyond 64 bits a Quantity's own conversions wrap around, and with an exponent of
	// millions they take minutes, so what is far outside is told by its size.
	switch f := q.AsApproximateFloat64(); {
	case f >= 2*MaxAmount:
		return MaxAmount
	case f <= -2*MaxAmount:
		return -MaxAmount
	case f > -1e-30 && f < 1e-30:
		return int64(max(q.Sign(), 0))
	}
	if q.CmpInt64(MaxAmount/unit) >= 0 {
		return MaxAmount
	}
	if q.CmpInt64(-MaxAmount/unit) <= 0 {
		return -MaxAmount
	}
	if q.Sign() < 0 { // a Quantity rounds -0.5 to 1
		q = q.DeepCopy()
		q.Neg()
		v := q.ScaledValue(scale)
		if q.Cmp(*resource.NewScaledQuantity(v, scale)) != 0 {
			v--
		}
		return -v
	}
	return q.ScaledValue(scale)
}

// Quantity is the inverse of [Amount].
func Quantity(name corev1.ResourceName, v int64) resource.Quantity {
	switch name {
	case corev1.ResourceCPU:
		return *resource.NewMilliQuantity(v, resource.DecimalSI)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return *resource.NewQuantity(v, resource.BinarySI)
	}
	return *resource.NewQuantity(v, resource.DecimalSI)
}

// FromQuantities converts l. Every negative quantity is an error that names the
// resource; the returned List then leaves it out and is still usable.
func FromQuantities(l corev1.ResourceList) (List, error) {
	out := make(List, len(l))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(l)) {
		q := l[name]
		if q.Sign() < 0 {
			errs = append(errs, fmt.Errorf("%s: %s: must not be negative", name, q.String()))
			continue
		}
		out[name] = Amount(name, q)
	}
	return out, errors.Join(errs...)
}

// Quantities converts l back to Kubernetes' form.
func (l List) Quantities() corev1.ResourceList {
	out := make(corev1.ResourceList, len(l))
	for name, v := range l {
		out[name] = Quantity(name, v)
	}
	return out
}

// Names returns l's resource names in order.
func (l List) Names() []corev1.ResourceName { return slices.Sorted(maps.Keys(l)) }

// Clone returns a copy that may be changed; it is never nil.
func (l List) Clone() List {
	out := make(List, len(l))
	maps.Copy(out, l)
	return out
}

// AddTo adds every amount of other to l, saturating at [MaxAmount].
func (l List) AddTo(other List) {
	for name, v := range other {
		l[name] = min(l[name]+v, MaxAmount)
	}
}

// SubFrom subtracts every amount of other from l; amounts may become negative.
func (l List) SubFrom(other List) {
	for name, v := range other {
		l[name] = max(l[name]-v, -MaxAmount)
	}
}

// MaxWith raises each amount of l to that of other where other's is larger.
func (l List) MaxWith(other List) {
	for name, v := range other {
		l[name] = max(l[name], v)
	}
}

// FitsIn reports whether every positive amount of l is at most that of room. An
// amount of zero fits even where room is negative, as in kube-scheduler.
func (l List) FitsIn(room List) bool {
	for name, v := range l {
		if v > 0 && v > room[name] {
			return false
		}
	}
	return true
}

// Compare orders lists by their sorted (name, amount) pairs, ignoring zeros.
func (l List) Compare(other List) int {
	names := slices.Compact(slices.Sorted(func(yield func(corev1.ResourceName) bool) {
		for n := range l {
			if !yield(n) {
				return
			}
		}
		for n := range other {
			if !yield(n) {
				return
			}
		}
	}))
	for _, n := range names {
		if c := cmp.Compare(l[n], other[n]); c != 0 {
			return c
		}
	}
	return 0
}
