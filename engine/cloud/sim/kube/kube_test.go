package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/conformance"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

// world is a cluster with a clock that tests set.
type world struct {
	client client.WithWatch
	mu     sync.Mutex
	now    time.Time
	// running is the process that moves machines; replaced by restart.
	*process
}

// process is what one run of the program holds in memory.
type process struct {
	provider  *sim.Provider
	objects   *objects
	instances *instances
	classes   *classes
}

func newWorld(t *testing.T, funcs interceptor.Funcs, spec string) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	class := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default", CreationTimestamp: metav1.NewTime(w.now)}}
	if err := yaml.UnmarshalStrict([]byte(spec), &class.Spec); err != nil {
		t.Fatal(err)
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(class).
		WithStatusSubresource(&v1alpha1.SimInstance{}, &v1alpha1.SimNodeClass{}).WithInterceptorFuncs(funcs).Build()
	w.process = w.start()
	return w
}

func (w *world) start() *process {
	o := newObjects(w.client, w.client, w.Now)
	p := sim.New(o, o, sim.Options{Now: w.Now})
	return &process{
		provider: p, objects: o,
		instances: &instances{client: w.client, objects: o, provider: p, now: w.Now},
		classes:   &classes{client: w.client, provider: p, now: w.Now},
	}
}

// restart replaces the process that moves machines.
func (w *world) restart() { w.process = w.start() }

func (w *world) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// pass lets time pass, and runs every machine's reconciliation, as watches and timers
// would, until nothing more happens.
func (w *world) pass(t *testing.T, d time.Duration) {
	t.Helper()
	w.mu.Lock()
	w.now = w.now.Add(d)
	w.mu.Unlock()
	for range 3 {
		w.reconcile(t)
	}
}

func (w *world) reconcile(t *testing.T) {
	t.Helper()
	var list v1alpha1.SimInstanceList
	if err := w.client.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	for _, in := range list.Items {
		w.one(t, in.Name)
	}
}

func (w *world) one(t *testing.T, name string) reconcile.Result {
	t.Helper()
	result, err := w.instances.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	if err != nil {
		t.Fatalf("reconcile machine %s: %v", name, err)
	}
	return result
}

// change changes the class' spec.
func (w *world) change(t *testing.T, change func(*v1alpha1.SimNodeClassSpec)) {
	t.Helper()
	var class v1alpha1.SimNodeClass
	if err := w.client.Get(context.Background(), client.ObjectKey{Name: "default"}, &class); err != nil {
		t.Fatal(err)
	}
	change(&class.Spec)
	if err := w.client.Update(context.Background(), &class); err != nil {
		t.Fatal(err)
	}
}

func (w *world) nodes(t *testing.T) []string {
	t.Helper()
	var list corev1.NodeList
	if err := w.client.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

func (w *world) instance(t *testing.T, m *cloud.Machine) *v1alpha1.SimInstance {
	t.Helper()
	name, ok := sim.InstanceName(m.ProviderID)
	if !ok {
		t.Fatalf("provider ID %q", m.ProviderID)
	}
	in := &v1alpha1.SimInstance{}
	if err := w.client.Get(context.Background(), client.ObjectKey{Name: name}, in); err != nil {
		t.Fatal(err)
	}
	return in
}

func claim(name string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{karpv1.NodePoolLabelKey: "web"}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: sim.Kind, Name: "default"},
			Requirements: []karpv1.Requirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"m5.large"}}},
		},
	}
}

func (w *world) launch(t *testing.T, name string) *cloud.Machine {
	t.Helper()
	m, err := w.provider.Launch(t.Context(), claim(name))
	if err != nil {
		t.Fatalf("Launch(%s) error: %v", name, err)
	}
	return m
}

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Options{Claims: 100, New: func(t *testing.T) conformance.Cloud {
		w := newWorld(t, interceptor.Funcs{}, "{catalog: {builtin: kwok}, terminateLatency: {base: 10s, jitter: 20s}, launchLatency: {base: 2s}}")
		return conformance.Cloud{
			Open:      func(*testing.T) cloud.Provider { return w.start().provider },
			NodeClass: karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: sim.Kind, Name: "default"},
			Exhaust: func(t *testing.T, offerings ...cloud.Offering) {
				w.change(t, func(s *v1alpha1.SimNodeClassSpec) {
					for _, o := range offerings {
						s.Capacity = append(s.Capacity, v1alpha1.SimCapacity{SimSelector: v1alpha1.SimSelector{
							InstanceTypes: []string{o.InstanceType}, Zones: []string{o.Zone}, CapacityTypes: []string{o.CapacityType},
						}})
					}
				})
			},
			Advance: w.pass,
		}
	}})
}

