package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// stage is a cluster with a clock that tests turn, and what it told.
type stage struct {
	*Cluster
	t    *testing.T
	shop *shop
	now  time.Time
	told []Change
}

func newStage(t *testing.T, objects ...client.Object) *stage {
	s := &stage{t: t, shop: newShop(t), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s.Cluster = New(Options{Provider: s.shop, Now: func() time.Time { return s.now }})
	s.OnChange(func(ch Change) { s.told = append(s.told, ch) })
	for _, o := range objects {
		s.Update(o)
	}
	return s
}

func (s *stage) snapshot() *snapshot.Snapshot {
	s.t.Helper()
	m, err := s.Snapshot(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Snapshot
}

// places says of each pod of the snapshot where it is: a node, or "pending".
func (s *stage) places() map[string]string {
	s.t.Helper()
	snap := s.snapshot()
	out := map[string]string{}
	for _, n := range snap.Nodes {
		for _, i := range n.Pods {
			out[snap.Pods[i].Key.Name] = n.Name
		}
	}
	for _, i := range snap.Pending {
		out[snap.Pods[i].Key.Name] = "pending"
	}
	return out
}

func (s *stage) wantPlaces(want map[string]string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.places()); diff != "" {
		s.t.Errorf("places of pods (-want +got):\n%s", diff)
	}
}

// provisions reports whether a plan was asked for since the last call.
func (s *stage) provisions() bool {
	asked := slices.ContainsFunc(s.told, func(ch Change) bool { return ch.Provision })
	s.told = nil
	return asked
}

var versions int

func named(namespace, name string) metav1.ObjectMeta {
	versions++
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), ResourceVersion: strconv.Itoa(versions)}
}

func newer(m *metav1.ObjectMeta) {
	versions++
	m.ResourceVersion = strconv.Itoa(versions)
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named("ns", name)}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func refused(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func nominatedTo(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { refused(p); p.Status.NominatedNodeName = node }
}

func claim(name string, change ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	c := &karpv1.NodeClaim{ObjectMeta: named("", name)}
	c.Labels = map[string]string{karpv1.NodePoolLabelKey: "pool"}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for _, f := range change {
		f(c)
	}
	return c
}

func launched(c *karpv1.NodeClaim) {
	c.Status.ProviderID = "shop:///" + c.Name
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	c.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
}

func deleted(o client.Object) { o.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(0, 0)}) }

// nodeFor is the node of a launched claim.
func nodeFor(claim, name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: named("", name)}
	n.Labels = map[string]string{karpv1.NodePoolLabelKey: "pool"}
	n.Spec.ProviderID = "shop:///" + claim
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("20")}
	n.Status.Allocatable = n.Status.Capacity
	for _, f := range change {
		f(n)
	}
	return n
}

func ready(n *corev1.Node) { n.Labels[karpv1.NodeInitializedLabelKey] = "true" }

func pool(name string, change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: named("", name)}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	p.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionTrue}}
	for _, f := range change {
		f(p)
	}
	return p
}

func keys(names ...string) []snapshot.PodKey {
	var out []snapshot.PodKey
	for _, n := range names {
		out = append(out, snapshot.PodKey{Namespace: "ns", Name: n})
	}
	return out
}

