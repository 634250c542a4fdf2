package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// shop is a provider that only has catalogues.
type shop struct {
	cloud.Provider
	catalog *catalog.Catalog
	// broken are pools that get an error.
	broken map[string]error
}

func (s *shop) Name() string { return "shop" }

func (s *shop) NodeClasses() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{{Group: "dovetail.sh", Version: "v1alpha1", Kind: "SimNodeClass"}}
}

func (s *shop) Catalog(_ context.Context, np *karpv1.NodePool) (*catalog.Catalog, error) {
	if err := s.broken[np.Name]; err != nil {
		return nil, err
	}
	return s.catalog, nil
}

func newShop(t testing.TB) *shop {
	t.Helper()
	var types []catalog.InstanceType
	for i, name := range []string{"small", "medium", "large"} {
		size := resources.List{corev1.ResourceCPU: 2000 << i, corev1.ResourceMemory: 4 << (30 + i), corev1.ResourcePods: 50}
		types = append(types, catalog.InstanceType{
			Name: name, Capacity: size, Allocatable: size.Clone(),
			Requirements: requirements.NewSet(requirements.In(corev1.LabelInstanceTypeStable, name)),
			Offerings:    []catalog.Offering{{Zone: "a", CapacityType: "on-demand", Price: catalog.Price(100 << i)}, {Zone: "b", CapacityType: "on-demand", Price: catalog.Price(110 << i)}},
		})
	}
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return &shop{catalog: c, broken: map[string]error{}}
}

// history makes a random history of a cluster and tells a Cluster of it as watches and
// controllers would: late, twice, and out of order between objects.
type history struct {
	t    testing.TB
	rand *rand.Rand
	now  time.Time
	shop *shop
	c    *Cluster

	version int
	// world are the objects that exist, known those that the cluster was told of last.
	world, known map[string]client.Object
	// gone are the UIDs that the cluster was told are gone.
	gone map[types.UID]bool
	// past are old versions and dead objects, for stale echoes.
	past []client.Object
	// held are events that come later, in order for each object.
	held []event

	told []Change
	log  []string
}

type event struct {
	o       client.Object
	deleted bool
}

func newHistory(t testing.TB, seed uint64) *history {
	h := &history{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), shop: newShop(t),
		world: map[string]client.Object{}, known: map[string]client.Object{}, gone: map[types.UID]bool{},
	}
	h.c = New(h.options())
	h.c.OnChange(func(ch Change) { h.told = append(h.told, ch) })
	return h
}

func (h *history) options() Options {
	return Options{Provider: h.shop, Now: func() time.Time { return h.now }, NodeOverlays: true}
}

func id(o client.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// write puts an object into the world, as new or changed.
func (h *history) write(o client.Object) {
	h.version++
	o.SetResourceVersion(strconv.Itoa(h.version))
	if o.GetUID() == "" {
		o.SetUID(types.UID("u" + strconv.Itoa(h.version)))
		o.SetCreationTimestamp(metav1.NewTime(h.now))
	}
	if old := h.world[id(o)]; old != nil {
		h.past = append(h.past, old)
	}
	h.world[id(o)] = o
	h.say("write %s v%d", id(o), h.version)
	h.emit(event{o, false})
}

// erase takes an object out of the world.
func (h *history) erase(o client.Object) {
	delete(h.world, id(o))
	h.version++
	last := o.DeepCopyObject().(client.Object)
	last.SetResourceVersion(strconv.Itoa(h.version))
	h.past = append(h.past, o)
	h.say("erase %s", id(o))
	h.emit(event{last, true})
}

func (h *history) emit(e event) {
	waiting := slices.ContainsFunc(h.held, func(x event) bool { return id(x.o) == id(e.o) })
	if waiting || h.rand.IntN(5) == 0 {
		h.held = append(h.held, e)
		return
	}
	h.deliver(e)
}

func (h *history) deliver(e event) {
	if e.deleted {
		h.remove(e.o)
		return
	}
	if !h.gone[e.o.GetUID()] {
		h.known[id(e.o)] = e.o
	}
	h.c.update(e.o, true)
}

func (h *history) remove(o client.Object) {
	h.gone[o.GetUID()] = true
	if k := h.known[id(o)]; k != nil && k.GetUID() == o.GetUID() {
		delete(h.known, id(o))
	}
	h.c.Remove(o)
}

// some returns an object of the world of that type, or the zero value.
func some[T client.Object](h *history) T {
	var all []string
	for k, o := range h.world {
		if _, ok := o.(T); ok {
			all = append(all, k)
		}
	}
	var none T
	if len(all) == 0 {
		return none
	}
	slices.Sort(all)
	return h.world[all[h.rand.IntN(len(all))]].DeepCopyObject().(T)
}

func (h *history) pick(values ...string) string { return values[h.rand.IntN(len(values))] }

func (h *history) newPod() *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.pick("x", "y"), Name: fmt.Sprintf("p%d", h.rand.IntN(30)), Labels: map[string]string{"app": h.pick("a", "b", "c"), "other": h.pick("1", "2")}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(h.pick("100m", "500m", "1")), corev1.ResourceMemory: resource.MustParse("128Mi"),
		}}}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{h.pick("app", "other"): h.pick("a", "1")}}
	switch h.rand.IntN(10) {
	case 0:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector}}
	case 1:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: selector}}}}
	case 2:
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent"}}
		p.Spec.NodeName = fmt.Sprintf("n%d", h.rand.IntN(8))
	case 3:
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: h.pick("d1", "d2")}}}}
	case 4:
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}}
	case 5:
		p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: h.pick("a", "b")}
		p.Spec.Priority = new(int32(100))
	case 6:
		p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: h.pick("true", "1m", "30s")}
		p.Status.StartTime = &metav1.Time{Time: h.now}
	}
	return p
}

