package snapshot

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// addNodes makes the nodes that can take pods, and the names of those being deleted.
// A NodeClaim without a Node is a node in flight.
func (b *builder) addNodes() (byName map[string]*Node, leaving map[string]bool) {
	byName, leaving = map[string]*Node{}, map[string]bool{}
	byProvider := map[string]*karpv1.NodeClaim{}
	// A Node may be seen before the claim says which machine it has. One that has the
	// claim's name is the claim's: else the claim would count for nothing meanwhile.
	byClaimName := map[string]*karpv1.NodeClaim{}
	for _, c := range b.objs.NodeClaims {
		if c.Status.NodeName == "" && c.Status.ProviderID == "" {
			byClaimName[c.Name] = c
		}
		if c.Status.NodeName != "" {
			b.claims[c.Status.NodeName] = c
		}
		if c.Status.ProviderID != "" {
			byProvider[c.Status.ProviderID] = c
		}
	}
	csi := make(map[string]*storagev1.CSINode, len(b.objs.CSINodes))
	for _, n := range b.objs.CSINodes {
		csi[n.Name] = n
	}
	served := map[*karpv1.NodeClaim]bool{}
	for _, n := range b.objs.Nodes {
		claim := b.claims[n.Name]
		if claim == nil && n.Spec.ProviderID != "" {
			claim = byProvider[n.Spec.ProviderID]
		}
		if claim == nil && n.Labels[karpv1.NodeRegisteredLabelKey] == "" {
			claim = byClaimName[n.Name]
		}
		if claim != nil {
			served[claim] = true
		}
		if n.DeletionTimestamp != nil || claim != nil && b.leaving(claim) {
			leaving[n.Name] = true
			continue
		}
		if byName[n.Name] != nil {
			b.problem("Node", n, "metadata.name", "appears twice: the second is left out")
			continue
		}
		byName[n.Name] = b.known(n.Name, n, claim, csi[n.Name])
	}
	for _, c := range b.objs.NodeClaims {
		if served[c] || b.leaving(c) {
			continue
		}
		if byName[c.Name] != nil {
			b.problem("NodeClaim", c, "metadata.name", "a node or claim of this name is there already: the claim is left out")
			continue
		}
		byName[c.Name] = b.known(c.Name, nil, c, nil)
	}
	for _, name := range sortedKeys(byName) {
		b.snap.Nodes = append(b.snap.Nodes, byName[name])
	}
	return byName, leaving
}

// known makes a node of its objects, unless it has been made of the same ones before.
func (b *builder) known(name string, n *corev1.Node, claim *karpv1.NodeClaim, csi *storagev1.CSINode) *Node {
	var offered *catalog.Catalog
	pool := ""
	if claim != nil {
		pool = claim.Labels[karpv1.NodePoolLabelKey]
	} else if n != nil {
		pool = n.Labels[karpv1.NodePoolLabelKey]
	}
	if p := b.pools[pool]; p != nil {
		offered = p.Catalog
	}
	k := b.memo.nodes[name]
	if k == nil || k.node != n || k.claim != claim || k.csi != csi || k.catalog != offered {
		k = &knownNode{node: n, claim: claim, csi: csi, catalog: offered}
		problems := len(b.problems)
		if n != nil {
			k.made = b.node(n, claim)
		} else {
			k.made = b.inFlight(claim)
		}
		if csi != nil {
			k.made.AttachLimits = publishedLimits(csi)
		}
		if b.memo.nodes != nil && len(b.problems) == problems { // what has a problem tells it every time
			b.memo.nodes[name] = k
		}
	}
	k.build = b.memo.build
	node := *k.made
	node.Used, node.DaemonReserve = resources.List{}, resources.List{}
	return &node
}

// publishedLimits are the attach limits that the drivers on a node have published.
func publishedLimits(n *storagev1.CSINode) map[string]int64 {
	limits := map[string]int64{}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
	return limits
}

// leaving reports whether the node of a claim is going for good.
func (b *builder) leaving(c *karpv1.NodeClaim) bool {
	if c.DeletionTimestamp != nil || b.opts.Leaving[c.Name] {
		return true
	}
	status, _, _ := condition(c.Status.Conditions, karpv1.ConditionInstanceTerminating)
	return status == metav1.ConditionTrue
}

