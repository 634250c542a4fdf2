package world

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// sizes sells nodes with 2, 4 and 8 CPUs for 10, 20 and 40 cents.
func sizes(t *testing.T) *catalog.Catalog {
	t.Helper()
	var types []catalog.InstanceType
	for name, cpus := range map[string]int64{"small": 2, "medium": 4, "large": 8} {
		capacity := resources.List{corev1.ResourceCPU: cpus * 1000, corev1.ResourceMemory: cpus * 4 << 30, corev1.ResourcePods: 110}
		it := catalog.InstanceType{
			Name: name, Requirements: requirements.NewSet(requirements.In(corev1.LabelInstanceTypeStable, name)), Capacity: capacity, Allocatable: capacity,
		}
		for _, zone := range []string{"z1", "z2"} {
			it.Offerings = append(it.Offerings,
				catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: catalog.Price(cpus) * 50_000},
				catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: catalog.Price(cpus) * 20_000})
		}
		types = append(types, it)
	}
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return c
}

func pool(change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	np.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"on-demand"}}}
	np.Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{Text: karpv1.Never}
	np.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	for _, c := range change {
		c(np)
	}
	np.SetDefaults()
	return np
}

// pods are those of a ReplicaSet, with so many CPUs each.
func pods(app string, count int, cpu string) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range count {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", app, i+1), Namespace: "default", Labels: map[string]string{"app": app},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app, Controller: new(true)}},
		}}
		p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
		out = append(out, p)
	}
	return out
}

// told is the timeline in short.
func told(w *World, kinds ...Kind) string {
	var b strings.Builder
	for _, e := range w.Record().Entries {
		for _, k := range kinds {
			if e.Kind == k {
				fmt.Fprintf(&b, "+%s %s %s\n", e.At.Sub(w.Record().Start), e.Kind, e.Text)
			}
		}
	}
	return b.String()
}

