package nodepolicy

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// memory is a set in which policies whose inline text is "bad" do not compile.
type memory struct {
	applied []string
	status  map[string]v1alpha1.NodePolicyStatus
	// fixed is the revision of all policies; empty gives each generation one.
	fixed string
}

func (m *memory) Apply(_ context.Context, list ...*v1alpha1.NodePolicy) error {
	var errs []error
	for _, p := range list {
		m.applied = append(m.applied, p.Name)
		s := m.status[p.Name]
		s.ObservedGeneration = p.Generation
		ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Succeeded"}
		if *p.Spec.Source.Inline == "bad" {
			s.LastError = p.Name + ".rego:1: unexpected token"
			ready.Status, ready.Reason = metav1.ConditionFalse, "CompileFailed"
			errs = append(errs, errors.New(s.LastError))
		} else {
			s.Revision, s.LastError = stdcmp.Or(m.fixed, fmt.Sprint("r", p.Generation)), ""
		}
		s.Conditions = []metav1.Condition{ready}
		m.status[p.Name] = s
	}
	return errors.Join(errs...)
}

func (m *memory) Remove(names ...string) {
	for _, n := range names {
		delete(m.status, n)
	}
}

func (m *memory) Status(name string) (v1alpha1.NodePolicyStatus, bool) {
	s, ok := m.status[name]
	return s, ok
}

func policy(name, text string, generation int64) *v1alpha1.NodePolicy {
	return &v1alpha1.NodePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation},
		Spec:       v1alpha1.NodePolicySpec{Hook: "score", Runtime: v1alpha1.RuntimeRego, Source: v1alpha1.PolicySource{Inline: &text}},
	}
}

func TestController_Reconcile(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy("good", "ok", 1), policy("broken", "bad", 1)).WithStatusSubresource(&v1alpha1.NodePolicy{}).Build()
	set := &memory{status: map[string]v1alpha1.NodePolicyStatus{}}
	var events []string
	changes := 0
	c := New(Options{
		Client: cl, Set: set, InForce: func() { changes++ },
		Events: observe.NewEvents(func(about runtime.Object, _, reason, message string) {
			events = append(events, about.(metav1.Object).GetName()+" "+reason+": "+message)
		}, time.Now),
	})
	run := func(name string) {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	get := func(name string) *v1alpha1.NodePolicy {
		t.Helper()
		var np v1alpha1.NodePolicy
		if err := cl.Get(t.Context(), client.ObjectKey{Name: name}, &np); err != nil {
			t.Fatal(err)
		}
		return &np
	}
	run("broken")
	run("good")
	run("good")
	if d := cmp.Diff([]string{"broken", "good"}, set.applied); d != "" {
		t.Errorf("applied (a policy that has not changed is not applied again):\n%s", d)
	}
	if np := get("good"); np.Status.Revision != "r1" || !meta.IsStatusConditionTrue(np.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("status of the good one: %+v", np.Status)
	}
	if np := get("broken"); np.Status.LastError == "" || !meta.IsStatusConditionFalse(np.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("status of the broken one: %+v", np.Status)
	}
	want := []string{"broken PolicyFailed: broken.rego:1: unexpected token", "good PolicyReady: revision r1 is in force"}
	if d := cmp.Diff(want, events); d != "" {
		t.Errorf("events:\n%s", d)
	}
	if changes != 1 {
		t.Errorf("told of %d changes of what is in force, want 1", changes)
	}

	mended := get("broken")
	mended.Spec.Source.Inline, mended.Generation = new("ok"), 2
	if err := cl.Update(t.Context(), mended); err != nil {
		t.Fatal(err)
	}
	run("broken")
	if np := get("broken"); np.Status.Revision != "r2" || np.Status.LastError != "" {
		t.Errorf("status of the mended one: %+v", np.Status)
	}
	if err := cl.Delete(t.Context(), get("good")); err != nil {
		t.Fatal(err)
	}
	run("good")
	if _, ok := set.Status("good"); ok || !slices.Contains(events, "broken PolicyReady: revision r2 is in force") || changes != 3 {
		t.Errorf("a deleted policy is still in force, or changes were not told: events %v, changes %d", events, changes)
	}
}

