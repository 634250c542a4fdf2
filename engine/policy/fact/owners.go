package fact

import (
	"cmp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Scaled is how long after a change of the number of replicas an autoscaler counts as still
// changing it.
const Scaled = 3 * time.Minute

// Objects are what facts about pods and their owners are read from. The zero value knows
// nothing.
type Objects struct {
	// Pod returns a pod's object; nil if it is not known.
	Pod func(snapshot.PodKey) *corev1.Pod
	// Workload names what a pod belongs to, where it is not what its object says; an empty
	// kind leaves it to that. Nil leaves it for all.
	Workload               func(snapshot.PodKey) (kind, name string)
	ReplicaSets            []*appsv1.ReplicaSet
	StatefulSets           []*appsv1.StatefulSet
	Autoscalers            []*autoscalingv2.HorizontalPodAutoscaler
	PodDisruptionBudgets   []*policyv1.PodDisruptionBudget
	ReplicationControllers []*corev1.ReplicationController
	Nodes                  []*corev1.Node
	NodeClaims             []*karpv1.NodeClaim
	// Expired are the nodes that go for their age, by name, with when they go whatever
	// policies say; the zero time is never.
	Expired map[string]time.Time
}

// id names a controller of pods.
type id struct{ kind, namespace, name string }

// reader has what is looked up often.
type reader struct {
	o    Objects
	snap *snapshot.Snapshot
	sets map[snapshot.PodKey]*appsv1.ReplicaSet
}

func (o Objects) reader(snap *snapshot.Snapshot) *reader {
	r := &reader{o: o, snap: snap, sets: make(map[snapshot.PodKey]*appsv1.ReplicaSet, len(o.ReplicaSets))}
	for _, s := range o.ReplicaSets {
		r.sets[snapshot.PodKey{Namespace: s.Namespace, Name: s.Name}] = s
	}
	return r
}

func (r *reader) pod(key snapshot.PodKey) *corev1.Pod {
	if r.o.Pod == nil {
		return nil
	}
	return r.o.Pod(key)
}

// owner is the controller at the top: a Deployment and not its ReplicaSet.
func (r *reader) owner(key snapshot.PodKey) id {
	if r.o.Workload != nil {
		if kind, name := r.o.Workload(key); kind != "" {
			return id{kind, key.Namespace, name}
		}
	}
	p := r.pod(key)
	if p == nil {
		return id{}
	}
	c := metav1.GetControllerOf(p)
	if c == nil {
		return id{}
	}
	if c.Kind == "ReplicaSet" {
		if s := r.sets[snapshot.PodKey{Namespace: key.Namespace, Name: c.Name}]; s != nil {
			if d := metav1.GetControllerOf(s); d != nil {
				return id{d.Kind, key.Namespace, d.Name}
			}
		}
	}
	return id{c.Kind, key.Namespace, c.Name}
}

// Owners are the controllers of the pods on the named nodes of snap, by kind, namespace and
// name. A pod on a node is ready unless its status says that it is not. Replicas are those
// that the controller wants as far as its object is known, else the pods that there are.
func (o Objects) Owners(snap *snapshot.Snapshot, nodes map[string]bool) []policy.Owner {
	return o.owners(snap).on(nodes)
}

// owners are all controllers of pods, and how many ready pods of each are on each node.
type owners struct {
	all map[id]*policy.Owner
	// here counts the pods of each controller by node, ready those of them that are ready.
	here, ready map[string]map[id]int64
}

func (o Objects) owners(snap *snapshot.Snapshot) *owners {
	r := o.reader(snap)
	out := &owners{all: map[id]*policy.Owner{}, here: make(map[string]map[id]int64, len(snap.Nodes)), ready: make(map[string]map[id]int64, len(snap.Nodes))}
	owner := func(o id) *policy.Owner {
		if out.all[o] == nil {
			out.all[o] = &policy.Owner{Kind: o.kind, Namespace: o.namespace, Name: o.name, ByCapacityType: map[string]int64{}, ByZone: map[string]int64{}}
		}
		return out.all[o]
	}
	for _, i := range snap.Pending {
		if o := r.owner(snap.Pods[i].Key); o != (id{}) {
			owner(o).Replicas++
		}
	}
	for _, n := range snap.Nodes {
		here, ready := map[id]int64{}, map[id]int64{}
		for _, i := range n.Pods {
			p := &snap.Pods[i]
			if p.Daemon {
				continue
			}
			o := r.owner(p.Key)
			if o == (id{}) {
				continue
			}
			here[o]++
			w := owner(o)
			w.Replicas++
			w.ByCapacityType[n.Labels[karpv1.CapacityTypeLabelKey]]++
			w.ByZone[n.Labels[corev1.LabelTopologyZone]]++
			if p.Terminating || unready(r.pod(p.Key)) {
				continue
			}
			w.Ready++
			ready[o]++
		}
		out.here[n.Name], out.ready[n.Name] = here, ready
	}
	r.wanted(out.all)
	return out
}

// on are the controllers with pods on the named nodes. They share their maps.
func (w *owners) on(nodes map[string]bool) []policy.Owner {
	byID := map[id]policy.Owner{}
	for name := range nodes {
		for o := range w.here[name] {
			own, ok := byID[o]
			if !ok {
				own = *w.all[o]
			}
			own.OnThisNode += w.ready[name][o]
			byID[o] = own
		}
	}
	out := make([]policy.Owner, 0, len(byID))
	for _, own := range byID {
		own.ReadyElsewhere = own.Ready - own.OnThisNode
		out = append(out, own)
	}
	slices.SortFunc(out, func(a, b policy.Owner) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}

// wanted adds what the objects of the controllers say: replicas wanted, rollouts, and
// autoscalers at work.
func (r *reader) wanted(all map[id]*policy.Owner) {
	// A Deployment with pods of two revisions is rolled out.
	revisions, replicas := map[id]int{}, map[id]int64{}
	for _, s := range r.o.ReplicaSets {
		want := int64(1)
		if s.Spec.Replicas != nil {
			want = int64(*s.Spec.Replicas)
		}
		o := id{"ReplicaSet", s.Namespace, s.Name}
		if c := metav1.GetControllerOf(s); c != nil {
			o = id{c.Kind, s.Namespace, c.Name}
		}
		replicas[o] += want
		if want > 0 || s.Status.Replicas > 0 {
			revisions[o]++
		}
	}
	for _, c := range r.o.ReplicationControllers {
		if c.Spec.Replicas != nil {
			replicas[id{"ReplicationController", c.Namespace, c.Name}] = int64(*c.Spec.Replicas)
		}
	}
	rolling := map[id]bool{}
	for _, s := range r.o.StatefulSets {
		o := id{"StatefulSet", s.Namespace, s.Name}
		if s.Spec.Replicas != nil {
			replicas[o] = int64(*s.Spec.Replicas)
		}
		rolling[o] = s.Status.UpdateRevision != "" && s.Status.UpdateRevision != s.Status.CurrentRevision
	}
	for o, w := range all {
		w.RolloutInProgress = revisions[o] > 1 || rolling[o]
		if n, ok := replicas[o]; ok && !w.RolloutInProgress {
			w.Replicas = n
		}
	}
	for _, h := range r.o.Autoscalers {
		w := all[id{h.Spec.ScaleTargetRef.Kind, h.Namespace, h.Spec.ScaleTargetRef.Name}]
		if w == nil {
			continue
		}
		recent := h.Status.LastScaleTime != nil && r.snap.Now.Sub(h.Status.LastScaleTime.Time) < Scaled
		w.HPAScaling = w.HPAScaling || recent || h.Status.DesiredReplicas != 0 && h.Status.DesiredReplicas != h.Status.CurrentReplicas
	}
}

func unready(p *corev1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse
	})
}

// Budget returns a function that finds the PodDisruptionBudget of a pod; of several, the one
// that allows the fewest disruptions. It returns nil for a pod without one.
func (o Objects) Budget() func(p *corev1.Pod) *policy.PDB {
	type budget struct {
		selector labels.Selector
		pdb      policy.PDB
	}
	byNamespace := map[string][]budget{}
	for _, b := range o.PodDisruptionBudgets {
		// A selector that cannot be read selects nothing, as in the API server.
		s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue
		}
		byNamespace[b.Namespace] = append(byNamespace[b.Namespace], budget{s, policy.PDB{Name: b.Name, Allowed: int64(b.Status.DisruptionsAllowed)}})
	}
	return func(p *corev1.Pod) *policy.PDB {
		var out *policy.PDB
		for _, b := range byNamespace[p.Namespace] {
			if b.selector.Matches(labels.Set(p.Labels)) && (out == nil || b.pdb.Allowed < out.Allowed || b.pdb.Allowed == out.Allowed && b.pdb.Name < out.Name) {
				out = &b.pdb
			}
		}
		return out
	}
}
