package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// classer sorts pods into classes. Two pods share a class if the bytes that encode
// writes for them are equal.
type classer struct {
	b         *builder
	buf       []byte
	names     []string
	classes   []*Class
	selectors []*Selector
	selByKey  map[string]int32
	// labelKeys are the pod labels that selectors look at.
	labelKeys map[string]bool
}

// encode appends everything a scheduler sees of pod.
func (c *classer) encode(pod *corev1.Pod, vols *podVolumes, spread []corev1.TopologySpreadConstraint) []byte {
	b := append(c.buf[:0], pod.Namespace...)
	b = append(b, 0)
	b = c.appendMap(b, pod.Labels, c.labelKeys)
	spec := &pod.Spec
	if spec.Priority != nil {
		b = strconv.AppendInt(b, int64(*spec.Priority), 10)
	}
	b = append(b, 0)
	for i := range spec.InitContainers {
		b = append(b, 'i')
		if p := spec.InitContainers[i].RestartPolicy; p != nil {
			b = append(b, *p...)
		}
		b = c.appendResources(b, spec.InitContainers[i].Resources.Requests)
		b = appendPorts(b, spec.InitContainers[i].Ports, spec.HostNetwork)
	}
	for i := range spec.Containers {
		b = append(b, 'c')
		b = c.appendResources(b, spec.Containers[i].Resources.Requests)
		b = appendPorts(b, spec.Containers[i].Ports, spec.HostNetwork)
	}
	if len(spec.Overhead) > 0 {
		b = append(b, 'o')
		b = c.appendResources(b, spec.Overhead)
	}
	if spec.Resources != nil {
		b = append(b, 'p')
		b = c.appendResources(b, spec.Resources.Requests)
	}
	if spec.NodeName != "" {
		for i := range pod.Status.ContainerStatuses {
			s := &pod.Status.ContainerStatuses[i]
			if len(s.AllocatedResources) > 0 || s.Resources != nil {
				b = append(b, 's')
				b = append(b, s.Name...)
				b = c.appendResources(b, s.AllocatedResources)
				if s.Resources != nil {
					b = c.appendResources(b, s.Resources.Requests)
				}
			}
		}
		if pod.Status.Resize != "" {
			b = append(b, pod.Status.Resize...)
		}
	}
	if spec.HostNetwork {
		b = append(b, 'h')
	}
	b = append(b, 1)
	b = c.appendMap(b, spec.NodeSelector, nil)
	for i := range spec.Tolerations {
		t := &spec.Tolerations[i]
		b = append(append(append(append(b, 't'), t.Key...), 0), t.Operator...)
		b = append(append(append(append(b, 0), t.Value...), 0), t.Effect...)
	}
	b = append(b, 2)
	if a := spec.Affinity; a != nil {
		if a.NodeAffinity != nil {
			if r := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
				b = append(b, 'r')
				for i := range r.NodeSelectorTerms {
					b = appendTerm(b, &r.NodeSelectorTerms[i])
				}
			}
			for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
				p := &a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
				b = append(strconv.AppendInt(append(b, 'P'), int64(p.Weight), 10), 0)
				b = appendTerm(b, &p.Preference)
			}
		}
		b = append(b, 3)
		if a.PodAffinity != nil {
			b = c.appendPodTerms(b, pod, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		b = append(b, 4)
		if a.PodAntiAffinity != nil {
			b = c.appendPodTerms(b, pod, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	b = append(b, 5)
	for i := range spread {
		s := &spread[i]
		b = append(append(append(b, 'S'), s.TopologyKey...), 0)
		b = append(append(strconv.AppendInt(b, int64(s.MaxSkew), 10), 0), s.WhenUnsatisfiable...)
		if s.MinDomains != nil {
			b = strconv.AppendInt(append(b, 'm'), int64(*s.MinDomains), 10)
		}
		if s.NodeAffinityPolicy != nil {
			b = append(append(b, 'a'), *s.NodeAffinityPolicy...)
		}
		if s.NodeTaintsPolicy != nil {
			b = append(append(b, 'n'), *s.NodeTaintsPolicy...)
		}
		b = append(b, 0)
		b = c.appendSelector(b, s.LabelSelector)
		b = appendLabelKeys(b, pod.Labels, s.MatchLabelKeys)
	}
	if vols != nil {
		b = append(b, 'v')
		b = append(b, vols.key...)
	}
	c.buf = b
	return b
}

func (c *classer) appendMap(b []byte, m map[string]string, only map[string]bool) []byte {
	if len(m) == 0 {
		return append(b, 0)
	}
	c.names = c.names[:0]
	for k := range m {
		if only == nil || only[k] {
			c.names = append(c.names, k)
		}
	}
	slices.Sort(c.names)
	for _, k := range c.names {
		b = append(append(append(append(b, k...), '='), m[k]...), 0)
	}
	return append(b, 0)
}

func (c *classer) appendResources(b []byte, l corev1.ResourceList) []byte {
	seen := 0
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := l[name]; ok {
			seen++
			b = append(appendQuantity(append(b, '.'), name, q), name[0])
		}
	}
	if seen == len(l) {
		return append(b, ';')
	}
	c.names = c.names[:0]
	for name := range l {
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory {
			c.names = append(c.names, string(name))
		}
	}
	slices.Sort(c.names)
	for _, name := range c.names {
		b = append(append(b, name...), '=')
		b = appendQuantity(b, corev1.ResourceName(name), l[corev1.ResourceName(name)])
	}
	return append(b, ';')
}

func appendQuantity(b []byte, name corev1.ResourceName, q resource.Quantity) []byte {
	return strconv.AppendInt(b, resources.Amount(name, q), 10)
}

func appendPorts(b []byte, ports []corev1.ContainerPort, hostNetwork bool) []byte {
	for i := range ports {
		if hp := hostPort(&ports[i], hostNetwork); hp > 0 {
			b = append(strconv.AppendInt(append(b, 'h'), int64(hp), 10), ports[i].Protocol...)
			b = append(append(b, ports[i].HostIP...), 0)
		}
	}
	return b
}

// hostPort is the port of the node that p takes, 0 for none. The API server makes every
// port of a pod in the host's network a host port.
func hostPort(p *corev1.ContainerPort, hostNetwork bool) int32 {
	if p.HostPort == 0 && hostNetwork {
		return p.ContainerPort
	}
	return p.HostPort
}

func appendTerm(b []byte, t *corev1.NodeSelectorTerm) []byte {
	b = append(b, '{')
	for _, list := range [...][]corev1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
		for i := range list {
			e := &list[i]
			b = append(append(append(append(b, e.Key...), 0), e.Operator...), 0)
			for _, v := range e.Values {
				b = append(append(b, v...), 0)
			}
			b = append(b, ',')
		}
		b = append(b, '|')
	}
	return b
}

func (c *classer) appendSelector(b []byte, s *metav1.LabelSelector) []byte {
	if s == nil {
		return append(b, '-')
	}
	b = c.appendMap(b, s.MatchLabels, nil)
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		b = append(append(append(append(b, e.Key...), 0), e.Operator...), 0)
		for _, v := range e.Values {
			b = append(append(b, v...), 0)
		}
		b = append(b, ',')
	}
	return append(b, ';')
}

