package state

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// busy fills a cluster with nodes and bound pods of 200 Deployments.
func busy(c *Cluster, nodes, pods int) {
	c.update(pool("pool"), true)
	for i := range nodes {
		id := fmt.Sprintf("%05d", i)
		cl := claim("claim-"+id, launched)
		cl.Status.NodeName = "node-" + id
		c.update(cl, true)
		c.update(nodeFor("claim-"+id, "node-"+id, ready), true)
	}
	for i := range pods {
		c.update(busyPod(i, fmt.Sprintf("node-%05d", i%nodes)), true)
	}
}

func busyPod(i int, node string) *corev1.Pod {
	app := fmt.Sprintf("app-%03d", i%200)
	versions++
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("ns-%d", i%20), Name: fmt.Sprintf("%s-%06d", app, i), Labels: map[string]string{"app": app},
		ResourceVersion: strconv.Itoa(versions), UID: types.UID(fmt.Sprintf("uid-%d-%d", i, versions)),
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}}}}
	if i%4 == 0 {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	}
	return p
}

// BenchmarkCluster moves one pod to another node, and looks at the cluster after it.
func BenchmarkCluster(b *testing.B) {
	for _, size := range []struct{ nodes, pods int }{{500, 5000}, {2000, 100000}} {
		b.Run(fmt.Sprintf("nodes=%d/pods=%d", size.nodes, size.pods), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			c := New(Options{Provider: newShop(b)})
			busy(c, size.nodes, size.pods)
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.Run("update", func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					old := c.Pod(podKey(keyOf(busyPod(7, ""))))
					c.Remove(old)
					c.update(busyPod(7, fmt.Sprintf("node-%05d", i%size.nodes)), true)
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(1<<20), "MiB")
			})
			b.Run("update and snapshot", func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					c.update(busyPod(7, fmt.Sprintf("node-%05d", i%size.nodes)), true)
					if _, err := c.Snapshot(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("snapshot of no change", func(b *testing.B) {
				for b.Loop() {
					if _, err := c.Snapshot(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
