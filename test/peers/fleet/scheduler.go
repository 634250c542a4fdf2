package fleet

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Bind gives the pending pods nodes, in the order of their names, as kube-scheduler with
// default plugins would: of all nodes that a pod may go to, the one of which least is
// allocated afterwards, on average over CPU and memory. It returns the number of pods
// for which there is none.
func (f *Fleet) Bind() (pending int) {
	nodes := make([]*node, 0, len(f.state))
	for _, name := range slices.Sorted(maps.Keys(f.state)) {
		nodes = append(nodes, f.state[name])
	}
	zones := map[string]map[string]bool{}
	for _, p := range f.Pending() {
		a := f.apps[p.Labels[AppLabel]]
		limit := a.zoneLimit(nodes, zones)
		var best *node
		var most float64
		for _, n := range nodes {
			if !a.fits(n, limit) {
				continue
			}
			if score := n.unallocated(a.requests); best == nil || score > most {
				best, most = n, score
			}
		}
		if best == nil {
			pending++
			continue
		}
		f.bind(p, a, best)
	}
	return pending
}

func (f *Fleet) bind(p *corev1.Pod, a *app, n *node) {
	bound := p.DeepCopy()
	bound.Spec.NodeName = n.name
	bound.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		},
		StartTime: &metav1.Time{Time: f.Start},
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	f.Pods[key] = bound
	n.pods[key] = true
	n.apps[a]++
	n.free.SubFrom(a.requests)
	a.byZone[n.zone]++
}

// fits reports whether one more pod of the Deployment may go to the node; limit is the
// most pods of it that a zone may have, negative if there is none.
func (a *app) fits(n *node, limit int) bool {
	return a.selects(n) && n.team == a.team && a.requests.FitsIn(n.free) &&
		(!a.apart || n.apps[a] == 0) && (limit < 0 || a.byZone[n.zone] < limit)
}

func (a *app) selects(n *node) bool {
	return (a.arch == "" || a.arch == n.arch) && (a.zone == "" || a.zone == n.zone) && (a.team == "" || a.team == n.team)
}

// zoneLimit is the number of its pods that a zone may have, of those it may run in: one
// more than the zone with the fewest has. zones remembers where Deployments may run.
func (a *app) zoneLimit(nodes []*node, zones map[string]map[string]bool) int {
	if !a.spread {
		return -1
	}
	key := a.arch + " " + a.zone + " " + a.team
	if zones[key] == nil {
		zones[key] = map[string]bool{}
		for _, n := range nodes {
			if a.selects(n) {
				zones[key][n.zone] = true
			}
		}
	}
	least := -1
	for zone := range zones[key] {
		if n := a.byZone[zone]; least < 0 || n < least {
			least = n
		}
	}
	return least + 1
}

// unallocated is the mean share of CPU and memory that is free after a pod has come.
func (n *node) unallocated(pod resources.List) float64 {
	sum := 0.0
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		sum += float64(n.free[r]-pod[r]) / float64(n.room[r])
	}
	return sum / 2
}