func (b *builder) node(n *corev1.Node, claim *karpv1.NodeClaim) *Node {
	node := &Node{
		Name: n.Name, Pool: n.Labels[karpv1.NodePoolLabelKey], Labels: maps.Clone(n.Labels),
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Labels[corev1.LabelHostname] == "" {
		node.Labels[corev1.LabelHostname] = n.Name
	}
	var err error
	if node.Allocatable, err = resources.FromQuantities(n.Status.Allocatable); err != nil {
		b.problem("Node", n, "status.allocatable", "%v", err)
	}
	if len(n.Status.Allocatable) == 0 {
		node.Allocatable, _ = resources.FromQuantities(n.Status.Capacity)
	}
	if node.Capacity, err = resources.FromQuantities(n.Status.Capacity); err != nil {
		b.problem("Node", n, "status.capacity", "%v", err)
	}
	if len(n.Status.Capacity) == 0 {
		node.Capacity = node.Allocatable
	}
	managed := claim != nil || node.Pool != ""
	node.Initialized = !managed || n.Labels[karpv1.NodeInitializedLabelKey] == "true"
	taints := n.Spec.Taints
	if claim != nil {
		node.Claim, node.Pool = claim.Name, claim.Labels[karpv1.NodePoolLabelKey]
		b.fillFromClaim(node, claim)
	}
	if !node.Initialized {
		taints = withoutEphemeral(taints, claim)
	}
	node.Taints = slices.Clone(taints)
	if n.Spec.Unschedulable && !slices.ContainsFunc(node.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable }) {
		node.Taints = append(node.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	return node
}

// fillFromClaim adds what an uninitialised node does not report yet.
func (b *builder) fillFromClaim(node *Node, claim *karpv1.NodeClaim) {
	if node.Initialized {
		return
	}
	for _, f := range [...]struct {
		have *resources.List
		from corev1.ResourceList
	}{{&node.Allocatable, claim.Status.Allocatable}, {&node.Capacity, claim.Status.Capacity}} {
		list, err := resources.FromQuantities(f.from)
		if err != nil {
			b.problem("NodeClaim", claim, "status", "%v", err)
		}
		for name, v := range list {
			if (*f.have)[name] == 0 {
				(*f.have)[name] = v
			}
		}
	}
	for k, v := range claim.Labels {
		if _, ok := node.Labels[k]; !ok {
			node.Labels[k] = v
		}
	}
	node.AttachLimits = b.attachLimits(node)
}

// attachLimits are those of the node's instance type, until its drivers publish theirs.
func (b *builder) attachLimits(node *Node) map[string]int64 {
	if p := b.pools[node.Pool]; p != nil && p.Catalog != nil {
		if it, ok := p.Catalog.ByName(node.Labels[corev1.LabelInstanceTypeStable]); ok {
			return it.AttachLimits
		}
	}
	return nil
}

// inFlight makes the node that a NodeClaim will become. What is not known before launch
// is assumed at its least: every instance type the claim allows has at least that.
func (b *builder) inFlight(c *karpv1.NodeClaim) *Node {
	node := &Node{
		Name: c.Name, Claim: c.Name, Pool: c.Labels[karpv1.NodePoolLabelKey], InFlight: true,
		Labels: map[string]string{corev1.LabelHostname: c.Name}, Taints: slices.Clone(c.Spec.Taints),
	}
	reqs := claimRequirements(c)
	for key, r := range reqs {
		if v, ok := r.IsSingle(); ok {
			node.Labels[key] = v
		}
	}
	maps.Copy(node.Labels, c.Labels)
	node.Labels[karpv1.NodeRegisteredLabelKey], node.Labels[karpv1.NodeInitializedLabelKey] = "true", "true"
	node.Allocatable, _ = resources.FromQuantities(c.Status.Allocatable)
	node.Capacity, _ = resources.FromQuantities(c.Status.Capacity)
	if len(node.Allocatable) == 0 {
		b.assumeLeast(node, c, reqs)
	}
	if node.AttachLimits == nil {
		node.AttachLimits = b.attachLimits(node)
	}
	return node
}

func (b *builder) assumeLeast(node *Node, c *karpv1.NodeClaim, reqs requirements.Set) {
	requested, err := resources.FromQuantities(c.Spec.Resources.Requests)
	if err != nil {
		b.problem("NodeClaim", c, "spec.resources.requests", "%v", err)
	}
	var least, capacity resources.List
	if p := b.pools[node.Pool]; p != nil && p.Catalog != nil {
		for _, it := range p.Catalog.Types() {
			if it.Requirements.Compatible(reqs, func(string) bool { return true }) != nil || !requested.FitsIn(it.Allocatable) {
				continue
			}
			if least == nil {
				least, capacity = it.Allocatable.Clone(), it.Capacity.Clone()
				node.AttachLimits = map[string]int64{}
				maps.Copy(node.AttachLimits, it.AttachLimits)
				continue
			}
			for name, v := range least {
				least[name] = min(v, it.Allocatable[name])
			}
			capacity.MaxWith(it.Capacity) // limits must hold whatever is launched
			for driver, n := range it.AttachLimits {
				if have, ok := node.AttachLimits[driver]; !ok || n < have {
					node.AttachLimits[driver] = n
				}
			}
		}
	}
	if least == nil {
		least, capacity = requested.Clone(), requested
	}
	least.MaxWith(requested)
	node.Allocatable, node.Capacity = least, capacity
}

func claimRequirements(c *karpv1.NodeClaim) requirements.Set {
	set := requirements.Set{}
	for _, r := range c.Spec.Requirements {
		if req, err := requirements.New(r.Key, r.Operator, r.Values...); err == nil {
			set.Add(req)
		}
	}
	return set
}

// withoutEphemeral drops the taints that are gone by the time a node is initialised.
func withoutEphemeral(taints []corev1.Taint, claim *karpv1.NodeClaim) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		switch {
		case t.Key == corev1.TaintNodeNotReady && (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute),
			t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoSchedule,
			t.Key == "node.cloudprovider.kubernetes.io/uninitialized" && t.Effect == corev1.TaintEffectNoSchedule,
			t.Key == karpv1.UnregisteredTaintKey && t.Effect == corev1.TaintEffectNoExecute,
			strings.HasPrefix(t.Key, karpv1.ReadinessTaintPrefix):
			return true
		}
		return claim != nil && slices.ContainsFunc(claim.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(&t) })
	})
}