func TestController_recreated(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	first := policy("a", "ok", 1)
	first.UID = "u1"
	cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(first).WithStatusSubresource(&v1alpha1.NodePolicy{}).Build()
	set := &memory{status: map[string]v1alpha1.NodePolicyStatus{}}
	c := New(Options{Client: cl, Set: set})
	run := func() {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "a"}}); err != nil {
			t.Fatal(err)
		}
	}
	run()
	// Nobody looks between the two.
	if err := cl.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := policy("a", "bad", 1)
	second.UID = "u2"
	if err := cl.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	run()
	if status, _ := set.Status("a"); status.LastError == "" || len(set.applied) != 2 {
		t.Errorf("applied %v, status %+v: want the new policy of the old name", set.applied, status)
	}
}

func TestController_shadow(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy("good", "ok", 1)).WithStatusSubresource(&v1alpha1.NodePolicy{}).Build()
	set := &memory{status: map[string]v1alpha1.NodePolicyStatus{}}
	c := New(Options{Client: cl, Set: set, Shadow: true})
	if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "good"}}); err != nil {
		t.Fatal(err)
	}
	var np v1alpha1.NodePolicy
	if err := cl.Get(t.Context(), client.ObjectKey{Name: "good"}, &np); err != nil {
		t.Fatal(err)
	}
	if len(set.applied) != 1 || np.Status.Revision != "" {
		t.Errorf("applied %v with status %+v, want it in force and nothing written", set.applied, np.Status)
	}
}

// TestController_standby has a replica that does not lead put policies in force, and write
// what came of them once it does.
func TestController_standby(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy("good", "ok", 1)).WithStatusSubresource(&v1alpha1.NodePolicy{}).Build()
	set := &memory{status: map[string]v1alpha1.NodePolicyStatus{}}
	elected := make(chan struct{})
	c := New(Options{Client: cl, Set: set, Elected: elected})
	revision := func() string {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "good"}}); err != nil {
			t.Fatal(err)
		}
		var np v1alpha1.NodePolicy
		if err := cl.Get(t.Context(), client.ObjectKey{Name: "good"}, &np); err != nil {
			t.Fatal(err)
		}
		return np.Status.Revision
	}
	if got := revision(); len(set.applied) != 1 || got != "" {
		t.Errorf("applied %v with revision %q, want it in force and nothing written", set.applied, got)
	}
	go func() { _ = c.forward(t.Context()) }()
	close(elected)
	if asked := <-c.changed; asked.Object.GetName() != "good" {
		t.Errorf("asked to look at %q", asked.Object.GetName())
	}
	if got := revision(); len(set.applied) != 1 || got != "r1" {
		t.Errorf("applied %v with revision %q, want it written by who leads", set.applied, got)
	}
}

// TestController_inForce tells of what has changed what is in force.
func TestController_inForce(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	np := policy("good", "ok", 1)
	np.Status.Revision, np.Status.ObservedGeneration = "r1", 1 // of an earlier process
	cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(np).WithStatusSubresource(&v1alpha1.NodePolicy{}).Build()
	set := &memory{status: map[string]v1alpha1.NodePolicyStatus{}, fixed: "r1"}
	changes := 0
	c := New(Options{Client: cl, Set: set, InForce: func() { changes++ }})
	run := func() {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "good"}}); err != nil {
			t.Fatal(err)
		}
	}
	run()
	run()
	if changes != 1 {
		t.Errorf("told of %d changes after a restart, want 1", changes)
	}
	if err := cl.Get(t.Context(), client.ObjectKey{Name: "good"}, np); err != nil {
		t.Fatal(err)
	}
	np.Spec.Mode, np.Generation = v1alpha1.ModeShadow, 2
	if err := cl.Update(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	run()
	run()
	if changes != 2 {
		t.Errorf("told of %d changes after another mode, which has no revision of its own, want 2", changes)
	}
}