func TestInstances_Life(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, `{launchLatency: {base: 10s}, registrationLatency: {base: 20s}, terminateLatency: {base: 30s},
		labels: {example.com/rack: a}, taints: [{key: example.com/new, effect: NoSchedule}]}`)
	m := w.launch(t, "web-1")
	w.pass(t, 0)
	name := w.instance(t, m).Name
	if got := w.one(t, name).RequeueAfter; got != 10*time.Second {
		t.Errorf("looks again after %s, want 10s", got)
	}
	step := func(d time.Duration, wantPhase v1alpha1.SimPhase, wantNodes ...string) {
		t.Helper()
		w.pass(t, d)
		if got := w.instance(t, m).Status.Phase; got != wantPhase {
			t.Errorf("phase %q, want %q", got, wantPhase)
		}
		if diff := cmp.Diff(append([]string{}, wantNodes...), w.nodes(t)); diff != "" {
			t.Errorf("nodes (-want +got):\n%s", diff)
		}
	}
	step(9*time.Second, v1alpha1.SimPending)
	step(time.Second, v1alpha1.SimRunning)
	w.restart()
	step(19*time.Second, v1alpha1.SimRunning)
	step(time.Second, v1alpha1.SimRunning, "web-1")

	node := &corev1.Node{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "web-1"}, node); err != nil {
		t.Fatal(err)
	}
	wantLabels := map[string]string{
		corev1.LabelHostname: "web-1", corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", corev1.LabelInstanceTypeStable: "m5.large",
		corev1.LabelTopologyZone: m.Labels[corev1.LabelTopologyZone], corev1.LabelTopologyRegion: "us-east-1",
		"topology.k8s.aws/zone-id": m.Labels["topology.k8s.aws/zone-id"], "example.com/rack": "a",
	}
	if diff := cmp.Diff(wantLabels, node.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	wantTaints := []corev1.Taint{{Key: "example.com/new", Effect: corev1.TaintEffectNoSchedule}, {Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}}
	if diff := cmp.Diff(wantTaints, node.Spec.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	if node.Spec.ProviderID != m.ProviderID || !strings.HasPrefix(m.ProviderID, "sim:///"+m.Labels[corev1.LabelTopologyZone]+"/i-") {
		t.Errorf("provider ID %q, machine's %q", node.Spec.ProviderID, m.ProviderID)
	}
	if node.Status.Capacity.Cpu().Value() != 2 || node.Status.Allocatable.Memory().IsZero() {
		t.Errorf("capacity %v, allocatable %v", node.Status.Capacity, node.Status.Allocatable)
	}

	// A Node that somebody deletes does not come back: its machine knows no better.
	if err := w.client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	step(time.Hour, v1alpha1.SimRunning)

	other := w.launch(t, "web-2")
	w.pass(t, time.Minute)
	c := claim("web-2")
	if err := w.provider.Terminate(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	m = other
	step(29*time.Second, v1alpha1.SimTerminating, "web-2")
	w.restart()
	w.pass(t, time.Second)
	if got := w.nodes(t); len(got) > 0 {
		t.Errorf("nodes %v are left", got)
	}
	if _, err := w.provider.Get(t.Context(), other.ProviderID); !cloud.IsNotFound(err) {
		t.Errorf("Get() error %v, want NotFound", err)
	}
}

// TestInstances_NodeStartsClosed looks at what is created and not at what is there later:
// pods bind to a Node that is open for a moment.
func TestInstances_NodeStartsClosed(t *testing.T) {
	var created []*corev1.Node
	writes := 0
	w := newWorld(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if n, ok := o.(*corev1.Node); ok {
				created = append(created, n.DeepCopy())
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if _, ok := o.(*corev1.Node); ok {
				writes++
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if _, ok := o.(*corev1.Node); ok {
				writes++
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	}, "{taints: [{key: example.com/new, effect: NoSchedule}]}")
	for _, name := range []string{"web-1", "web-2"} {
		w.launch(t, name)
	}
	w.pass(t, 0)
	w.pass(t, time.Minute)
	if len(created) != 2 || writes != 0 {
		t.Errorf("%d Nodes were created and %d writes followed, want 2 and none", len(created), writes)
	}
	for _, n := range created {
		if !slices.ContainsFunc(n.Spec.Taints, func(have corev1.Taint) bool { return have.MatchTaint(new(karpv1.UnregisteredTaint())) }) {
			t.Errorf("Node %s is created with taints %v, want %s among them", n.Name, n.Spec.Taints, karpv1.UnregisteredTaintKey)
		}
	}
}

func TestInstances_FinalizerHoldsNode(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, "{}")
	w.launch(t, "web-1")
	w.pass(t, 0)
	node := &corev1.Node{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "web-1"}, node); err != nil {
		t.Fatal(err)
	}
	node.Finalizers = []string{karpv1.TerminationFinalizer}
	if err := w.client.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := w.provider.Terminate(t.Context(), claim("web-1")); err != nil {
		t.Fatal(err)
	}
	w.pass(t, 0)
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "web-1"}, node); err != nil || node.DeletionTimestamp == nil {
		t.Errorf("node deleted at %v (%v), want it to be held by its finalizer", node.DeletionTimestamp, err)
	}
	if machines, err := w.provider.List(t.Context()); len(machines) != 0 {
		t.Errorf("machines %v (%v), want none: the finalizer is not theirs", machines, err)
	}
}