// step lets one thing happen.
func (h *history) step() {
	switch h.rand.IntN(24) {
	case 0, 1, 2:
		p := h.newPod()
		if old := h.world[id(p)]; old != nil {
			h.erase(old) // recreated under its name
		}
		h.write(p)
	case 3, 4, 5:
		if p := some[*corev1.Pod](h); p != nil && p.Spec.NodeName == "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			h.write(p)
		}
	case 6, 7:
		if p, n := some[*corev1.Pod](h), some[*corev1.Node](h); p != nil && n != nil && p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 {
			p.Spec.NodeName, p.Status.Conditions, p.Status.NominatedNodeName = n.Name, nil, ""
			h.write(p)
		}
	case 8:
		if p := some[*corev1.Pod](h); p != nil && p.Spec.NodeName == "" {
			p.Status.NominatedNodeName = h.pick("", fmt.Sprintf("n%d", h.rand.IntN(8)))
			h.write(p)
		}
	case 9:
		if p := some[*corev1.Pod](h); p != nil {
			switch {
			case p.DeletionTimestamp == nil && h.rand.IntN(2) == 0:
				p.DeletionTimestamp = &metav1.Time{Time: h.now}
				h.write(p)
			default:
				h.erase(h.world[id(p)])
			}
		}
	case 10:
		if p := some[*corev1.Pod](h); p != nil && p.Spec.NodeName != "" {
			switch h.rand.IntN(3) {
			case 0:
				p.Status.Phase = corev1.PodSucceeded
			case 1:
				p.Status.Phase = corev1.PodRunning
			case 2:
				p.Labels["app"] = h.pick("a", "b", "c")
			}
			h.write(p)
		}
	case 11, 12:
		c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", h.rand.IntN(10)), Labels: map[string]string{karpv1.NodePoolLabelKey: h.pick("p1", "p2")}}}
		if h.world[id(c)] == nil {
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			h.write(c)
		}
	case 13:
		if c := some[*karpv1.NodeClaim](h); c != nil && c.Status.ProviderID == "" {
			c.Status.ProviderID = "sim:///" + c.Name
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(h.pick("2", "4")), corev1.ResourceMemory: resource.MustParse("4Gi")}
			c.Status.Allocatable = c.Status.Capacity
			h.write(c)
		}
	case 14:
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", h.rand.IntN(8)), Labels: map[string]string{corev1.LabelTopologyZone: h.pick("a", "b")}}}
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		if c := some[*karpv1.NodeClaim](h); c != nil && h.rand.IntN(4) > 0 {
			n.Spec.ProviderID = "sim:///" + c.Name
			n.Labels[karpv1.NodePoolLabelKey] = c.Labels[karpv1.NodePoolLabelKey]
		}
		if old := h.world[id(n)]; old != nil {
			h.erase(old) // replaced under its name
		}
		h.write(n)
	case 15:
		if c, n := some[*karpv1.NodeClaim](h), some[*corev1.Node](h); c != nil && n != nil && (n.Spec.ProviderID == c.Status.ProviderID || h.rand.IntN(8) == 0) {
			c.Status.NodeName = n.Name
			h.write(c)
		}
	case 16:
		if n := some[*corev1.Node](h); n != nil {
			switch h.rand.IntN(5) {
			case 0:
				n.Labels[karpv1.NodeInitializedLabelKey] = "true"
				n.Spec.Taints = nil
			case 1:
				n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("20")}
				n.Status.Allocatable = n.Status.Capacity
			case 2:
				n.Spec.Taints = append(n.Spec.Taints, karpv1.DisruptedTaint())
			case 3:
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(h.now)}}
			case 4:
				if n.DeletionTimestamp == nil {
					n.DeletionTimestamp = &metav1.Time{Time: h.now}
				} else {
					h.erase(h.world[id(n)])
					return
				}
			}
			h.write(n)
		}
	case 17:
		if c := some[*karpv1.NodeClaim](h); c != nil {
			switch {
			case h.rand.IntN(3) == 0:
				c.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionInstanceTerminating, Status: metav1.ConditionTrue}}
				h.write(c)
			case c.DeletionTimestamp == nil:
				c.DeletionTimestamp = &metav1.Time{Time: h.now}
				h.write(c)
			default:
				h.erase(h.world[id(c)])
			}
		}
	case 18:
		p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: h.pick("p1", "p2")}}
		if old := h.world[id(p)]; old != nil {
			p = old.DeepCopyObject().(*karpv1.NodePool)
		}
		p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"}
		p.Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(h.pick("10", "20"))}
		p.Spec.Weight = new(int32(1 + h.rand.IntN(2)))
		p.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionStatus(h.pick("True", "False"))}}
		p.Status.Nodes = new(int64(h.rand.IntN(5)))
		if h.world[id(p)] != nil && h.rand.IntN(6) == 0 {
			h.erase(h.world[id(p)])
		} else {
			h.write(p)
		}
		h.shop.broken = map[string]error{}
		if h.rand.IntN(3) == 0 {
			h.shop.broken[h.pick("p1", "p2")] = errors.New("no prices")
		}
	case 19:
		h.other()
	case 20:
		if c, p := some[*karpv1.NodeClaim](h), some[*corev1.Pod](h); c != nil && p != nil {
			h.say("expect %s on %s", p.Name, c.Name)
			h.c.Expect(c.Name, []snapshot.PodKey{{Namespace: p.Namespace, Name: p.Name}})
		}
	case 21:
		if c := some[*karpv1.NodeClaim](h); c != nil {
			h.say("mark or unmark %s", c.Name)
			if h.rand.IntN(2) == 0 {
				h.c.Mark(c.Name)
			} else {
				h.c.Unmark(c.Name)
			}
		}
	case 22:
		h.now = h.now.Add(time.Duration(h.rand.IntN(20)) * time.Second)
		h.say("it is %s", h.now.Format(time.TimeOnly))
	case 23:
		switch {
		case len(h.past) > 0 && h.rand.IntN(2) == 0:
			o := h.past[h.rand.IntN(len(h.past))]
			h.say("stale echo of %s v%s", id(o), o.GetResourceVersion())
			if h.rand.IntN(4) == 0 && h.world[id(o)] == nil {
				h.remove(o)
			} else {
				h.stale(o)
			}
		default:
			for len(h.held) > 0 {
				h.deliver(h.held[0])
				h.held = h.held[1:]
			}
		}
	}
	if len(h.held) > 0 && h.rand.IntN(3) == 0 {
		h.deliver(h.held[0])
		h.held = h.held[1:]
	}
}

