package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// shop is a provider that only has a catalogue.
type shop struct {
	cloud.Provider
	catalog *catalog.Catalog
}

func (s shop) Catalog(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
	return s.catalog, nil
}

func (s shop) NodeClasses() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("SimNodeClass")}
}

// bench is a provisioner with what it works on.
type bench struct {
	*Controller
	client client.Client
	events []string
	now    time.Time
}

func newBench(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}, &karpv1.NodePool{}, &karpv1.NodeClaim{}).WithInterceptorFuncs(funcs).Build()
	now := func() time.Time { return b.now }
	st := state.New(state.Options{Provider: shop{catalog: sample()}, Now: now})
	st.AssumeSynced()
	for _, o := range objects {
		st.Update(o)
	}
	b.Controller = New(Options{
		Client: b.client, State: st, Policies: policy.NewEngine(policy.Options{}), Now: now,
		Events: observe.NewEvents(func(about runtime.Object, kind, reason, message string) {
			b.events = append(b.events, fmt.Sprintf("%s %s: %s", about.(metav1.Object).GetName(), reason, message))
		}, now),
	})
	return b
}

func (b *bench) claims(t *testing.T) []karpv1.NodeClaim {
	t.Helper()
	var list karpv1.NodeClaimList
	if err := b.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (b *bench) run(t *testing.T) time.Duration {
	t.Helper()
	again, err := b.pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func pool(name string) *karpv1.NodePool {
	p := &karpv1.NodePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: karpv1.GroupVersion.String(), Kind: "NodePool"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
	}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: "default"}
	p.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: "team", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}
	p.SetDefaults()
	p.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}}
	return p
}

func pending(name, team, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "uid-job", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			SchedulerName: "default-scheduler", NodeSelector: map[string]string{"team": team},
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
	}
}

func TestController_pass(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, pool("a"), pending("p1", "a", "1"), pending("p2", "a", "1"), pending("huge", "a", "1000"))
	if again := b.run(t); again != 10*time.Second {
		t.Errorf("a pod is without a node, and the next pass is after %s, want 10 s", again)
	}
	claims := b.claims(t)
	if len(claims) != 1 {
		t.Fatalf("%d NodeClaims, want 1", len(claims))
	}
	c := claims[0]
	if got := b.opts.State.Expected(c.Name); len(got) != 2 {
		t.Errorf("pods expected on the claim: %v, want p1 and p2", got)
	}
	for name, check := range map[string]bool{
		"the pool is a label":                c.Labels[karpv1.NodePoolLabelKey] == "a",
		"a custom label has its only value":  c.Labels["team"] == "a",
		"it says what it was bought for":     c.Annotations[v1alpha1.BoughtForAnnotation] == "default/job 2",
		"the cheapest offering is preferred": cloud.Preferred(&c)[0] == cloud.Offering{InstanceType: "small", Zone: "z1", CapacityType: "spot"},
		"its requests hold the pods":         c.Spec.Resources.Requests.Cpu().Cmp(resource.MustParse("2")) >= 0,
		"its types are a requirement": slices.ContainsFunc(c.Spec.Requirements, func(r karpv1.Requirement) bool {
			return r.Key == corev1.LabelInstanceTypeStable && slices.Contains(r.Values, "small")
		}),
		"the owner is the pool": len(c.OwnerReferences) == 1 && c.OwnerReferences[0].UID == "uid-a",
	} {
		if !check {
			t.Errorf("%s: not so in %+v", name, c)
		}
	}
	said := strings.Join(b.events, "\n")
	for _, want := range []string{"p1 Nominated: Pod should schedule on: NodeClaim " + c.Name, "huge FailedScheduling: NodePool a: cpu: wants 1k, at most 16 is free"} {
		if !strings.Contains(said, want) {
			t.Errorf("no event %q among:\n%s", want, said)
		}
	}
	b.now = b.now.Add(15 * time.Second)
	b.run(t)
	if n := len(b.claims(t)); n != 1 {
		t.Errorf("%d NodeClaims after another pass, want still 1", n)
	}
}

func TestController_pass_faults(t *testing.T) {
	var calls atomic.Int64
	tests := map[string]struct {
		create func(ctx context.Context, c client.WithWatch, o client.Object) error
		// want are the pools of claims after the first pass and after the second.
		first, second []string
	}{
		"a claim that is refused does not stop those of others": {
			create: func(ctx context.Context, c client.WithWatch, o client.Object) error {
				if o.GetLabels()[karpv1.NodePoolLabelKey] == "a" {
					return apierrors.NewForbidden(karpv1.Resource("nodeclaims"), o.GetName(), errors.New("quota"))
				}
				return c.Create(ctx, o)
			},
			first: []string{"b"}, second: []string{"b"},
		},
		"an answer that is lost buys nothing twice": {
			create: func(ctx context.Context, c client.WithWatch, o client.Object) error {
				if err := c.Create(ctx, o); err != nil {
					return err
				}
				if calls.Add(1) <= 2 {
					return apierrors.NewInternalError(errors.New("connection reset"))
				}
				return nil
			},
			first: []string{"a", "b"}, second: []string{"a", "b"},
		},
		"a name that is taken is replaced": {
			create: func(ctx context.Context, c client.WithWatch, o client.Object) error {
				if calls.Add(1) == 1 {
					return apierrors.NewAlreadyExists(karpv1.Resource("nodeclaims"), o.GetName())
				}
				return c.Create(ctx, o)
			},
			first: []string{"a", "b"}, second: []string{"a", "b"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			calls.Store(0)
			b := newBench(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, _ ...client.CreateOption) error {
				return tt.create(ctx, c, o)
			}}, pool("a"), pool("b"), pending("p1", "a", "1"), pending("p2", "b", "1"))
			for _, want := range [][]string{tt.first, tt.second} {
				b.run(t)
				var got []string
				for _, c := range b.claims(t) {
					got = append(got, c.Labels[karpv1.NodePoolLabelKey])
				}
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("claims of pools %v, want %v", got, want)
				}
				b.now = b.now.Add(time.Minute)
			}
		})
	}
}

