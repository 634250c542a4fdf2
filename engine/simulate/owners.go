package simulate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// Owners are the controllers of the pods on the named nodes, by kind, namespace and name,
// as the input shows them: replicas are the pods there are. A pod on a node is ready unless
// its status says that it is not.
func Owners(in *load.Result, snap *snapshot.Snapshot, nodes map[string]bool) []policy.Owner {
	type id struct{ kind, namespace, name string }
	objects := make(map[snapshot.PodKey]*corev1.Pod, len(in.Objects.Pods))
	for _, p := range in.Objects.Pods {
		objects[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	}
	of := func(key snapshot.PodKey) id {
		if kind, name := in.Workload(key); kind != "" {
			return id{kind, key.Namespace, name}
		}
		if p := objects[key]; p != nil {
			if c := metav1.GetControllerOf(p); c != nil {
				return id{c.Kind, key.Namespace, c.Name}
			}
		}
		return id{}
	}
	all := map[id]*policy.Owner{}
	owner := func(o id) *policy.Owner {
		if all[o] == nil {
			all[o] = &policy.Owner{Kind: o.kind, Namespace: o.namespace, Name: o.name, ByCapacityType: map[string]int64{}, ByZone: map[string]int64{}}
		}
		return all[o]
	}
	for _, i := range snap.Pending {
		if o := of(snap.Pods[i].Key); o != (id{}) {
			owner(o).Replicas++
		}
	}
	for _, n := range snap.Nodes {
		for _, i := range n.Pods {
			p := &snap.Pods[i]
			o := of(p.Key)
			if p.Daemon || o == (id{}) {
				continue
			}
			w := owner(o)
			w.Replicas++
			w.ByCapacityType[n.Labels[karpv1.CapacityTypeLabelKey]]++
			w.ByZone[n.Labels[corev1.LabelTopologyZone]]++
			if p.Terminating || unready(objects[p.Key]) {
				continue
			}
			w.Ready++
			if nodes[n.Name] {
				w.OnThisNode++
			} else {
				w.ReadyElsewhere++
			}
		}
	}
	out := []policy.Owner{}
	for o, w := range all {
		here := slices.ContainsFunc(snap.Nodes, func(n *snapshot.Node) bool {
			return nodes[n.Name] && slices.ContainsFunc(n.Pods, func(i int32) bool { return of(snap.Pods[i].Key) == o })
		})
		if here {
			out = append(out, *w)
		}
	}
	slices.SortFunc(out, func(a, b policy.Owner) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}

func unready(p *corev1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse
	})
}
