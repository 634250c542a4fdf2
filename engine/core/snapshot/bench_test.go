package snapshot

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// busyCluster has pods of 200 Deployments spread over nodes, one in a hundred pending.
func busyCluster(nodes, pods int) Objects {
	var o Objects
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		o.Nodes = append(o.Nodes, testNode(name, func(n *corev1.Node) {
			n.UID, n.ResourceVersion = types.UID(name), "1"
			n.Labels = map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3), karpv1.NodePoolLabelKey: "default", karpv1.NodeInitializedLabelKey: "true"}
		}))
	}
	for i := range pods {
		app := fmt.Sprintf("app-%03d", i%200)
		o.Pods = append(o.Pods, pod(fmt.Sprintf("%s-%06d", app, i), func(p *corev1.Pod) {
			p.UID, p.ResourceVersion = types.UID(p.Name), "1"
			p.Namespace = fmt.Sprintf("ns-%d", i%20)
			p.Labels = map[string]string{"app": app, "pod-template-hash": "abc"}
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
			if i%4 == 0 {
				p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
			}
			if i%100 != 0 {
				p.Spec.NodeName = fmt.Sprintf("node-%05d", i%nodes)
			}
		}))
	}
	o.NodePools = []*karpv1.NodePool{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	return o
}

func BenchmarkMemo(b *testing.B) {
	for _, size := range []struct{ nodes, pods int }{{500, 5000}, {2000, 100000}} {
		objs := busyCluster(size.nodes, size.pods)
		opts := Options{Now: time.Unix(0, 0), AssumeReady: true}
		slices.SortFunc(objs.Pods, func(x, y *corev1.Pod) int { return strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name) })
		opts.Sorted = true
		b.Run(fmt.Sprintf("nodes=%d/pods=%d/anew", size.nodes, size.pods), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if s, _ := Build(objs, opts); len(s.Pods) != size.pods {
					b.Fatal(len(s.Pods))
				}
			}
		})
		b.Run(fmt.Sprintf("nodes=%d/pods=%d/one pod changed", size.nodes, size.pods), func(b *testing.B) {
			var m Memo
			m.Build(objs, opts)
			b.ReportAllocs()
			for b.Loop() {
				objs.Pods[7] = objs.Pods[7].DeepCopy()
				if s, _ := m.Build(objs, opts); len(s.Pods) != size.pods {
					b.Fatal(len(s.Pods))
				}
			}
		})
	}
}
