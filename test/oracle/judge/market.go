package judge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	tolerate "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// market is what may still be bought beside a plan.
type market struct {
	goods []good
}

// good is one more node: of an offering in a pool, with the labels they leave open
// settled in one way.
type good struct {
	pool, offer string
	t           *catalog.InstanceType
	node        *corev1.Node
	daemons     []*corev1.Pod
	info        *framework.NodeInfo // with the daemons
}

// market lists the nodes that limits, stock and reservations still allow.
func (r *replay) market() *market {
	used := map[string]resources.List{}
	reserved := map[string]int{}
	for i := range r.nodes {
		n := &r.nodes[i]
		if used[n.Pool] == nil {
			used[n.Pool] = resources.List{}
		}
		used[n.Pool].AddTo(r.k.types[n.Planned.InstanceType].Capacity)
		used[n.Pool][snapshot.NodesResource]++
		reserved[n.Planned.ReservationID]++
	}
	var pods []*corev1.Pod
	for _, u := range r.plan.Unscheduled {
		if p := r.pod(u.Pod); p != nil {
			pods = append(pods, p)
		}
	}
	m := &market{}
	for _, name := range slices.Sorted(maps.Keys(r.k.pools)) {
		p := r.k.pools[name]
		if !r.buys(p) {
			continue
		}
		for at := range r.p.Types {
			t := &r.p.Types[at]
			if !r.room(p, t, used[name]) {
				continue
			}
			for i := range t.Offerings {
				f := &t.Offerings[i]
				if f.Unavailable || f.ReservationID != "" && reserved[f.ReservationID] >= f.ReservationCapacity {
					continue
				}
				for _, claim := range r.k.choices(p, t, f, pods) {
					labels, wrong := r.k.labels(p, t, f, claim, nil)
					if len(wrong) > 0 {
						continue
					}
					g := good{pool: name, offer: fmt.Sprintf("%s/%s/%s %s", t.Name, f.Zone, f.CapacityType, claim), t: t}
					g.node = &corev1.Node{
						ObjectMeta: metav1.ObjectMeta{Name: "one-more", Labels: labels}, Spec: corev1.NodeSpec{Taints: p.Spec.Template.Spec.Taints},
						Status: corev1.NodeStatus{Capacity: t.Capacity.Quantities(), Allocatable: t.Allocatable.Quantities()},
					}
					labels[corev1.LabelHostname] = g.node.Name
					g.daemons = r.k.daemonsOf(g.node)
					g.info = framework.NewNodeInfo(g.daemons...)
					g.info.SetNode(g.node)
					m.goods = append(m.goods, g)
				}
			}
		}
	}
	return m
}

// oneMore looks for a node on the market that pod could go to. The filters that need the
// node alone are asked first.
func (r *replay) oneMore(m *market, pod *corev1.Pod) (pool, offer string) {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	for i := range m.goods {
		g := &m.goods[i]
		if ok, err := affinity.Match(g.node); !ok || err != nil || untolerated(pod, g.node) != nil {
			continue
		}
		if len(noderesources.Fits(pod, g.info, nil, noderesources.ResourceRequestsOptions{EnablePodLevelResources: true})) > 0 {
			continue
		}
		if r.holds(g, pod) {
			return g.pool, g.offer
		}
	}
	return "", ""
}

// holds reports whether pod could go to g's node if it were there too.
func (r *replay) holds(g *good, pod *corev1.Pod) bool {
	csi := r.k.csiNode(g.node.Name, g.t)
	if err := r.s.csiNodes.Add(csi); err != nil {
		return false
	}
	r.s.nodes.add(g.node)
	for _, d := range g.daemons {
		r.s.nodes.bind(d, g.node.Name)
	}
	ok := r.s.accepts(r.s.begin(pod), g.node.Name) == nil
	r.s.nodes.remove(g.node.Name)
	return r.s.csiNodes.Delete(csi) == nil && ok
}

// untolerated is the first taint of node that keeps pod away; nil if there is none.
func untolerated(pod *corev1.Pod, node *corev1.Node) *corev1.Taint {
	t, bad := tolerate.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, false)
	if !bad {
		return nil
	}
	return &t
}

// fingerprint is equal for pods that filters cannot tell apart.
func fingerprint(p *corev1.Pod) string {
	b, err := json.Marshal([]any{p.Namespace, p.Labels, p.Spec})
	if err != nil {
		return p.Namespace + "/" + p.Name
	}
	return string(b)
}

// buys reports whether p may launch nodes for any pod: not if minValues asks for a
// choice, which only a planner weighs.
func (r *replay) buys(p *karpv1.NodePool) bool {
	if p.DeletionTimestamp != nil || p.Spec.Replicas != nil {
		return false
	}
	ready := r.p.Options.AssumeReady
	for _, c := range p.Status.Conditions {
		if c.Type == karpv1.ConditionReady {
			ready = c.Status == "True"
		}
	}
	return ready && !choosy(p)
}

// room reports whether p's limits allow one more node of t.
func (r *replay) room(p *karpv1.NodePool, t *catalog.InstanceType, planned resources.List) bool {
	for res, q := range p.Spec.Limits {
		more := t.Capacity[res]
		if res == snapshot.NodesResource {
			more = 1
		}
		if r.k.usage[p.Name][res]+planned[res]+more > resources.Amount(res, q) {
			return false
		}
	}
	return true
}

// choices are the ways to settle the labels that an offering leaves open in pool, as the
// requirements of a claim. Where any value will do, those that pods speak of are tried.
func (k *cluster) choices(pool *karpv1.NodePool, t *catalog.InstanceType, f *catalog.Offering, pods []*corev1.Pod) []requirements.Set {
	out := []requirements.Set{{}}
	labels, _ := k.labels(pool, t, f, nil, nil)
	settle := func(key string, values []string) {
		if _, ok := labels[key]; ok || len(values) == 0 {
			return
		}
		labels[key] = "" // settled from here on
		var more []requirements.Set
		for _, set := range out {
			for _, v := range values {
				with := set.Clone()
				with.Add(requirements.In(key, v))
				more = append(more, with)
			}
		}
		out = more
	}
	for _, key := range t.Requirements.Keys() {
		settle(key, t.Requirements[key].Values())
	}
	for _, r := range pool.Spec.Template.Spec.Requirements {
		switch r.Operator {
		case corev1.NodeSelectorOpIn:
			settle(r.Key, r.Values)
		case corev1.NodeSelectorOpDoesNotExist:
		default:
			settle(r.Key, append(mentioned(pods, r.Key), "7"))
		}
	}
	return out
}

// mentioned are the values that the selectors and affinities of pods name for a label.
func mentioned(pods []*corev1.Pod, key string) []string {
	var out []string
	for _, pod := range pods {
		if v, ok := pod.Spec.NodeSelector[key]; ok {
			out = append(out, v)
		}
		if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				for _, e := range t.MatchExpressions {
					if e.Key == key {
						out = append(out, e.Values...)
					}
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
