// Package stage is a small world for tests of controllers: an API server in memory whose
// answers can fail, a cloud that follows a script, kubelets, and a clock.
package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Write is one change that a controller asks for.
type Write struct {
	// Verb is create, patch, status, update, delete or evict.
	Verb   string
	Object client.Object
}

// Stage is the world.
type Stage struct {
	// Client is for controllers, Truth for the test: it does not fail, and is not counted.
	Client client.Client
	Truth  client.WithWatch
	Cloud  *Cloud
	Events *observe.Events

	// Before is asked before a write; its error is the answer and nothing is written.
	// After is asked when it is done; its error hides the answer.
	Before, After func(w Write) error
	// Evict answers evictions; nil lets all go.
	Evict func(p *corev1.Pod) error

	// Lag makes Client read what was stored at the last Refresh.
	Lag bool

	t      testing.TB
	scheme *runtime.Scheme
	view   client.Reader
	mu     sync.Mutex
	begin  time.Time
	now    time.Time
	jumps  time.Duration
	log    []string
	uid    int
}

// New is a world with these objects. Those without UID or creation get them: every object
// is created at the clock's start.
func New(t testing.TB, objects ...client.Object) *Stage {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme, resourcev1.AddToScheme, karpv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now().Truncate(time.Second)
	s := &Stage{t: t, begin: begin, now: begin}
	s.Cloud = newCloud(s.Now)
	s.Events = observe.NewEvents(s.note, s.Now)
	for _, o := range objects {
		s.born(o)
	}
	s.scheme = scheme
	s.Truth = s.server(objects)
	s.view = s.Truth
	s.Client = interceptor.NewClient(s.Truth, s.funcs())
	return s
}

// server is an API server with objects.
func (s *Stage) server(objects []client.Object) client.WithWatch {
	// A tracker that does not follow who manages which field, which takes most of the time.
	tracker := clienttesting.NewObjectTracker(s.scheme, serializer.NewCodecFactory(s.scheme).UniversalDecoder())
	b := fake.NewClientBuilder().WithScheme(s.scheme).WithObjectTracker(tracker).
		WithStatusSubresource(&karpv1.NodeClaim{}, &karpv1.NodePool{}, &corev1.Node{}, &corev1.Pod{})
	for _, i := range append(fleet.Indexes(), fleet.VolumeIndexes()...) {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.WithObjects(objects...).Build()
}

// Refresh makes Client see the claims, Nodes and pods that are stored now. It matters with
// Lag only.
func (s *Stage) Refresh() {
	s.t.Helper()
	ctx := context.Background()
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&claims, &nodes, &pods} {
		if err := s.Truth.List(ctx, list); err != nil {
			s.t.Fatal(err)
		}
	}
	var objects []client.Object
	for i := range claims.Items {
		objects = append(objects, &claims.Items[i])
	}
	for i := range nodes.Items {
		objects = append(objects, &nodes.Items[i])
	}
	for i := range pods.Items {
		objects = append(objects, &pods.Items[i])
	}
	s.view = s.server(objects)
}

// reads are answered by what was stored at the last Refresh, with Lag.
func (s *Stage) reads() client.Reader {
	if s.Lag {
		return s.view
	}
	return s.Truth
}

func (s *Stage) born(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uid++; o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", s.uid)))
	}
	if stamp := o.GetCreationTimestamp(); stamp.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(s.now))
	}
}

// Now is the clock.
func (s *Stage) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Elapsed is the time since New on a clock that nobody sets.
func (s *Stage) Elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.Sub(s.begin) - s.jumps
}

// Jump sets the clock forward, or back, in no time.
func (s *Stage) Jump(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.jumps = s.now.Add(d), s.jumps+d
}

// Pass moves the clock.
func (s *Stage) Pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

func (s *Stage) note(about runtime.Object, kind, reason, _ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := about.(client.Object)
	s.log = append(s.log, strings.TrimPrefix(fmt.Sprintf("%T", about), "*v1.")+" "+o.GetName()+" "+kind+" "+reason)
}

// Told are the events so far, as "Kind name type reason", sorted, each once.
func (s *Stage) Told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.log)
	slices.Sort(out)
	return slices.Compact(out)
}

// WasTold reports whether there was an event.
func (s *Stage) WasTold(event string) bool { return slices.Contains(s.Told(), event) }

func (s *Stage) around(w Write, do func() error) error {
	if s.Before != nil {
		if err := s.Before(w); err != nil {
			return err
		}
	}
	err := do()
	if s.After != nil && err == nil {
		return s.After(w)
	}
	return err
}

