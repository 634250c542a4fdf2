package requirements

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Set holds at most one requirement per label key. The nil Set is empty and may be
// read.
type Set map[string]Requirement

// NewSet intersects reqs key by key.
func NewSet(reqs ...Requirement) Set {
	s := make(Set, len(reqs))
	s.Add(reqs...)
	return s
}

// Add narrows s by reqs, in place.
func (s Set) Add(reqs ...Requirement) {
	for _, r := range reqs {
		if old, ok := s[r.key]; ok {
			r = old.Intersect(r)
		}
		s[r.key] = r
	}
}

// AddSet narrows s by every requirement of o, in place.
func (s Set) AddSet(o Set) {
	for _, r := range o {
		s.Add(r)
	}
}

// Clone returns a copy that may be changed; it is never nil.
func (s Set) Clone() Set {
	out := make(Set, len(s))
	maps.Copy(out, s)
	return out
}

// Get is the requirement on key; a key without one reads as [Any], whose operator is
// Exists.
func (s Set) Get(key string) Requirement {
	if r, ok := s[NormalizeKey(key)]; ok {
		return r
	}
	return Any(key)
}

// Has reports whether s has a requirement on key.
func (s Set) Has(key string) bool {
	_, ok := s[NormalizeKey(key)]
	return ok
}

// Keys are the keys with a requirement, in order.
func (s Set) Keys() []string { return slices.Sorted(maps.Keys(s)) }

// Equal reports whether s and o hold the same requirements.
func (s Set) Equal(o Set) bool { return maps.EqualFunc(s, o, Requirement.Equal) }

// Intersects returns nil if on every key that both sets have, a value or the absence
// of the label satisfies both; otherwise an [*IncompatibleError] about the first such
// key, s being what there is and o what is wanted.
func (s Set) Intersects(o Set) error {
	bad, found := "", false
	small, large := s, o
	if len(o) < len(s) {
		small, large = o, s
	}
	for key, r := range small {
		if other, ok := large[key]; ok && !intersects(&r, &other) && (!found || key < bad) {
			bad, found = key, true
		}
	}
	if !found {
		return nil
	}
	return &IncompatibleError{Key: bad, Want: o[bad], Have: s[bad]}
}

// Compatible returns nil if a node described by s can satisfy incoming, else an
// [*IncompatibleError] about the first key that it cannot.
//
// A key that s does not define fails unless incoming accepts the absence of the
// label or allowUndefined reports true for it; nil allows none. Keys that both define
// must intersect ([Requirement.Intersects]).
func (s Set) Compatible(incoming Set, allowUndefined func(key string) bool) error {
	bad, found := "", false
	for key, want := range incoming {
		if found && key > bad {
			continue
		}
		var ok bool
		if have, defined := s[key]; defined {
			ok = intersects(&have, &want)
		} else {
			ok = want.absent || allowUndefined != nil && !want.IsImpossible() && allowUndefined(key)
		}
		if !ok {
			bad, found = key, true
		}
	}
	if !found {
		return nil
	}
	have, defined := s[bad]
	err := &IncompatibleError{Key: bad, Want: incoming[bad], Have: have, Undefined: !defined}
	if !defined {
		err.Have = Any(bad)
		err.defined = s
	}
	return err
}

// IncompatibleError says on which label two sets cannot agree.
type IncompatibleError struct {
	Key string
	// Want is what is asked for, Have what there is.
	Want, Have Requirement
	// Undefined is true if there is no requirement on Key; Have is then [Any].
	Undefined bool

	defined Set
}

// Hint is a defined or well-known key that may have been meant by an undefined one;
// empty if none is similar.
func (e *IncompatibleError) Hint() string {
	if !e.Undefined {
		return ""
	}
	return e.defined.similar(e.Key)
}

func (e *IncompatibleError) Error() string {
	if !e.Undefined {
		return fmt.Sprintf("label %q: want %s, have %s", e.Key, e.Want.Constraint(), e.Have.Constraint())
	}
	s := fmt.Sprintf("label %q: want %s, but it is not defined", e.Key, e.Want.Constraint())
	if hint := e.Hint(); hint != "" {
		s += fmt.Sprintf(" (typo of %q?)", hint)
	}
	return s
}

// wellKnown are the labels that every provider gives its nodes, in order.
var wellKnown = []string{
	"karpenter.sh/capacity-type",
	"karpenter.sh/nodepool",
	corev1.LabelArchStable,
	corev1.LabelOSStable,
	corev1.LabelInstanceTypeStable,
	corev1.LabelWindowsBuild,
	corev1.LabelTopologyRegion,
	corev1.LabelTopologyZone,
}

// WellKnown reports whether key is a label that every provider gives its nodes, so
// that a NodePool need not mention it. Providers add their own.
func WellKnown(key string) bool { return slices.Contains(wellKnown, NormalizeKey(key)) }

