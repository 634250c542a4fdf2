package state

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// source is a cache with informers that tests feed. Nothing exists but what they say.
type source struct {
	informertest.FakeInformers
}

func (*source) Get(_ context.Context, k client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, k.Name)
}

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{}
	s.Scheme = runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpv1.AddToScheme} {
		if err := add(s.Scheme); err != nil {
			t.Fatal(err)
		}
	}
	s.InformersByGVK = map[schema.GroupVersionKind]toolscache.SharedIndexInformer{}
	return s
}

// eventually waits for a condition, with a bound that only a fault reaches.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func TestCluster_Watch(t *testing.T) {
	src := newSource(t)
	pods := controllertest.NewFakeInformer() // not synced yet
	src.InformersByGVK[corev1.SchemeGroupVersion.WithKind("Pod")] = pods
	var mu sync.Mutex
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Options{Provider: newShop(t), Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	var told []Change
	c.OnChange(func(ch Change) { mu.Lock(); defer mu.Unlock(); told = append(told, ch) })
	if c.Synced() || c.Unsynced() == "" {
		t.Error("synced before anything is watched")
	}
	if err := c.Watch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	if why := c.Unsynced(); !strings.HasSuffix(why, ": Pod") {
		t.Errorf("unsynced %q, want only pods missing", why)
	}

	// What comes before the end of the beginning counts.
	pods.Add(pod("a", refused))
	claims, err := src.FakeInformerFor(t.Context(), &karpv1.NodeClaim{})
	if err != nil {
		t.Fatal(err)
	}
	claims.Add(claim("stuck")) // has not launched, and never will
	pods.Synced()
	eventually(t, "synced", c.Synced)
	eventually(t, "told of it", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) > 0 && told[len(told)-1] == Change{Key: "synced", Provision: true}
	})
	if c.Wanting() != 1 || c.Claim("stuck") == nil {
		t.Errorf("%d pods need a node, claim %v", c.Wanting(), c.Claim("stuck"))
	}

	bound := pod("a", on("n"))
	pods.Update(nil, bound)
	if got := c.PodsOn("n"); len(got) != 1 || got[0] != bound {
		t.Errorf("pods on n: %v, want the very object of the cache", got)
	}
	for _, h := range []any{bound, toolscache.DeletedFinalStateUnknown{Key: "ns/a", Obj: bound}} {
		// A deletion that was missed and one that was not may both come.
		if o, ok := h.(*corev1.Pod); ok {
			pods.Delete(o)
		} else {
			c.handlers().OnDelete(h)
		}
	}
	if c.Pod(keys("a")[0]) != nil {
		t.Error("the pod is still there")
	}

	// A claim that was deleted before any watch saw it does not stay.
	c.Update(claim("ghost"))
	mu.Lock()
	now = now.Add(time.Minute)
	mu.Unlock()
	eventually(t, "ghost gone", func() bool { return c.Claim("ghost") == nil })
	if c.Claim("stuck") == nil {
		t.Error("a claim that was seen is gone too")
	}
}

func TestCluster_Watch_error(t *testing.T) {
	src := newSource(t)
	src.Error = errors.New("no such kind")
	if err := New(Options{}).Watch(t.Context(), src); err == nil || !strings.Contains(err.Error(), "NodePool") {
		t.Errorf("error %v, want the kind that cannot be watched", err)
	}
}

// TestSlim checks that what decisions rest on is kept, and the rest is gone.
func TestSlim(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := pod("a", refused, func(p *corev1.Pod) {
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
		p.Annotations = map[string]string{lastApplied: "{}", "huge": strings.Repeat("x", maxAnnotation+1), karpv1.DoNotDisruptAnnotationKey: "true"}
		p.Labels = map[string]string{"app": "web"}
		p.Spec.NodeName, p.Spec.SchedulerName, p.Spec.PriorityClassName = "n", "mine", "high"
		p.Spec.TerminationGracePeriodSeconds = new(int64(7))
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Args = "image", []string{"-v"}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always, Resources: p.Spec.Containers[0].Resources, Command: []string{"run"}}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "d"}}},
		}
		p.Status.Conditions[0].Message = strings.Repeat("0/500 nodes are available", 100)
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady})
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "c", ImageID: "sha256", Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}, {Name: "d", ImageID: "sha256"},
		}
	})
	before := p.DeepCopy()
	out, err := Slim(p)
	if err != nil {
		t.Fatal(err)
	}
	got := out.(*corev1.Pod)
	if got.Size() > 600 || got.ManagedFields != nil || len(got.Annotations) != 1 || got.Spec.Containers[0].Env != nil || len(got.Spec.Volumes) != 1 {
		t.Errorf("%d bytes are left: %+v", got.Size(), got)
	}
	if diff := cmp.Diff(resources.PodRequests(before), resources.PodRequests(got)); diff != "" {
		t.Errorf("requests (-before +after):\n%s", diff)
	}
	if !samePlacement(before, got) {
		t.Errorf("a scheduler would see another pod: %+v", got.Spec)
	}

	n := nodeFor("c", "n", ready, func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	})
	m := n.DeepCopy()
	if _, err := Slim(m); err != nil || m.Status.Images != nil || !m.Status.Conditions[0].LastHeartbeatTime.IsZero() || m.Status.Conditions[0].LastTransitionTime.IsZero() || !sameNode(n, m) {
		t.Errorf("node %+v, error %v", m.Status, err)
	}

	rs := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: corev1.PodTemplateSpec{Spec: before.Spec}}}
	if _, err := Slim(rs); err != nil || len(rs.Spec.Template.Spec.Containers) > 0 || rs.Spec.Selector == nil {
		t.Errorf("ReplicaSet %+v, error %v", rs.Spec, err)
	}
	lost := toolscache.DeletedFinalStateUnknown{Key: "a"}
	if out, err := Slim(lost); err != nil || !reflect.DeepEqual(out, lost) {
		t.Errorf("a missed deletion becomes %v, error %v", out, err)
	}
}

// samePlacement compares what decides where a pod may run, and how it ends.
func samePlacement(a, b *corev1.Pod) bool {
	x, y := a.Spec.DeepCopy(), b.Spec.DeepCopy()
	return x.NodeName == y.NodeName && x.SchedulerName == y.SchedulerName && x.PriorityClassName == y.PriorityClassName &&
		*x.TerminationGracePeriodSeconds == *y.TerminationGracePeriodSeconds &&
		reflect.DeepEqual(x.Containers[0].Ports, y.Containers[0].Ports) && *y.InitContainers[0].RestartPolicy == *x.InitContainers[0].RestartPolicy &&
		reflect.DeepEqual(y.Volumes[0], x.Volumes[1]) && reflect.DeepEqual(a.Labels, b.Labels) &&
		unschedulable(a) == unschedulable(b) && b.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true"
}