func appendLabelKeys(b []byte, l map[string]string, keys []string) []byte {
	for _, k := range keys {
		if v, ok := l[k]; ok {
			b = append(append(append(append(append(b, 'k'), k...), '='), v...), 0)
		}
	}
	return b
}

func (c *classer) appendPodTerms(b []byte, pod *corev1.Pod, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) []byte {
	one := func(t *corev1.PodAffinityTerm) {
		b = append(append(append(b, 'T'), t.TopologyKey...), 0)
		for _, ns := range t.Namespaces {
			b = append(append(b, ns...), 0)
		}
		b = append(b, 1)
		b = c.appendSelector(b, t.NamespaceSelector)
		b = c.appendSelector(b, t.LabelSelector)
		b = appendLabelKeys(b, pod.Labels, t.MatchLabelKeys)
		b = append(b, '!')
		b = appendLabelKeys(b, pod.Labels, t.MismatchLabelKeys)
	}
	for i := range required {
		one(&required[i])
	}
	for i := range preferred {
		b = append(strconv.AppendInt(append(b, 'W'), int64(preferred[i].Weight), 10), 0)
		one(&preferred[i].PodAffinityTerm)
	}
	return b
}

// classOf returns the class of pod, made on first sight in this build. The spread
// constraints in force for it are its own, or the scheduler's defaults.
func (c *classer) classOf(pod *corev1.Pod, info *podInfo, vols *podVolumes) (int32, error) {
	m := c.b.memo
	s := info.slot
	if s == nil || info.claims {
		spread, _ := c.b.defaults.of(pod)
		key := c.encode(pod, vols, spread)
		if s = m.slots[string(key)]; s == nil {
			s = &slot{key: string(key)}
			m.slots[s.key] = s
		}
		info.slot = s
	}
	if s.build == m.build {
		return s.index, nil
	}
	spread, isDefault := c.b.defaults.of(pod)
	class, err := c.newClass(pod, vols, spread, isDefault)
	if err != nil {
		return -1, err
	}
	s.build, s.index = m.build, int32(len(c.classes))
	c.classes = append(c.classes, class)
	return s.index, nil
}

