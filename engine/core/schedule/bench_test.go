package schedule

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// BenchmarkAdmits tests a pod with host rules against a node that has room: what stage
// after stage does for each candidate. It allocates nothing.
func BenchmarkAdmits(b *testing.B) {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110")}
	var objs snapshot.Objects
	for i := range 100 {
		name := fmt.Sprintf("n%d", i)
		objs.Nodes = append(objs.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("z%d", i%3)}},
			Status:     corev1.NodeStatus{Capacity: size, Allocatable: size},
		})
	}
	labels := map[string]string{"app": "web"}
	objs.Pods = append(objs.Pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: labels},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}},
				{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}},
			},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}}}},
		},
	})
	snap, problems := snapshot.Build(objs, snapshot.Options{})
	if len(problems) > 0 {
		b.Fatal(problems)
	}
	s := newSolver(b.Context(), snap, Options{}.withDefaults())
	c := s.order()[0]
	test := func() {
		for _, n := range s.nodes {
			if _, ok := s.placeAllowed(c, n); !ok || s.admits(c, n) != 1 {
				b.Fatal("the pod should fit everywhere, once")
			}
		}
	}
	test()
	if n := testing.AllocsPerRun(10, test); n != 0 {
		b.Fatalf("testing 100 candidates allocates %v times, want 0", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		test()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.nodes)), "ns/candidate")
}