func TestInstances_RecordDeletedByHand(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, "{}")
	kept, m := w.launch(t, "web-1"), w.launch(t, "web-2")
	w.pass(t, 0)
	in := w.instance(t, m)
	if err := w.client.Delete(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	// What a watch of Nodes does at a start.
	w.restart()
	for _, name := range w.nodes(t) {
		node := &corev1.Node{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Name: name}, node); err != nil {
			t.Fatal(err)
		}
		for _, req := range ofNode(t.Context(), node) {
			w.one(t, req.Name)
		}
	}
	if diff := cmp.Diff([]string{"web-1"}, w.nodes(t)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if _, err := w.provider.Get(t.Context(), kept.ProviderID); err != nil {
		t.Error(err)
	}
	// Nodes of others are nobody's business.
	foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "metal"}, Spec: corev1.NodeSpec{ProviderID: "other:///a/" + in.Name}}
	if err := w.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	w.one(t, in.Name)
	if diff := cmp.Diff([]string{"metal", "web-1"}, w.nodes(t)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// TestInstances_StopAnywhere lets every call to the API server be the last one of a
// process, and another go on.
func TestInstances_StopAnywhere(t *testing.T) {
	for last := range 12 {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("call %d, carried out %v", last, !before), func(t *testing.T) {
				calls := -1 // writes are counted while it is not negative
				stopped := errors.New("the process was stopped")
				guard := func(do func() error) error {
					if calls < 0 {
						return do()
					}
					calls++
					if calls-1 != last {
						return do()
					}
					if before {
						return stopped
					}
					if err := do(); err != nil {
						return err
					}
					return stopped
				}
				w := newWorld(t, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						return guard(func() error { return c.Create(ctx, o, opts...) })
					},
					Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
						return guard(func() error { return c.Delete(ctx, o, opts...) })
					},
					SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
						return guard(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
					},
				}, "{terminateLatency: {base: 1s}}")
				calls = 0
				// again calls until it is carried out; after a stop a new process does.
				again := func(what string, do func() error) {
					t.Helper()
					for range 5 {
						err := do()
						if err == nil {
							return
						}
						if !errors.Is(err, stopped) {
							t.Fatalf("%s: %v", what, err)
						}
						w.restart()
					}
					t.Fatalf("%s: never carried out", what)
				}
				settle := func() {
					t.Helper()
					var list v1alpha1.SimInstanceList
					for range 3 {
						if err := w.client.List(t.Context(), &list); err != nil {
							t.Fatal(err)
						}
						for _, in := range list.Items {
							again("reconcile", func() error {
								_, err := w.instances.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: in.Name}})
								return err
							})
						}
					}
				}
				for _, name := range []string{"web-1", "web-2"} {
					again("launch", func() error { _, err := w.provider.Launch(t.Context(), claim(name)); return err })
				}
				settle()
				machines, err := w.provider.List(t.Context())
				if err != nil || len(machines) != 2 {
					t.Fatalf("machines %v (%v), want 2", machines, err)
				}
				if diff := cmp.Diff([]string{"web-1", "web-2"}, w.nodes(t)); diff != "" {
					t.Errorf("nodes (-want +got):\n%s", diff)
				}
				for _, name := range []string{"web-1", "web-2"} {
					again("terminate", func() error { return w.provider.Terminate(t.Context(), claim(name)) })
				}
				w.mu.Lock()
				w.now = w.now.Add(time.Second)
				w.mu.Unlock()
				settle()
				if machines, err := w.provider.List(t.Context()); err != nil || len(machines) != 0 {
					t.Errorf("machines %v (%v) are left", machines, err)
				}
				if got := w.nodes(t); len(got) != 0 {
					t.Errorf("nodes %v are left", got)
				}
				if calls <= last && last < 8 {
					t.Errorf("%d calls, so call %d was never made", calls, last)
				}
			})
		}
	}
}