func (c *classer) newClass(pod *corev1.Pod, vols *podVolumes, spread []corev1.TopologySpreadConstraint, isDefault bool) (*Class, error) {
	spec := &pod.Spec
	cl := &Class{
		Namespace:   pod.Namespace,
		Labels:      map[string]string{},
		Requests:    resources.PodRequests(pod),
		Tolerations: spec.Tolerations,
	}
	for name, v := range cl.Requests {
		if v < 0 {
			return nil, fmt.Errorf("requests[%s]: %d: must not be negative", name, v)
		}
	}
	if spec.Priority != nil {
		cl.Priority = *spec.Priority
	}
	for k, v := range pod.Labels {
		if c.labelKeys[k] {
			cl.Labels[k] = v
		}
	}
	base, err := requirements.FromNodeSelector(spec.NodeSelector)
	if err != nil {
		return nil, fmt.Errorf("spec.nodeSelector: %w", err)
	}
	cl.Affinity = []requirements.Set{base}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		if r := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			cl.Affinity = nil
			for i, t := range r.NodeSelectorTerms {
				term, err := requirements.FromNodeSelectorTerm(t)
				if errors.Is(err, requirements.ErrEmptyTerm) {
					continue // matches no node, as in Kubernetes
				}
				if err != nil {
					return nil, fmt.Errorf("spec.affinity.nodeAffinity.required.nodeSelectorTerms[%d]: %w", i, err)
				}
				term.AddSet(base)
				cl.Affinity = append(cl.Affinity, term)
			}
			if len(cl.Affinity) == 0 {
				return nil, fmt.Errorf("spec.affinity.nodeAffinity.required: no term has an expression, so no node matches")
			}
		}
		for i, p := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			term, err := requirements.FromNodeSelectorTerm(p.Preference)
			if errors.Is(err, requirements.ErrEmptyTerm) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("spec.affinity.nodeAffinity.preferred[%d]: %w", i, err)
			}
			cl.Preferred = append(cl.Preferred, PreferredTerm{Weight: p.Weight, Term: term})
		}
	}
	cl.Terms = cl.Affinity
	if vols != nil {
		cl.Volumes = vols.volumes
		cl.Terms = cross(cl.Affinity, vols.places)
		if len(cl.Terms) == 0 {
			cl.Terms = []requirements.Set{cross1(cl.Affinity[0], vols.places)}
		}
	}
	if a := spec.Affinity; a != nil {
		if p := a.PodAffinity; p != nil {
			if cl.Near, err = c.podTerms(pod, p.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
				return nil, fmt.Errorf("spec.affinity.podAffinity.required%w", err)
			}
			if cl.SoftNear, err = c.weightedTerms(pod, p.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
				return nil, fmt.Errorf("spec.affinity.podAffinity.preferred%w", err)
			}
		}
		if p := a.PodAntiAffinity; p != nil {
			if cl.Apart, err = c.podTerms(pod, p.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
				return nil, fmt.Errorf("spec.affinity.podAntiAffinity.required%w", err)
			}
			if cl.SoftApart, err = c.weightedTerms(pod, p.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
				return nil, fmt.Errorf("spec.affinity.podAntiAffinity.preferred%w", err)
			}
		}
	}
	for i, s := range spread {
		sel, err := withLabelKeys(s.LabelSelector, pod.Labels, s.MatchLabelKeys, nil)
		if err != nil {
			return nil, fmt.Errorf("spec.topologySpreadConstraints[%d]: %w", i, err)
		}
		if s.MaxSkew < 1 || s.TopologyKey == "" {
			return nil, fmt.Errorf("spec.topologySpreadConstraints[%d]: maxSkew must be at least 1 and topologyKey not empty", i)
		}
		sp := Spread{
			Key: s.TopologyKey, MaxSkew: s.MaxSkew, Soft: s.WhenUnsatisfiable == corev1.ScheduleAnyway,
			IgnoreAffinity: s.NodeAffinityPolicy != nil && *s.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore,
			HonorTaints:    s.NodeTaintsPolicy != nil && *s.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
			Default:        isDefault,
		}
		if s.MinDomains != nil {
			sp.MinDomains = *s.MinDomains
		}
		sp.SelfMatch = sel.Matches(labels.Set(pod.Labels))
		if sel.Empty() {
			sel = labels.Nothing() // kube-scheduler counts no pod for a selector that asks for nothing
		}
		sp.Selector = c.selector([]string{pod.Namespace}, false, sel)
		cl.Spread = append(cl.Spread, sp)
	}
	cl.Ports = hostPorts(spec)
	cl.ProfileKey = profileKey(cl)
	return cl, nil
}