// TestCluster_pending says which pods count, and whether a plan is asked for when they
// come.
func TestCluster_pending(t *testing.T) {
	required := func(terms ...corev1.NodeSelectorRequirement) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			var list []corev1.NodeSelectorTerm
			for _, e := range terms {
				list = append(list, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}})
			}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: list}}}
		}
	}
	offPools := corev1.NodeSelectorRequirement{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpDoesNotExist}
	onDisk := corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpExists}
	tests := map[string]struct {
		pod  *corev1.Pod
		want string // "" is left out
	}{
		"a pod that was refused":                     {pod("p", refused), "pending"},
		"a pod no scheduler has looked at":           {pod("p"), ""},
		"a pod with another fault":                   {pod("p", func(p *corev1.Pod) { refused(p); p.Status.Conditions[0].Reason = corev1.PodReasonSchedulerError }), ""},
		"a gated pod":                                {pod("p", refused, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), ""},
		"a pod of another scheduler":                 {pod("p", refused, func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }), "pending"},
		"a pod that goes":                            {pod("p", refused, func(p *corev1.Pod) { deleted(p) }), ""},
		"a pod that has failed":                      {pod("p", refused, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), ""},
		"a pod of a DaemonSet":                       {pod("p", refused, func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet"}} }), ""},
		"a mirror pod":                               {pod("p", refused, func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "Node"}} }), ""},
		"a bound pod":                                {pod("p", on("unmanaged")), "unmanaged"},
		"a pod that has ended":                       {pod("p", on("unmanaged"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), ""},
		"a pod that waits for preemption":            {pod("p", nominatedTo("unmanaged")), ""},
		"a pod nominated for a node that is gone":    {pod("p", nominatedTo("gone")), "pending"},
		"a pod nominated for a node that starts":     {pod("p", nominatedTo("starts")), "starts"},
		"a pod nominated for a node that goes":       {pod("p", nominatedTo("goes")), ""},
		"a pod that keeps off nodes of NodePools":    {pod("p", refused, required(offPools)), ""},
		"one that does so in one alternative of two": {pod("p", refused, required(offPools, onDisk)), "pending"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, pool("pool"), claim("c", launched), nodeFor("c", "starts"), nodeFor("", "unmanaged", func(n *corev1.Node) { n.Labels = nil }),
				claim("d", launched, func(c *karpv1.NodeClaim) { deleted(c) }), nodeFor("d", "goes"))
			s.told = nil
			s.Update(tt.pod)
			want := map[string]string{}
			if tt.want != "" {
				want["p"] = tt.want
			}
			s.wantPlaces(want)
			if got := s.provisions(); got != (tt.want == "pending") {
				t.Errorf("asked for a plan: %v, want %v", got, !got)
			}
		})
	}
}

// TestCluster_Expect follows pods that a claim was bought for.
func TestCluster_Expect(t *testing.T) {
	begin := func(t *testing.T) *stage {
		s := newStage(t, pool("pool"), claim("c"), pod("a", refused), pod("b", refused))
		s.Expect("c", keys("a", "b"))
		s.wantPlaces(map[string]string{"a": "c", "b": "c"})
		if got := s.Expected("c"); !slices.Equal(got, keys("a", "b")) || !s.Nominated("c") {
			t.Errorf("expected on c: %v, nominated %v", got, s.Nominated("c"))
		}
		if on, ok := s.ExpectedOn(keys("a")[0]); on != "c" || !ok {
			t.Errorf("a is expected on %q", on)
		}
		s.told = nil
		return s
	}
	start := func(s *stage, change ...func(*corev1.Node)) {
		s.Update(claim("c", launched))
		s.Update(nodeFor("c", "n", change...))
	}
	tests := map[string]struct {
		do       func(s *stage)
		want     map[string]string
		expected []string
		plan     bool
	}{
		"nothing happens":                          {func(*stage) {}, map[string]string{"a": "c", "b": "c"}, []string{"a", "b"}, false},
		"the claim's node appears":                 {func(s *stage) { start(s) }, map[string]string{"a": "n", "b": "n"}, []string{"a", "b"}, false},
		"a pod is bound there":                     {func(s *stage) { start(s); s.Update(pod("a", on("n"))) }, map[string]string{"a": "n", "b": "n"}, []string{"b"}, false},
		"a pod is bound elsewhere":                 {func(s *stage) { s.Update(pod("a", on("elsewhere"))) }, map[string]string{"b": "c"}, []string{"b"}, false},
		"a pod goes":                               {func(s *stage) { s.Remove(pod("a")) }, map[string]string{"b": "c"}, []string{"b"}, false},
		"a pod is made anew under its name":        {func(s *stage) { s.Update(pod("a", refused, func(p *corev1.Pod) { p.UID = "other" })) }, map[string]string{"a": "pending", "b": "c"}, []string{"b"}, true},
		"the claim is deleted":                     {func(s *stage) { s.Update(claim("c", func(c *karpv1.NodeClaim) { deleted(c) })) }, map[string]string{"a": "pending", "b": "pending"}, []string{"a", "b"}, true},
		"the claim goes":                           {func(s *stage) { s.Remove(claim("c")) }, map[string]string{"a": "pending", "b": "pending"}, nil, true},
		"the claim is marked":                      {func(s *stage) { s.Mark("c") }, map[string]string{"a": "pending", "b": "pending"}, []string{"a", "b"}, true},
		"the mark is taken back":                   {func(s *stage) { s.Mark("c"); s.Unmark("c") }, map[string]string{"a": "c", "b": "c"}, []string{"a", "b"}, true},
		"the expectation is taken back":            {func(s *stage) { s.Unexpect(keys("a")...) }, map[string]string{"a": "pending", "b": "c"}, []string{"b"}, true},
		"the node has been ready for a moment":     {func(s *stage) { start(s, ready); s.now = s.now.Add(29 * time.Second) }, map[string]string{"a": "n", "b": "n"}, []string{"a", "b"}, false},
		"the node has been ready for long":         {func(s *stage) { start(s, ready); s.now = s.now.Add(30 * time.Second) }, map[string]string{"a": "pending", "b": "pending"}, nil, true},
		"the node never is":                        {func(s *stage) { start(s); s.now = s.now.Add(25 * time.Minute) }, map[string]string{"a": "pending", "b": "pending"}, nil, true},
		"another claim is bought for one of them":  {func(s *stage) { s.Update(claim("d")); s.Expect("d", keys("a")) }, map[string]string{"a": "d", "b": "c"}, []string{"b"}, false},
		"pods are told their node":                 {func(s *stage) { start(s); s.Update(pod("a", nominatedTo("n"))) }, map[string]string{"a": "n", "b": "n"}, []string{"a", "b"}, false},
		"told in vain, a pod is pending all alike": {func(s *stage) { start(s, ready); s.Update(pod("a", nominatedTo("n"))); s.now = s.now.Add(time.Minute) }, map[string]string{"a": "pending", "b": "pending"}, nil, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			tt.do(s)
			s.wantPlaces(tt.want)
			if diff := cmp.Diff(keys(tt.expected...), s.Expected("c"), cmp.Transformer("len", func(l []snapshot.PodKey) string { return fmt.Sprint(l) })); diff != "" {
				t.Errorf("expected on c (-want +got):\n%s", diff)
			}
			if got := s.provisions(); got != tt.plan {
				t.Errorf("asked for a plan: %v, want %v", got, tt.plan)
			}
		})
	}
}

