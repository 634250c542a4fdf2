package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// cluster is what kube-scheduler would look at: a slow reading of its rules, made from
// Kubernetes objects and sharing nothing with the packages it checks.
type cluster struct {
	objs       *snapshot.Objects
	nodes      []*machine
	byName     map[string]*machine
	pods       map[snapshot.PodKey]*corev1.Pod
	namespaces map[string]labels.Set
	defaults   []corev1.TopologySpreadConstraint
}

// machine is a node with its pods.
type machine struct {
	*corev1.Node
	pods   []*corev1.Pod
	attach map[string]int64
}

func newCluster(objs *snapshot.Objects, defaults []corev1.TopologySpreadConstraint) *cluster {
	c := &cluster{objs: objs, byName: map[string]*machine{}, pods: map[snapshot.PodKey]*corev1.Pod{}, namespaces: map[string]labels.Set{}, defaults: defaults}
	attach := map[string]map[string]int64{}
	for _, n := range objs.CSINodes {
		attach[n.Name] = map[string]int64{}
		for _, d := range n.Spec.Drivers {
			if d.Allocatable != nil && d.Allocatable.Count != nil {
				attach[n.Name][d.Name] = int64(*d.Allocatable.Count)
			}
		}
	}
	for _, n := range objs.Nodes {
		c.add(&machine{Node: started(n, objs.NodeClaims), attach: attach[n.Name]})
	}
	for _, ns := range objs.Namespaces {
		c.namespaces[ns.Name] = ns.Labels
	}
	for _, p := range objs.Pods {
		c.pods[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
		if c.namespaces[p.Namespace] == nil {
			c.namespaces[p.Namespace] = labels.Set{corev1.LabelMetadataName: p.Namespace}
		}
		if m := c.byName[p.Spec.NodeName]; m != nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			m.pods = append(m.pods, p)
		}
	}
	return c
}

// started is n as it will be once it is initialised: without its startup taints.
func started(n *corev1.Node, claims []*karpv1.NodeClaim) *corev1.Node {
	for _, claim := range claims {
		if claim.Status.NodeName != n.Name || n.Labels[karpv1.NodeInitializedLabelKey] == "true" {
			continue
		}
		n = n.DeepCopy()
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return slices.ContainsFunc(claim.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(&t) })
		})
		if len(n.Status.Allocatable) == 0 {
			n.Status.Allocatable = claim.Status.Allocatable
		}
	}
	return n
}

func (c *cluster) add(m *machine) {
	c.nodes = append(c.nodes, m)
	c.byName[m.Name] = m
}

// launch adds a node of the plan.
func (c *cluster) launch(n *schedule.NewNode, cat *catalog.Catalog) {
	node := machineOf(n, n.Name, cat)
	m := &machine{Node: node}
	if it, ok := cat.ByName(n.Planned.InstanceType); ok {
		m.attach = it.AttachLimits
	}
	c.add(m)
}

// machineOf is the Kubernetes node that a planned node becomes.
func machineOf(n *schedule.NewNode, name string, cat *catalog.Catalog) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: maps.Clone(n.Labels)}}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	node.Labels[corev1.LabelHostname] = name
	node.Labels[karpv1.NodePoolLabelKey] = n.Pool
	node.Labels[karpv1.NodeInitializedLabelKey], node.Labels[karpv1.NodeRegisteredLabelKey] = "true", "true"
	node.Spec.Taints = n.Taints
	if it, ok := cat.ByName(n.Planned.InstanceType); ok {
		node.Status.Capacity, node.Status.Allocatable = it.Capacity.Quantities(), it.Allocatable.Quantities()
	}
	return node
}

// refuses says why kube-scheduler would not put pod on m now; empty if it would.
func (c *cluster) refuses(pod *corev1.Pod, m *machine) string {
	for _, rule := range []func(*corev1.Pod, *machine) string{c.taints, c.affinityToNode, c.room, c.ports, c.volumes, c.spread, c.apart, c.near} {
		if why := rule(pod, m); why != "" {
			return why
		}
	}
	return ""
}

func (c *cluster) taints(pod *corev1.Pod, m *machine) string {
	if m.Spec.Unschedulable {
		return "the node is cordoned"
	}
	for i := range m.Spec.Taints {
		t := &m.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(pod.Spec.Tolerations, func(o corev1.Toleration) bool { return tolerates(&o, t) }) {
			return "taint " + t.ToString()
		}
	}
	return ""
}