// hostPorts are the ports of its node that a pod takes.
func hostPorts(spec *corev1.PodSpec) []Port {
	var out []Port
	for _, list := range [...][]corev1.Container{spec.Containers, sidecars(spec.InitContainers)} {
		for _, ct := range list {
			for _, p := range ct.Ports {
				hp := hostPort(&p, spec.HostNetwork)
				if hp <= 0 {
					continue
				}
				port := Port{Protocol: p.Protocol, Port: hp, IP: p.HostIP}
				if port.Protocol == "" {
					port.Protocol = corev1.ProtocolTCP
				}
				if port.IP == "0.0.0.0" || port.IP == "::" {
					port.IP = ""
				}
				out = append(out, port)
			}
		}
	}
	return out
}

// sidecars are the init containers that keep running beside the others.
func sidecars(init []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range init {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

func profileKey(cl *Class) string {
	var b strings.Builder
	write := func(s requirements.Set) {
		for _, k := range s.Keys() {
			b.WriteString(s[k].String())
			b.WriteByte(';')
		}
		b.WriteByte('|')
	}
	for _, t := range cl.Terms {
		write(t)
	}
	for _, p := range cl.Preferred {
		fmt.Fprintf(&b, "~%d:", p.Weight)
		write(p.Term)
	}
	tol := make([]string, 0, len(cl.Tolerations))
	for _, t := range cl.Tolerations {
		tol = append(tol, fmt.Sprintf("%s\x00%s\x00%s\x00%s", t.Key, t.Operator, t.Value, t.Effect))
	}
	slices.Sort(tol)
	b.WriteString(strings.Join(slices.Compact(tol), "\x01"))
	for _, p := range cl.Ports {
		fmt.Fprintf(&b, "#%s/%d/%s", p.Protocol, p.Port, p.IP)
	}
	return b.String()
}

// selector interns a pod selector.
func (c *classer) selector(namespaces []string, all bool, sel labels.Selector) int32 {
	key := sel.String() + "\x00" + strings.Join(namespaces, ",")
	if all {
		key = sel.String() + "\x00*"
	}
	if sel.Empty() {
		key = "\x02" + key // everything, unlike labels.Nothing, whose String is empty too
	}
	if i, ok := c.selByKey[key]; ok {
		return i
	}
	i := int32(len(c.selectors))
	c.selectors = append(c.selectors, &Selector{Namespaces: namespaces, All: all, Labels: sel, Key: key})
	c.selByKey[key] = i
	return i
}

func (c *classer) podTerms(pod *corev1.Pod, terms []corev1.PodAffinityTerm) ([]PodTerm, error) {
	var out []PodTerm
	for i := range terms {
		t, err := c.podTerm(pod, &terms[i], 0)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		out = append(out, t)
	}
	return out, nil
}

func (c *classer) weightedTerms(pod *corev1.Pod, terms []corev1.WeightedPodAffinityTerm) ([]PodTerm, error) {
	var out []PodTerm
	for i := range terms {
		t, err := c.podTerm(pod, &terms[i].PodAffinityTerm, terms[i].Weight)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		out = append(out, t)
	}
	return out, nil
}

func (c *classer) podTerm(pod *corev1.Pod, t *corev1.PodAffinityTerm, weight int32) (PodTerm, error) {
	if t.TopologyKey == "" {
		return PodTerm{}, fmt.Errorf("topologyKey: must not be empty")
	}
	sel, err := withLabelKeys(t.LabelSelector, pod.Labels, t.MatchLabelKeys, t.MismatchLabelKeys)
	if err != nil {
		return PodTerm{}, err
	}
	namespaces, all := t.Namespaces, false
	if t.NamespaceSelector != nil {
		ns, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
		if err != nil {
			return PodTerm{}, fmt.Errorf("namespaceSelector: %w", err)
		}
		if all = ns.Empty(); !all {
			namespaces = append(slices.Clone(namespaces), c.b.namespacesMatching(ns)...)
		}
	} else if len(namespaces) == 0 {
		namespaces = []string{pod.Namespace}
	}
	namespaces = slices.Compact(slices.Sorted(slices.Values(namespaces)))
	if all {
		namespaces = nil
	}
	self := (all || slices.Contains(namespaces, pod.Namespace)) && sel.Matches(labels.Set(pod.Labels))
	return PodTerm{Key: t.TopologyKey, Selector: c.selector(namespaces, all, sel), Weight: weight, SelfMatch: self}, nil
}

// withLabelKeys is selector, restricted to pods that agree with l on the keys of match
// and disagree on those of mismatch. Keys that l lacks are skipped.
func withLabelKeys(selector *metav1.LabelSelector, l map[string]string, match, mismatch []string) (labels.Selector, error) {
	sel, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || selector == nil {
		return sel, err
	}
	for _, list := range [...]struct {
		keys []string
		op   metav1.LabelSelectorOperator
	}{{match, metav1.LabelSelectorOpIn}, {mismatch, metav1.LabelSelectorOpNotIn}} {
		for _, k := range list.keys {
			v, ok := l[k]
			if !ok {
				continue
			}
			more, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: k, Operator: list.op, Values: []string{v}}}})
			if err != nil {
				return nil, err
			}
			reqs, _ := more.Requirements()
			sel = sel.DeepCopySelector().Add(reqs...)
		}
	}
	return sel, nil
}

