package nodepool

import (
	"context"
	"strings"
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
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// shop is a provider that sells nothing.
type shop struct{ cloud.Provider }

func (shop) NodeClasses() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("SimNodeClass")}
}

func (shop) Catalog(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
	c, _ := catalog.New(nil)
	return c, nil
}

// bench has the controllers and what they work on.
type bench struct {
	*Controllers
	t      *testing.T
	client client.Client
	state  *state.Cluster
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, karpv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{t: t, client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&karpv1.NodePool{}, &karpv1.NodeClaim{}, &v1alpha1.SimNodeClass{}).Build()}
	b.state = state.New(state.Options{Provider: shop{}})
	b.state.AssumeSynced()
	for _, o := range objects {
		b.state.Update(o)
	}
	b.Controllers = New(Options{Client: b.client, Provider: shop{}, State: b.state})
	return b
}

func (b *bench) run(f reconcile.Func) *karpv1.NodePool {
	b.t.Helper()
	if _, err := f(b.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "a"}}); err != nil {
		b.t.Fatal(err)
	}
	return b.pool()
}

func (b *bench) pool() *karpv1.NodePool {
	b.t.Helper()
	var np karpv1.NodePool
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: "a"}, &np); err != nil {
		b.t.Fatal(err)
	}
	return &np
}

func pool() *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-a", Generation: 1, CreationTimestamp: metav1.Now()}}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: "default"}
	p.SetDefaults()
	return p
}

func class(status metav1.ConditionStatus, reason, message string) *v1alpha1.SimNodeClass {
	c := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default", Generation: 3}}
	if status != "" {
		c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: message}}
	}
	return c
}

func TestControllers_reconcileStatus(t *testing.T) {
	invalid := pool()
	invalid.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: "karpenter.sh/nothing", Operator: corev1.NodeSelectorOpExists}}
	tests := map[string]struct {
		pool  *karpv1.NodePool
		class client.Object
		// ready is the status of Ready, says what the conditions say.
		ready metav1.ConditionStatus
		says  string
	}{
		"a NodeClass that is ready":      {pool(), class(metav1.ConditionTrue, "Succeeded", ""), metav1.ConditionTrue, ""},
		"a NodeClass that is missing":    {pool(), nil, metav1.ConditionFalse, "NodeClassNotFound SimNodeClass default does not exist"},
		"a NodeClass that does not know": {pool(), class("", "", ""), metav1.ConditionFalse, "NodeClassReadinessUnknown"},
		"a NodeClass that is not ready":  {pool(), class(metav1.ConditionFalse, "CatalogFailed", "no such file"), metav1.ConditionFalse, "CatalogFailed no such file"},
		"a NodePool that is not valid":   {invalid, class(metav1.ConditionTrue, "Succeeded", ""), metav1.ConditionFalse, "labels of domain"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{tt.pool.DeepCopy()}
			if tt.class != nil {
				objects = append(objects, tt.class)
			}
			b := newBench(t, objects...)
			np := b.run(b.reconcileStatus)
			if got := np.Conditions().Get(karpv1.ConditionReady); got == nil || got.Status != tt.ready {
				t.Errorf("Ready is %+v, want %s", got, tt.ready)
			}
			var said []string
			for _, c := range np.Status.Conditions {
				said = append(said, c.Reason+" "+c.Message)
			}
			if !strings.Contains(strings.Join(said, "\n"), tt.says) {
				t.Errorf("conditions say %q, want %q", said, tt.says)
			}
			before := np.ResourceVersion
			if after := b.run(b.reconcileStatus).ResourceVersion; after != before {
				t.Error("a second look wrote the status again")
			}
		})
	}
}