func tolerates(o *corev1.Toleration, t *corev1.Taint) bool {
	switch {
	case o.Effect != "" && o.Effect != t.Effect:
		return false
	case o.Operator == corev1.TolerationOpExists:
		return o.Key == "" || o.Key == t.Key
	}
	return o.Key == t.Key && o.Value == t.Value
}

func (c *cluster) affinityToNode(pod *corev1.Pod, m *machine) string {
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(m.Node); err != nil || !ok {
		return "node selector or affinity"
	}
	return ""
}

func requests(pod *corev1.Pod) corev1.ResourceList {
	r := podresource.PodRequests(pod, podresource.PodResourcesOptions{})
	r[corev1.ResourcePods] = resource.MustParse("1")
	return r
}

func sum(into, l corev1.ResourceList) {
	for name, q := range l {
		have := into[name]
		have.Add(q)
		into[name] = have
	}
}

// daemons are the pods that DaemonSets will still put on m.
func (c *cluster) daemons(m *machine) []*corev1.Pod {
	var out []*corev1.Pod
	for _, ds := range c.objs.DaemonSets {
		if slices.ContainsFunc(m.pods, func(p *corev1.Pod) bool {
			o := metav1.GetControllerOf(p)
			return o != nil && o.Kind == "DaemonSet" && o.Name == ds.Name && p.Namespace == ds.Namespace
		}) {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ds.Namespace, Name: ds.Name, Labels: ds.Spec.Template.Labels}, Spec: *ds.Spec.Template.Spec.DeepCopy()}
		if c.taints(pod, m) == "" && c.affinityToNode(pod, m) == "" {
			out = append(out, pod)
		}
	}
	return out
}

func (c *cluster) room(pod *corev1.Pod, m *machine) string {
	used := corev1.ResourceList{}
	for _, p := range append(slices.Clone(m.pods), c.daemons(m)...) {
		sum(used, requests(p))
	}
	for name, want := range requests(pod) {
		if want.IsZero() {
			continue
		}
		total := used[name].DeepCopy()
		total.Add(want)
		if have := m.Status.Allocatable[name]; total.Cmp(have) > 0 {
			return fmt.Sprintf("%s: %s wanted in all of %s", name, total.String(), have.String())
		}
	}
	return ""
}

func hostPorts(pod *corev1.Pod) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	for _, list := range [...][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.HostPort > 0 {
					p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
					out = append(out, p)
				}
			}
		}
	}
	return out
}

func (c *cluster) ports(pod *corev1.Pod, m *machine) string {
	anyIP := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	for _, want := range hostPorts(pod) {
		for _, p := range append(slices.Clone(m.pods), c.daemons(m)...) {
			for _, have := range hostPorts(p) {
				if have.HostPort == want.HostPort && have.Protocol == want.Protocol && (anyIP(have.HostIP) || anyIP(want.HostIP) || have.HostIP == want.HostIP) {
					return fmt.Sprintf("host port %d", want.HostPort)
				}
			}
		}
	}
	return ""
}

// claimsOf are the claims of a pod's volumes; missing ones are nil.
func (c *cluster) claimsOf(pod *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		i := slices.IndexFunc(c.objs.PersistentVolumeClaims, func(p *corev1.PersistentVolumeClaim) bool {
			return p.Namespace == pod.Namespace && p.Name == v.PersistentVolumeClaim.ClaimName
		})
		if i < 0 {
			out = append(out, nil)
			continue
		}
		out = append(out, c.objs.PersistentVolumeClaims[i])
	}
	return out
}

// place is the driver and identity of a claim's volume, and the nodes that reach it; a
// nil selector is all.
func (c *cluster) place(claim *corev1.PersistentVolumeClaim) (driver, id string, nodes []corev1.NodeSelectorTerm) {
	if claim.Spec.VolumeName != "" {
		for _, pv := range c.objs.PersistentVolumes {
			if pv.Name != claim.Spec.VolumeName {
				continue
			}
			if pv.Spec.CSI != nil {
				driver, id = pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
			}
			if pv.Spec.NodeAffinity != nil && pv.Spec.NodeAffinity.Required != nil {
				nodes = pv.Spec.NodeAffinity.Required.NodeSelectorTerms
			}
		}
		return driver, id, nodes
	}
	i := slices.IndexFunc(c.objs.StorageClasses, func(s *storagev1.StorageClass) bool {
		return claim.Spec.StorageClassName != nil && s.Name == *claim.Spec.StorageClassName
	})
	if i < 0 {
		return "", "", nil
	}
	for _, t := range c.objs.StorageClasses[i].AllowedTopologies {
		var term corev1.NodeSelectorTerm
		for _, e := range t.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values})
		}
		nodes = append(nodes, term)
	}
	return c.objs.StorageClasses[i].Provisioner, claim.Namespace + "/" + claim.Name, nodes
}

