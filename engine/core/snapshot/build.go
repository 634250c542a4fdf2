package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// builder turns Objects into a Snapshot.
type builder struct {
	objs       *Objects
	opts       *Options
	snap       *Snapshot
	problems   []Problem
	classer    *classer
	volumes    *volumeSource
	defaults   *spreadDefaults
	namespaces map[string]labels.Set
	claims     map[string]*karpv1.NodeClaim // by node name
	pools      map[string]*Pool
	daemonsOn  map[daemonOn]bool
	memo       *Memo
	infos      []*podInfo // of objs.Pods
}

// daemonOn is a DaemonSet that has its pod on a node.
type daemonOn struct {
	node   string
	daemon PodKey
}

func build(objs Objects, opts Options, memo *Memo) (*Snapshot, []Problem) {
	b := &builder{
		objs: &objs, opts: &opts, memo: memo, snap: &Snapshot{Now: opts.Now, LabelKeys: map[string]bool{}},
		namespaces: map[string]labels.Set{}, claims: map[string]*karpv1.NodeClaim{}, pools: map[string]*Pool{}, daemonsOn: map[daemonOn]bool{},
	}
	b.classer = &classer{b: b, selByKey: map[string]int32{}, labelKeys: map[string]bool{}}
	b.sortPods()
	b.infos = memo.look(objs.Pods)
	b.readNamespaces()
	b.volumes = newVolumeSource(&objs, b.infos)
	b.defaults = newSpreadDefaults(&objs, opts.DefaultSpread)
	b.addPools()
	nodes, leaving := b.addNodes()
	b.addPods(nodes, leaving)
	b.addDaemons()
	b.finishClasses()
	b.reserveDaemons()
	b.countUsage()
	slices.SortStableFunc(b.problems, func(x, y Problem) int { return strings.Compare(x.String(), y.String()) })
	return b.snap, b.problems
}

func (b *builder) problem(kind string, o metav1.Object, field, format string, args ...any) {
	b.problems = append(b.problems, Problem{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Field: field, Message: fmt.Sprintf(format, args...)})
}

func (b *builder) readNamespaces() {
	for _, ns := range b.objs.Namespaces {
		set := labels.Set{corev1.LabelMetadataName: ns.Name}
		maps.Copy(set, ns.Labels)
		b.namespaces[ns.Name] = set
	}
	last := ""
	for _, p := range b.objs.Pods { // a namespace that was not given has its name only
		if p.Namespace != last && b.namespaces[p.Namespace] == nil {
			b.namespaces[p.Namespace] = labels.Set{corev1.LabelMetadataName: p.Namespace}
		}
		last = p.Namespace
	}
}

func (b *builder) namespacesMatching(sel labels.Selector) []string {
	var out []string
	for name, set := range b.namespaces {
		if sel.Matches(set) {
			out = append(out, name)
		}
	}
	return out
}

// sortPods makes the order of the pods that of their names.
func (b *builder) sortPods() {
	if b.opts.Sorted {
		return
	}
	b.objs.Pods = slices.Clone(b.objs.Pods)
	slices.SortFunc(b.objs.Pods, func(x, y *corev1.Pod) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name), strings.Compare(string(x.UID), string(y.UID)))
	})
}

// isTerminal reports whether a pod has run to its end.
func isTerminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// isNodeBound reports whether a pod belongs to its node: of a DaemonSet, or a mirror pod.
func isNodeBound(p *corev1.Pod) bool {
	for i := range p.OwnerReferences {
		if k := p.OwnerReferences[i].Kind; k == "DaemonSet" || k == "Node" {
			return true
		}
	}
	return false
}

