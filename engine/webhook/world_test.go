package webhook_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/webhook"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// compileRego is what a command puts between package set and package rego.
func compileRego(ctx context.Context, p set.Program) (policy.Evaluator, error) {
	files := map[string]string{}
	for name, b := range p.Files {
		files[name] = string(b)
	}
	// A nil *Module in an interface is not nil.
	m, err := rego.Load(ctx, rego.Source{Name: p.Name, Hook: p.Hook, Files: files, Data: p.Data, Parameters: p.Parameters, Limits: p.Limits})
	if err != nil {
		return nil, err
	}
	return m, nil
}

var loader = &set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{v1alpha1.RuntimeRego: compileRego}}

// sold has machines of 2 and 8 CPUs in two zones; spot is cheaper.
func sold(t testing.TB) *catalog.Catalog {
	t.Helper()
	machine := func(name string, cpu int64, price catalog.Price) catalog.InstanceType {
		size := resources.List{corev1.ResourceCPU: cpu * 1000, corev1.ResourceMemory: cpu << 32, corev1.ResourcePods: 50}
		it := catalog.InstanceType{Name: name, Capacity: size, Allocatable: size, Requirements: requirements.NewSet(
			requirements.In(corev1.LabelInstanceTypeStable, name), requirements.In(corev1.LabelArchStable, "amd64"), requirements.In(corev1.LabelOSStable, "linux"))}
		for _, zone := range []string{"a", "b"} {
			it.Offerings = append(it.Offerings,
				catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: price},
				catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: price / 2})
		}
		return it
	}
	c, err := catalog.New([]catalog.InstanceType{machine("small", 2, 100_000), machine("large", 8, 400_000)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pool is NodePool web, which buys on demand.
func pool(change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u", Generation: 1, Labels: map[string]string{"team": "shop"}}}
	p.TypeMeta = metav1.TypeMeta{APIVersion: karpv1.GroupVersion.String(), Kind: "NodePool"}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: "default"}
	p.Spec.Template.Spec.Requirements = []karpv1.Requirement{in(karpv1.CapacityTypeLabelKey, catalog.OnDemand)}
	p.SetDefaults()
	for _, f := range change {
		f(p)
	}
	return p
}

func in(key string, values ...string) karpv1.Requirement {
	return karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

// world is a cluster with nodes of NodePool web, and the webhook.
type world struct {
	testing.TB
	objects snapshot.Objects
	sold    *catalog.Catalog
	// machine and zone are those of the nodes, which have 8 CPUs.
	machine, zone string
	opts          webhook.Options
	hook          *webhook.Webhook
}

// newWorld has nodes of 8 CPUs in zone a, each with a pod of 6 CPUs and two of 1 CPU.
func newWorld(t testing.TB, nodes int, change ...func(*world)) *world {
	w := &world{TB: t, sold: sold(t), machine: "large", zone: "a"}
	w.add(nodes)
	w.opts = webhook.Options{
		Namespace: "system", Moment: w.moment, Policies: policy.NewEngine(policy.Options{}), Loader: loader,
		Catalog: func(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) { return w.sold, nil },
		Open:    source.Opener{}.Open, Now: func() time.Time { return now },
		// Machines are slow at times, and no case is about these but those that set them.
		MomentTime: 10 * time.Second, ImpactTime: 20 * time.Second, CompileTime: 20 * time.Second,
	}
	for _, f := range change {
		f(w)
	}
	w.hook = webhook.New(w.opts)
	return w
}

func (w *world) moment(context.Context) (webhook.Moment, error) {
	m := webhook.Moment{Objects: w.objects, Catalogs: map[string]*catalog.Catalog{}}
	for _, np := range w.objects.NodePools {
		m.Catalogs[np.Name] = w.sold
	}
	var problems []snapshot.Problem
	m.Snapshot, problems = snapshot.Build(w.objects, snapshot.Options{Now: now, AssumeReady: true, PoolCatalogs: m.Catalogs})
	if len(problems) > 0 {
		return m, fmt.Errorf("%v", problems)
	}
	return m, nil
}

// add makes NodePool web anew, with nodes.
func (w *world) add(nodes int) {
	np := pool()
	w.objects = snapshot.Objects{NodePools: []*karpv1.NodePool{np}}
	for i := range nodes {
		w.node(np, i)
	}
}

func (w *world) node(np *karpv1.NodePool, i int) {
	name := fmt.Sprintf("node-%04d", i)
	labels := map[string]string{
		corev1.LabelHostname: name, corev1.LabelInstanceTypeStable: w.machine, corev1.LabelTopologyZone: w.zone, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.CapacityTypeLabelKey: catalog.OnDemand, karpv1.NodePoolLabelKey: np.Name, karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(now.Add(-2 * time.Hour)), Annotations: map[string]string{
		karpv1.NodePoolHashAnnotationKey: np.Hash(), karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion,
	}}}
	claim.Status.NodeName, claim.Status.ProviderID = name, "x:///"+name
	claim.Conditions().At(now).SetTrue(karpv1.ConditionLaunched)
	w.objects.NodeClaims = append(w.objects.NodeClaims, claim)
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("50")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}, Status: corev1.NodeStatus{Capacity: size, Allocatable: size}}
	w.objects.Nodes = append(w.objects.Nodes, node)
	for j, cpu := range []string{"6", "1", "1"} {
		p := pod(fmt.Sprintf("%s-%d", name, j), cpu)
		p.Spec.NodeName = name
		w.objects.Pods = append(w.objects.Pods, p)
	}
}