func TestInstances_NodeNameTaken(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, "{}")
	if err := w.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}, Spec: corev1.NodeSpec{ProviderID: "other:///1"}}); err != nil {
		t.Fatal(err)
	}
	in := w.instance(t, w.launch(t, "web-1"))
	_, err := w.instances.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: in.Name}})
	if err == nil || !strings.Contains(err.Error(), `there is another one of that name, with provider ID "other:///1"`) {
		t.Errorf("Reconcile() error %v, want it to name the other node", err)
	}
	if err := w.provider.Terminate(t.Context(), claim("web-1")); err != nil {
		t.Fatal(err)
	}
	w.pass(t, 0)
	if diff := cmp.Diff([]string{"web-1"}, w.nodes(t)); diff != "" {
		t.Errorf("nodes (-want +got), the other one is to stay:\n%s", diff)
	}
}

func TestInstances_Lies(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, "{failures: [{kind: WrongProviderID, until: 1m}, {kind: NeverRegisters, from: 1m, until: 2m}, {kind: LateNotFound, from: 2m, for: 5m}]}")
	wrong := w.launch(t, "web-1")
	w.pass(t, time.Minute)
	w.launch(t, "web-2")
	w.pass(t, time.Minute)
	late := w.launch(t, "web-3")
	w.pass(t, time.Hour)
	if diff := cmp.Diff([]string{"web-1", "web-3"}, w.nodes(t)); diff != "" {
		t.Errorf("nodes (-want +got), web-2 never registers:\n%s", diff)
	}
	node := &corev1.Node{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "web-1"}, node); err != nil {
		t.Fatal(err)
	}
	if node.Spec.ProviderID == wrong.ProviderID || len(ofNode(t.Context(), node)) != 0 {
		t.Errorf("provider ID %q, want a wrong one that names no machine", node.Spec.ProviderID)
	}
	for _, name := range []string{"web-1", "web-3"} {
		if err := w.provider.Terminate(t.Context(), claim(name)); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(t, 4*time.Minute)
	if got := w.nodes(t); len(got) != 0 {
		t.Errorf("nodes %v are left", got)
	}
	if m, err := w.provider.Get(t.Context(), late.ProviderID); err != nil || !m.Ending {
		t.Errorf("Get() = %v, %v, want the machine to be listed still", m, err)
	}
	if err := w.provider.Terminate(t.Context(), claim("web-3")); err != nil {
		t.Errorf("Terminate() = %v, want nil: the cloud does not know better", err)
	}
	w.pass(t, time.Minute)
	if err := w.provider.Terminate(t.Context(), claim("web-3")); !cloud.IsNotFound(err) {
		t.Errorf("Terminate() = %v, want NotFound", err)
	}
}