// addPods sorts bound pods onto nodes and collects those that need one. leaving are the
// nodes being deleted.
func (b *builder) addPods(nodes map[string]*Node, leaving map[string]bool) {
	for i := range b.infos {
		if !b.infos[i].terminal {
			b.classer.noteKeys(b.infos[i].labelKeys)
		}
	}
	for _, c := range b.opts.DefaultSpread {
		b.classer.noteKeys(c.MatchLabelKeys)
	}
	b.defaults.note(b.classer)
	b.memo.begin(b.classer, b.defaults)
	pdbs := newDisruptionBudgets(b.objs.PodDisruptionBudgets)
	b.snap.Pods = make([]Pod, 0, len(b.objs.Pods))
	var last PodKey
	for at, p := range b.objs.Pods {
		info := b.infos[at]
		if info.terminal {
			continue
		}
		key := PodKey{p.Namespace, p.Name}
		if !b.opts.Sorted && key == last {
			b.problem("Pod", p, "metadata.name", "appears twice: the second is left out")
			continue
		}
		last = key
		daemon := info.daemon
		bound := p.Spec.NodeName != ""
		var node *Node
		pending := false
		switch {
		case bound:
			node = nodes[p.Spec.NodeName]
			if node == nil && leaving[p.Spec.NodeName] {
				// The pod will need room elsewhere, unless something forbids moving it.
				pending = !daemon && !info.disposable && (p.DeletionTimestamp == nil || info.returns) && !b.protected(p) && !pdbs.block(p)
			}
			if node == nil && !pending {
				if !leaving[p.Spec.NodeName] {
					b.problem("Pod", p, "spec.nodeName", "node %q is not among the input: the pod is left out", p.Spec.NodeName)
				}
				continue
			}
		default:
			name, expected := b.opts.Expected[key]
			node = nodes[name]
			if !expected || node == nil {
				pending = !daemon && p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) == 0 && (expected || p.Status.NominatedNodeName == "")
				if !pending {
					continue
				}
			}
		}
		var vols *podVolumes
		var claim, problem string
		if info.claims {
			vols, claim, problem = b.volumes.of(p)
		}
		if problem != "" && pending {
			b.snap.Blocked = append(b.snap.Blocked, Blocked{Pod: key, Key: claim, Message: problem})
			continue
		}
		if pending && usesDevices(p) {
			b.snap.Blocked = append(b.snap.Blocked, Blocked{Pod: key, Key: "spec.resourceClaims", Message: "dynamic resource allocation is not planned for", Invalid: true})
			continue
		}
		class, err := b.classer.classOf(p, info, vols)
		if err != nil {
			b.problem("Pod", p, "", "%v", err)
			if pending {
				b.snap.Blocked = append(b.snap.Blocked, Blocked{Pod: key, Message: err.Error(), Invalid: true})
				continue
			}
			class = b.classer.opaque(p)
		}
		i := int32(len(b.snap.Pods))
		b.snap.Pods = append(b.snap.Pods, Pod{Key: key, Class: class, Daemon: daemon, Terminating: p.DeletionTimestamp != nil && !pending, Disposable: info.disposable})
		if pending {
			b.snap.Pending = append(b.snap.Pending, i)
			continue
		}
		node.Pods = append(node.Pods, i)
		if info.daemonSet != "" {
			b.daemonsOn[daemonOn{node.Name, PodKey{p.Namespace, info.daemonSet}}] = true
		}
	}
	t := newTally(b.classer.classes)
	for _, n := range nodes {
		t.addTo(n.Used, b.snap.Pods, n.Pods)
	}
}

// protected reports whether a pod may not be moved now, and notes when that ends.
func (b *builder) protected(p *corev1.Pod) bool {
	g := ProtectionOf(p, b.opts.Now)
	if g.On && !g.Until.IsZero() && (b.memo.until.IsZero() || g.Until.Before(b.memo.until)) {
		b.memo.until = g.Until
	}
	return g.On
}

// returns reports whether a pod that goes will come back under its name.
func returns(p *corev1.Pod) bool {
	for i := range p.OwnerReferences {
		if p.OwnerReferences[i].Kind == "StatefulSet" {
			return true
		}
	}
	return false
}

// usesDevices reports whether a pod asks for devices by ResourceClaims.
func usesDevices(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }

// opaque is the class of a bound pod whose constraints cannot be read: it only uses room
// and ports.
func (c *classer) opaque(p *corev1.Pod) int32 {
	i := int32(len(c.classes))
	req := resources.PodRequests(p)
	for name, v := range req {
		req[name] = max(v, 0)
	}
	c.classes = append(c.classes, &Class{Namespace: p.Namespace, Labels: p.Labels, Requests: req, Terms: []requirements.Set{{}}, Affinity: []requirements.Set{{}}, Ports: hostPorts(&p.Spec)})
	return i
}

// finishClasses makes what depends on all classes together.
func (b *builder) finishClasses() {
	b.classer.matchSelectors()
	b.snap.Classes, b.snap.Selectors = b.classer.classes, b.classer.selectors
	note := func(sets ...requirements.Set) {
		for _, s := range sets {
			for k := range s {
				b.snap.LabelKeys[k] = true
			}
		}
	}
	look := func(cl *Class) {
		note(cl.Terms...)
		note(cl.Affinity...)
		for _, p := range cl.Preferred {
			note(p.Term)
		}
		for _, s := range cl.Spread {
			b.snap.LabelKeys[s.Key] = true
		}
		for _, list := range [...][]PodTerm{cl.Near, cl.Apart, cl.SoftNear, cl.SoftApart} {
			for _, t := range list {
				b.snap.LabelKeys[t.Key] = true
			}
		}
	}
	for _, cl := range b.snap.Classes {
		look(cl)
	}
	for _, d := range b.snap.Daemons {
		look(d.Class)
	}
}

