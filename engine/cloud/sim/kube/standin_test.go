package kube

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

func TestStandIns(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "karpenter.k8s.aws", Version: "v1", Kind: "EC2NodeClass"}
	other := func(name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(kind)
		o.SetName(name)
		o.SetUID(types.UID("uid-of-" + name))
		return o
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind("EC2NodeClassList"), &unstructured.UnstructuredList{})
	small := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: v1alpha1.SimNodeClassSpec{InstanceTypes: []string{"m5.large"}}}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion(), v1alpha1.GroupVersion})
	mapper.Add(kind, meta.RESTScopeRoot)
	for _, own := range []string{"SimNodeClass", "SimInstance"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(own), meta.RESTScopeRoot)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(other("default"), other("small"), small).
		WithStatusSubresource(&v1alpha1.SimInstance{}, other("")).Build()
	objects := newObjects(c, c, time.Now)
	objects.standIns = []schema.GroupVersionKind{kind}
	provider := sim.New(objects, objects, sim.Options{StandIns: objects.standIns})

	for name, wantTypes := range map[string]int{"default": 1345, "small": 1} {
		pool := &karpv1.NodePool{}
		pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: kind.Group, Kind: kind.Kind, Name: name}
		sold, err := provider.Catalog(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		if sold.Len() != wantTypes {
			t.Errorf("class %s sells %d types, want %d", name, sold.Len(), wantTypes)
		}
	}
	missing := &karpv1.NodePool{}
	missing.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: kind.Group, Kind: kind.Kind, Name: "missing"}
	if _, err := provider.Catalog(t.Context(), missing); !cloud.IsNodeClassNotReady(err) {
		t.Errorf("Catalog() of a class that is missing: %v, want NodeClassNotReadyError", err)
	}

	r := &standIns{client: c, kind: kind, now: time.Now}
	for range 2 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "default"}}); err != nil {
			t.Fatal(err)
		}
	}
	got := other("")
	if err := c.Get(t.Context(), types.NamespacedName{Name: "default"}, got); err != nil {
		t.Fatal(err)
	}
	conditions, _, err := unstructured.NestedSlice(got.Object, "status", "conditions")
	if err != nil || len(conditions) != 1 || conditions[0].(map[string]any)["status"] != "True" {
		t.Errorf("conditions %v (%v), want Ready", conditions, err)
	}
}