func TestInstances_Interruptions(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, "{}")
	m := w.launch(t, "web-1")
	w.launch(t, "web-2")
	w.pass(t, time.Minute)
	w.change(t, func(s *v1alpha1.SimNodeClassSpec) {
		s.Interruptions = []v1alpha1.SimInterruption{{Claims: []string{"web-1"}}}
	})
	if got := w.instances.ofClass(t.Context(), &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); len(got) != 2 {
		t.Errorf("a change of the class concerns %v, want both machines", got)
	}
	w.pass(t, 0)
	want := cloud.Interruption{ProviderID: m.ProviderID, Kind: "SpotInterruption", At: w.Now().Add(2 * time.Minute)}
	for range 2 { // a process that starts later is told too
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		got, ok := <-w.provider.Interruptions(ctx)
		cancel()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })); diff != "" || !ok {
			t.Errorf("interruption (-want +got):\n%s", diff)
		}
		w.restart()
		w.pass(t, 0)
	}
	w.pass(t, 2*time.Minute)
	if diff := cmp.Diff([]string{"web-2"}, w.nodes(t)); diff != "" {
		t.Errorf("nodes after the interruption (-want +got):\n%s", diff)
	}
}

func TestObjects_ListHasWhatCacheLacks(t *testing.T) {
	behind := false
	funcs := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if behind {
			return nil
		}
		return c.List(ctx, list, opts...)
	}}
	w := newWorld(t, funcs, "{}")
	w.launch(t, "web-1")
	behind = true
	if machines, err := w.provider.List(t.Context()); err != nil || len(machines) != 1 {
		t.Errorf("List() = %v, %v, want the machine that the cache does not have yet", machines, err)
	}
	behind = false
	if machines, err := w.provider.List(t.Context()); err != nil || len(machines) != 1 {
		t.Errorf("List() = %v, %v, want it once", machines, err)
	}
	w.launch(t, "web-2")
	behind = true
	w.mu.Lock()
	w.now = w.now.Add(2 * time.Minute)
	w.mu.Unlock()
	if machines, err := w.provider.List(t.Context()); err != nil || len(machines) != 0 {
		t.Errorf("List() = %v, %v, want none: no cache is that late, so the machine is gone", machines, err)
	}
}

func TestObjects_UpdateAfterConflict(t *testing.T) {
	conflicts := 2
	funcs := interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
		if conflicts--; conflicts >= 0 {
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("siminstances").GroupResource(), o.GetName(), nil)
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
	w := newWorld(t, funcs, "{}")
	m := w.launch(t, "web-1")
	if err := w.provider.Terminate(t.Context(), claim("web-1")); err != nil {
		t.Fatal(err)
	}
	if w.instance(t, m).Status.TerminatingTime == nil {
		t.Error("the machine is not terminating")
	}
	conflicts = 100
	w.launch(t, "web-2")
	if err := w.provider.Terminate(t.Context(), claim("web-2")); !apierrors.IsConflict(err) {
		t.Errorf("Terminate() error %v, want the conflict", err)
	}
}

