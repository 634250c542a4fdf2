package snapshot

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name}} }
}

func claims(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
}

func testNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Status: corev1.NodeStatus{Capacity: size, Allocatable: size}}
	for _, c := range change {
		c(n)
	}
	return n
}

func build0(t *testing.T, objs Objects) *Snapshot {
	t.Helper()
	s, problems := Build(objs, Options{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), AssumeReady: true})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return s
}

func TestBuild_classes(t *testing.T) {
	spread := func(app string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
		}
	}
	tests := map[string]struct {
		pods []*corev1.Pod
		want int
	}{
		"pods of one template are one class":               {[]*corev1.Pod{pod("a"), pod("b"), pod("c")}, 1},
		"a label that no selector looks at does not count": {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Labels["statefulset.kubernetes.io/pod-name"] = "b" })}, 1},
		"a label that a selector looks at does":            {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Labels["app"] = "db" }), pod("c", spread("web"))}, 3},
		"other requests are another class": {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
		})}, 2},
		"the same amount in other words is the same": {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("0.5")
		})}, 1},
		"tolerations count": {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "x", Operator: "Exists"}} })}, 2},
		"priorities count":  {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { v := int32(7); p.Spec.Priority = &v })}, 2},
		"host ports count":  {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} })}, 2},
		"namespaces count":  {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Namespace = "other" })}, 2},
		"overhead counts": {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) {
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
		})}, 2},
		"node selectors count": {[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} })}, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if s := build0(t, Objects{Pods: tt.pods}); len(s.Classes) != tt.want || len(s.Pending) != len(tt.pods) {
				t.Errorf("Build() = %d classes and %d pending pods, want %d and %d", len(s.Classes), len(s.Pending), tt.want, len(tt.pods))
			}
		})
	}
}

func TestBuild_pending(t *testing.T) {
	deleted := metav1.Now()
	leaving := testNode("leaving", func(n *corev1.Node) { n.DeletionTimestamp = &deleted })
	objs := Objects{
		Nodes: []*corev1.Node{testNode("n1"), leaving},
		Pods: []*corev1.Pod{
			pod("waits"),
			pod("runs", on("n1")),
			pod("ended", on("n1"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			pod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}} }),
			pod("preempts", func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }),
			pod("daemon", ownedBy("DaemonSet", "agent")),
			pod("moves", on("leaving")),
			pod("stays", on("leaving"), func(p *corev1.Pod) {
				p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
			}),
			pod("held", on("leaving"), func(p *corev1.Pod) { p.Labels["app"] = "held" }),
			pod("going", func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }),
			pod("goes", on("leaving"), func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }),
			pod("returns", on("leaving"), ownedBy("StatefulSet", "db"), func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }),
		},
		PodDisruptionBudgets: []*policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "held"}, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &intstr.IntOrString{}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "held"}}}}},
	}
	s := build0(t, objs)
	var got []string
	for _, p := range s.Pending {
		got = append(got, s.Pods[p].Key.Name)
	}
	if diff := cmp.Diff([]string{"moves", "returns", "waits"}, got); diff != "" {
		t.Errorf("pending pods (-want +got):\n%s", diff)
	}
	if len(s.Nodes) != 1 || s.Nodes[0].Used[corev1.ResourceCPU] != 500 {
		t.Errorf("nodes = %+v, want n1 alone with 500m used", s.Nodes)
	}
}

