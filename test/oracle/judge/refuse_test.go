package judge

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

const disks = "disk.csi.example.com"

// small is a problem of two nodes in two zones and one pod, for a test to change.
func small() *problem.Problem {
	o := snapshot.Objects{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}}
	for _, z := range []string{"a", "b"} {
		size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10")}
		one := int32(1)
		o.Nodes = append(o.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + z, Labels: map[string]string{corev1.LabelHostname: "node-" + z, corev1.LabelTopologyZone: "zone-" + z}},
			Status:     corev1.NodeStatus{Capacity: size, Allocatable: size},
		})
		o.CSINodes = append(o.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-" + z}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: disks, NodeID: "node-" + z, TopologyKeys: []string{corev1.LabelTopologyZone}, Allocatable: &storagev1.VolumeNodeResources{Count: &one},
		}}}})
	}
	o.Pods = []*corev1.Pod{pod("p", "")}
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	o.StorageClasses = []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Provisioner: disks, VolumeBindingMode: &wait, AllowedTopologies: []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{"zone-b"}}},
	}}}}
	return &problem.Problem{Objects: o}
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}}},
	}
}

// claim adds a claim and makes the pods use it; it is bound to a volume unless pv is nil.
func claim(p *problem.Problem, name string, mode corev1.PersistentVolumeAccessMode, pv *corev1.PersistentVolume, users ...*corev1.Pod) {
	class := "disk"
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	if pv != nil {
		pv.Name, c.Spec.VolumeName, c.Annotations = "pv-"+name, "pv-"+name, map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: disks, VolumeHandle: name}
		p.Objects.PersistentVolumes = append(p.Objects.PersistentVolumes, pv)
	}
	p.Objects.PersistentVolumeClaims = append(p.Objects.PersistentVolumeClaims, c)
	for _, u := range users {
		u.Spec.Volumes = append(u.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
}

func web() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

// TestJudge_Refuses puts the pod on node-a although one constraint forbids it.
func TestJudge_Refuses(t *testing.T) {
	tests := map[string]struct {
		change func(p *problem.Problem)
		want   string
	}{
		"a cordoned node": {func(p *problem.Problem) { p.Objects.Nodes[0].Spec.Unschedulable = true }, names.NodeUnschedulable},
		"a taint that is not tolerated": {func(p *problem.Problem) {
			p.Objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
		}, names.TaintToleration},
		"a node selector": {func(p *problem.Problem) {
			p.Objects.Pods[0].Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-b"}
		}, names.NodeAffinity},
		"a match on a node's name, which PreFilter narrows by": {func(p *problem.Problem) {
			p.Objects.Pods[0].Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-b"}}},
			}}}}}
		}, names.NodeAffinity},
		"a host port in use": {func(p *problem.Problem) {
			other := pod("other", "node-a")
			for _, u := range []*corev1.Pod{p.Objects.Pods[0], other} {
				u.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
			}
			p.Objects.Pods = append(p.Objects.Pods, other)
		}, names.NodePorts},
		"too little CPU": {func(p *problem.Problem) {
			p.Objects.Pods[0].Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2001m")
		}, names.NodeResourcesFit},
		"a claim that one pod at a time may use": {func(p *problem.Problem) {
			other := pod("other", "node-b")
			claim(p, "data", corev1.ReadWriteOncePod, &corev1.PersistentVolume{}, p.Objects.Pods[0], other)
			p.Objects.Pods = append(p.Objects.Pods, other)
		}, names.VolumeRestrictions},
		"one volume more than the node attaches": {func(p *problem.Problem) {
			claim(p, "data", corev1.ReadWriteOnce, &corev1.PersistentVolume{}, p.Objects.Pods[0])
			claim(p, "more", corev1.ReadWriteOnce, &corev1.PersistentVolume{}, p.Objects.Pods[0])
		}, names.NodeVolumeLimits},
		"a volume that would be made in another zone": {func(p *problem.Problem) {
			claim(p, "data", corev1.ReadWriteOnce, nil, p.Objects.Pods[0])
		}, names.VolumeBinding},
		"a volume labelled with another zone": {func(p *problem.Problem) {
			claim(p, "data", corev1.ReadWriteOnce, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelTopologyZone: "zone-b"}}}, p.Objects.Pods[0])
		}, names.VolumeZone},
		"a skew above the maximum": {func(p *problem.Problem) {
			p.Objects.Pods[0].Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: web()}}
			p.Objects.Pods = append(p.Objects.Pods, pod("other", "node-a"))
		}, names.PodTopologySpread},
		"the cluster's default spread": {func(p *problem.Problem) {
			p.Options.DefaultSpread = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule}}
			p.Objects.Services = []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Selector: web().MatchLabels}}}
			p.Objects.Pods = append(p.Objects.Pods, pod("other", "node-a"))
		}, names.PodTopologySpread},
		"affinity to a pod elsewhere": {func(p *problem.Problem) {
			other := pod("other", "node-b")
			other.Labels["app"] = "db"
			p.Objects.Pods[0].Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			}}}}
			p.Objects.Pods = append(p.Objects.Pods, other)
		}, names.InterPodAffinity},
		"anti-affinity of a pod that is there": {func(p *problem.Problem) {
			other := pod("other", "node-a")
			other.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: web()}}}}
			p.Objects.Pods = append(p.Objects.Pods, other)
		}, names.InterPodAffinity},
		"anti-affinity with matchLabelKeys, merged as on creation": {func(p *problem.Problem) {
			other := pod("other", "node-a")
			p.Objects.Pods[0].Labels["version"], other.Labels["version"] = "1", "1"
			other.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: web(), MatchLabelKeys: []string{"version"}}}}}
			p.Objects.Pods = append(p.Objects.Pods, other)
		}, names.InterPodAffinity},
	}
	j := New(t.Context())
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := small()
			tt.change(p)
			plan := schedule.Plan{Assignments: []schedule.Assignment{{Pod: snapshot.PodKey{Namespace: "default", Name: "p"}, Node: "node-a"}}}
			v, err := j.Judge(p, &plan, true)
			if err != nil {
				t.Fatal(err)
			}
			if len(v.Refused) != 1 || v.Refused[0].Plugin != tt.want || len(v.Broken) > 0 {
				t.Errorf("verdict %+v, want one refusal by %s", v, tt.want)
			}
			// The same pod, left out, is missed where node-b would do.
			plan = schedule.Plan{Unscheduled: []schedule.Unscheduled{{Pod: plan.Assignments[0].Pod, Reasons: []schedule.Reason{{Code: "none"}}}}}
			if v, err = j.Judge(p, &plan, true); err != nil {
				t.Fatal(err)
			}
			plan = firstFit(t, j, p)
			if fits := len(plan.Assignments) == 1; fits != (len(v.Missed) == 1) {
				t.Errorf("missed %v, but the pod fits somewhere: %t", v.Missed, fits)
			}
		})
	}
}