func TestClasses(t *testing.T) {
	catalogue := "{instanceTypes: [{name: small, capacity: {cpu: 2, memory: 4Gi}, offerings: [{zones: [a, b], price: 0.1}]}]}"
	ref := "{catalog: {configMapRef: {namespace: sim, name: types}}}"
	tests := map[string]struct {
		spec        string
		file        map[string]string
		compressed  map[string]string
		wantReason  string
		wantMessage string
		wantTypes   int32
		wantOffers  int32
	}{
		"the built-in types of EC2":      {spec: "{}", wantReason: "Succeeded", wantTypes: 1345, wantOffers: 16140},
		"those of KWOK":                  {spec: "{catalog: {builtin: kwok}}", wantReason: "Succeeded", wantTypes: 144, wantOffers: 1152},
		"some of them":                   {spec: "{instanceTypes: ['m5.*', c5.large], zones: [us-east-1a, us-east-1b]}", wantReason: "Succeeded", wantTypes: 10, wantOffers: 40},
		"a file":                         {spec: ref, file: map[string]string{"c.yaml": catalogue}, wantReason: "Succeeded", wantTypes: 1, wantOffers: 2},
		"a compressed file":              {spec: ref, compressed: map[string]string{"c.yaml.gz": catalogue}, wantReason: "Succeeded", wantTypes: 1, wantOffers: 2},
		"one file of several":            {spec: "{catalog: {configMapRef: {namespace: sim, name: types, key: b}}}", file: map[string]string{"a": "x", "b": catalogue}, wantReason: "Succeeded", wantTypes: 1, wantOffers: 2},
		"no key where there are several": {spec: ref, file: map[string]string{"a": "x", "b": catalogue}, wantReason: "CatalogFailed", wantMessage: "ConfigMap sim/types: has 2 keys"},
		"a key that is missing":          {spec: "{catalog: {configMapRef: {namespace: sim, name: types, key: c}}}", file: map[string]string{"a": "x"}, wantReason: "CatalogFailed", wantMessage: `key "c": not found`},
		"a file that is missing":         {spec: ref, wantReason: "CatalogFailed", wantMessage: "ConfigMap sim/types: not found"},
		"a file that is none":            {spec: ref, file: map[string]string{"a": "hello"}, wantReason: "CatalogFailed", wantMessage: "ConfigMap sim/types, a: must hold a map"},
		"a file with a fault":            {spec: ref, file: map[string]string{"a": strings.Replace(catalogue, "cpu: 2", "cpu: two", 1)}, wantReason: "CatalogFailed", wantMessage: `"small": capacity[cpu]`},
		"a compressed file that is not":  {spec: "{catalog: {configMapRef: {namespace: sim, name: types, key: a.gz}}}", file: map[string]string{"a.gz": catalogue}, wantReason: "CatalogFailed", wantMessage: "uncompress"},
		"types that nobody sells":        {spec: "{instanceTypes: [m5.gigantic]}", wantReason: "CatalogFailed", wantMessage: "holds no instance type"},
		"a rule that is none":            {spec: "{capacity: [{from: tomorrow}]}", wantReason: "Invalid", wantMessage: "spec.capacity[0].from"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, interceptor.Funcs{}, tt.spec)
			if tt.file != nil || tt.compressed != nil {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sim", Name: "types"}, Data: tt.file, BinaryData: map[string][]byte{}}
				for _, key := range slices.Collect(maps.Keys(tt.compressed)) {
					cm.BinaryData[key] = zip(t, []byte(tt.compressed[key]))
				}
				if err := w.client.Create(t.Context(), cm); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := w.classes.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "default"}}); err != nil {
				t.Fatal(err)
			}
			var class v1alpha1.SimNodeClass
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: "default"}, &class); err != nil {
				t.Fatal(err)
			}
			ready := meta.FindStatusCondition(class.Status.Conditions, "Ready")
			if ready == nil || ready.Reason != tt.wantReason || !strings.Contains(ready.Message, tt.wantMessage) || (ready.Status == metav1.ConditionTrue) != (tt.wantReason == "Succeeded") {
				t.Errorf("condition %+v, want reason %q, message with %q", ready, tt.wantReason, tt.wantMessage)
			}
			if class.Status.InstanceTypes != tt.wantTypes || class.Status.Offerings != tt.wantOffers {
				t.Errorf("%d types, %d offerings, want %d, %d", class.Status.InstanceTypes, class.Status.Offerings, tt.wantTypes, tt.wantOffers)
			}
			if _, err := w.provider.Launch(t.Context(), claim("web-1")); (tt.wantReason != "Succeeded") != cloud.IsNodeClassNotReady(err) {
				t.Errorf("Launch() error %v, ready %v", err, tt.wantReason)
			}
		})
	}
}

func zip(t *testing.T, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestClasses_FileChanges checks that a file is followed without a change of the class, and
// that the last one holds while the API server is away.
func TestClasses_FileChanges(t *testing.T) {
	away := false
	funcs := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, ok := o.(*corev1.ConfigMap); ok && away {
			return apierrors.NewServiceUnavailable("away")
		}
		return c.Get(ctx, key, o, opts...)
	}}
	w := newWorld(t, funcs, "{catalog: {configMapRef: {namespace: sim, name: types}}}")
	text := "{instanceTypes: [{name: small, capacity: {cpu: 2}, offerings: [{price: 0.1}]}]}"
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sim", Name: "types"}, Data: map[string]string{"a": text}}
	if err := w.client.Create(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	sold := func(want string) {
		t.Helper()
		c, err := w.provider.Sold(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := c.ByName(want); !ok || c.Len() != 1 {
			t.Errorf("sells %v, want %s", c.Types(), want)
		}
	}
	sold("small")
	cm.Data["a"] = strings.Replace(text, "small", "large", 1)
	if err := w.client.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	away = true
	w.pass(t, fileAge)
	sold("small")
	away = false
	w.pass(t, fileAge)
	sold("large")
}
