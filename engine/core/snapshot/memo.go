package snapshot

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Memo keeps from one build to the next what follows from single objects, so that a build
// after few changes costs little. The zero value is ready to use. Its snapshots are equal
// to those of [Build].
//
// An object must not change while its pointer is used again. A Memo is not for use by
// several goroutines at the same time.
type Memo struct {
	build uint64
	// epoch is what all keys of classes depend on besides the pod.
	epoch    string
	defaults []any
	slots    map[string]*slot
	pods     map[*corev1.Pod]*podInfo
	nodes    map[string]*knownNode
	overlays map[string]*overlaid
	until    time.Time
}

// slot is a class of pods, which may or may not be in the present build.
type slot struct {
	key   string
	build uint64
	index int32
}

// podInfo is what follows from a pod alone.
type podInfo struct {
	// slot is that of the pod's class in the epoch, if it follows from the pod alone.
	slot  *slot
	build uint64
	// labelKeys are the pod labels that the pod's constraints look at.
	labelKeys                         []string
	daemonSet                         string
	terminal, daemon, claims, returns bool
	disposable                        bool
}

func infoOf(p *corev1.Pod) podInfo {
	in := podInfo{terminal: isTerminal(p), daemon: isNodeBound(p), returns: returns(p), disposable: p.Annotations[v1alpha1.DisposableAnnotation] == "true"}
	for i := range p.OwnerReferences {
		if o := &p.OwnerReferences[i]; o.Kind == "DaemonSet" {
			in.daemonSet = o.Name
		}
	}
	for i := range p.Spec.Volumes {
		if _, ok := claimKey(p, &p.Spec.Volumes[i]); ok {
			in.claims = true
		}
	}
	if p.Spec.Affinity != nil || len(p.Spec.TopologySpreadConstraints) > 0 {
		keys := map[string]bool{}
		c := classer{labelKeys: keys}
		c.notePod(p)
		in.labelKeys = sortedKeys(keys)
	}
	return in
}

// knownNode is a node as it was made from its objects, without pods.
type knownNode struct {
	build   uint64
	node    *corev1.Node
	claim   *karpv1.NodeClaim
	csi     *storagev1.CSINode
	catalog *catalog.Catalog
	made    *Node
}

// overlaid is the catalogue that NodeOverlays make of another.
type overlaid struct {
	build    uint64
	pool     *karpv1.NodePool
	from     *catalog.Catalog
	overlays []*karpv1alpha1.NodeOverlay
	to       *catalog.Catalog
	problems []catalog.OverlayProblem
}

// Build is as the function [Build].
func (m *Memo) Build(objs Objects, opts Options) (*Snapshot, []Problem) {
	if m.pods == nil {
		m.pods, m.nodes, m.overlays = map[*corev1.Pod]*podInfo{}, map[string]*knownNode{}, map[string]*overlaid{}
	}
	m.build++
	m.until = time.Time{}
	s, problems := build(objs, opts, m)
	if len(m.pods) > 2*len(objs.Pods)+1024 {
		maps.DeleteFunc(m.pods, func(_ *corev1.Pod, in *podInfo) bool { return in.build != m.build })
	}
	if len(m.slots) > 4*len(s.Classes)+1024 {
		m.slots = nil
	}
	maps.DeleteFunc(m.nodes, func(_ string, k *knownNode) bool { return k.build != m.build })
	maps.DeleteFunc(m.overlays, func(_ string, o *overlaid) bool { return o.build != m.build })
	return s, problems
}

// Until is when the snapshot built last would be another one for its time alone, since the
// protection of a pod ends; the zero time is never.
func (m *Memo) Until() time.Time { return m.until }

// look returns what follows from each pod.
func (m *Memo) look(pods []*corev1.Pod) []*podInfo {
	out := make([]*podInfo, len(pods))
	if m.pods == nil {
		block := make([]podInfo, len(pods))
		for i, p := range pods {
			block[i] = infoOf(p)
			out[i] = &block[i]
		}
		return out
	}
	for i, p := range pods {
		in := m.pods[p]
		if in == nil {
			made := infoOf(p)
			in = &made
			m.pods[p] = in
		}
		in.build = m.build
		out[i] = in
	}
	return out
}

// begin starts an epoch if keys of classes do not mean what they did: other labels count,
// or other default constraints.
func (m *Memo) begin(c *classer, d *spreadDefaults) {
	epoch := strings.Join(sortedKeys(c.labelKeys), "\x00")
	if m.slots != nil && m.epoch == epoch && slices.Equal(m.defaults, d.inputs) {
		return
	}
	m.epoch, m.defaults, m.slots = epoch, d.inputs, map[string]*slot{}
	for _, in := range m.pods {
		in.slot = nil
	}
}

// amount is how much of a resource a class of pods takes; resources are numbered.
type amount struct {
	resource int
	value    int64
}

// tally sums up what pods use, without maps.
type tally struct {
	names   []corev1.ResourceName
	numbers map[corev1.ResourceName]int
	classes [][]amount
	sums    []int64
	seen    []bool
}

func newTally(classes []*Class) *tally {
	t := &tally{numbers: map[corev1.ResourceName]int{}, classes: make([][]amount, len(classes))}
	for i, cl := range classes {
		for name, v := range cl.Requests {
			n, ok := t.numbers[name]
			if !ok {
				n = len(t.names)
				t.numbers[name] = n
				t.names = append(t.names, name)
			}
			t.classes[i] = append(t.classes[i], amount{n, v})
		}
	}
	t.sums, t.seen = make([]int64, len(t.names)), make([]bool, len(t.names))
	return t
}

// addTo adds the requests of pods to list.
func (t *tally) addTo(list resources.List, all []Pod, pods []int32) {
	clear(t.sums)
	clear(t.seen)
	for _, p := range pods {
		for _, a := range t.classes[all[p].Class] {
			t.sums[a.resource] += a.value
			t.seen[a.resource] = true
		}
	}
	for i, ok := range t.seen {
		if ok {
			list[t.names[i]] += t.sums[i]
		}
	}
}