// shop is a problem with an empty cluster, one pool and two types: small and big.
func shop() *problem.Problem {
	p := &problem.Problem{Options: snapshot.Options{AssumeReady: true}}
	p.Objects.NodePools = []*karpv1.NodePool{{ObjectMeta: metav1.ObjectMeta{Name: "main"}}}
	for i, name := range []string{"small", "big"} {
		size := resources.List{corev1.ResourceCPU: int64(1000 + 3000*i), corev1.ResourcePods: 10}
		p.Types = append(p.Types, catalog.InstanceType{Name: name, Capacity: size, Allocatable: size, Requirements: requirements.NewSet(
			requirements.In(corev1.LabelInstanceTypeStable, name), requirements.In(corev1.LabelArchStable, []string{"arm64", "amd64"}[i]),
		), Offerings: []catalog.Offering{{Zone: "zone-a", CapacityType: catalog.OnDemand, Price: catalog.Price(10 + 20*i)}}})
	}
	p.Objects.Pods = []*corev1.Pod{pod("p", ""), pod("q", "")}
	return p
}

// buy plans both pods of a shop on one node, a big one.
func buy() (schedule.Plan, []newNode) {
	ids := []snapshot.PodKey{{Namespace: "default", Name: "p"}, {Namespace: "default", Name: "q"}}
	big := schedule.Offer{InstanceType: "big", Zone: "zone-a", CapacityType: catalog.OnDemand, Cost: 30}
	plan := schedule.Plan{
		Assignments: []schedule.Assignment{{Pod: ids[0], Node: "main/1", New: true}, {Pod: ids[1], Node: "main/1", New: true}},
		NewNodes: []schedule.NewNode{{
			Name: "main/1", Pool: "main", Planned: big, Pods: ids, Requests: resources.List{corev1.ResourceCPU: 2000, corev1.ResourcePods: 2},
			Allocatable: resources.List{corev1.ResourceCPU: 4000, corev1.ResourcePods: 10},
		}},
		Cost: 30, Bound: 20,
	}
	return plan, []newNode{{NewNode: plan.NewNodes[0], alternatives: []schedule.Offer{big}}}
}