// stale tells of an old version. It is news if the cluster knows nothing newer, which is
// so while events are held.
func (h *history) stale(o client.Object) {
	k := h.known[id(o)]
	if slices.ContainsFunc(h.held, func(e event) bool { return e.o.GetUID() == o.GetUID() }) || k == nil && h.world[id(o)] != nil {
		return
	}
	if h.rand.IntN(2) == 0 {
		h.c.update(o, true)
	} else {
		h.c.Update(o)
	}
}

// other changes something that nothing is derived from.
func (h *history) other() {
	var o client.Object
	meta := metav1.ObjectMeta{Namespace: "x", Name: "d1"}
	switch h.rand.IntN(6) {
	case 0:
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: h.pick("x", "y"), Name: "agent"}}
		ds.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(h.pick("10m", "20m"))}}}}
		o = ds
	case 1:
		o = &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new(h.pick("fast", "none"))}}
	case 2:
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		o = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "disk", VolumeBindingMode: &mode}
	case 3:
		o = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", h.rand.IntN(8))}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "disk", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(h.rand.IntN(4)))}}}}}
	case 4:
		zero := intstr.FromInt32(int32(h.rand.IntN(2)))
		o = &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &zero, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": h.pick("a", "b")}}}}
	case 5:
		o = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.pick("x", "y"), Labels: map[string]string{"team": h.pick("1", "2")}}}
	}
	old := h.world[id(o)]
	if old != nil && h.rand.IntN(3) == 0 {
		h.erase(old)
		return
	}
	if old != nil {
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	h.write(o)
}