func TestCluster_preemption(t *testing.T) {
	victim := pod("victim", on("n"), func(p *corev1.Pod) { deleted(p) })
	s := newStage(t, pool("pool"), nodeFor("", "n", ready), victim)
	s.Update(pod("p", nominatedTo("n"), func(p *corev1.Pod) { p.Spec.Priority = new(int32(10)) }))
	s.wantPlaces(map[string]string{"victim": "n"})
	s.now = s.now.Add(2 * time.Minute)
	s.wantPlaces(map[string]string{"victim": "n"}) // its victim is still going
	s.Remove(victim)
	s.told = nil
	s.now = s.now.Add(10 * time.Second)
	s.wantPlaces(map[string]string{"p": "pending"})
	if !s.provisions() {
		t.Error("nobody was told that the pod needs a node after all")
	}
}

// TestCluster_staleness has events come late, twice and after the end.
func TestCluster_staleness(t *testing.T) {
	t.Run("an older version is ignored", func(t *testing.T) {
		old := pod("a", refused)
		s := newStage(t, nodeFor("", "n", ready), pod("a", on("n")), old)
		s.wantPlaces(map[string]string{"a": "n"})
	})
	t.Run("an echo after the end is ignored", func(t *testing.T) {
		p := pod("a", refused)
		s := newStage(t, p)
		s.Remove(p)
		late := p.DeepCopy()
		newer(&late.ObjectMeta)
		s.Update(late)
		if s.Pod(keys("a")[0]) != nil {
			t.Error("the pod is back")
		}
	})
	t.Run("an object made anew under its name is another", func(t *testing.T) {
		p := pod("a", refused)
		s := newStage(t, p)
		s.Remove(p)
		s.Update(pod("a", refused, func(p *corev1.Pod) { p.UID = "other" }))
		s.wantPlaces(map[string]string{"a": "pending"})
		s.Remove(p) // a late deletion of the first
		s.wantPlaces(map[string]string{"a": "pending"})
	})
	t.Run("a node replaced under its name starts without pods of the claim before", func(t *testing.T) {
		s := newStage(t, pool("pool"), claim("c", launched), nodeFor("c", "n", ready))
		before := s.NodeRevision("n")
		s.Update(nodeFor("other", "n", func(n *corev1.Node) { n.UID = "other" }))
		if c := s.ClaimOf("n"); c != nil || s.NodeRevision("n") == before {
			t.Errorf("node n still belongs to claim %v", c)
		}
		if _, nodes := s.PoolUsage("pool"); nodes != 2 { // the claim is in flight again
			t.Errorf("%d nodes in the pool, want 2", nodes)
		}
	})
	t.Run("what a caller changes later does not count", func(t *testing.T) {
		p := pod("a", refused)
		s := newStage(t, p)
		p.Spec.NodeName = "n"
		s.wantPlaces(map[string]string{"a": "pending"})
	})
}

