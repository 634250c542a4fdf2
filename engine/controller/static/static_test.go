package static

import (
	"context"
	"fmt"
	"slices"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/state"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type shop struct{ cloud.Provider }

func (shop) Name() string { return "shop" }

func (shop) NodeClasses() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("SimNodeClass")}
}

// bench has the controller and what it works on. The state is told of nothing but what the
// controller tells it and what [bench.watch] does.
type bench struct {
	*Controller
	t      *testing.T
	client client.WithWatch
	state  *state.Cluster
	events []string
}

func newBench(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, karpv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	now := func() time.Time { return start.Add(time.Hour) }
	b := &bench{t: t, state: state.New(state.Options{Provider: shop{}, Now: now})}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).
		WithStatusSubresource(&karpv1.NodePool{}, &karpv1.NodeClaim{}).Build()
	b.state.AssumeSynced()
	b.Controller = New(Options{Client: b.client, Provider: shop{}, State: b.state, Now: now, Events: observe.NewEvents(func(about runtime.Object, _, reason, message string) {
		b.events = append(b.events, about.(metav1.Object).GetName()+" "+reason+": "+message)
	}, now)})
	b.watch()
	return b
}

// watch tells the state of all that exists, and of claims that are gone.
func (b *bench) watch() {
	b.t.Helper()
	var pools karpv1.NodePoolList
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	var pods corev1.PodList
	for _, l := range []client.ObjectList{&pools, &claims, &nodes, &pods} {
		if err := b.client.List(b.t.Context(), l); err != nil {
			b.t.Fatal(err)
		}
	}
	exists := map[string]bool{}
	for i := range pools.Items {
		b.state.Update(&pools.Items[i])
	}
	for i := range claims.Items {
		exists[claims.Items[i].Name] = true
		b.state.Update(&claims.Items[i])
	}
	for i := range nodes.Items {
		b.state.Update(&nodes.Items[i])
	}
	for i := range pods.Items {
		b.state.Update(&pods.Items[i])
	}
	for _, c := range b.state.Claims() {
		if !exists[c.Name] {
			b.state.Remove(c)
		}
	}
}

func (b *bench) reconcile() (reconcile.Result, error) {
	return b.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "a"}})
}

// claims are the names of the claims that exist and are not going.
func (b *bench) claims() []string {
	b.t.Helper()
	var list karpv1.NodeClaimList
	if err := b.client.List(b.t.Context(), &list); err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, c := range list.Items {
		if c.DeletionTimestamp == nil {
			out = append(out, c.Name)
		}
	}
	slices.Sort(out)
	return out
}

func pool(replicas int64, change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-a", Generation: 1}}
	p.Spec.Replicas = &replicas
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: "default"}
	w := p.Conditions().At(start)
	w.SetTrue(karpv1.ConditionValidationSucceeded)
	w.SetTrue(karpv1.ConditionNodeClassReady)
	for _, f := range change {
		f(p)
	}
	return p
}

func claim(name string, change ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start), Labels: map[string]string{karpv1.NodePoolLabelKey: "a"},
		Finalizers: []string{karpv1.TerminationFinalizer},
	}}
	c.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: "default"}
	c.Status.ProviderID, c.Status.NodeName = "shop:///"+name, "node-"+name
	c.Conditions().At(start).SetTrue(karpv1.ConditionLaunched)
	for _, f := range change {
		f(c)
	}
	return c
}

func going(c *karpv1.NodeClaim) { c.DeletionTimestamp = &metav1.Time{Time: start} }

func replaces(c *karpv1.NodeClaim) {
	c.Annotations = map[string]string{v1alpha1.ReplacesAnnotation: "{}"}
}

func unlaunched(c *karpv1.NodeClaim) { c.Status = karpv1.NodeClaimStatus{} }

func node(claim string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + claim, Labels: map[string]string{karpv1.NodePoolLabelKey: "a"}}, Spec: corev1.NodeSpec{ProviderID: "shop:///" + claim}}
}

func pod(name, claim string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: "node-" + claim}}
	for _, f := range change {
		f(p)
	}
	return p
}

func protected(p *corev1.Pod) {
	p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
}

func ofDaemonSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: new(true)}}
}

func limited(nodes string) func(*karpv1.NodePool) {
	return func(p *karpv1.NodePool) { p.Spec.Limits = corev1.ResourceList{"nodes": resource.MustParse(nodes)} }
}

func TestController_grow(t *testing.T) {
	tests := map[string]struct {
		pool   *karpv1.NodePool
		claims []client.Object
		marked []string
		want   int // claims made
		again  time.Duration
	}{
		"from nothing":                                  {pool: pool(3), want: 3, again: time.Minute},
		"beside those that there are":                   {pool: pool(3), claims: []client.Object{claim("x")}, want: 2, again: time.Minute},
		"one that is going is made up for":              {pool: pool(2), claims: []client.Object{claim("x", going), claim("y")}, want: 1, again: time.Minute},
		"one that is marked has a successor of others":  {pool: pool(2), claims: []client.Object{claim("x"), claim("y")}, marked: []string{"x"}, want: 0, again: time.Minute},
		"one that replaces another is not one too many": {pool: pool(2), claims: []client.Object{claim("x"), claim("y"), claim("z", replaces)}, want: 0, again: time.Minute},
		"nor is another bought while that one goes":     {pool: pool(2), claims: []client.Object{claim("x", going), claim("y"), claim("z", replaces)}, want: 0, again: time.Minute},
		"no more than the limit":                        {pool: pool(5, limited("2")), claims: []client.Object{claim("x")}, want: 1, again: 30 * time.Second},
		"what is going takes up the limit":              {pool: pool(2, limited("2")), claims: []client.Object{claim("x", going), claim("y")}, want: 0, again: 30 * time.Second},
		"a NodePool that is not ready buys nothing": {pool: pool(2, func(p *karpv1.NodePool) {
			p.Conditions().At(start).SetFalse(karpv1.ConditionNodeClassReady, "NodeClassNotFound", "")
		}), want: 0, again: time.Minute},
		"a NodePool that policies deny buys nothing": {pool: pool(2, func(p *karpv1.NodePool) {
			p.Conditions().At(start).SetFalse(karpv1.ConditionPolicyAdmitted, "PolicyDenied", "")
		}), want: 0, again: time.Minute},
		"a NodePool of another cloud is left alone":     {pool: pool(2, func(p *karpv1.NodePool) { p.Spec.Template.Spec.NodeClassRef.Kind = "Other" }), want: 0},
		"a NodePool without replicas is left alone":     {pool: pool(0, func(p *karpv1.NodePool) { p.Spec.Replicas = nil }), want: 0},
		"claims that have not launched count":           {pool: pool(2), claims: []client.Object{claim("x", unlaunched), claim("y", unlaunched)}, want: 0, again: time.Minute},
		"claims of other NodePools do not":              {pool: pool(1), claims: []client.Object{claim("x", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = "b" })}, want: 1, again: time.Minute},
		"a machine that is terminating does not either": {pool: pool(1), claims: []client.Object{claim("x", func(c *karpv1.NodeClaim) { c.Conditions().At(start).SetTrue(karpv1.ConditionInstanceTerminating) })}, want: 1, again: time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, append(tt.claims, tt.pool)...)
			b.state.Mark(tt.marked...)
			before := len(b.claims())
			r, err := b.reconcile()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(b.claims()) - before; got != tt.want || r.RequeueAfter != tt.again {
				t.Errorf("made %d claims and looks again after %s, want %d and %s", got, r.RequeueAfter, tt.want, tt.again)
			}
			// No watch has told of the new claims yet.
			if _, err := b.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got := len(b.claims()) - before; got != tt.want {
				t.Errorf("a second look makes it %d claims, want %d", got, tt.want)
			}
		})
	}
}