func (c *cluster) volumes(pod *corev1.Pod, m *machine) string {
	attached := map[string]map[string]bool{}
	for _, p := range append(slices.Clone(m.pods), pod) {
		for _, claim := range c.claimsOf(p) {
			if claim == nil {
				if p == pod {
					return "a claim does not exist"
				}
				continue
			}
			driver, id, nodes := c.place(claim)
			if attached[driver] == nil {
				attached[driver] = map[string]bool{}
			}
			attached[driver][id] = true
			if p != pod || nodes == nil {
				continue
			}
			sel, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: nodes})
			if err != nil || !sel.Match(m.Node) {
				return "volume of claim " + claim.Name
			}
		}
	}
	for driver, limit := range m.attach {
		if n := int64(len(attached[driver])); n > limit && len(c.claimsOf(pod)) > 0 {
			return fmt.Sprintf("%d volumes of %s, %d attach", n, driver, limit)
		}
	}
	return ""
}

// keyed is a selector narrowed by the pod's own values of labels.
func keyed(sel *metav1.LabelSelector, pod *corev1.Pod, match, mismatch []string) labels.Selector {
	if sel == nil {
		return labels.Nothing()
	}
	sel = sel.DeepCopy()
	for _, k := range match {
		if v, ok := pod.Labels[k]; ok {
			sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpIn, Values: []string{v}})
		}
	}
	for _, k := range mismatch {
		if v, ok := pod.Labels[k]; ok {
			sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpNotIn, Values: []string{v}})
		}
	}
	s, err := metav1.LabelSelectorAsSelector(sel)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

func (c *cluster) constraints(pod *corev1.Pod) []corev1.TopologySpreadConstraint {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		return pod.Spec.TopologySpreadConstraints
	}
	sel := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, s := range c.objs.Services {
		if s.Namespace == pod.Namespace && len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			maps.Copy(sel.MatchLabels, s.Spec.Selector)
		}
	}
	if o := metav1.GetControllerOf(pod); o != nil && o.Kind == "ReplicaSet" {
		for _, rs := range c.objs.ReplicaSets {
			if rs.Namespace == pod.Namespace && rs.Name == o.Name && rs.Spec.Selector != nil {
				maps.Copy(sel.MatchLabels, rs.Spec.Selector.MatchLabels)
				sel.MatchExpressions = append(sel.MatchExpressions, rs.Spec.Selector.MatchExpressions...)
			}
		}
	}
	if len(sel.MatchLabels)+len(sel.MatchExpressions) == 0 {
		return nil
	}
	out := slices.Clone(c.defaults)
	for i := range out {
		out[i].LabelSelector = sel
	}
	return out
}

func (c *cluster) spread(pod *corev1.Pod, m *machine) string {
	hard := slices.DeleteFunc(slices.Clone(c.constraints(pod)), func(s corev1.TopologySpreadConstraint) bool {
		return s.WhenUnsatisfiable != corev1.DoNotSchedule
	})
	for _, s := range hard {
		here, ok := m.Labels[s.TopologyKey]
		if !ok {
			return "spread: the node has no label " + s.TopologyKey
		}
		sel := keyed(s.LabelSelector, pod, s.MatchLabelKeys, nil)
		counts := map[string]int{}
		for _, n := range c.nodes {
			if slices.ContainsFunc(hard, func(o corev1.TopologySpreadConstraint) bool { _, ok := n.Labels[o.TopologyKey]; return !ok }) {
				continue
			}
			if (s.NodeAffinityPolicy == nil || *s.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor) && c.affinityToNode(pod, n) != "" {
				continue
			}
			if s.NodeTaintsPolicy != nil && *s.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor && c.taints(pod, n) != "" {
				continue
			}
			counts[n.Labels[s.TopologyKey]] += 0
			for _, p := range n.pods {
				if p.Namespace == pod.Namespace && p.DeletionTimestamp == nil && sel.Matches(labels.Set(p.Labels)) {
					counts[n.Labels[s.TopologyKey]]++
				}
			}
		}
		least := 0
		if len(counts) > 0 {
			least = slices.Min(slices.Collect(maps.Values(counts)))
		}
		if s.MinDomains != nil && len(counts) < int(*s.MinDomains) {
			least = 0
		}
		then := counts[here]
		if sel.Matches(labels.Set(pod.Labels)) {
			then++
		}
		if then-least > int(s.MaxSkew) {
			return fmt.Sprintf("spread over %s: %d in %q, %d elsewhere, max skew %d", s.TopologyKey, then, here, least, s.MaxSkew)
		}
	}
	return ""
}

