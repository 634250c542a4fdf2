package snapshot

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// TestMemo changes a cluster step by step, and compares what a memo builds with what is
// built anew.
func TestMemo(t *testing.T) {
	offered := func(price catalog.Price) *catalog.Catalog {
		size := resources.List{corev1.ResourceCPU: 4000 + int64(price), corev1.ResourceMemory: 8 << 30, corev1.ResourcePods: 50}
		c, errs := catalog.New([]catalog.InstanceType{{
			Name: "m", Capacity: size, Allocatable: size.Clone(), AttachLimits: map[string]int64{"disk": 3},
			Requirements: requirements.NewSet(requirements.In(corev1.LabelInstanceTypeStable, "m")),
			Offerings:    []catalog.Offering{{Zone: "zone-0", CapacityType: catalog.OnDemand, Price: price}},
		}})
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return c
	}
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			objs := busyCluster(12, 300)
			for i, p := range objs.Pods {
				p.Labels["rare"] = fmt.Sprint(i % 4)
			}
			for i := range 8 {
				c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i), Labels: map[string]string{karpv1.NodePoolLabelKey: "default"}}}
				c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
				if i < 4 {
					c.Status.NodeName = objs.Nodes[i].Name
					delete(objs.Nodes[i].Labels, karpv1.NodeInitializedLabelKey)
				}
				objs.NodeClaims = append(objs.NodeClaims, c)
			}
			objs.StorageClasses = []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "disk", VolumeBindingMode: &mode}}
			opts := Options{Now: time.Unix(1000, 0), AssumeReady: true, Catalog: offered(100), Expected: map[PodKey]string{}}
			if seed%2 == 0 {
				opts.DefaultSpread = []corev1.TopologySpreadConstraint{{MaxSkew: 3, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway}}
			}
			var memo Memo
			for step := range 60 {
				// Objects are replaced, never changed; so are lists that a memo may compare.
				at := r.IntN(len(objs.Pods))
				p := objs.Pods[at].DeepCopy()
				switch r.IntN(14) {
				case 0:
					p.Spec.NodeName = fmt.Sprintf("node-%05d", r.IntN(14))
				case 1:
					p.Labels["app"] = fmt.Sprintf("app-%03d", r.IntN(5))
				case 2:
					p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rare": "1"}}}}
				case 3:
					p.Status.Phase = corev1.PodSucceeded
				case 4: // two pods that are alike until their claims differ
					n := r.IntN(2)
					at = 20 + 200*n
					p = objs.Pods[at].DeepCopy()
					p.Spec.Volumes = nil
					claims(fmt.Sprint("data-", n))(p)
				case 5:
					p.Spec.NodeName = ""
					opts.Expected = map[PodKey]string{{p.Namespace, p.Name}: fmt.Sprintf("claim-%d", r.IntN(9))}
				case 6:
					objs.Services = append(slices.Clone(objs.Services), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: fmt.Sprint("s", step)}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": p.Labels["app"]}}})
				case 7:
					n := r.IntN(len(objs.Nodes))
					node := objs.Nodes[n].DeepCopy()
					node.Labels["rack"] = fmt.Sprint(r.IntN(3))
					objs.Nodes = slices.Clone(objs.Nodes)
					objs.Nodes[n] = node
				case 8:
					n := r.IntN(len(objs.NodeClaims))
					c := objs.NodeClaims[n].DeepCopy()
					c.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(1+r.IntN(8)), resource.DecimalSI)}
					c.Status.Allocatable = c.Status.Capacity
					objs.NodeClaims = slices.Clone(objs.NodeClaims)
					objs.NodeClaims[n] = c
				case 9:
					opts.Catalog = offered(catalog.Price(100 + step))
				case 10:
					price := fmt.Sprint("0.0", 1+step)
					objs.NodeOverlays = []*karpv1alpha1.NodeOverlay{{ObjectMeta: metav1.ObjectMeta{Name: "o"}, Spec: karpv1alpha1.NodeOverlaySpec{Price: &price}}}
				case 11:
					objs.PersistentVolumeClaims = []*corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns-0", Name: fmt.Sprint("data-", r.IntN(4))}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")}}}
				case 12:
					objs.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: objs.Nodes[0].Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "disk", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(step))}}}}}}
				case 13:
					ownedBy("DaemonSet", "agent")(p)
				}
				objs.Pods = slices.Clone(objs.Pods)
				objs.Pods[at] = p
				want, wantProblems := Build(objs, opts)
				got, gotProblems := memo.Build(objs, opts)
				if diff := cmp.Diff(wantProblems, gotProblems); diff != "" {
					t.Fatalf("step %d: problems (-anew +memo):\n%s", step, diff)
				}
				if !sameSnapshot(want, got) {
					t.Fatalf("step %d: the snapshots differ", step)
				}
			}
			if len(memo.pods) > 3*len(objs.Pods)+2048 || len(memo.nodes) > len(objs.Nodes)+len(objs.NodeClaims) {
				t.Errorf("the memo keeps %d pods and %d nodes", len(memo.pods), len(memo.nodes))
			}
		})
	}
}

// sameSnapshot compares catalogues by their content: those of overlays are made anew.
func sameSnapshot(a, b *Snapshot) bool {
	x, y := *a, *b
	if len(a.Pools) != len(b.Pools) {
		return false
	}
	x.Pools, y.Pools = nil, nil
	for i := range a.Pools {
		p, q := *a.Pools[i], *b.Pools[i]
		if p.Catalog.Hash() != q.Catalog.Hash() {
			return false
		}
		p.Catalog, q.Catalog = nil, nil
		x.Pools, y.Pools = append(x.Pools, &p), append(y.Pools, &q)
	}
	return reflect.DeepEqual(x, y)
}