// cross is every combination of one set of a with one of each list of b that does not
// contradict itself.
func cross(a []requirements.Set, b [][]requirements.Set) []requirements.Set {
	out := a
	for _, list := range b {
		var next []requirements.Set
		for _, x := range out {
			for _, y := range list {
				if x.Intersects(y) != nil {
					continue
				}
				z := x.Clone()
				z.AddSet(y)
				next = append(next, z)
				if len(next) > maxAlternatives {
					break
				}
			}
		}
		out = next
	}
	return out
}

// cross1 merges a with the first alternative of every volume: an unsatisfiable set that
// still says what was asked for.
func cross1(a requirements.Set, b [][]requirements.Set) requirements.Set {
	z := a.Clone()
	for _, list := range b {
		if len(list) > 0 {
			z.AddSet(list[0])
		}
	}
	return z
}

// maxAlternatives bounds the cross product of volumes with several places each.
const maxAlternatives = 256

// matchSelectors fills Class.Matches. Selectors with an equality are found through it.
func (c *classer) matchSelectors() {
	type kv struct{ key, value string }
	byLabel := map[kv][]int32{}
	var rest []int32
	for i, s := range c.selectors {
		var first *kv
		reqs, selectable := s.Labels.Requirements()
		if !selectable {
			continue
		}
		for _, r := range reqs {
			if v := r.ValuesUnsorted(); len(v) == 1 && (r.Operator() == "=" || r.Operator() == "==" || r.Operator() == "in") {
				first = &kv{r.Key(), v[0]}
				break
			}
		}
		if first != nil {
			byLabel[*first] = append(byLabel[*first], int32(i))
		} else {
			rest = append(rest, int32(i))
		}
	}
	classes := slices.Clone(c.classes)
	for _, d := range c.b.snap.Daemons {
		classes = append(classes, d.Class)
	}
	for _, cl := range classes {
		try := func(list []int32) {
			for _, i := range list {
				if c.selectors[i].matches(cl.Namespace, cl.Labels) {
					cl.Matches = append(cl.Matches, i)
				}
			}
		}
		try(rest)
		for k, v := range cl.Labels {
			try(byLabel[kv{k, v}])
		}
		sortIndexes(cl.Matches)
	}
}