func TestCluster_PoolUsage(t *testing.T) {
	tests := map[string]struct {
		objects []client.Object
		marked  []string
		cpu     int64 // millicores
		nodes   int
	}{
		"nothing":                         {nil, nil, 0, 0},
		"a claim that has not launched":   {[]client.Object{claim("c")}, nil, 0, 1},
		"a claim that has":                {[]client.Object{claim("c", launched)}, nil, 4000, 1},
		"a claim and its node are one":    {[]client.Object{claim("c", launched), nodeFor("c", "n")}, nil, 4000, 1},
		"also where the node came first":  {[]client.Object{nodeFor("c", "n"), claim("c", launched)}, nil, 4000, 1},
		"a node that does not report yet": {[]client.Object{claim("c", launched), nodeFor("c", "n", func(n *corev1.Node) { n.Status.Capacity, n.Status.Allocatable = nil, nil })}, nil, 4000, 1},
		"a claim that is going":           {[]client.Object{claim("c", launched, func(c *karpv1.NodeClaim) { deleted(c) }), nodeFor("c", "n")}, nil, 0, 0},
		"a claim that is marked":          {[]client.Object{claim("c", launched), claim("d", launched)}, []string{"c"}, 4000, 1},
		"a node without a claim":          {[]client.Object{nodeFor("x", "n")}, nil, 4000, 1},
		"a node that is going":            {[]client.Object{nodeFor("x", "n", func(n *corev1.Node) { deleted(n) })}, nil, 0, 0},
		"nodes of nobody":                 {[]client.Object{nodeFor("x", "n", func(n *corev1.Node) { n.Labels = nil })}, nil, 0, 0},
		"a machine that terminates": {[]client.Object{claim("c", launched, func(c *karpv1.NodeClaim) {
			c.Conditions().At(time.Unix(0, 0)).SetTrue(karpv1.ConditionInstanceTerminating)
		})}, nil, 0, 0},
		"two claims of one provider ID, a node": {[]client.Object{claim("c", launched), claim("d", launched, func(c *karpv1.NodeClaim) { c.Status.ProviderID = "shop:///c" }), nodeFor("c", "n")}, nil, 8000, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, tt.objects...)
			s.Mark(tt.marked...)
			used, nodes := s.PoolUsage("pool")
			if used[corev1.ResourceCPU] != tt.cpu || nodes != tt.nodes {
				t.Errorf("%d nodes with %dm CPU, want %d with %dm", nodes, used[corev1.ResourceCPU], tt.nodes, tt.cpu)
			}
			for _, o := range tt.objects {
				s.Remove(o)
			}
			if used, nodes := s.PoolUsage("pool"); len(used) > 0 || nodes != 0 || len(s.pools)+len(s.nodes)+len(s.machines) > 0 {
				t.Errorf("with all gone there is left: %v, %d nodes", used, nodes)
			}
		})
	}
}

func TestCluster_marks(t *testing.T) {
	s := newStage(t, pool("pool"), claim("c", launched), nodeFor("c", "n", ready), pod("a", on("n")), pod("keep", on("n"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "10m"}
		p.Status.StartTime = &metav1.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	}))
	s.told = nil
	s.Mark("c", "unknown")
	if !s.Marked("c") || s.Marked("unknown") || !s.provisions() {
		t.Error("the mark is not there, or nobody was told that pods must move")
	}
	s.wantPlaces(map[string]string{"a": "pending"})
	s.now = s.now.Add(10 * time.Minute)
	s.wantPlaces(map[string]string{"a": "pending", "keep": "pending"}) // its protection has ended
	s.Unmark("c")
	s.wantPlaces(map[string]string{"a": "n", "keep": "n"})
	s.Mark("c")
	s.Remove(claim("c"))
	s.Update(claim("c", func(c *karpv1.NodeClaim) { c.UID = "other" }))
	if s.Marked("c") {
		t.Error("a claim is marked for one before it of its name")
	}
}