func TestJudge_NewNodes(t *testing.T) {
	little := schedule.Offer{InstanceType: "small", Zone: "zone-a", CapacityType: catalog.OnDemand, Cost: 10}
	two := 2
	tests := map[string]struct {
		change                            func(p *problem.Problem, plan *schedule.Plan, n *newNode)
		refused, missed, unbought, broken []string
	}{
		"a good plan": {change: func(*problem.Problem, *schedule.Plan, *newNode) {}},
		"an alternative that is too small": {change: func(_ *problem.Problem, plan *schedule.Plan, n *newNode) {
			n.alternatives = []schedule.Offer{little, n.Planned}
		}, refused: []string{names.NodeResourcesFit}},
		"an alternative of another architecture": {change: func(p *problem.Problem, plan *schedule.Plan, n *newNode) {
			n.alternatives = []schedule.Offer{little, n.Planned}
			p.Objects.Pods[0].Spec.NodeSelector = map[string]string{corev1.LabelArchStable: "amd64"}
			p.Types[0].Allocatable = resources.List{corev1.ResourceCPU: 4000, corev1.ResourcePods: 10}
		}, refused: []string{names.NodeAffinity}},
		"the planned type is too small": {change: func(p *problem.Problem, _ *schedule.Plan, _ *newNode) {
			p.Objects.Pods[0].Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3500m")
		}, refused: []string{names.NodeResourcesFit}, broken: []string{"requests"}},
		"a taint of the pool": {change: func(p *problem.Problem, _ *schedule.Plan, _ *newNode) {
			p.Objects.NodePools[0].Spec.Template.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}, refused: []string{names.TaintToleration, names.TaintToleration}},
		"a pool's requirement": {change: func(p *problem.Problem, _ *schedule.Plan, _ *newNode) {
			p.Objects.NodePools[0].Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"zone-a"}}}
		}, broken: []string{"planned"}},
		"a label that nothing settles": {change: func(p *problem.Problem, plan *schedule.Plan, n *newNode) {
			p.Objects.NodePools[0].Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"1", "2"}}}
			n.requirements = requirements.NewSet(requirements.In("rack", "1", "2"))
			n.Labels = map[string]string{"rack": "1"}
		}, broken: []string{"planned"}},
		"a limit on nodes": {change: func(p *problem.Problem, _ *schedule.Plan, _ *newNode) {
			p.Objects.NodePools[0].Spec.Limits = corev1.ResourceList{"nodes": resource.MustParse("0")}
		}, broken: []string{"limits"}},
		"a limit that an alternative exceeds": {change: func(p *problem.Problem, plan *schedule.Plan, n *newNode) {
			p.Objects.NodePools[0].Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
			p.Types = append(p.Types, p.Types[1])
			p.Types[2].Name, p.Types[2].Capacity = "huge", resources.List{corev1.ResourceCPU: 5000, corev1.ResourcePods: 10}
			huge := n.Planned
			huge.InstanceType = "huge"
			n.alternatives = append(n.alternatives, huge)
		}, broken: []string{"limits"}},
		"too few instance types to choose from": {change: func(p *problem.Problem, _ *schedule.Plan, _ *newNode) {
			p.Objects.NodePools[0].Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpExists, MinValues: &two}}
		}, broken: []string{"minValues"}},
		"an offering that is out of stock": {change: func(p *problem.Problem, _ *schedule.Plan, _ *newNode) {
			p.Types[1].Offerings[0].Unavailable = true
		}, broken: []string{"planned"}},
		"a bound above the cost": {change: func(_ *problem.Problem, plan *schedule.Plan, n *newNode) { plan.Bound = 31 }, broken: []string{"bound"}},
		"a pod twice": {change: func(_ *problem.Problem, plan *schedule.Plan, n *newNode) {
			plan.Assignments[1].Pod = plan.Assignments[0].Pod
		}, broken: []string{"pods", "pods", "pods"}},
		"a pod left out that one more node would hold": {change: func(_ *problem.Problem, plan *schedule.Plan, n *newNode) {
			left := schedule.Unscheduled{Pod: plan.Assignments[1].Pod, Reasons: []schedule.Reason{{Code: "none"}}}
			*plan = schedule.Plan{Unscheduled: []schedule.Unscheduled{{Pod: plan.Assignments[0].Pod, Reasons: left.Reasons}, left}}
		}, unbought: []string{"new", "new"}},
		"a pod left out that a planned node would hold": {change: func(_ *problem.Problem, plan *schedule.Plan, n *newNode) {
			left := schedule.Unscheduled{Pod: plan.Assignments[1].Pod, Reasons: []schedule.Reason{{Code: "none"}}}
			plan.Assignments, plan.Unscheduled = plan.Assignments[:1], []schedule.Unscheduled{left}
			n.Pods, n.Requests = n.Pods[:1], resources.List{corev1.ResourceCPU: 1000, corev1.ResourcePods: 1}
		}, missed: []string{"existing"}},
	}
	j := New(t.Context())
	plugins := func(list []Finding) (out []string) {
		for _, f := range list {
			out = append(out, f.Plugin)
		}
		return out
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := shop()
			plan, nodes := buy()
			tt.change(p, &plan, &nodes[0])
			v, err := j.judge(p, &plan, nodes[:len(plan.NewNodes)], true)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(plugins(v.Refused), tt.refused) || !slices.Equal(plugins(v.Missed), tt.missed) || !slices.Equal(plugins(v.Unbought), tt.unbought) || !slices.Equal(plugins(v.Broken), tt.broken) {
				t.Errorf("refused %v\nmissed %v\nunbought %v\nbroken %v\nwant refused %v, missed %v, broken %v", v.Refused, v.Missed, v.Unbought, v.Broken, tt.refused, tt.missed, tt.broken)
			}
		})
	}
}