// rebuilt is a cluster that is told of the known objects at once, and that remembers what
// no object says.
func (h *history) rebuilt() *Cluster {
	r := New(h.options())
	for _, k := range slices.Sorted(maps.Keys(h.known)) {
		r.update(h.known[k], true)
	}
	r.marked = maps.Clone(h.c.marked)
	r.expected = maps.Clone(h.c.expected)
	for pk, e := range r.expected {
		if r.expectedOn[e.claim] == nil {
			r.expectedOn[e.claim] = map[snapshot.PodKey]bool{}
		}
		r.expectedOn[e.claim][pk] = true
	}
	for k, p := range r.pods {
		if q := h.c.pods[k]; q != nil {
			p.nominated, p.released, p.first = q.nominated, q.released, q.first
		}
	}
	g := newGroup()
	for _, n := range r.nodeTable.by {
		g.addNode(r, n)
	}
	for _, c := range r.claimTable.by {
		g.addClaim(r, c)
	}
	r.settle(g, h.now)
	for k, p := range r.pods {
		r.settlePod(k, p, h.now, false)
	}
	return r
}

// derived is all that a cluster keeps up to date.
func derived(c *Cluster) map[string]any {
	nodes, pods := map[string]any{}, map[string]string{}
	for name, n := range c.nodes {
		var on []string
		for k := range n.pods {
			on = append(on, k.String())
		}
		slices.Sort(on)
		nodes[name] = fmt.Sprintf("%v used %v daemons %v leaving %v", on, n.used, n.daemons, n.leaving)
	}
	for k, p := range c.pods {
		pods[k.String()] = fmt.Sprintf("role %d node %q claim %q counted %v v%s", p.role, p.node, p.claim, p.counted, p.obj.ResourceVersion)
	}
	pools := map[string]string{}
	for name, p := range c.pools {
		pools[name] = fmt.Sprintf("%v nodes %d claims %v", p.usage, p.nodes, slices.Sorted(maps.Keys(p.claims)))
	}
	flying := map[string]bool{}
	for k := range c.flying {
		flying[k.String()] = true
	}
	var live []string
	for _, p := range c.live.list() {
		live = append(live, p.Namespace+"/"+p.Name+" v"+p.ResourceVersion)
	}
	due := map[string]time.Time{}
	for k, at := range c.due {
		due[k.String()] = at
	}
	machines := map[string]string{}
	for k, m := range c.machines {
		machines[k] = fmt.Sprint(m.pool, m.capacity)
	}
	nominated := map[string]int{}
	for n, m := range c.nominatedFor {
		nominated[n] = len(m)
	}
	return map[string]any{
		"nodes": nodes, "pods": pods, "pools": pools, "flying": flying, "live": live, "due": due, "machines": machines, "nominated": nominated,
		"wanting": c.wanting, "leaving nodes": c.leavingNodes,
		"claims by provider": map[string]map[string]bool(c.claimsByProvider), "nodes by provider": map[string]map[string]bool(c.nodesByProvider), "claims by node": map[string]map[string]bool(c.claimsByNode),
	}
}

func (h *history) wantingPods() map[key]bool {
	out := map[key]bool{}
	for k, p := range h.c.pods {
		if p.role == wanting {
			out[k] = true
		}
	}
	return out
}