func TestController_grow_claim(t *testing.T) {
	p := pool(1, func(p *karpv1.NodePool) { p.Spec.Template.Labels = map[string]string{"team": "x"} })
	b := newBench(t, interceptor.Funcs{}, p)
	if _, err := b.reconcile(); err != nil {
		t.Fatal(err)
	}
	made := b.state.ClaimsOf("a")
	if len(made) != 1 {
		t.Fatalf("%d claims, want 1", len(made))
	}
	want := p.NewClaim()
	got := made[0]
	if diff := cmp.Diff(want.Spec, got.Spec) + cmp.Diff(want.Labels, got.Labels) + cmp.Diff(want.Annotations, got.Annotations) + cmp.Diff(want.OwnerReferences, got.OwnerReferences); diff != "" {
		t.Errorf("the claim is not of the template:\n%s", diff)
	}
}

// TestController_grow_errors has creations fail, some after they took effect.
func TestController_grow_errors(t *testing.T) {
	for lost := range 2 {
		t.Run(fmt.Sprintf("took effect %v", lost == 1), func(t *testing.T) {
			calls := 0
			b := newBench(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				calls++
				if calls%2 == 0 {
					return c.Create(ctx, o, opts...)
				}
				if lost == 1 {
					if err := c.Create(ctx, o.DeepCopyObject().(client.Object), opts...); err != nil {
						return err
					}
				}
				return apierrors.NewInternalError(fmt.Errorf("try again"))
			}}, pool(3))
			if _, err := b.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got := b.claims(); len(got) != 3 || len(b.state.ClaimsOf("a")) != 3 {
				t.Errorf("claims %v, of which the state has %d, want 3", got, len(b.state.ClaimsOf("a")))
			}
		})
	}
	t.Run("for good", func(t *testing.T) {
		b := newBench(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "nodeclaims"}, "", fmt.Errorf("quota"))
		}}, pool(2))
		if _, err := b.reconcile(); err == nil {
			t.Error("nothing was made, and no error says so")
		}
	})
}

func TestController_shrink(t *testing.T) {
	young := func(c *karpv1.NodeClaim) { c.CreationTimestamp = metav1.NewTime(start.Add(time.Minute)) }
	tests := map[string]struct {
		replicas int64
		objects  []client.Object
		want     []string // claims that stay
	}{
		"what has not launched goes first": {1, []client.Object{claim("x"), node("x"), claim("y", unlaunched)}, []string{"x"}},
		"then nodes without pods":          {1, []client.Object{claim("x"), node("x"), pod("p", "x"), claim("y"), node("y"), pod("d", "y", ofDaemonSet)}, []string{"x"}},
		"then those with few pods":         {1, []client.Object{claim("x"), node("x"), pod("p", "x"), claim("y"), node("y"), pod("q", "y"), pod("r", "y")}, []string{"y"}},
		"those with protected pods last":   {1, []client.Object{claim("x"), node("x"), pod("p", "x", protected), claim("y"), node("y"), pod("q", "y"), pod("r", "y")}, []string{"x"}},
		"young before old":                 {1, []client.Object{claim("x"), node("x"), claim("y", young), node("y")}, []string{"x"}},
		"to none":                          {0, []client.Object{claim("x"), node("x"), pod("p", "x", protected), claim("y")}, nil},
		"what is going does not count":     {1, []client.Object{claim("x"), node("x"), claim("y", going)}, []string{"x"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, append(tt.objects, pool(tt.replicas))...)
			alive := len(b.claims())
			for range 2 { // the second time, no watch has told of the deletions
				if _, err := b.reconcile(); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tt.want, b.claims()); diff != "" {
				t.Errorf("claims that stay (-want +got):\n%s", diff)
			}
			if len(b.events) != alive-len(tt.want) {
				t.Errorf("events %q, want one for each claim that goes", b.events)
			}
		})
	}
}

// TestController_wander changes the number of replicas while watches lag.
func TestController_wander(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, pool(0))
	for i, want := range []int64{3, 1, 4, 4, 0, 2} {
		var np karpv1.NodePool
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: "a"}, &np); err != nil {
			t.Fatal(err)
		}
		np.Spec.Replicas = &want
		if err := b.client.Update(t.Context(), &np); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := b.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		b.watch()
		if _, err := b.reconcile(); err != nil {
			t.Fatal(err)
		}
		if got := b.claims(); len(got) != int(want) {
			t.Fatalf("step %d: claims %v, want %d", i, got, want)
		}
	}
}
