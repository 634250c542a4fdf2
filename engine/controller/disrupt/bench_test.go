package disrupt

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
)

// full makes a world of n nodes with ten pods each, and no room to gain.
func full(b *testing.B, n int) *world {
	w := newWorld(b, sizes(b, 4), pool("default"))
	for i := range n {
		name := fmt.Sprintf("n%04d", i)
		claim := w.claimOf(name, "c.4", w.Now())
		claim.UID, claim.ResourceVersion = "uid-"+claim.UID, "1"
		node := w.nodeOf(claim, "c.4")
		node.ResourceVersion = "1"
		w.state.Update(claim)
		w.state.Update(node)
		for j := range 10 {
			w.state.Update(stage.Pod(fmt.Sprintf("p%04d-%d", i, j), name, func(p *corev1.Pod) {
				p.ResourceVersion = "1"
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("390m")}
			}))
		}
	}
	return w
}

// BenchmarkStep is a second in which nothing is under way.
func BenchmarkStep(b *testing.B) {
	w := full(b, 2000)
	for b.Loop() {
		if err := w.c.Step(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLook is what a pass does besides the search.
func BenchmarkLook(b *testing.B) {
	w := full(b, 2000)
	for b.Loop() {
		if _, err := w.c.look(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