// check compares the cluster with one made from scratch.
func (h *history) check() error {
	h.c.Expire()
	r := h.rebuilt()
	if diff := cmp.Diff(derived(r), derived(h.c)); diff != "" {
		return fmt.Errorf("what is derived from the objects (-rebuilt +kept):\n%s", diff)
	}
	got, err := h.c.Snapshot(context.Background())
	if err != nil {
		return err
	}
	opts := snapshot.Options{
		Now: h.now, Expected: r.expectations(), Leaving: r.marked, PoolCatalogs: map[string]*catalog.Catalog{}, Unusable: map[string]string{},
	}
	for name, p := range h.c.catalogs {
		opts.PoolCatalogs[name] = p.catalog
		if p.unusable != "" {
			opts.Unusable[name] = p.unusable
		}
	}
	want, _ := snapshot.Build(r.objects(), opts)
	kept := withoutSums(got.Snapshot)
	if want = withoutSums(want); !reflect.DeepEqual(want, kept) {
		return fmt.Errorf("snapshot (-built anew +kept):\n%s", cmp.Diff(text(want), text(kept)))
	}
	for pk, e := range h.c.expected {
		p := h.c.pods[tableKey(pk)]
		if p == nil || p.obj.UID != e.uid || p.obj.Spec.NodeName != "" || p.obj.DeletionTimestamp != nil || !h.now.Before(e.until) {
			return fmt.Errorf("pod %s is still expected on %s", pk, e.claim)
		}
	}
	for name := range h.c.marked {
		if h.c.claimTable.by[name1(name)] == nil {
			return fmt.Errorf("claim %s is gone and still marked", name)
		}
	}
	return nil
}

// withoutSums leaves out of NodePools what changes without making another moment.
func withoutSums(s *snapshot.Snapshot) *snapshot.Snapshot {
	out := *s
	out.Pools = nil
	for _, p := range s.Pools {
		q := *p
		q.Object = p.Object.DeepCopy()
		q.Object.Status.Nodes, q.Object.ResourceVersion = nil, ""
		out.Pools = append(out.Pools, &q)
	}
	return &out
}

// text is a snapshot for people; not all of it.
func text(s *snapshot.Snapshot) []string {
	var out []string
	for _, p := range s.Pools {
		out = append(out, fmt.Sprintf("pool %s usage %v unusable %q", p.Name, p.Usage, p.Unusable))
	}
	for _, n := range s.Nodes {
		out = append(out, fmt.Sprintf("node %+v", *n))
	}
	for i, p := range s.Pods {
		out = append(out, fmt.Sprintf("pod %d %+v", i, p))
	}
	out = append(out, fmt.Sprintf("pending %v", s.Pending), fmt.Sprintf("blocked %v", s.Blocked))
	for i, c := range s.Classes {
		out = append(out, fmt.Sprintf("class %d %+v", i, *c))
	}
	for i, x := range s.Selectors {
		out = append(out, fmt.Sprintf("selector %d %s", i, x.Key))
	}
	for _, d := range s.Daemons {
		out = append(out, fmt.Sprintf("daemon %s %+v", d.Key, *d.Class))
	}
	return append(out, fmt.Sprintf("labels %v", s.LabelKeys))
}

// run plays a history and returns the first fault.
func (h *history) run(steps int) error {
	for i := range steps {
		before := h.wantingPods()
		h.told = nil
		h.step()
		if err := h.check(); err != nil {
			return fmt.Errorf("step %d: %w\nhistory:\n%s", i, err, lastLines(h.log))
		}
		for k := range h.wantingPods() {
			if !before[k] && !slices.ContainsFunc(h.told, func(ch Change) bool { return ch.Provision }) {
				return fmt.Errorf("step %d: nobody was told that pod %s needs a node\nhistory:\n%s", i, k, lastLines(h.log))
			}
		}
	}
	return nil
}

func lastLines(log []string) string {
	out := ""
	for _, l := range log[max(0, len(log)-25):] {
		out += l + "\n"
	}
	return out
}

// TestCluster_histories compares what is kept up to date with what a cluster makes of the
// same objects at once.
func TestCluster_histories(t *testing.T) {
	seeds, steps := uint64(40), 250
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := newHistory(t, seed)
			if err := h.run(steps); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func FuzzCluster(f *testing.F) {
	f.Add(uint64(1), uint16(300))
	f.Add(uint64(1000), uint16(50))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16) {
		if err := newHistory(t, seed).run(int(steps % 500)); err != nil {
			t.Fatal(err)
		}
	})
}