func (s *Stage) funcs() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return s.reads().Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return s.reads().List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			s.born(o)
			return s.around(Write{"create", o}, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return s.around(Write{"update", o}, func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return s.around(Write{"patch", o}, func() error { return c.Patch(ctx, o, patch, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return s.around(Write{"delete", o}, func() error {
				var options client.DeleteOptions
				options.ApplyOptions(opts)
				if p := options.Preconditions; p != nil && p.UID != nil {
					if err := s.sameUID(ctx, o, *p.UID); err != nil {
						return err
					}
				}
				return c.Delete(ctx, o, opts...)
			})
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return s.around(Write{"status", o}, func() error { return c.SubResource(sub).Patch(ctx, o, patch, opts...) })
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, o, body client.Object, opts ...client.SubResourceCreateOption) error {
			return s.around(Write{"evict", o}, func() error {
				e := body.(*policyv1.Eviction)
				var p corev1.Pod
				if err := c.Get(ctx, client.ObjectKeyFromObject(o), &p); err != nil {
					return err
				}
				if e.DeleteOptions == nil || e.DeleteOptions.Preconditions == nil || e.DeleteOptions.Preconditions.UID == nil {
					return errors.New("an eviction without precondition may hit another pod of the name")
				}
				if err := s.sameUID(ctx, o, *e.DeleteOptions.Preconditions.UID); err != nil {
					return err
				}
				if s.Evict != nil {
					if err := s.Evict(&p); err != nil {
						return err
					}
				}
				return c.SubResource(sub).Create(ctx, o, body, opts...)
			})
		},
	}
}

func (s *Stage) sameUID(ctx context.Context, o client.Object, uid types.UID) error {
	have := o.DeepCopyObject().(client.Object)
	if err := s.Truth.Get(ctx, client.ObjectKeyFromObject(o), have); err != nil {
		return err
	}
	if have.GetUID() != uid {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), fmt.Errorf("the UID is %s, not %s", have.GetUID(), uid))
	}
	return nil
}

// Create adds an object, as somebody else does.
func (s *Stage) Create(o client.Object) {
	s.t.Helper()
	s.born(o)
	if err := s.Truth.Create(context.Background(), o); err != nil {
		s.t.Fatal(err)
	}
}

// Delete deletes an object, as somebody else does.
func (s *Stage) Delete(o client.Object) {
	s.t.Helper()
	if err := s.Truth.Delete(context.Background(), o); err != nil && !apierrors.IsNotFound(err) {
		s.t.Fatal(err)
	}
}

// Node changes a Node, its status too.
func (s *Stage) Node(name string, change func(n *corev1.Node)) {
	s.t.Helper()
	ctx := context.Background()
	var n corev1.Node
	if err := s.Truth.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
		s.t.Fatal(err)
	}
	change(&n)
	status := n.Status
	if err := s.Truth.Update(ctx, &n); err != nil {
		s.t.Fatal(err)
	}
	if n.Status = status; !n.DeletionTimestamp.IsZero() && len(n.Finalizers) == 0 {
		return
	}
	if err := s.Truth.Status().Update(ctx, &n); err != nil {
		s.t.Fatal(err)
	}
}

// Find is an object as it is stored, or nil.
func Find[T client.Object](s *Stage, name types.NamespacedName, into T) T {
	s.t.Helper()
	err := s.Truth.Get(context.Background(), name, into)
	if apierrors.IsNotFound(err) {
		var none T
		return none
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return into
}

// Claim is a NodeClaim as it is stored, or nil.
func (s *Stage) Claim(name string) *karpv1.NodeClaim {
	return Find(s, types.NamespacedName{Name: name}, &karpv1.NodeClaim{})
}

// NodeNamed is a Node as it is stored, or nil.
func (s *Stage) NodeNamed(name string) *corev1.Node {
	return Find(s, types.NamespacedName{Name: name}, &corev1.Node{})
}

// Pod is a pod of the namespace default as it is stored, or nil.
func (s *Stage) Pod(name string) *corev1.Pod {
	return Find(s, types.NamespacedName{Namespace: "default", Name: name}, &corev1.Pod{})
}

// Boot makes a Node for every running machine that has none, as kubelets do.
func (s *Stage) Boot() {
	s.t.Helper()
	for _, m := range s.Cloud.Running() {
		if s.NodeNamed(m.ClaimName) == nil {
			s.Create(Node(m.ClaimName, func(n *corev1.Node) {
				n.Spec.ProviderID = m.ProviderID
				n.Status.Capacity, n.Status.Allocatable = m.Capacity.DeepCopy(), m.Allocatable.DeepCopy()
				n.Spec.Taints = []corev1.Taint{karpv1.UnregisteredTaint()}
			}))
		}
	}
}

// Runs runs reconcilers over all objects that they are for until nothing changes any more:
// for rounds, each a second later. It returns the errors.
func (s *Stage) Runs(rounds int, between func(), controllers ...Runner) []error {
	var errs []error
	for range rounds {
		for _, c := range controllers {
			for _, name := range s.names(c.For) {
				if _, err := c.Reconcile(context.Background(), reconcile.Request{NamespacedName: name}); err != nil {
					errs = append(errs, err)
				}
			}
			if c.Step != nil {
				c.Step(context.Background())
			}
		}
		if between != nil {
			between()
		}
		s.Pass(time.Second)
	}
	return errs
}

// Runner is a reconciler with the kind that it is for.
type Runner struct {
	For client.ObjectList
	reconcile.Reconciler
	// Step is called after the objects, unless nil.
	Step func(ctx context.Context)
}

func (s *Stage) names(list client.ObjectList) []types.NamespacedName {
	list = list.DeepCopyObject().(client.ObjectList)
	if err := s.Truth.List(context.Background(), list); err != nil {
		s.t.Fatal(err)
	}
	var out []types.NamespacedName
	switch list := list.(type) {
	case *karpv1.NodeClaimList:
		for i := range list.Items {
			out = append(out, client.ObjectKeyFromObject(&list.Items[i]))
		}
	case *corev1.NodeList:
		for i := range list.Items {
			out = append(out, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return out
}