func TestController_shadow(t *testing.T) {
	writes := 0
	count := func() { writes++ }
	b := newBench(t, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			count()
			return nil
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			count()
			return nil
		},
	}, pool("a"), pending("p1", "a", "1"))
	b.opts.Shadow = true
	var seen *Outcome
	b.opts.Planned = func(o Outcome) { seen = &o }
	b.run(t)
	if seen == nil || len(seen.Result.Plan.NewNodes) != 1 {
		t.Fatalf("planned %+v, want one node", seen)
	}
	if writes != 0 || len(b.events) != 0 {
		t.Errorf("%d writes and events %v, want none", writes, b.events)
	}
}

func TestController_Nominate(t *testing.T) {
	bound := pending("bound", "a", "1")
	bound.Spec.NodeName = "other"
	taken := pending("taken", "a", "1")
	taken.Status.NominatedNodeName = "elsewhere"
	b := newBench(t, interceptor.Funcs{}, pool("a"), pending("p1", "a", "1"), bound, taken)
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "uid-c", ResourceVersion: "1", Labels: map[string]string{karpv1.NodePoolLabelKey: "a"}}}
	b.opts.State.Update(claim)
	b.opts.State.Expect("c", []snapshot.PodKey{{Namespace: "default", Name: "p1"}, {Namespace: "default", Name: "bound"}, {Namespace: "default", Name: "taken"}, {Namespace: "default", Name: "gone"}})
	names := func() map[string]string {
		out := map[string]string{}
		for _, name := range []string{"p1", "bound", "taken"} {
			var p corev1.Pod
			if err := b.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &p); err != nil {
				t.Fatal(err)
			}
			out[name] = p.Status.NominatedNodeName
		}
		return out
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(b.now)}}
	node.Spec.Taints = []corev1.Taint{karpv1.UnregisteredTaint(), {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	after, err := b.Nominate(t.Context(), claim, node)
	if err != nil || after == 0 {
		t.Errorf("a node that is not ready: called again after %s, error %v; want it to wait", after, err)
	}
	if d := cmp.Diff(map[string]string{"p1": "", "bound": "", "taken": "elsewhere"}, names()); d != "" {
		t.Errorf("names before the node is ready:\n%s", d)
	}
	node.Spec.Taints = node.Spec.Taints[:1]
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for end := time.Now().Add(30 * time.Second); after != 0 && time.Now().Before(end); time.Sleep(step) {
		if after, err = b.Nominate(t.Context(), claim, node); err != nil {
			t.Fatal(err)
		}
	}
	if after != 0 {
		t.Error("a node that is ready is not let go")
	}
	if d := cmp.Diff(map[string]string{"p1": "n", "bound": "", "taken": "elsewhere"}, names()); d != "" {
		t.Errorf("names when the node is ready:\n%s", d)
	}
	node.Status.Conditions = nil
	b.now = b.now.Add(patience)
	if after, err = b.Nominate(t.Context(), claim, node); err != nil || after != 0 {
		t.Errorf("a node that does not become ready: called again after %s, error %v; want it to go on", after, err)
	}
}

// sample is a catalogue of two types, each on demand and as spot.
func sample() *catalog.Catalog {
	offerings := func(price catalog.Price) (out []catalog.Offering) {
		for _, zone := range []string{"z1", "z2"} {
			out = append(out, catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: price}, catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: price / 3})
		}
		return out
	}
	machine := func(name string, cores int64) catalog.InstanceType {
		size := resources.List{corev1.ResourceCPU: cores * 1000, corev1.ResourceMemory: cores << 32, corev1.ResourcePods: 100}
		return catalog.InstanceType{
			Name: name, Capacity: size, Allocatable: size.Clone(), Offerings: offerings(catalog.Price(cores) * 40_000),
			Requirements: requirements.FromLabels(map[string]string{corev1.LabelInstanceTypeStable: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}),
		}
	}
	c, errs := catalog.New([]catalog.InstanceType{machine("small", 4), machine("large", 16)})
	if len(errs) > 0 {
		panic(errs)
	}
	return c
}