func TestControllers_reconcileHash(t *testing.T) {
	claim := func(name string, drifted bool) *karpv1.NodeClaim {
		c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: "a"},
			Annotations: map[string]string{karpv1.NodePoolHashAnnotationKey: "old", karpv1.NodePoolHashVersionAnnotationKey: "v3"},
		}}
		if drifted {
			c.Conditions().At(time.Now()).SetTrue(karpv1.ConditionDrifted)
		}
		return c
	}
	np := pool()
	np.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: "old", karpv1.NodePoolHashVersionAnnotationKey: "v3"}
	b := newBench(t, np, claim("well", false), claim("drifted", true))
	want := b.run(b.reconcileHash).Annotations
	if want[karpv1.NodePoolHashAnnotationKey] != np.Hash() || want[karpv1.NodePoolHashVersionAnnotationKey] != karpv1.NodePoolHashVersion {
		t.Errorf("the NodePool has annotations %v, want its own hash", want)
	}
	for name, hash := range map[string]string{"well": np.Hash(), "drifted": "old"} {
		var c karpv1.NodeClaim
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: name}, &c); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{"hash": c.Annotations[karpv1.NodePoolHashAnnotationKey], "version": c.Annotations[karpv1.NodePoolHashVersionAnnotationKey]}
		if d := cmp.Diff(map[string]string{"hash": hash, "version": karpv1.NodePoolHashVersion}, got); d != "" {
			t.Errorf("claim %s:\n%s", name, d)
		}
	}
}

func TestControllers_reconcileCount(t *testing.T) {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "uid-c", ResourceVersion: "5", Labels: map[string]string{karpv1.NodePoolLabelKey: "a"}}}
	claim.Status.ProviderID = "x:///1"
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	b := newBench(t, pool())
	b.state.Update(claim)
	np := b.run(b.reconcileCount)
	got := map[string]string{}
	for name, q := range np.Status.Resources {
		got[string(name)] = q.String()
	}
	want := map[string]string{"cpu": "4", "memory": "0", "pods": "0", "ephemeral-storage": "0", "nodes": "1"}
	if d := cmp.Diff(want, got); d != "" || np.Status.Nodes == nil || *np.Status.Nodes != 1 {
		t.Errorf("nodes %v, resources:\n%s", np.Status.Nodes, d)
	}
	before := np.ResourceVersion
	if after := b.run(b.reconcileCount).ResourceVersion; after != before {
		t.Error("the same count was written again")
	}
}

func TestControllers_Outcome(t *testing.T) {
	claim := func() *karpv1.NodeClaim {
		c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{karpv1.NodePoolLabelKey: "a"}}}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: "a", UID: "uid-a"}}
		c.Conditions().At(time.Now()).SetTrue(karpv1.ConditionLaunched)
		return c
	}
	tests := map[string]struct {
		outcomes []bool
		want     metav1.ConditionStatus
	}{
		"a node that came":                  {[]bool{true}, metav1.ConditionTrue},
		"one that did not":                  {[]bool{true, false}, metav1.ConditionTrue},
		"two that did not":                  {[]bool{true, false, false}, metav1.ConditionFalse},
		"only the last four are remembered": {[]bool{false, false, true, true, true}, metav1.ConditionTrue},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, pool(), class(metav1.ConditionTrue, "Succeeded", ""))
			b.run(b.reconcileStatus)
			for _, ok := range tt.outcomes {
				b.Outcome(t.Context(), claim(), ok)
			}
			if got := b.pool().Conditions().Get(karpv1.ConditionNodeRegistrationHealthy); got == nil || got.Status != tt.want {
				t.Errorf("NodeRegistrationHealthy is %+v, want %s", got, tt.want)
			}
		})
	}
	t.Run("a claim of another NodePool of the name says nothing", func(t *testing.T) {
		b := newBench(t, pool(), class(metav1.ConditionTrue, "Succeeded", ""))
		b.run(b.reconcileStatus)
		c := claim()
		c.OwnerReferences[0].UID = types.UID("another")
		b.Outcome(t.Context(), c, true)
		if got := b.pool().Conditions().Get(karpv1.ConditionNodeRegistrationHealthy); got == nil || got.Status != metav1.ConditionUnknown {
			t.Errorf("NodeRegistrationHealthy is %+v, want Unknown", got)
		}
	})
}

