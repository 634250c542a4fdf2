package state

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type key = types.NamespacedName

func keyOf(o metav1.Object) key { return key{Namespace: o.GetNamespace(), Name: o.GetName()} }

func compareKeys(a, b key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// ordered has objects by name and in the order of names.
type ordered[T metav1.Object] struct {
	by map[key]T
	// sorted is what by was before the changes. It is shared with snapshots.
	sorted  []T
	changed map[key]bool
}

func newOrdered[T metav1.Object]() ordered[T] {
	return ordered[T]{by: map[key]T{}, changed: map[key]bool{}}
}

func (l *ordered[T]) set(k key, o T) { l.by[k], l.changed[k] = o, true }

func (l *ordered[T]) remove(k key) {
	if _, ok := l.by[k]; ok {
		delete(l.by, k)
		l.changed[k] = true
	}
}

// list returns the objects by namespace and name; it must not be changed.
func (l *ordered[T]) list() []T {
	if len(l.changed) == 0 {
		return l.sorted
	}
	keys := make([]key, 0, len(l.changed))
	for k := range l.changed {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	out := make([]T, 0, len(l.by))
	rest := l.sorted
	for _, k := range keys {
		i, found := slices.BinarySearchFunc(rest, k, func(o T, k key) int { return compareKeys(keyOf(o), k) })
		out = append(out, rest[:i]...)
		if found {
			i++
		}
		rest = rest[i:]
		if o, ok := l.by[k]; ok {
			out = append(out, o)
		}
	}
	l.sorted = append(out, rest...)
	clear(l.changed)
	return l.sorted
}

// table has the objects of one kind, as far as they are not older than what was known.
type table[T client.Object] struct {
	ordered[T]
	// unseen are objects that no watch has shown yet, with the time they were told of.
	unseen map[key]time.Time
	// dead are the UIDs of objects that are gone, with the time they went.
	dead map[types.UID]time.Time
}

func newTable[T client.Object]() *table[T] {
	return &table[T]{ordered: newOrdered[T](), unseen: map[key]time.Time{}, dead: map[types.UID]time.Time{}}
}

// put keeps o unless something newer is known. It returns what was known before and
// whether o was taken.
func (t *table[T]) put(o T, seen bool, now time.Time) (before T, taken bool) {
	k := keyOf(o)
	before, had := t.by[k]
	if uid := o.GetUID(); uid != "" {
		if _, gone := t.dead[uid]; gone {
			return before, false
		}
	}
	if had && older(o, before) {
		if seen && o.GetUID() == before.GetUID() {
			delete(t.unseen, k)
		}
		return before, false
	}
	if had && before.GetUID() != o.GetUID() {
		t.bury(before, now)
	}
	if seen {
		delete(t.unseen, k)
	} else if !had || before.GetUID() != o.GetUID() {
		t.unseen[k] = now
	}
	t.set(k, o)
	return before, true
}

// drop forgets o, unless another object has its name by now. It returns what was known.
func (t *table[T]) drop(o client.Object, now time.Time) (before T, dropped bool) {
	k := keyOf(o)
	before, had := t.by[k]
	if o.GetUID() != "" {
		t.dead[o.GetUID()] = now
	}
	if !had || o.GetUID() != "" && before.GetUID() != "" && o.GetUID() != before.GetUID() {
		return before, false
	}
	t.bury(before, now)
	t.remove(k)
	delete(t.unseen, k)
	return before, true
}

func (t *table[T]) bury(o T, now time.Time) {
	if o.GetUID() != "" {
		t.dead[o.GetUID()] = now
	}
}

// sweep forgets who died before the time.
func (t *table[T]) sweep(before time.Time) {
	for uid, at := range t.dead {
		if at.Before(before) {
			delete(t.dead, uid)
		}
	}
}

// older reports whether a is known to be older than b. Versions of different objects of
// one API server can be compared.
func older(a, b metav1.Object) bool {
	x, err1 := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, err2 := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return err1 == nil && err2 == nil && x < y
}