func TestCluster_Nominate(t *testing.T) {
	s := newStage(t, claim("c", launched), nodeFor("c", "n"), nodeFor("", "m"))
	s.Nominate("c", s.now.Add(20*time.Second))
	s.Nominate("m", s.now.Add(20*time.Second))
	s.Nominate("m", s.now.Add(10*time.Second))
	for _, name := range []string{"c", "n", "m"} {
		if !s.Nominated(name) {
			t.Errorf("%s is not nominated", name)
		}
	}
	s.now = s.now.Add(20 * time.Second)
	if s.Nominated("n") || s.Nominated("m") {
		t.Error("a nomination does not end")
	}
	s.sweep()
	if len(s.nominated) > 0 {
		t.Errorf("nominations that are over are kept: %v", s.nominated)
	}
}

func TestCluster_Snapshot(t *testing.T) {
	moment := func(s *stage) *Moment {
		s.t.Helper()
		m, err := s.Snapshot(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		return m
	}
	t.Run("without changes it is the same", func(t *testing.T) {
		s := newStage(t, pool("pool"), pod("a", refused))
		first := moment(s)
		if again := moment(s); again != first {
			t.Error("another one")
		}
		s.now = s.now.Add(time.Minute)
		later := moment(s)
		if later.Revision != first.Revision || !later.Snapshot.Now.Equal(s.now) || later.Snapshot.Classes[0] != first.Snapshot.Classes[0] || first.Snapshot.Now.Equal(s.now) {
			t.Error("a minute later it is more than the same at another time, or the first one has changed")
		}
	})
	t.Run("what decides nothing changes nothing", func(t *testing.T) {
		s := newStage(t, pool("pool"), nodeFor("", "n", ready), pod("a", on("n")))
		first := moment(s)
		s.Update(pod("a", on("n"), func(p *corev1.Pod) { p.Status.PodIP, p.Status.Phase = "10.0.0.1", "" }))
		s.Update(nodeFor("", "n", ready, func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} }))
		s.Update(pool("pool", func(p *karpv1.NodePool) { p.Status.Nodes = new(int64(7)) }))
		if again := moment(s); again != first || s.Pod(keys("a")[0]).Status.PodIP == "" {
			t.Error("another one, or the new versions were dropped")
		}
	})
	t.Run("one pool without a catalogue does not stop the others", func(t *testing.T) {
		s := newStage(t, pool("bad"), pool("good"), pool("foreign", func(p *karpv1.NodePool) { p.Spec.Template.Spec.NodeClassRef.Kind = "Other" }), claim("c", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = "bad" }))
		known := moment(s).Snapshot.Nodes[0].Allocatable
		s.shop.broken["bad"] = errors.New("no credentials")
		m := moment(s)
		got := map[string]string{}
		for _, p := range m.Snapshot.Pools {
			got[p.Name] = p.Unusable
		}
		want := map[string]string{
			"bad": "its instance types cannot be had: no credentials", "good": "",
			"foreign": `NodeClasses of kind Other in group dovetail.sh are not those of cloud "shop"`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("why pools buy nothing (-want +got):\n%s", diff)
		}
		if !slices.ContainsFunc(m.Problems, func(p snapshot.Problem) bool {
			return strings.Contains(p.String(), "NodePool bad") && strings.Contains(p.String(), "no credentials")
		}) {
			t.Errorf("problems %v do not name the cause", m.Problems)
		}
		if diff := cmp.Diff(known, m.Snapshot.Nodes[0].Allocatable); diff != "" {
			t.Errorf("a claim in flight has another size now:\n%s", diff)
		}
		delete(s.shop.broken, "bad")
		if p := moment(s).Snapshot.Pools; slices.ContainsFunc(p, func(p *snapshot.Pool) bool { return p.Name == "bad" && p.Unusable != "" }) {
			t.Error("the pool stays unusable")
		}
	})
	t.Run("a cloud that does not answer is not waited for", func(t *testing.T) {
		s := newStage(t, pool("pool"))
		s.opts.CatalogTimeout = 10 * time.Millisecond
		s.opts.Provider = &silent{s.shop}
		if got := moment(s).Snapshot.Pools[0].Unusable; !strings.Contains(got, "did not answer") {
			t.Errorf("unusable is %q", got)
		}
	})
	t.Run("its time is up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := newStage(t, pool("pool")).Snapshot(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// silent never answers.
type silent struct{ *shop }

func (*silent) Catalog(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) { select {} }

// TestCluster_OnChange says what makes a plan worth another try while a pod is pending.
func TestCluster_OnChange(t *testing.T) {
	tests := map[string]struct {
		change func(s *stage)
		want   bool
	}{
		"a NodePool changes":        {func(s *stage) { s.Update(pool("pool", func(p *karpv1.NodePool) { p.Spec.Weight = new(int32(3)) })) }, true},
		"its sums change":           {func(s *stage) { s.Update(pool("pool", func(p *karpv1.NodePool) { p.Status.Nodes = new(int64(3)) })) }, false},
		"a claim goes":              {func(s *stage) { s.Remove(claim("c")) }, true},
		"a claim launches":          {func(s *stage) { s.Update(claim("c", launched)) }, false},
		"a pod's volume gets ready": {func(s *stage) { s.Update(&corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "v")}) }, true},
		"a Service changes":         {func(s *stage) { s.Update(&corev1.Service{ObjectMeta: named("ns", "v")}) }, false},
		"the pod is told of again":  {func(s *stage) { s.Update(pod("a", refused)) }, false},
		"a node is about to be drained": {func(s *stage) {
			s.Update(nodeFor("", "n", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{karpv1.DisruptedTaint()} }))
		}, true},
		"a node with pods goes": {func(s *stage) { s.Update(nodeFor("", "n", func(n *corev1.Node) { deleted(n) })) }, true},
		"a node reports":        {func(s *stage) { s.Update(nodeFor("", "n", func(n *corev1.Node) { n.Labels["a"] = "b" })) }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, pool("pool"), claim("c"), nodeFor("", "n"), pod("b", on("n")), pod("a", refused))
			s.told = nil
			tt.change(s)
			if got := s.provisions(); got != tt.want {
				t.Errorf("asked for a plan: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCluster_reads(t *testing.T) {
	daemon := pod("d", on("n"), func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent"}} })
	s := newStage(t, pool("pool"), claim("c", launched), nodeFor("c", "n"), pod("b", on("n")), pod("a", on("n")), daemon)
	var on []string
	for _, p := range s.PodsOn("n") {
		on = append(on, p.Name)
	}
	if diff := cmp.Diff([]string{"a", "b", "d"}, on); diff != "" {
		t.Errorf("pods on n (-want +got):\n%s", diff)
	}
	used, daemons := s.NodeUsage("n")
	if used[corev1.ResourceCPU] != 1500 || daemons[corev1.ResourceCPU] != 500 {
		t.Errorf("used %v, by daemons %v", used, daemons)
	}
	if s.ClaimOf("n").Name != "c" || s.NodeOf("c").Name != "n" || s.ClaimByProviderID("shop:///c").Name != "c" || s.NodeByProviderID("shop:///c").Name != "n" {
		t.Error("claim and node do not find each other")
	}
	if s.ClaimOf("x") != nil || s.NodeOf("x") != nil || s.ClaimByProviderID("x") != nil || s.NodeByProviderID("x") != nil || s.PodsOn("x") != nil || s.Pod(keys("x")[0]) != nil {
		t.Error("what is not known is found")
	}
	if !s.FirstSeen(keys("a")[0]).Equal(s.now) || !s.FirstSeen(keys("x")[0]).IsZero() {
		t.Error("first seen is wrong")
	}
	n, p := s.NodeRevision("n"), s.PoolRevision("pool")
	s.Update(nodeFor("", "other", func(n *corev1.Node) { n.Labels = nil }))
	if s.NodeRevision("n") != n || s.PoolRevision("pool") != p {
		t.Error("another node changes the revision of n or of its pool")
	}
	s.Remove(pod("a"))
	if s.NodeRevision("n") == n || s.PoolRevision("pool") == p {
		t.Error("a pod that goes does not change the revision of its node and pool")
	}
}
