package requirements

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func req(t testing.TB, key string, op Operator, values ...string) Requirement {
	t.Helper()
	r, err := New(key, op, values...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSet_Compatible(t *testing.T) {
	zone := corev1.LabelTopologyZone
	tests := map[string]struct {
		node, pod Set
		allow     func(string) bool
		want      string
	}{
		"no requirements fit anything": {node: NewSet(In("a", "1"))},
		"a nil set defines nothing":    {pod: NewSet(In("a", "1")), want: `label "a": want In [1], but it is not defined`},
		"NotIn accepts a missing label, as kube-scheduler does": {
			pod: NewSet(req(t, "a", notIn, "1")),
		},
		"DoesNotExist accepts a missing label": {pod: NewSet(req(t, "a", dne))},
		"Exists together with NotIn does not": {
			pod:  NewSet(req(t, "a", notIn, "1"), req(t, "a", exists)),
			want: `label "a": want Exists, NotIn [1], but it is not defined`,
		},
		"a pod that contradicts itself fits no node, not even one without the label": {
			pod:  NewSet(In("a", "1"), In("a", "2")),
			want: `label "a": want impossible, but it is not defined`,
		},
		"a contradiction is not saved by a well-known key": {
			pod: NewSet(In(zone, "1"), In(zone, "2")), allow: WellKnown,
			want: `label "topology.kubernetes.io/zone": want impossible, but it is not defined`,
		},
		"a well-known label may be undefined on a new node": {pod: NewSet(In(zone, "z1")), allow: WellKnown},
		"but not on an existing node": {
			pod: NewSet(In(zone, "z1")), want: `label "topology.kubernetes.io/zone": want In [z1], but it is not defined`,
		},
		"a custom label may not be undefined on a new node": {
			pod: NewSet(In("team", "x")), allow: WellKnown, want: `label "team": want In [x], but it is not defined`,
		},
		"a typo of a defined key is named": {
			node: NewSet(In("example.com/team", "x")), pod: NewSet(In("example.com/taem", "x")), allow: WellKnown,
			want: `label "example.com/taem": want In [x], but it is not defined (typo of "example.com/team"?)`,
		},
		"a well-known key without its domain is named": {
			pod: NewSet(In("capacity-type", "spot")), allow: WellKnown,
			want: `label "capacity-type": want In [spot], but it is not defined (typo of "karpenter.sh/capacity-type"?)`,
		},
		"common keys must intersect": {
			node: NewSet(In("a", "1", "2"), In("b", "1")), pod: NewSet(In("a", "2"), In("b", "2")),
			want: `label "b": want In [2], have In [1]`,
		},
		"a node without the label meets NotIn beside DoesNotExist": {node: NewSet(req(t, "a", dne)), pod: NewSet(req(t, "a", notIn, "1"))},
		"a node that must have the label fails DoesNotExist": {
			node: NewSet(req(t, "a", exists)), pod: NewSet(req(t, "a", dne)), want: `label "a": want DoesNotExist, have Exists`,
		},
		"the empty value is a zone": {node: FromLabels(map[string]string{zone: ""}), pod: NewSet(In(zone, ""))},
		"the empty value is not another zone": {
			node: FromLabels(map[string]string{zone: ""}), pod: NewSet(In(zone, "z1")),
			want: `label "topology.kubernetes.io/zone": want In [z1], have In [""]`,
		},
		"two ranges without a common number are apart": {
			node: NewSet(req(t, "a", Gte, "3"), req(t, "a", notIn, "3", "4")), pod: NewSet(req(t, "a", lt, "5")),
			want: `label "a": want Lte 4, have Gte 3, NotIn [3 4]`,
		},
		"the first key in order is reported": {
			pod: NewSet(In("c", "1"), In("b", "1"), In("d", "1")), want: `label "b": want In [1], but it is not defined`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tc.node.Compatible(tc.pod, tc.allow); err != nil {
				got = err.Error()
				if e := (*IncompatibleError)(nil); !errors.As(err, &e) || !tc.pod.Has(e.Key) || !e.Want.Equal(tc.pod[e.Key]) {
					t.Errorf("error is not about a wanted key: %#v", err)
				}
			}
			if got != tc.want {
				t.Errorf("Compatible() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSet_Intersects(t *testing.T) {
	a := NewSet(In("x", "1"), In("y", "1", "2"))
	if err := a.Intersects(NewSet(In("y", "2", "3"), In("z", "9"))); err != nil {
		t.Errorf("sets with a common value: %v", err)
	}
	err := a.Intersects(NewSet(In("x", "2"), In("y", "3")))
	if err == nil || err.Error() != `label "x": want In [2], have In [1]` {
		t.Errorf("Intersects() = %v, want the first key", err)
	}
	if err := Set(nil).Intersects(a); err != nil {
		t.Errorf("the nil set intersects everything, got %v", err)
	}
}

func TestSet_Access(t *testing.T) {
	s := NewSet(In("b", "1"), In("beta.kubernetes.io/os", "linux"))
	if !s.Has("kubernetes.io/os") || !s.Has("beta.kubernetes.io/os") || s.Has("c") {
		t.Errorf("Has() wrong for %s", s)
	}
	if got := s.Get("c"); got.Operator() != exists || !got.Has("x") || !got.AllowsAbsent() {
		t.Errorf("an absent key reads as %s, want one that admits everything", got)
	}
	c := s.Clone()
	c.Add(In("b", "2"))
	if !s["b"].Has("1") || !c["b"].IsImpossible() {
		t.Errorf("Clone() shares: %s and %s", s, c)
	}
	if diff := cmp.Diff([]string{"b", "kubernetes.io/os"}, s.Keys()); diff != "" {
		t.Errorf("Keys() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"b": "1", "kubernetes.io/os": "linux"}, s.Labels()); diff != "" {
		t.Errorf("Labels() (-want +got):\n%s", diff)
	}
}

func TestFromLabels(t *testing.T) {
	got := FromLabels(map[string]string{"beta.kubernetes.io/arch": "old", "kubernetes.io/arch": "arm64", "beta.kubernetes.io/os": "linux"}).String()
	if want := "kubernetes.io/arch In [arm64]; kubernetes.io/os In [linux]"; got != want {
		t.Errorf("FromLabels() = %s, want %s", got, want)
	}
}

func TestFromNodeSelectorTerm(t *testing.T) {
	type expr = corev1.NodeSelectorRequirement
	tests := map[string]struct {
		term corev1.NodeSelectorTerm
		want string
		err  string
	}{
		"expressions on one key all hold": {
			term: corev1.NodeSelectorTerm{MatchExpressions: []expr{{Key: "a", Operator: gt, Values: []string{"2"}}, {Key: "a", Operator: notIn, Values: []string{"5"}}}},
			want: "a Gte 3, NotIn [5]",
		},
		"a field is a requirement on the node's name": {
			term: corev1.NodeSelectorTerm{MatchFields: []expr{{Key: "metadata.name", Operator: in, Values: []string{"n1"}}}},
			want: "metadata.name In [n1]",
		},
		"an empty term matches nothing": {err: ErrEmptyTerm.Error()},
		"every bad expression is named": {
			term: corev1.NodeSelectorTerm{
				MatchExpressions: []expr{{Key: "a", Operator: in}, {Key: "b", Operator: "Is"}},
				MatchFields:      []expr{{Key: "metadata.uid", Operator: in, Values: []string{"n1"}}, {Key: "metadata.name", Operator: exists}},
			},
			err: "matchExpressions[0]: requirement a: operator In: needs at least one value\n" +
				"matchExpressions[1]: requirement b: operator \"Is\": must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte, Lte\n" +
				"matchFields[0]: field \"metadata.uid\": must be metadata.name\n" +
				"matchFields[1]: field metadata.name: operator \"Exists\": must be In or NotIn",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := FromNodeSelectorTerm(tc.term)
			if err != nil && err.Error() != tc.err || err == nil && tc.err != "" {
				t.Fatalf("error = %v, want %q", err, tc.err)
			}
			if got := s.String(); got != tc.want {
				t.Errorf("set = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFromNodeSelector(t *testing.T) {
	s, err := FromNodeSelector(map[string]string{"b": "2", "a": ""})
	if want := `a In [""]; b In [2]`; err != nil || s.String() != want {
		t.Errorf("FromNodeSelector() = %s, %v, want %s", s, err, want)
	}
	s, err = FromNodeSelector(map[string]string{"beta.kubernetes.io/os": "linux", "kubernetes.io/os": "windows"})
	if err != nil || !s["kubernetes.io/os"].IsImpossible() {
		t.Errorf("contradicting keys give %s, %v", s, err)
	}
	if _, err := FromNodeSelector(map[string]string{"": "x"}); err == nil {
		t.Error("an empty key is no error")
	}
}

func TestSet_Entries(t *testing.T) {
	two, zero := 2, 0
	s := NewSet(req(t, "b", Gte, "3"), req(t, "b", Lte, "8"), req(t, "b", notIn, "5").WithMinValues(2), In("a", "y", "x"), req(t, "c", dne))
	want := []Entry{
		{Key: "a", Operator: in, Values: []string{"x", "y"}},
		{Key: "b", Operator: Gte, Values: []string{"3"}, MinValues: &two},
		{Key: "b", Operator: Lte, Values: []string{"8"}},
		{Key: "b", Operator: notIn, Values: []string{"5"}},
		{Key: "c", Operator: dne},
	}
	if diff := cmp.Diff(want, s.Entries()); diff != "" {
		t.Errorf("Entries() (-want +got):\n%s", diff)
	}
	if got := s.NodeSelectorRequirements(); len(got) != 5 || got[3].Values[0] != "5" {
		t.Errorf("NodeSelectorRequirements() = %v", got)
	}
	back, err := FromEntries(append(s.Entries(), Entry{Key: "d", Operator: exists, MinValues: &zero}))
	if err == nil || err.Error() != "[5]: requirement d: minValues: 0: must be at least 1" {
		t.Errorf("FromEntries() error = %v", err)
	}
	if !back.Equal(s) {
		t.Errorf("FromEntries() = %s, want %s", back, s)
	}
}