// selects reports whether a term of owner selects p.
func (c *cluster) selects(owner *corev1.Pod, t *corev1.PodAffinityTerm, p *corev1.Pod) bool {
	in := slices.Contains(t.Namespaces, p.Namespace)
	if t.NamespaceSelector != nil {
		sel, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
		in = in || err == nil && sel.Matches(c.namespaces[p.Namespace])
	} else if len(t.Namespaces) == 0 {
		in = p.Namespace == owner.Namespace
	}
	return in && keyed(t.LabelSelector, owner, t.MatchLabelKeys, t.MismatchLabelKeys).Matches(labels.Set(p.Labels))
}

func sameDomain(a, b *machine, key string) bool {
	va, oka := a.Labels[key]
	vb, okb := b.Labels[key]
	return oka && okb && va == vb
}

func apartTerms(p *corev1.Pod) []corev1.PodAffinityTerm {
	if p.Spec.Affinity == nil || p.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func (c *cluster) apart(pod *corev1.Pod, m *machine) string {
	for _, n := range c.nodes {
		for _, p := range n.pods {
			for _, t := range apartTerms(pod) {
				if sameDomain(m, n, t.TopologyKey) && c.selects(pod, &t, p) {
					return fmt.Sprintf("anti-affinity over %s to %s", t.TopologyKey, p.Name)
				}
			}
			for _, t := range apartTerms(p) {
				if sameDomain(m, n, t.TopologyKey) && c.selects(p, &t, pod) {
					return fmt.Sprintf("anti-affinity over %s of %s", t.TopologyKey, p.Name)
				}
			}
		}
	}
	return ""
}

func (c *cluster) near(pod *corev1.Pod, m *machine) string {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAffinity == nil {
		return ""
	}
	terms := pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	all := func(p *corev1.Pod) bool {
		return !slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return !c.selects(pod, &t, p) })
	}
	anywhere := false
	missing := ""
	for _, t := range terms {
		found := false
		for _, n := range c.nodes {
			for _, p := range n.pods {
				if _, labelled := n.Labels[t.TopologyKey]; labelled && all(p) {
					anywhere = true
					found = found || sameDomain(m, n, t.TopologyKey)
				}
			}
		}
		if _, labelled := m.Labels[t.TopologyKey]; !labelled {
			return "affinity: the node has no label " + t.TopologyKey
		}
		if !found {
			missing = "affinity over " + t.TopologyKey
		}
	}
	if missing != "" && !anywhere && all(pod) {
		return ""
	}
	return missing
}