// TestControllers_lostWrite has the first write of a status fail: what it said about
// launches must still come.
func TestControllers_lostWrite(t *testing.T) {
	fails := true
	b := newBench(t, pool(), class(metav1.ConditionTrue, "Succeeded", ""))
	b.opts.Client = interceptor.NewClient(b.client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if fails {
				fails = false
				return apierrors.NewConflict(schema.GroupResource{Resource: "nodepools"}, o.GetName(), nil)
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	b.run(b.reconcileStatus)
	np := b.run(b.reconcileStatus)
	if c := np.Conditions().Get(karpv1.ConditionNodeRegistrationHealthy); c == nil || np.Status.NodeClassObservedGeneration != 3 {
		t.Errorf("NodeRegistrationHealthy is %+v, of NodeClass generation %d, want Unknown of 3", c, np.Status.NodeClassObservedGeneration)
	}
}

// TestBudgets (S-54): the condition tells what is wrong with budgets, and does not keep the
// NodePool from buying.
func TestBudgets(t *testing.T) {
	budget := func(nodes, schedule string) karpv1.Budget {
		return karpv1.Budget{Nodes: nodes, Schedule: &schedule, Duration: &metav1.Duration{Duration: 24 * time.Hour}}
	}
	tests := map[string]struct {
		budgets []karpv1.Budget
		// status is empty if there is no such condition.
		status       metav1.ConditionStatus
		reason, text string
	}{
		"nothing to say": {budgets: []karpv1.Budget{{Nodes: "10%"}}},
		"a week that wraps around": {
			budgets: []karpv1.Budget{{Nodes: "10%"}, budget("0", "0 0 * * sat-sun")},
			status:  "False", reason: "BudgetInvalid", text: `spec.disruption.budgets[1].schedule: "0 0 * * sat-sun"`,
		},
		"a day that never comes": {
			budgets: []karpv1.Budget{{Nodes: "10%"}, budget("0", "0 0 30 2 *")},
			status:  "True", reason: "BudgetNeverActive", text: `spec.disruption.budgets[1].schedule: "0 0 30 2 *" never comes`,
		},
		"never open": {
			budgets: []karpv1.Budget{{Nodes: "0"}},
			status:  "True", reason: "BudgetNeverOpens", text: "at no time may a node be disrupted for Empty, Underutilized, Drifted, Unhealthy",
		},
		"contradictions: the smallest counts": {
			budgets: []karpv1.Budget{{Nodes: "5"}, {Nodes: "2"}},
			status:  "True", reason: "BudgetWithoutEffect", text: `spec.disruption.budgets[0]: it has no effect, since the smallest budget counts`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := pool()
			p.Spec.Disruption.Budgets = tt.budgets
			class := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			class.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionTrue}}
			b := newBench(t, p, class)
			got := b.run(b.reconcileStatus)
			cond := got.Conditions().Get(karpv1.ConditionBudgetsValid)
			switch {
			case tt.status == "" && cond != nil:
				t.Errorf("condition %+v, want none", cond)
			case tt.status != "" && (cond == nil || cond.Status != tt.status || cond.Reason != tt.reason || !strings.Contains(cond.Message, tt.text)):
				t.Errorf("condition %+v, want %s %s: %s", cond, tt.status, tt.reason, tt.text)
			}
			if !got.Conditions().IsTrue(karpv1.ConditionReady) {
				t.Errorf("conditions %+v: not ready", got.Status.Conditions)
			}
			got.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
			if err := b.client.Update(t.Context(), got); err != nil {
				t.Fatal(err)
			}
			if cond := b.run(b.reconcileStatus).Conditions().Get(karpv1.ConditionBudgetsValid); cond != nil {
				t.Errorf("corrected, and still %+v", cond)
			}
		})
	}
}