func TestWorld(t *testing.T) {
	all := []Kind{Bought, Ready, Decided, RolledBack, LaunchFailed, Interrupted, Expired, Unplaced}
	tests := map[string]struct {
		pool   func(*karpv1.NodePool)
		class  func(*v1alpha1.SimNodeClass)
		pods   []*corev1.Pod
		guards []*policyv1.PodDisruptionBudget
		opts   func(*Options)
		act    map[time.Duration]func(*World) error
		until  time.Duration
		want   string
		// cost is what it costs per hour at the end, in dollars.
		cost float64
	}{
		"a node is bought for pods after the batch, and takes them when it is there": {
			pods: pods("web", 3, "1"), until: 10 * time.Minute,
			want: "+1s bought medium in z1, on-demand, $0.2000/h\n+1m31s ready medium in z1, on-demand\n", cost: 0.2,
		},
		"a node without pods goes in the next loop": {
			pods: pods("web", 1, "1"), until: 20 * time.Minute,
			act:  map[time.Duration]func(*World) error{10 * time.Minute: func(w *World) error { return w.Scale("rs", "default", "web", 0) }},
			want: "+1s bought small in z1, on-demand, $0.1000/h\n+1m31s ready small in z1, on-demand\n+10m10s decided delete 1 node: 0 pods move, saves $0.1000/h\n",
		},
		"but not if nothing may be disrupted": {
			pods: pods("web", 1, "1"), until: 20 * time.Minute, opts: func(o *Options) { o.Still = true },
			act:  map[time.Duration]func(*World) error{10 * time.Minute: func(w *World) error { return w.Scale("rs", "default", "web", 0) }},
			want: "+1s bought small in z1, on-demand, $0.1000/h\n+1m31s ready small in z1, on-demand\n", cost: 0.1,
		},
		"a node that is too large is replaced when its replacement is ready": {
			pods: pods("web", 7, "1"), until: 30 * time.Minute,
			act: map[time.Duration]func(*World) error{10 * time.Minute: func(w *World) error { return w.Scale("rs", "default", "web", 1) }},
			want: "+1s bought large in z1, on-demand, $0.4000/h\n+1m31s ready large in z1, on-demand\n" +
				"+10m10s decided replace 1 node by 1 × small on-demand: 1 pods move, $0.4000/h becomes $0.1000/h\n+11m40s ready small in z1, on-demand\n", cost: 0.1,
		},
		"a PodDisruptionBudget lets pods go one after the other": {
			pods: pods("web", 7, "1"), until: 30 * time.Minute,
			guards: []*policyv1.PodDisruptionBudget{{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
				Spec: policyv1.PodDisruptionBudgetSpec{
					MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				},
			}},
			act: map[time.Duration]func(*World) error{10 * time.Minute: func(w *World) error { return w.Scale("rs", "default", "web", 3) }},
			want: "+1s bought large in z1, on-demand, $0.4000/h\n+1m31s ready large in z1, on-demand\n" +
				"+10m10s decided replace 1 node by 1 × medium on-demand: 3 pods move, $0.4000/h becomes $0.2000/h\n+11m40s ready medium in z1, on-demand\n", cost: 0.2,
		},
		"what has no capacity is bought as something else": {
			pods: pods("web", 1, "1"), until: 3 * time.Minute,
			class: func(c *v1alpha1.SimNodeClass) {
				c.Spec.Capacity = []v1alpha1.SimCapacity{{SimSelector: v1alpha1.SimSelector{InstanceTypes: []string{"small"}}}}
			},
			want: "+1s bought small in z1, on-demand, $0.1000/h\n+1m31s ready medium in z1, on-demand\n", cost: 0.2,
		},
		"pods for which nothing can be bought are told why, and get a node when one can": {
			pods: pods("web", 1, "1"), until: 20 * time.Minute,
			class: func(c *v1alpha1.SimNodeClass) {
				c.Spec.Capacity = []v1alpha1.SimCapacity{{SimWindow: v1alpha1.SimWindow{Until: "10m"}, Known: true}}
			},
			want: "+1s unplaced NodePool p: no available offering satisfies the pool's own requirements\n+10m2s bought small in z1, on-demand, $0.1000/h\n+11m32s ready small in z1, on-demand\n", cost: 0.1,
		},
		"an interrupted machine is drained, and its pods get another": {
			pods: pods("web", 1, "1"), until: 20 * time.Minute,
			pool: func(np *karpv1.NodePool) {
				np.Spec.Template.Spec.Requirements[0].Values = []string{"spot"}
			},
			act: map[time.Duration]func(*World) error{10 * time.Minute: func(w *World) error {
				return w.Interrupt(v1alpha1.SpotInterruption, []string{w.Objects().Nodes[0].Name})
			}},
			want: "+1s bought small in z1, spot, $0.0400/h\n+1m31s ready small in z1, spot\n+10m0s interrupted SpotInterruption: it ends at 2025-06-04T12:12:00Z\n" +
				"+10m1s bought small in z1, spot, $0.0400/h\n+11m31s ready small in z1, spot\n", cost: 0.04,
		},
		"a node that has reached its age is replaced": {
			pods: pods("web", 1, "1"), until: 90 * time.Minute,
			pool: func(np *karpv1.NodePool) {
				np.Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{Duration: new(time.Hour), Text: "1h"}
			},
			want: "+1s bought small in z1, on-demand, $0.1000/h\n+1m31s ready small in z1, on-demand\n+1h0m1s expired it has reached its age\n" +
				"+1h0m2s bought small in z1, on-demand, $0.1000/h\n+1h1m32s ready small in z1, on-demand\n", cost: 0.1,
		},
		"a machine whose node never comes is given up": {
			pods: pods("web", 1, "1"), until: 20 * time.Minute,
			class: func(c *v1alpha1.SimNodeClass) {
				c.Spec.Failures = []v1alpha1.SimFailure{{Kind: v1alpha1.FailureNeverRegisters, SimWindow: v1alpha1.SimWindow{Until: "5m"}}}
			},
			want: "+1s bought small in z1, on-demand, $0.1000/h\n+15m1s launchFailed its node did not register within 15m0s\n" +
				"+15m2s bought small in z1, on-demand, $0.1000/h\n+16m32s ready small in z1, on-demand\n", cost: 0.1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			np := pool()
			if tt.pool != nil {
				np = pool(tt.pool)
			}
			opts := Options{Catalog: sizes(t)}
			if tt.class != nil {
				class := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
				class.Spec.RegistrationLatency.Base.Duration = time.Minute
				tt.class(class)
				opts.Classes = []*v1alpha1.SimNodeClass{class}
			}
			if tt.opts != nil {
				tt.opts(&opts)
			}
			w, err := New(snapshot.Objects{NodePools: []*karpv1.NodePool{np}, Pods: tt.pods, PodDisruptionBudgets: tt.guards}, opts)
			if err != nil {
				t.Fatal(err)
			}
			for d, do := range tt.act {
				w.At(w.Now().Add(d), func() error { return do(w) })
			}
			if err := w.Run(t.Context(), w.Now().Add(tt.until)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, told(w, all...)); diff != "" {
				t.Errorf("timeline (-want +got):\n%s", diff)
			}
			if got := w.Cost().Dollars(); got != tt.cost {
				t.Errorf("cost = $%v/h, want $%v/h", got, tt.cost)
			}
		})
	}
}