// check replays plan and returns what is wrong with it: I6, and I1 at the end.
func check(p *Problem, plan schedule.Plan) []string {
	c := newCluster(&p.Objects, p.Snapshot.DefaultSpread)
	var wrong []string
	fail := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	cat := p.Snapshot.Catalog
	for i := range plan.NewNodes {
		c.launch(&plan.NewNodes[i], cat)
	}
	wrong = append(wrong, checkPurchases(p, plan)...)
	seen := map[snapshot.PodKey]bool{}
	for _, a := range plan.Assignments {
		pod, m := c.pods[a.Pod], c.byName[a.Node]
		if pod == nil || m == nil || pod.Spec.NodeName != "" || seen[a.Pod] {
			fail("I6: the plan assigns %s to %s, one of which is unknown, bound or assigned before", a.Pod, a.Node)
			continue
		}
		seen[a.Pod] = true
		if why := c.refuses(pod, m); why != "" {
			fail("I6: %s does not go to %s: %s", a.Pod, a.Node, why)
		}
		m.pods = append(m.pods, pod)
	}
	for _, u := range plan.Unscheduled {
		pod := c.pods[u.Pod]
		if pod == nil || seen[u.Pod] {
			fail("I6: unscheduled pod %s is unknown or assigned", u.Pod)
			continue
		}
		seen[u.Pod] = true
		for _, m := range c.nodes {
			if c.refuses(pod, m) == "" {
				fail("I1: %s stays pending, and %s would take it", u.Pod, m.Name)
			}
		}
		if len(u.Reasons) == 0 {
			fail("I7: %s stays pending without a reason", u.Pod)
		}
	}
	for key, pod := range c.pods {
		if o := metav1.GetControllerOf(pod); pod.Spec.NodeName == "" && !seen[key] && (o == nil || o.Kind != "DaemonSet") {
			fail("I6: %s is neither assigned nor unscheduled", key)
		}
	}
	slices.Sort(wrong)
	return wrong
}

// checkPurchases holds new nodes against the catalogue, their pools and the limits.
func checkPurchases(p *Problem, plan schedule.Plan) []string {
	var wrong []string
	fail := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	pools := map[string]*karpv1.NodePool{}
	use := map[string]corev1.ResourceList{}
	add := func(pool string, capacity corev1.ResourceList) {
		if use[pool] == nil {
			use[pool] = corev1.ResourceList{}
		}
		sum(use[pool], capacity)
		sum(use[pool], corev1.ResourceList{"nodes": resource.MustParse("1")})
	}
	for _, np := range p.Objects.NodePools {
		pools[np.Name] = np
	}
	for _, n := range p.Objects.Nodes {
		add(n.Labels[karpv1.NodePoolLabelKey], n.Status.Capacity)
	}
	var total catalog.Price
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		total += n.Planned.Cost
		np := pools[n.Pool]
		it, ok := p.Snapshot.Catalog.ByName(n.Planned.InstanceType)
		if np == nil || !ok {
			fail("I6: node %s: pool %q or type %q is unknown", n.Name, n.Pool, n.Planned.InstanceType)
			continue
		}
		add(n.Pool, it.Capacity.Quantities())
		if !slices.ContainsFunc(it.Offerings, func(o catalog.Offering) bool {
			return o.Zone == n.Planned.Zone && o.CapacityType == n.Planned.CapacityType && o.ReservationID == n.Planned.ReservationID && !o.Unavailable
		}) {
			fail("I6: node %s: offering %s/%s/%s cannot be bought", n.Name, n.Planned.InstanceType, n.Planned.Zone, n.Planned.CapacityType)
		}
		if n.Planned.Zone != "" && n.Labels[corev1.LabelTopologyZone] != n.Planned.Zone || n.Labels[karpv1.CapacityTypeLabelKey] != n.Planned.CapacityType ||
			n.Labels[corev1.LabelInstanceTypeStable] != n.Planned.InstanceType {
			fail("I6: node %s: labels %v are not those of its offering", n.Name, n.Labels)
		}
		for _, r := range np.Spec.Template.Spec.Requirements {
			v, ok := n.Labels[r.Key]
			bad := r.Operator == corev1.NodeSelectorOpIn && (!ok || !slices.Contains(r.Values, v)) || r.Operator == corev1.NodeSelectorOpNotIn && ok && slices.Contains(r.Values, v)
			if bad {
				fail("I6: node %s: label %s=%q is not what pool %s requires", n.Name, r.Key, v, n.Pool)
			}
		}
	}
	if p.Solve.Costs == nil && total != plan.Cost {
		fail("the plan's cost %v is not that of its nodes, %v", plan.Cost, total)
	}
	if plan.Bound > plan.Cost {
		fail("the plan's bound %v is above its cost %v", plan.Bound, plan.Cost)
	}
	for name, np := range pools {
		for key, limit := range np.Spec.Limits {
			have := use[name][key]
			if have.Cmp(limit) > 0 && slices.ContainsFunc(plan.NewNodes, func(n schedule.NewNode) bool { return n.Pool == name }) {
				fail("I6: pool %s: %s %s is above the limit of %s", name, have.String(), key, limit.String())
			}
		}
	}
	return wrong
}