func pod(name, cpu string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return p
}

// rule is a Rego policy of hook admit.
type rule struct {
	name, text string
	mode       v1alpha1.Mode
	failure    v1alpha1.FailurePolicy
}

// rules puts policies in force.
func (w *world) rules(rules ...rule) {
	w.Helper()
	var list []policy.Policy
	for _, r := range rules {
		np := nodePolicy(r.name, r.text)
		np.Spec.Mode, np.Spec.FailurePolicy = r.mode, r.failure
		np.Spec.Timeout = &metav1.Duration{Duration: 10 * time.Second} // machines are slow at times
		a, err := source.Opener{}.Open(np)
		if err != nil {
			w.Fatal(err)
		}
		files, err := a.Fetch(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		p, err := loader.Load(w.Context(), np, files)
		if err != nil {
			w.Fatal(err)
		}
		list = append(list, p)
	}
	if err := w.opts.Policies.Swap(list); err != nil {
		w.Fatal(err)
	}
}

// nodePolicy is an inline Rego policy of hook admit.
func nodePolicy(name, rules string) *v1alpha1.NodePolicy {
	text := fmt.Sprintf("package dovetail.admit.%s\n\n%s\n", strings.ReplaceAll(name, "-", "_"), rules)
	return &v1alpha1.NodePolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodePolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodePolicySpec{Hook: v1alpha1.HookAdmit, Runtime: v1alpha1.RuntimeRego, Source: v1alpha1.PolicySource{Inline: &text}},
	}
}

// request is one of the API server.
type request struct {
	// path defaults to what group and resource ask for.
	path, group, resource string
	operation             admissionv1.Operation
	object, old           any
	user                  authenticationv1.UserInfo
	dryRun                bool
}

// ask sends a request as the API server does.
func (w *world) ask(r request) admissionv1.AdmissionResponse {
	w.Helper()
	raw := func(o any) runtime.RawExtension {
		if o == nil {
			return runtime.RawExtension{}
		}
		if text, ok := o.(string); ok {
			return runtime.RawExtension{Raw: []byte(text)}
		}
		b, err := json.Marshal(o)
		if err != nil {
			w.Fatal(err)
		}
		return runtime.RawExtension{Raw: b}
	}
	name := ""
	if o, ok := r.object.(metav1.Object); ok {
		name = o.GetName()
	}
	review := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: &admissionv1.AdmissionRequest{
		UID: "42", Name: name, Operation: cmp.Or(r.operation, admissionv1.Create), UserInfo: r.user, DryRun: &r.dryRun,
		Resource: metav1.GroupVersionResource{Group: cmp.Or(r.group, karpv1.Group), Version: "v1", Resource: cmp.Or(r.resource, "nodepools")},
		Object:   raw(r.object), OldObject: raw(r.old),
	}}
	body, err := json.Marshal(review)
	if err != nil {
		w.Fatal(err)
	}
	path := cmp.Or(r.path, webhook.NodePoolsPath)
	handler := w.hook.Handlers()[path]
	if handler == nil {
		w.Fatalf("nobody answers at %s", path)
	}
	req := httptest.NewRequestWithContext(w.Context(), http.MethodPost, path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	(&admission.Webhook{Handler: handler}).ServeHTTP(rec, req)
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil || out.Response == nil || out.Response.UID != "42" {
		w.Fatalf("answer %s: %v", rec.Body, err)
	}
	return *out.Response
}