// addDaemons makes one class per DaemonSet, from its newest pod where there is one (an
// admission plugin may have changed it) and from its template otherwise.
func (b *builder) addDaemons() {
	newest := map[string]*corev1.Pod{}
	for i, p := range b.objs.Pods {
		if set := b.infos[i].daemonSet; set != "" {
			key := p.Namespace + "/" + set
			if q := newest[key]; q == nil || q.CreationTimestamp.Before(&p.CreationTimestamp) || q.CreationTimestamp.Equal(&p.CreationTimestamp) && p.Name < q.Name {
				newest[key] = p
			}
		}
	}
	sets := slices.Clone(b.objs.DaemonSets)
	slices.SortFunc(sets, func(x, y *appsv1.DaemonSet) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	for i, ds := range sets {
		if i > 0 && ds.Namespace == sets[i-1].Namespace && ds.Name == sets[i-1].Name {
			b.problem("DaemonSet", ds, "metadata.name", "appears twice: the second is left out")
			continue
		}
		if ds.DeletionTimestamp != nil {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: *ds.Spec.Template.ObjectMeta.DeepCopy(), Spec: *ds.Spec.Template.Spec.DeepCopy()}
		pod.Namespace, pod.Name = ds.Namespace, ds.Name
		if p := newest[ds.Namespace+"/"+ds.Name]; p != nil {
			// The controller pins each pod to its node by affinity; the template says where
			// others go.
			affinity := pod.Spec.Affinity
			pod.Spec = *p.Spec.DeepCopy()
			pod.Spec.NodeName = ""
			if pod.Spec.Affinity != nil {
				pod.Spec.Affinity.NodeAffinity = nil
			}
			if affinity != nil {
				if pod.Spec.Affinity == nil {
					pod.Spec.Affinity = &corev1.Affinity{}
				}
				pod.Spec.Affinity.NodeAffinity = affinity.NodeAffinity
			}
		} else {
			pod = resources.ApplyLimitRange(pod, b.objs.LimitRanges)
		}
		pod.Spec.Volumes, pod.Spec.TopologySpreadConstraints = nil, nil
		if pod.Spec.Affinity != nil { // DaemonSets are placed by node, not by other pods
			pod.Spec.Affinity.PodAffinity, pod.Spec.Affinity.PodAntiAffinity = nil, nil
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, daemonTolerations(pod.Spec.HostNetwork)...)
		class, err := b.classer.newClass(pod, nil, nil, false)
		if err != nil {
			b.problem("DaemonSet", ds, "spec.template", "%v", err)
			continue
		}
		class.Requests = resources.DaemonRequests(pod)
		b.snap.Daemons = append(b.snap.Daemons, &Daemon{Key: PodKey{ds.Namespace, ds.Name}, Class: class})
	}
}

// daemonTolerations are those the DaemonSet controller adds, and PreferNoSchedule of
// every key: a preference never keeps a daemon off a node.
func daemonTolerations(hostNetwork bool) []corev1.Toleration {
	out := []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectPreferNoSchedule}}
	for key, effect := range map[string]corev1.TaintEffect{
		corev1.TaintNodeNotReady: corev1.TaintEffectNoExecute, corev1.TaintNodeUnreachable: corev1.TaintEffectNoExecute,
		corev1.TaintNodeDiskPressure: corev1.TaintEffectNoSchedule, corev1.TaintNodeMemoryPressure: corev1.TaintEffectNoSchedule,
		corev1.TaintNodePIDPressure: corev1.TaintEffectNoSchedule, corev1.TaintNodeUnschedulable: corev1.TaintEffectNoSchedule,
	} {
		out = append(out, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
	if hostNetwork {
		out = append(out, corev1.Toleration{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	slices.SortFunc(out, func(a, b corev1.Toleration) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// reserveDaemons sets aside on each node what the DaemonSets need that will run there
// but do not yet.
func (b *builder) reserveDaemons() {
	for _, n := range b.snap.Nodes {
		for i, d := range b.snap.Daemons {
			if b.daemonsOn[daemonOn{n.Name, d.Key}] || !Tolerates(d.Class.Tolerations, n.Taints) || !MatchesNode(d.Class.Terms, n) {
				continue
			}
			n.Missing = append(n.Missing, int32(i))
			n.DaemonReserve.AddTo(d.Class.Requests)
		}
	}
}

// countUsage sums what each pool's nodes use of its limits.
func (b *builder) countUsage() {
	for _, n := range b.snap.Nodes {
		if p := b.pools[n.Pool]; p != nil {
			p.Usage.AddTo(n.Capacity)
			p.Usage[NodesResource]++
		}
	}
}