func TestBuild_expected(t *testing.T) {
	claim := func(name string, change ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
		c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		for _, f := range change {
			f(c)
		}
		return c
	}
	s, problems := Build(Objects{
		Nodes: []*corev1.Node{testNode("n1")},
		NodeClaims: []*karpv1.NodeClaim{
			claim("flies"), claim("marked"),
			claim("ends", func(c *karpv1.NodeClaim) {
				c.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionInstanceTerminating, Status: metav1.ConditionTrue}}
			}),
		},
		Pods: []*corev1.Pod{
			pod("a"),
			pod("b", func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }),
			pod("c", func(p *corev1.Pod) { p.Status.NominatedNodeName = "marked" }),
			pod("d"), pod("e"),
		},
	}, Options{
		Leaving:  map[string]bool{"marked": true},
		Expected: map[PodKey]string{{"ns", "a"}: "flies", {"ns", "b"}: "n1", {"ns", "c"}: "marked", {"ns", "d"}: "gone"},
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var got []string
	for _, n := range s.Nodes {
		for _, i := range n.Pods {
			got = append(got, s.Pods[i].Key.Name+" on "+n.Name+fmt.Sprintf(" (%dm)", n.Used[corev1.ResourceCPU]))
		}
		if len(n.Pods) == 0 {
			got = append(got, "nothing on "+n.Name)
		}
	}
	for _, i := range s.Pending {
		got = append(got, s.Pods[i].Key.Name+" waits")
	}
	if diff := cmp.Diff([]string{"a on flies (500m)", "b on n1 (500m)", "c waits", "d waits", "e waits"}, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestBuild_problems(t *testing.T) {
	bad := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}
	bad.Spec.Template.Spec.Requirements = []karpv1.Requirement{
		{Key: "team", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}, {Key: "team", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}
	good := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "good"}}
	s, problems := Build(Objects{
		Pods: []*corev1.Pod{
			pod("a"), pod("a"),
			pod("lost", on("nowhere")),
			pod("odd", func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "cores", Operator: corev1.NodeSelectorOpGt, Values: []string{"many"}}}}}}}}
			}),
		},
		Nodes:     []*corev1.Node{testNode("n1"), testNode("n1")},
		NodePools: []*karpv1.NodePool{bad, good, good},
	}, Options{AssumeReady: true})
	text := fmt.Sprint(problems)
	for _, want := range []string{"Pod ns/a: metadata.name: appears twice", `Pod ns/lost: spec.nodeName: node "nowhere"`, "Pod ns/odd", "cores", "Node n1: metadata.name: appears twice", "NodePool bad", "team", "NodePool good: metadata.name: appears twice"} {
		if !strings.Contains(text, want) {
			t.Errorf("problems = %s\nwant one that says %q", text, want)
		}
	}
	if len(s.Pending) != 1 || len(s.Blocked) != 1 || !s.Blocked[0].Invalid || len(s.Pools) != 2 {
		t.Errorf("Build() = %d pending, blocked %+v, %d pools; want the good objects kept", len(s.Pending), s.Blocked, len(s.Pools))
	}
}

func TestBuild_volumes(t *testing.T) {
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(name string, mode *storagev1.VolumeBindingMode, zones ...string) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "ebs.csi.aws.com", VolumeBindingMode: mode}
		if len(zones) > 0 {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: zones}}}}
		}
		return c
	}
	claim := func(name, class string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}
		for _, f := range change {
			f(c)
		}
		return c
	}
	boundTo := func(volume string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Annotations = volume, map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		}
	}
	zonal := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-z1"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}}}}}}}}
	tests := map[string]struct {
		claims  []*corev1.PersistentVolumeClaim
		blocked string // part of the message; empty means the pod is pending
		zone    string // what the pod's term asks of the zone
		volumes int
	}{
		"a bound volume fixes the zone":           {claims: []*corev1.PersistentVolumeClaim{claim("c", "wait", boundTo("pv-z1"))}, zone: "In [z1]", volumes: 1},
		"an unbound one that waits is free":       {claims: []*corev1.PersistentVolumeClaim{claim("c", "wait")}, volumes: 1},
		"its class may limit the zones":           {claims: []*corev1.PersistentVolumeClaim{claim("c", "z2-only")}, zone: "In [z2]", volumes: 1},
		"one that binds at once waits for itself": {claims: []*corev1.PersistentVolumeClaim{claim("c", "now")}, blocked: "binds at once"},
		"a claim that is not there":               {blocked: "does not exist"},
		"a class that is not there":               {claims: []*corev1.PersistentVolumeClaim{claim("c", "none")}, blocked: `StorageClass "none" does not exist`},
		"a volume that is not there":              {claims: []*corev1.PersistentVolumeClaim{claim("c", "wait", boundTo("pv-gone"))}, blocked: "pv-gone"},
		"a claim that lost its volume": {claims: []*corev1.PersistentVolumeClaim{claim("c", "wait", func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimLost
		})}, blocked: "lost"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := build0(t, Objects{
				Pods: []*corev1.Pod{pod("a", claims("c"))}, PersistentVolumeClaims: tt.claims, PersistentVolumes: []*corev1.PersistentVolume{zonal},
				StorageClasses: []*storagev1.StorageClass{class("wait", &wait), class("now", &now), class("z2-only", &wait, "z2")},
			})
			if tt.blocked != "" {
				if len(s.Blocked) != 1 || !strings.Contains(s.Blocked[0].Message, tt.blocked) {
					t.Errorf("blocked = %+v, want a message with %q", s.Blocked, tt.blocked)
				}
				return
			}
			if len(s.Pending) != 1 {
				t.Fatalf("pending = %v, blocked = %+v, want the pod pending", s.Pending, s.Blocked)
			}
			c := s.Classes[0]
			zone := ""
			if r, ok := c.Terms[0][corev1.LabelTopologyZone]; ok {
				zone = r.Constraint()
			}
			if zone != tt.zone || len(c.Volumes) != tt.volumes || c.Affinity[0].Has(corev1.LabelTopologyZone) {
				t.Errorf("zone %q and %d volumes, want %q and %d, the zone in the terms only", zone, len(c.Volumes), tt.zone, tt.volumes)
			}
		})
	}
}

