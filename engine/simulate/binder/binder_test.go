package binder

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// node has so many CPUs in a zone.
func node(name, zone string, cpu string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	for _, c := range change {
		c(n)
	}
	return n
}

// pod asks for so many CPUs.
func pod(name, cpu string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": strings.TrimRight(name, "0123456789")}}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func priority(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

func sameApp(p *corev1.Pod) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}}
}

func spread(key string, when corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			TopologyKey: key, MaxSkew: 1, WhenUnsatisfiable: when, LabelSelector: sameApp(p),
		})
	}
}

func affinity(change func(*corev1.Affinity, corev1.PodAffinityTerm), key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
		change(p.Spec.Affinity, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: sameApp(p)})
	}
}

func apart(a *corev1.Affinity, t corev1.PodAffinityTerm) {
	a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{t}
}

func near(a *corev1.Affinity, t corev1.PodAffinityTerm) {
	a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{t}
}

func TestBind(t *testing.T) {
	tests := map[string]struct {
		nodes     []*corev1.Node
		pods      []*corev1.Pod
		nominated map[string]string
		want      string
	}{
		"the emptiest node comes first": {
			nodes: []*corev1.Node{node("a", "z1", "4"), node("b", "z1", "8")},
			pods:  []*corev1.Pod{pod("x", "1")},
			want:  "x:b",
		},
		"what does not fit waits, and others go on": {
			nodes: []*corev1.Node{node("a", "z1", "2")},
			pods:  []*corev1.Pod{pod("x", "3"), pod("y", "1")},
			want:  "y:a",
		},
		"a higher priority comes first": {
			nodes: []*corev1.Node{node("a", "z1", "1")},
			pods:  []*corev1.Pod{pod("x", "1"), pod("y", "1", priority(5))},
			want:  "y:a",
		},
		"pods that are bound take room": {
			nodes: []*corev1.Node{node("a", "z1", "2"), node("b", "z1", "2")},
			pods:  []*corev1.Pod{pod("x", "2", on("a")), pod("y", "1")},
			want:  "y:b",
		},
		"taints and selectors keep pods off": {
			nodes: []*corev1.Node{
				node("a", "z1", "8", func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
				}),
				node("b", "z2", "4"), node("c", "z3", "8"),
			},
			pods: []*corev1.Pod{pod("x", "1", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "z2"} })},
			want: "x:b",
		},
		"zones are filled evenly where they have to be": {
			nodes: []*corev1.Node{node("a", "z1", "8"), node("b", "z2", "2")},
			pods: []*corev1.Pod{
				pod("x1", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)), pod("x2", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)),
				pod("x3", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)), pod("x4", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)),
				pod("x5", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)), pod("x6", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)),
			},
			want: "x1:a x2:b x3:a x4:b x5:a", // b is full, and a would be two ahead
		},
		"and where they should be, if room is alike": {
			nodes: []*corev1.Node{node("a", "z1", "8"), node("b", "z2", "8")},
			pods: []*corev1.Pod{
				pod("x1", "100m", on("a"), spread(corev1.LabelTopologyZone, corev1.ScheduleAnyway)), pod("x2", "100m", spread(corev1.LabelTopologyZone, corev1.ScheduleAnyway)),
			},
			want: "x2:b",
		},
		"pods that want to be apart are": {
			nodes: []*corev1.Node{node("a", "z1", "8"), node("b", "z1", "4")},
			pods:  []*corev1.Pod{pod("x1", "1", affinity(apart, corev1.LabelHostname)), pod("x2", "1", affinity(apart, corev1.LabelHostname)), pod("x3", "1", affinity(apart, corev1.LabelHostname))},
			want:  "x1:a x2:b",
		},
		"a pod keeps others away that do not mind": {
			nodes: []*corev1.Node{node("a", "z1", "8"), node("b", "z1", "2")},
			pods:  []*corev1.Pod{pod("x1", "1", on("a"), affinity(apart, corev1.LabelHostname)), pod("x2", "1")},
			want:  "x2:b",
		},
		"pods that want to be together are, the first anywhere": {
			nodes: []*corev1.Node{node("a", "z1", "4"), node("b", "z2", "4")},
			pods:  []*corev1.Pod{pod("x1", "1", affinity(near, corev1.LabelTopologyZone)), pod("x2", "1", affinity(near, corev1.LabelTopologyZone)), pod("y", "4")},
			want:  "x1:a x2:a y:b",
		},
		"a nominated node comes first, and its room is kept": {
			nodes:     []*corev1.Node{node("a", "z1", "8"), node("b", "z1", "2")},
			pods:      []*corev1.Pod{pod("w", "2"), pod("x", "2")},
			nominated: map[string]string{"x": "b"},
			want:      "w:a x:b",
		},
		"where it cannot go any more, it goes elsewhere": {
			nodes: []*corev1.Node{node("a", "z1", "8"), node("b", "z1", "4", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			})},
			pods:      []*corev1.Pod{pod("x", "2")},
			nominated: map[string]string{"x": "b"},
			want:      "x:a",
		},
		"a host port is taken once": {
			nodes: []*corev1.Node{node("a", "z1", "8")},
			pods:  []*corev1.Pod{pod("x", "1", port), pod("y", "1", port)},
			want:  "x:a",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expected := map[snapshot.PodKey]string{}
			var waiting []Pod
			for i, p := range tt.pods {
				if p.Spec.NodeName != "" {
					continue
				}
				key := snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
				if n := tt.nominated[p.Name]; n != "" {
					expected[key] = n
				}
				waiting = append(waiting, Pod{Key: key, Nominated: tt.nominated[p.Name], Since: int64(i)})
			}
			snap, problems := snapshot.Build(snapshot.Objects{Nodes: tt.nodes, Pods: tt.pods}, snapshot.Options{Expected: expected})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			var got []string
			for _, b := range Bind(snap, waiting) {
				got = append(got, fmt.Sprintf("%s:%s", b.Pod.Name, b.Node))
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("Bind() = %q, want %q", s, tt.want)
			}
		})
	}
}

func port(p *corev1.Pod) {
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
}