// Tolerates reports whether tolerations allow a pod on a node with these taints.
// PreferNoSchedule never forbids.
func Tolerates(tolerations []corev1.Toleration, taints []corev1.Taint) bool {
	return Untolerated(tolerations, taints) == nil
}

// Untolerated is the first taint that keeps a pod with these tolerations off a node; nil
// if there is none.
func Untolerated(tolerations []corev1.Toleration, taints []corev1.Taint) *corev1.Taint {
	for i := range taints {
		t := &taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !toleratesTaint(tolerations, t) {
			return t
		}
	}
	return nil
}

// SoftUntolerated counts the PreferNoSchedule taints that are not tolerated.
func SoftUntolerated(tolerations []corev1.Toleration, taints []corev1.Taint) int {
	n := 0
	for i := range taints {
		if taints[i].Effect == corev1.TaintEffectPreferNoSchedule && !toleratesTaint(tolerations, &taints[i]) {
			n++
		}
	}
	return n
}

func toleratesTaint(tolerations []corev1.Toleration, t *corev1.Taint) bool {
	for i := range tolerations {
		o := &tolerations[i]
		if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
			continue
		}
		switch o.Operator {
		case "", corev1.TolerationOpEqual:
			if o.Key != "" && o.Value == t.Value {
				return true
			}
		case corev1.TolerationOpExists:
			return true
		}
	}
	return false
}

// MatchesNode reports whether a node satisfies one of the terms, as kube-scheduler reads
// them: a label the node lacks satisfies only NotIn and DoesNotExist.
func MatchesNode(terms []requirements.Set, n *Node) bool {
	for _, t := range terms {
		if MatchesLabels(t, n.Labels, n.Name) {
			return true
		}
	}
	return false
}

// MatchesLabels reports whether a node of this name and these labels satisfies term.
func MatchesLabels(term requirements.Set, labels map[string]string, name string) bool {
	for key, r := range term {
		value, ok := labels[key]
		if key == requirements.FieldName {
			value, ok = name, true
		}
		if !ok {
			value, ok = deprecatedLabel(labels, key)
		}
		if ok && !r.Has(value) || !ok && !r.AllowsAbsent() {
			return false
		}
	}
	return true
}

// deprecatedLabel looks key up under the name it had before.
func deprecatedLabel(labels map[string]string, key string) (string, bool) {
	switch key {
	case corev1.LabelTopologyZone:
		v, ok := labels[corev1.LabelFailureDomainBetaZone]
		return v, ok
	case corev1.LabelTopologyRegion:
		v, ok := labels[corev1.LabelFailureDomainBetaRegion]
		return v, ok
	case corev1.LabelInstanceTypeStable:
		v, ok := labels[corev1.LabelInstanceType]
		return v, ok
	case corev1.LabelArchStable:
		v, ok := labels["beta.kubernetes.io/arch"]
		return v, ok
	case corev1.LabelOSStable:
		v, ok := labels["beta.kubernetes.io/os"]
		return v, ok
	}
	return "", false
}

// condition returns the status of the condition of that kind; found is false without one.
func condition(list []metav1.Condition, kind string) (status metav1.ConditionStatus, message string, found bool) {
	for i := range list {
		if list[i].Type == kind {
			return list[i].Status, list[i].Message, true
		}
	}
	return "", "", false
}
