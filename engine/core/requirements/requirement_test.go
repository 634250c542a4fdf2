package requirements

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

const (
	in     = corev1.NodeSelectorOpIn
	notIn  = corev1.NodeSelectorOpNotIn
	exists = corev1.NodeSelectorOpExists
	dne    = corev1.NodeSelectorOpDoesNotExist
	gt     = corev1.NodeSelectorOpGt
	lt     = corev1.NodeSelectorOpLt
)

func must(t testing.TB, op Operator, values ...string) Requirement {
	t.Helper()
	r, err := New("k", op, values...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func all(t testing.TB, exprs ...string) Requirement {
	t.Helper()
	r := Any("k")
	for _, e := range exprs {
		f := strings.Fields(e)
		for i := range f {
			if f[i] == `""` {
				f[i] = ""
			}
		}
		r = r.Intersect(must(t, Operator(f[0]), f[1:]...))
	}
	return r
}

func TestNew(t *testing.T) {
	tests := map[string]struct {
		key    string
		op     Operator
		values []string
		want   string
		err    string
	}{
		"values are sorted and unique":              {"k", in, []string{"b", "a", "b"}, "k In [a b]", ""},
		"the empty string is a value":               {"k", in, []string{""}, `k In [""]`, ""},
		"a deprecated key is replaced":              {"beta.kubernetes.io/arch", in, []string{"arm64"}, "kubernetes.io/arch In [arm64]", ""},
		"Gt becomes an inclusive bound":             {"k", gt, []string{"3"}, "k Gte 4", ""},
		"Lt becomes an inclusive bound":             {"k", lt, []string{"3"}, "k Lte 2", ""},
		"Gte keeps its bound":                       {"k", Gte, []string{"3"}, "k Gte 3", ""},
		"Lte keeps its bound":                       {"k", Lte, []string{"3"}, "k Lte 3", ""},
		"Gt of the largest integer is impossible":   {"k", gt, []string{strconv.Itoa(math.MaxInt64)}, "k impossible", ""},
		"Lt 0 is impossible for label values":       {"k", lt, []string{"0"}, "k impossible", ""},
		"a negative lower bound asks for a number":  {"k", gt, []string{"-7"}, "k Gte 0", ""},
		"NotIn nothing accepts everything":          {"k", notIn, nil, "k Any", ""},
		"In without values is an error":             {"k", in, nil, "", "requirement k: operator In: needs at least one value"},
		"Gt needs an integer":                       {"k", gt, []string{"x"}, "", `requirement k: operator Gt: value "x": must be an integer of 64 bits`},
		"Gt of more than 64 bits is an error":       {"k", gt, []string{"9223372036854775808"}, "", `requirement k: operator Gt: value "9223372036854775808": must be an integer of 64 bits`},
		"Gte needs exactly one value":               {"k", Gte, []string{"1", "2"}, "", "requirement k: operator Gte: has 2 values, needs exactly one"},
		"an unknown operator is an error":           {"k", "Near", nil, "", `requirement k: operator "Near": must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte, Lte`},
		"an empty key is an error":                  {"", in, []string{"a"}, "", "requirement: key: must not be empty"},
		"a long list is cut for display":            {"k", in, strings.Split("abcdefghi", ""), "k In [a b c d e and 4 others]", ""},
		"one value more than shown is still shown":  {"k", in, strings.Split("abcdef", ""), "k In [a b c d e f]", ""},
		"Exists ignores values, as Karpenter does":  {"k", exists, []string{"a"}, "k Exists", ""},
		"DoesNotExist is the absence of the label":  {"k", dne, nil, "k DoesNotExist", ""},
		"an instance type's old label is replaced":  {"beta.kubernetes.io/instance-type", exists, nil, "node.kubernetes.io/instance-type Exists", ""},
		"a zone's old label is replaced":            {"failure-domain.beta.kubernetes.io/zone", exists, nil, "topology.kubernetes.io/zone Exists", ""},
		"a bound above 64 bits is not reached":      {"k", Lte, []string{strconv.Itoa(math.MaxInt64)}, "k Lte 9223372036854775807", ""},
		"a lower bound on the largest int is fine":  {"k", Gte, []string{strconv.Itoa(math.MaxInt64)}, "k Gte 9223372036854775807", ""},
		"an upper bound below zero cannot be met":   {"k", Lte, []string{"-1"}, "k impossible", ""},
		"values are kept as written, spaces and so": {"k", notIn, []string{"x y"}, "k NotIn [x y]", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := New(tc.key, tc.op, tc.values...)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("New() error = %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("New() error = %v", err)
			}
			if got := r.String(); got != tc.want {
				t.Errorf("New() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestIntersect(t *testing.T) {
	tests := map[string]struct {
		exprs []string
		want  string
	}{
		"sets intersect": {[]string{"In a b c", "In b c d"}, "k In [b c]"},
		"disjoint sets are impossible, not DoesNotExist": {[]string{"In a", "In b"}, "k impossible"},
		"exclusions take values away":                    {[]string{"In a b", "NotIn b"}, "k In [a]"},
		"exclusions add up":                              {[]string{"NotIn b", "NotIn a c"}, "k NotIn [a b c]"},
		"Exists beside NotIn still needs the label":      {[]string{"Exists", "NotIn a"}, "k Exists, NotIn [a]"},
		"bounds keep exclusions within them":             {[]string{"Gt 2", "NotIn 1 4 x", "Lte 9"}, "k Gte 3, Lte 9, NotIn [4]"},
		"bounds filter a set":                            {[]string{"In 1 5 9 x", "Gt 1", "Lt 9"}, "k In [5]"},
		"the tighter bound holds":                        {[]string{"Gte 3", "Gte 7", "Lte 20", "Lte 12"}, "k Gte 7, Lte 12"},
		"crossing bounds are impossible":                 {[]string{"Gt 5", "Lt 5"}, "k impossible"},
		"a range used up by exclusions is impossible":    {[]string{"Gte 4", "Lte 6", "NotIn 4 5 6"}, "k impossible"},
		"a range nearly used up is not":                  {[]string{"Gte 4", "Lte 6", "NotIn 4 6 7 05"}, "k Gte 4, Lte 6, NotIn [05 4 6]"},
		"the largest integer excluded ends the range":    {[]string{"Gte 9223372036854775807", "NotIn 9223372036854775807"}, "k impossible"},
		"absence survives NotIn and DoesNotExist":        {[]string{"NotIn a", "DoesNotExist"}, "k DoesNotExist"},
		"Exists and DoesNotExist contradict":             {[]string{"Exists", "DoesNotExist"}, "k impossible"},
		"the empty value is a value":                     {[]string{`In "" a`, "NotIn a"}, `k In [""]`},
		"a bound admits no empty value":                  {[]string{`In "" 1`, "Gte 0"}, "k In [1]"},
		"leading zeros do not matter to bounds":          {[]string{"In 007 8", "Lte 7"}, "k In [007]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := all(t, tc.exprs...).String(); got != tc.want {
				t.Errorf("Intersect() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestIntersect_MinValues(t *testing.T) {
	a, b := must(t, in, "a", "b", "c").WithMinValues(2), must(t, exists).WithMinValues(3)
	if got := a.Intersect(b).MinValues(); got != 3 {
		t.Errorf("MinValues() = %d, want the larger one, 3", got)
	}
	if got := a.WithMinValues(-1).MinValues(); got != 0 {
		t.Errorf("WithMinValues(-1).MinValues() = %d, want 0", got)
	}
}

func TestRequirement_Views(t *testing.T) {
	r := all(t, "Gte 2", "Lte 5", "NotIn 3")
	gte, lte := r.Bounds()
	if gte == nil || lte == nil || *gte != 2 || *lte != 5 {
		t.Errorf("Bounds() = %v, %v, want 2, 5", gte, lte)
	}
	if diff := cmp.Diff([]string{"3"}, r.Excluded()); diff != "" || r.Values() != nil || !r.Complement() || r.Operator() != notIn {
		t.Errorf("Excluded() (-want +got):\n%s Values() = %v", diff, r.Values())
	}
	if v, ok := must(t, in, "").IsSingle(); !ok || v != "" {
		t.Errorf(`IsSingle() of In [""] = %q, %v`, v, ok)
	}
	if _, ok := must(t, in, "a", "b").IsSingle(); ok {
		t.Error("IsSingle() of two values is true")
	}
	if d := must(t, dne); !d.IsEmpty() || d.IsImpossible() || !d.AllowsAbsent() || d.Operator() != dne {
		t.Errorf("DoesNotExist: %+v", d)
	}
	var zero Requirement
	if !zero.IsImpossible() || zero.Has("") {
		t.Error("the zero requirement is satisfiable")
	}
}

// model is the slow obvious meaning of a requirement: which values of a universe it
// admits, and whether it admits the absence of the label. Integers of the universe
// stand for all integers: bounds and exclusions of the fuzz test stay below top.
type model struct {
	has    [len(universe)]bool
	absent bool
}

var universe = [...]string{"", "a", "b", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a1", "-1", "99999999999999999999", "other", "9000"}

func modelOf(op Operator, values []string) (m model) {
	m.absent = op == notIn || op == dne
	for i, u := range universe {
		listed := false
		for _, v := range values {
			listed = listed || v == u
		}
		n, err := strconv.ParseUint(u, 10, 63)
		number := err == nil
		bound := int64(0)
		if len(values) == 1 {
			bound, _ = strconv.ParseInt(values[0], 10, 64)
		}
		switch op {
		case in:
			m.has[i] = listed
		case notIn:
			m.has[i] = !listed
		case exists:
			m.has[i] = true
		case gt:
			m.has[i] = number && int64(n) > bound
		case Gte:
			m.has[i] = number && int64(n) >= bound
		case lt:
			m.has[i] = number && int64(n) < bound
		case Lte:
			m.has[i] = number && int64(n) <= bound
		}
	}
	return m
}

func (m model) and(o model) model {
	m.absent = m.absent && o.absent
	for i := range m.has {
		m.has[i] = m.has[i] && o.has[i]
	}
	return m
}

func (m model) any() bool {
	for _, h := range m.has {
		if h {
			return true
		}
	}
	return false
}

// random reads a requirement and its model off data.
func random(data *[]byte) (Requirement, model, error) {
	next := func() byte {
		if len(*data) == 0 {
			return 0
		}
		b := (*data)[0]
		*data = (*data)[1:]
		return b
	}
	op := [...]Operator{in, notIn, exists, dne, gt, lt, Gte, Lte}[next()%8]
	var values []string
	switch op {
	case in, notIn:
		// "other" and "9000" stand for everything else, so nothing names them.
		for n := next()%5 + 1; n > 0; n-- {
			values = append(values, universe[int(next())%(len(universe)-2)])
		}
	case gt, lt, Gte, Lte:
		values = []string{strconv.Itoa(int(next()%10) - 1)}
	}
	r, err := New("k", op, values...)
	return r, modelOf(op, values), err
}

func FuzzRequirements(f *testing.F) {
	f.Add([]byte{6, 4, 7, 6, 1, 3, 7, 8, 9})
	f.Add([]byte{0, 2, 1, 2, 3, 1, 0, 2})
	f.Add([]byte{2, 3, 1, 1, 0})
	f.Add([]byte{5, 1, 1, 0, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, m := Any("k"), modelOf(notIn, nil)
		for step := 0; step == 0 || len(data) > 0 && step < 6; step++ {
			o, om, err := random(&data)
			if err != nil {
				t.Fatal(err)
			}
			both := m.and(om)
			if got, want := r.Intersects(o), both.any() || both.absent; got != want {
				t.Errorf("(%s).Intersects(%s) = %v, want %v", r, o, got, want)
			}
			if got, want := o.Intersects(r), both.any() || both.absent; got != want {
				t.Errorf("(%s).Intersects(%s) = %v, want %v", o, r, got, want)
			}
			mirror := o.Intersect(r)
			r, m = r.Intersect(o), both
			if !r.Equal(mirror) {
				t.Errorf("intersection depends on order: %s and %s", r, mirror)
			}
			for i, u := range universe {
				if r.Has(u) != m.has[i] {
					t.Errorf("(%s).Has(%q) = %v, want %v", r, u, r.Has(u), m.has[i])
				}
			}
			if r.IsEmpty() == m.any() || r.AllowsAbsent() != m.absent {
				t.Errorf("%s: IsEmpty() = %v, AllowsAbsent() = %v, want %v, %v", r, r.IsEmpty(), r.AllowsAbsent(), !m.any(), m.absent)
			}
			back, err := FromEntries(r.Entries())
			if err != nil || !back.Get("k").Equal(r) {
				t.Errorf("entries of %s read back as %s, error %v", r, back, err)
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	many := make([]string, 0, 40)
	for i := range 40 {
		many = append(many, fmt.Sprint("type-", i))
	}
	set, other, rng, not := must(t, in, many...), must(t, in, "type-39", "x"), all(t, "Gte 4", "Lte 9"), all(t, "NotIn 5 6 x")
	node := NewSet(set, In("zone", "z1", "z2"))
	pod := NewSet(other, In("zone", "z2"))
	ok := true
	n := testing.AllocsPerRun(100, func() {
		ok = ok && set.Has("type-7") && !rng.Has("banana") && rng.Has("4")
		ok = ok && set.Intersects(other) && rng.Intersects(not) && !rng.Intersects(set)
		ok = ok && node.Intersects(pod) == nil && node.Compatible(pod, WellKnown) == nil
	})
	if n != 0 || !ok {
		t.Errorf("allocations = %v, want 0; answers right: %v", n, ok)
	}
}

func BenchmarkRequirement(b *testing.B) {
	many := make([]string, 0, 40)
	for i := range 40 {
		many = append(many, fmt.Sprint("type-", i))
	}
	set, one, rng, not := must(b, in, many...), must(b, in, "type-39"), all(b, "Gte 4", "Lte 9"), must(b, notIn, "5", "6")
	node := NewSet(set, In("zone", "z1", "z2"), In("arch", "amd64"))
	pod := NewSet(one, In("zone", "z2"))
	for name, f := range map[string]func() bool{
		"Has/set=40":        func() bool { return set.Has("type-17") },
		"Has/bounds":        func() bool { return rng.Has("7") },
		"Intersects/sets":   func() bool { return set.Intersects(one) },
		"Intersects/ranges": func() bool { return rng.Intersects(not) },
		"Intersect/sets":    func() bool { return !set.Intersect(one).IsEmpty() },
		"Set.Compatible":    func() bool { return node.Compatible(pod, WellKnown) == nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !f() {
					b.Fatal("wrong answer")
				}
			}
		})
	}
}