// TestWorld_Record checks sums against what they must be by hand.
func TestWorld_Record(t *testing.T) {
	w, err := New(snapshot.Objects{NodePools: []*karpv1.NodePool{pool()}, Pods: pods("web", 3, "1")}, Options{Catalog: sizes(t)})
	if err != nil {
		t.Fatal(err)
	}
	w.At(w.Now().Add(time.Hour), func() error { return w.Scale("rs", "default", "web", 0) })
	if err := w.Run(t.Context(), w.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	r := w.Record()
	type sums struct {
		Cost, NodeHours, Pending string
		Peak, Evictions          int
		Waits                    []float32
	}
	got := sums{fmt.Sprintf("%.6f", r.Cost), fmt.Sprintf("%.6f", r.NodeHours), fmt.Sprintf("%.0f", w.PendingSeconds()), r.PeakNodes, r.TotalEvictions(), r.Waits}
	// The machine is paid for from +1s until the loop at 1h0m10s.
	want := sums{fmt.Sprintf("%.6f", 0.2*3609/3600), fmt.Sprintf("%.6f", 3609.0/3600), "273", 1, 0, []float32{91, 91, 91}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Record() (-want +got):\n%s", diff)
	}
}

// TestWorld_Thin checks that a world that plans with fewer offerings lives the same life.
func TestWorld_Thin(t *testing.T) {
	run := func(zonal bool) string {
		objs := snapshot.Objects{NodePools: []*karpv1.NodePool{pool()}, Pods: append(pods("web", 9, "700m"), pods("api", 4, "1500m")...)}
		w, err := New(objs, Options{Catalog: sizes(t)})
		if err != nil {
			t.Fatal(err)
		}
		w.zonal = zonal
		for i, n := range []int{2, 12, 5, 0} {
			w.At(w.Now().Add(time.Duration(i+1)*20*time.Minute), func() error { return w.Scale("rs", "default", "web", n) })
		}
		if err := w.Run(t.Context(), w.Now().Add(2*time.Hour)); err != nil {
			t.Fatal(err)
		}
		return told(w, Bought, Ready, Decided, Deleting) + fmt.Sprint(w.Record().Cost)
	}
	if diff := cmp.Diff(run(true), run(false)); diff != "" {
		t.Errorf("with all offerings (-) and with those that can be chosen (+):\n%s", diff)
	}
}

// TestWorld_RemovePod checks that what follows an evicted pod goes in its place, and nothing
// else: the first Job's pod was evicted twice when the second one's is.
func TestWorld_RemovePod(t *testing.T) {
	list := pods("job", 2, "1500m")
	for _, p := range list {
		p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "Job", p.Name
	}
	w, err := New(snapshot.Objects{NodePools: []*karpv1.NodePool{pool()}, Pods: list[:1]}, Options{Catalog: sizes(t)})
	if err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration, do func()) { w.At(w.Now().Add(d), func() error { do(); return nil }) }
	for _, d := range []time.Duration{10, 20, 40} {
		at(d*time.Minute, func() { w.DrainPool("p") })
	}
	at(30*time.Minute, func() { w.AddPod(list[1]) })
	at(60*time.Minute, func() { w.RemovePod(keyOf(list[1])) })
	if err := w.Run(t.Context(), w.Now().Add(70*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if len(w.pods) != 1 || w.pods[0].OwnerReferences[0].Name != "job-1" {
		t.Errorf("%d pods are left, want the first Job's", len(w.pods))
	}
}