// similar is the defined or well-known key most likely meant by key, or "".
func (s Set) similar(key string) string {
	best, bestScore := "", 0
	if len(key) < 4 { // everything is similar to a letter or two
		return ""
	}
	name := func(k string) string { return k[strings.LastIndexByte(k, '/')+1:] }
	for _, cand := range append(s.Keys(), wellKnown...) {
		score := 0
		switch limit := max(len(key)/8, 1); {
		case cand == key || len(cand) < 4:
		case strings.EqualFold(cand, key):
			score = 100
		case distance(cand, key, limit) <= limit:
			score = 90 - distance(cand, key, limit)
		case name(cand) == name(key):
			score = 50
		case strings.Contains(cand, key), strings.HasSuffix(name(cand), name(key)), strings.HasSuffix(name(key), name(cand)):
			score = 40
		}
		if score > bestScore {
			best, bestScore = cand, score
		}
	}
	return best
}

// distance is the number of single-byte edits between a and b, or limit+1 if it is
// more than limit.
func distance(a, b string, limit int) int {
	if d := len(a) - len(b); d > limit || -d > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(diag+cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit+1)
}

// FromLabels is the set that a node with these labels has. Where a deprecated key and
// its successor are both present, the successor counts.
func FromLabels(labels map[string]string) Set {
	s := make(Set, len(labels))
	for key, value := range labels {
		if n := NormalizeKey(key); n != key {
			if _, both := labels[n]; both {
				continue
			}
			if prev, ok := s[n]; ok && prev.values[0] < value { // two deprecated keys of one successor
				continue
			}
			key = n
		}
		s[key] = Requirement{key: key, values: []string{value}}
	}
	return s
}

// FromNodeSelector is the set a pod's spec.nodeSelector asks for. An empty key is an
// error.
func FromNodeSelector(selector map[string]string) (Set, error) {
	s := make(Set, len(selector))
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		r, err := New(key, corev1.NodeSelectorOpIn, selector[key])
		if err != nil {
			return nil, fmt.Errorf("node selector: %w", err)
		}
		s.Add(r)
	}
	return s, nil
}

// FieldName is the key under which a term's match on a node's name appears in a Set.
const FieldName = "metadata.name"

// ErrEmptyTerm is a node selector term without expressions: it matches no node.
var ErrEmptyTerm = errors.New("node selector term: has no expressions, so it matches no node")

// FromNodeSelectorTerm is the set that term asks for: its matchExpressions, and its
// matchFields under [FieldName]. A term without either gives [ErrEmptyTerm]; every
// invalid expression is an error.
func FromNodeSelectorTerm(term corev1.NodeSelectorTerm) (Set, error) {
	if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
		return nil, ErrEmptyTerm
	}
	s := make(Set, len(term.MatchExpressions)+len(term.MatchFields))
	var errs []error
	for i, e := range term.MatchExpressions {
		r, err := New(e.Key, e.Operator, e.Values...)
		if err != nil {
			errs = append(errs, fmt.Errorf("matchExpressions[%d]: %w", i, err))
			continue
		}
		s.Add(r)
	}
	for i, e := range term.MatchFields {
		r, err := New(e.Key, e.Operator, e.Values...)
		switch {
		case err != nil:
		case e.Key != FieldName:
			err = fmt.Errorf("field %q: must be %s", e.Key, FieldName)
		case e.Operator != corev1.NodeSelectorOpIn && e.Operator != corev1.NodeSelectorOpNotIn:
			err = fmt.Errorf("field %s: operator %q: must be In or NotIn", e.Key, e.Operator)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("matchFields[%d]: %w", i, err))
			continue
		}
		s.Add(r)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// FromEntries intersects entries key by key. Every invalid entry is an error; the set
// of the others is returned all the same.
func FromEntries(entries []Entry) (Set, error) {
	s := make(Set, len(entries))
	var errs []error
	for i, e := range entries {
		r, err := e.Requirement()
		if err != nil {
			errs = append(errs, fmt.Errorf("[%d]: %w", i, err))
			continue
		}
		s.Add(r)
	}
	return s, errors.Join(errs...)
}

// Entries writes s in the form of Karpenter's API, ordered by key; reading them with
// [FromEntries] gives s again.
func (s Set) Entries() []Entry {
	out := make([]Entry, 0, len(s))
	for _, key := range s.Keys() {
		out = append(out, s[key].Entries()...)
	}
	return out
}

// NodeSelectorRequirements are [Set.Entries] in Kubernetes' type, without minValues.
func (s Set) NodeSelectorRequirements() []corev1.NodeSelectorRequirement {
	out := make([]corev1.NodeSelectorRequirement, 0, len(s))
	for _, e := range s.Entries() {
		out = append(out, corev1.NodeSelectorRequirement{Key: e.Key, Operator: e.Operator, Values: e.Values})
	}
	return out
}

// Labels are the labels that s settles: its keys with exactly one value.
func (s Set) Labels() map[string]string {
	out := make(map[string]string, len(s))
	for key, r := range s {
		if v, ok := r.IsSingle(); ok {
			out[key] = v
		}
	}
	return out
}

// String formats s for people, ordered by key.
func (s Set) String() string {
	parts := make([]string, 0, len(s))
	for _, key := range s.Keys() {
		parts = append(parts, s[key].String())
	}
	return strings.Join(parts, "; ")
}