func TestBuild_nodes(t *testing.T) {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c1", Labels: map[string]string{karpv1.NodePoolLabelKey: "p", "team": "blue"}}}
	claim.Spec.StartupTaints = []corev1.Taint{{Key: "agent", Effect: corev1.TaintEffectNoSchedule}}
	claim.Status.ProviderID = "sim://1"
	claim.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
	starting := testNode("n1", func(n *corev1.Node) {
		n.Spec.ProviderID = "sim://1"
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		n.Spec.Taints = []corev1.Taint{{Key: "agent", Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, {Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	})
	cordoned := testNode("n2", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	small := catalog.InstanceType{Name: "small", Capacity: resources.List{corev1.ResourceCPU: 2000}, Allocatable: resources.List{corev1.ResourceCPU: 1900}, Requirements: requirements.FromLabels(map[string]string{corev1.LabelInstanceTypeStable: "small"}), Offerings: []catalog.Offering{{CapacityType: "spot", Price: 1}}}
	large := catalog.InstanceType{Name: "large", Capacity: resources.List{corev1.ResourceCPU: 8000}, Allocatable: resources.List{corev1.ResourceCPU: 7900}, Requirements: requirements.FromLabels(map[string]string{corev1.LabelInstanceTypeStable: "large"}), Offerings: []catalog.Offering{{CapacityType: "spot", Price: 4}}}
	cat, _ := catalog.New([]catalog.InstanceType{small, large})
	unlaunched := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c2", Labels: map[string]string{karpv1.NodePoolLabelKey: "p"}}}
	unlaunched.Spec.Requirements = []karpv1.Requirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}}
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	np.Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100")}
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "g", Kind: "K", Name: "n"}
	agent := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"}}
	agent.Spec.Template.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}
	s, problems := Build(Objects{Nodes: []*corev1.Node{starting, cordoned}, NodeClaims: []*karpv1.NodeClaim{claim, unlaunched}, NodePools: []*karpv1.NodePool{np}, DaemonSets: []*appsv1.DaemonSet{agent}},
		Options{Catalog: cat, AssumeReady: true})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	byName := map[string]*Node{}
	for _, n := range s.Nodes {
		byName[n.Name] = n
	}
	n1, n2, c2 := byName["n1"], byName["n2"], byName["c2"]
	if n1 == nil || n2 == nil || c2 == nil {
		t.Fatalf("nodes = %v, want n1, n2 and the claim c2", s.Nodes)
	}
	if n1.Pool != "p" || n1.Initialized || n1.Labels["team"] != "blue" || n1.Allocatable[corev1.ResourceMemory] != 2<<30 || n1.Allocatable[corev1.ResourceCPU] != 1000 {
		t.Errorf("starting node = %+v, want what it lacks taken from its claim", n1)
	}
	if len(n1.Taints) != 1 || n1.Taints[0].Key != "gpu" {
		t.Errorf("taints of the starting node = %v, want gpu alone", n1.Taints)
	}
	if Tolerates(nil, n2.Taints) {
		t.Error("a cordoned node takes pods")
	}
	if !c2.InFlight || c2.Allocatable[corev1.ResourceCPU] != 1900 || c2.Capacity[corev1.ResourceCPU] != 8000 || c2.Labels[corev1.LabelTopologyZone] != "z1" {
		t.Errorf("claim in flight = %+v, want the least room and the most capacity of the types it allows", c2)
	}
	if got := c2.DaemonReserve[corev1.ResourceCPU]; got != 100 {
		t.Errorf("daemon reserve of the claim = %d, want the 100m that the DaemonSet is limited to", got)
	}
	if usage := s.Pools[0].Usage; usage[corev1.ResourceCPU] != 4000+8000 || usage[NodesResource] != 2 {
		t.Errorf("usage = %v, want 12 CPUs on 2 nodes", usage)
	}
}

