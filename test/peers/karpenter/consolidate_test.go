package karpenter

import (
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/test/peers/fleet"
)

// TestConsolidation lets Karpenter's controllers empty a small fleet until they find
// nothing more.
func TestConsolidation(t *testing.T) {
	// Three families for each architecture: the controllers take as many times longer as
	// there are more types.
	family := regexp.MustCompile(`^[cmr]6[ig]\.`)
	var types []*catalog.InstanceType
	for _, it := range sim.Builtin().Types() {
		if family.MatchString(it.Name) {
			types = append(types, &it)
		}
	}
	f, err := fleet.Generate(fleet.Size{Nodes: 20, Seed: 1}, types)
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewConsolidation(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Settle(t.Context(), e, fleet.Limits{Rounds: 60}, func(r fleet.Round) { t.Logf("%+v", r) })
	if err != nil {
		t.Fatal(err)
	}
	if !out.Settled || out.Pending > 0 {
		t.Errorf("after %d rounds settled=%v with %d pods pending, want true and none", len(out.Rounds), out.Settled, out.Pending)
	}
	if out.After > out.Before*8/10 {
		t.Errorf("the fleet costs %.2f $/h, before %.2f: want a fifth less at least, at 40 %% use", out.After.Dollars(), out.Before.Dollars())
	}
	if b := f.Bound(); out.After.Dollars() < b {
		t.Errorf("the fleet costs %.2f $/h, below its bound of %.2f", out.After.Dollars(), b)
	}
	if out.Evictions == 0 || len(out.Rounds) == 0 || len(f.Nodes) != out.Nodes {
		t.Errorf("%d evictions in %d rounds, %d nodes of %d; want some, and all counted", out.Evictions, len(out.Rounds), out.Nodes, len(f.Nodes))
	}
}

func TestStore(t *testing.T) {
	s := newStore()
	ctx := t.Context()
	for _, p := range []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", Labels: map[string]string{"app": "1"}}, Spec: corev1.PodSpec{NodeName: "n"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "y", Labels: map[string]string{"app": "2"}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "x", Labels: map[string]string{"app": "1"}}, Spec: corev1.PodSpec{NodeName: "n"}},
	} {
		if err := s.Create(ctx, &p); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		opts []client.ListOption
		want int
	}{
		"all":                  {want: 3},
		"a namespace":          {opts: []client.ListOption{client.InNamespace("a")}, want: 2},
		"a label":              {opts: []client.ListOption{client.MatchingLabels{"app": "1"}}, want: 2},
		"both":                 {opts: []client.ListOption{client.InNamespace("a"), client.MatchingLabels{"app": "1"}}, want: 1},
		"a node":               {opts: []client.ListOption{client.MatchingFields{"spec.nodeName": "n"}}, want: 2},
		"no node":              {opts: []client.ListOption{client.MatchingFields{"spec.nodeName": ""}}, want: 1},
		"as it is, not copied": {opts: []client.ListOption{client.UnsafeDisableDeepCopy}, want: 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got corev1.PodList
			if err := s.List(ctx, &got, tt.opts...); err != nil || len(got.Items) != tt.want {
				t.Errorf("List() finds %d, %v; want %d", len(got.Items), err, tt.want)
			}
		})
	}
	if err := s.List(ctx, &corev1.PodList{}, client.MatchingFields{"spec.x": ""}); err == nil {
		t.Error("List() by a field without an index: no error, want one")
	}
	if err := s.List(ctx, &corev1.SecretList{}); err == nil {
		t.Error("List() of a kind that is not held: no error, want one")
	}

	var p corev1.Pod
	key := client.ObjectKey{Namespace: "a", Name: "x"}
	if err := s.Get(ctx, key, &p); err != nil {
		t.Fatal(err)
	}
	p.Spec.NodeName = "m"
	var again corev1.Pod
	if err := s.Get(ctx, key, &again); err != nil || again.Spec.NodeName != "n" {
		t.Errorf("node is %q, %v after a change of a copy, want n", again.Spec.NodeName, err)
	}
	if err := s.Status().Patch(ctx, &p, client.MergeFrom(&again)); err != nil {
		t.Fatal(err)
	}
	if err := s.Get(ctx, key, &again); err != nil || again.Spec.NodeName != "m" {
		t.Errorf("node is %q, %v after a patch, want m", again.Spec.NodeName, err)
	}
	var moved corev1.PodList
	if err := s.List(ctx, &moved, client.MatchingFields{"spec.nodeName": "n"}); err != nil || len(moved.Items) != 1 {
		t.Errorf("%d pods are on the old node, %v; want 1", len(moved.Items), err)
	}
	if err := s.Delete(ctx, &p); err != nil {
		t.Fatal(err)
	}
	if err := s.Get(ctx, key, &again); !apierrors.IsNotFound(err) {
		t.Errorf("Get() of a deleted pod: %v, want not found", err)
	}

	one, two := &karpenterv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, &karpenterv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}
	for _, c := range []*karpenterv1.NodeClaim{one, two} {
		if err := s.Create(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if one.Name == two.Name || one.UID == two.UID || one.Name == "x-" {
		t.Errorf("generated names %q and %q, want two", one.Name, two.Name)
	}
}