func (s *Selector) matches(namespace string, l map[string]string) bool {
	if !s.All {
		if _, ok := slices.BinarySearch(s.Namespaces, namespace); !ok {
			return false
		}
	}
	return s.Labels.Matches(labels.Set(l))
}

// noteSelector records the pod labels that s looks at.
func (c *classer) noteSelector(s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	for k := range s.MatchLabels {
		c.labelKeys[k] = true
	}
	for i := range s.MatchExpressions {
		c.labelKeys[s.MatchExpressions[i].Key] = true
	}
}

// notePod records the pod labels that the constraints of pod look at.
func (c *classer) notePod(pod *corev1.Pod) {
	for i := range pod.Spec.TopologySpreadConstraints {
		s := &pod.Spec.TopologySpreadConstraints[i]
		c.noteSelector(s.LabelSelector)
		c.noteKeys(s.MatchLabelKeys)
	}
	a := pod.Spec.Affinity
	if a == nil {
		return
	}
	term := func(t *corev1.PodAffinityTerm) {
		c.noteSelector(t.LabelSelector)
		c.noteKeys(t.MatchLabelKeys)
		c.noteKeys(t.MismatchLabelKeys)
	}
	if p := a.PodAffinity; p != nil {
		for i := range p.RequiredDuringSchedulingIgnoredDuringExecution {
			term(&p.RequiredDuringSchedulingIgnoredDuringExecution[i])
		}
		for i := range p.PreferredDuringSchedulingIgnoredDuringExecution {
			term(&p.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm)
		}
	}
	if p := a.PodAntiAffinity; p != nil {
		for i := range p.RequiredDuringSchedulingIgnoredDuringExecution {
			term(&p.RequiredDuringSchedulingIgnoredDuringExecution[i])
		}
		for i := range p.PreferredDuringSchedulingIgnoredDuringExecution {
			term(&p.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm)
		}
	}
}

func (c *classer) noteKeys(keys []string) {
	for _, k := range keys {
		c.labelKeys[k] = true
	}
}

func sortIndexes(l []int32) { slices.SortFunc(l, cmp.Compare[int32]) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