func TestFork(t *testing.T) {
	s := build0(t, Objects{
		Nodes: []*corev1.Node{testNode("n1"), testNode("n2")},
		Pods:  []*corev1.Pod{pod("a", on("n1")), pod("b", on("n2")), pod("d", on("n1"), ownedBy("DaemonSet", "agent")), pod("w")},
	})
	f := s.Fork(map[string]bool{"n1": true})
	var got []string
	for _, p := range f.Pending {
		got = append(got, f.Pods[p].Key.Name)
	}
	if !slices.Equal(got, []string{"a", "w"}) || len(f.Nodes) != 1 || f.Nodes[0].Name != "n2" {
		t.Errorf("fork: pending %v on %d nodes, want a and w on n2 alone", got, len(f.Nodes))
	}
	if len(s.Pending) != 1 || len(s.Nodes) != 2 {
		t.Error("the fork changed its origin")
	}
}

func TestTolerates(t *testing.T) {
	taint := func(key, value string, effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: key, Value: value, Effect: effect}}
	}
	tests := map[string]struct {
		tolerations []corev1.Toleration
		taints      []corev1.Taint
		want        bool
	}{
		"no taint":                        {nil, nil, true},
		"a taint nobody tolerates":        {nil, taint("a", "", corev1.TaintEffectNoSchedule), false},
		"a preference never forbids":      {nil, taint("a", "", corev1.TaintEffectPreferNoSchedule), true},
		"equal value":                     {[]corev1.Toleration{{Key: "a", Value: "x"}}, taint("a", "x", corev1.TaintEffectNoExecute), true},
		"other value":                     {[]corev1.Toleration{{Key: "a", Value: "y"}}, taint("a", "x", corev1.TaintEffectNoExecute), false},
		"other effect":                    {[]corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, taint("a", "x", corev1.TaintEffectNoSchedule), false},
		"an empty key with Exists is all": {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, taint("a", "x", corev1.TaintEffectNoSchedule), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Tolerates(tt.tolerations, tt.taints); got != tt.want {
				t.Errorf("Tolerates() = %v, want %v", got, tt.want)
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	var objs Objects
	for i := range 20_000 {
		objs.Pods = append(objs.Pods, pod(fmt.Sprintf("p-%d", i), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(100*(1+i%30)), resource.DecimalSI)
		}))
	}
	b.ReportAllocs()
	for b.Loop() {
		Build(objs, Options{})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(objs.Pods)), "ns/pod")
}

// A watch of Nodes may be ahead of the one of NodeClaims.
func TestBuild_nodeBeforeItsClaimIsLaunched(t *testing.T) {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "a"}}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a-1"},
		Spec:       corev1.NodeSpec{ProviderID: "x:///1", Taints: []corev1.Taint{karpv1.UnregisteredTaint()}},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}},
	}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	pool.Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	snap, problems := Build(Objects{Nodes: []*corev1.Node{node}, NodeClaims: []*karpv1.NodeClaim{claim}, NodePools: []*karpv1.NodePool{pool}}, Options{AssumeReady: true})
	if len(problems) > 0 {
		t.Errorf("problems %v, want none", problems)
	}
	if len(snap.Nodes) != 1 || snap.Nodes[0].Claim != "a-1" || snap.Nodes[0].Pool != "a" || len(snap.Nodes[0].Taints) != 0 {
		t.Fatalf("nodes %+v, want the claim's", snap.Nodes)
	}
	if got := snap.Pools[0].Usage[corev1.ResourceCPU]; got != 2000 {
		t.Errorf("the pool uses %d thousandths of a CPU, want 2000", got)
	}
}
