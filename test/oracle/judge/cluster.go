package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/controller/daemon"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

// cluster is a problem as a scheduler would see it: the objects after the API server's
// defaults, without what is on its way out, and with the nodes of claims in flight.
type cluster struct {
	world
	pools   map[string]*karpv1.NodePool
	types   map[string]*catalog.InstanceType
	daemons []*appsv1.DaemonSet
	ranges  []*corev1.LimitRange
	bound   []*corev1.Pod
	// pending are the pods that must appear in a plan; moving those of nodes that are
	// being deleted, which may.
	pending, moving map[snapshot.PodKey]*corev1.Pod
	// pool and capacity of the managed nodes.
	usage map[string]resources.List
	// topology keys by driver, as some node publishes them.
	topology map[string][]string
}

func newCluster(c *problem.Problem) *cluster {
	o := &c.Objects
	k := &cluster{
		pools: map[string]*karpv1.NodePool{}, types: map[string]*catalog.InstanceType{}, pending: map[snapshot.PodKey]*corev1.Pod{},
		moving: map[snapshot.PodKey]*corev1.Pod{}, usage: map[string]resources.List{}, topology: map[string][]string{}, daemons: o.DaemonSets, ranges: o.LimitRanges,
	}
	for _, p := range o.NodePools {
		k.pools[p.Name] = p
	}
	for i := range c.Types {
		k.types[c.Types[i].Name] = &c.Types[i]
	}
	k.classes, k.services, k.controllers, k.replicaSets, k.statefulSets = o.StorageClasses, o.Services, o.ReplicationControllers, o.ReplicaSets, o.StatefulSets
	k.csiNodes = slices.Clone(o.CSINodes)
	for _, n := range o.CSINodes {
		for _, d := range n.Spec.Drivers {
			if len(d.TopologyKeys) > 0 {
				k.topology[d.Name] = d.TopologyKeys
			}
		}
	}
	leaving := k.addNodes(o)
	k.addPods(o, leaving)
	k.addNamespaces(o)
	k.addClaims(o)
	return k
}

func isTrue(n *corev1.Node, label string) bool { return n.Labels[label] == "true" }

// addNodes settles the existing nodes and returns those being deleted.
func (k *cluster) addNodes(o *snapshot.Objects) map[string]bool {
	leaving := map[string]bool{}
	served := map[string]bool{}
	claimOf := func(n *corev1.Node) *karpv1.NodeClaim {
		for _, c := range o.NodeClaims {
			if c.Status.NodeName == n.Name || n.Spec.ProviderID != "" && c.Status.ProviderID == n.Spec.ProviderID {
				return c
			}
		}
		return nil
	}
	for _, n := range o.Nodes {
		claim := claimOf(n)
		if claim != nil {
			served[claim.Name] = true
		}
		if n.DeletionTimestamp != nil || claim != nil && claim.DeletionTimestamp != nil {
			leaving[n.Name] = true
			continue
		}
		n = n.DeepCopy()
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Labels[corev1.LabelHostname] == "" {
			n.Labels[corev1.LabelHostname] = n.Name
		}
		pool := n.Labels[karpv1.NodePoolLabelKey]
		if claim != nil {
			pool = claim.Labels[karpv1.NodePoolLabelKey]
		}
		if pool != "" && !isTrue(n, karpv1.NodeInitializedLabelKey) {
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return passing(&t, claim) })
			if claim != nil {
				for name, q := range claim.Status.Allocatable {
					if have, ok := n.Status.Allocatable[name]; !ok || have.IsZero() {
						metav1.SetMetaDataLabel(&n.ObjectMeta, karpv1.NodePoolLabelKey, pool)
						if n.Status.Allocatable == nil {
							n.Status.Allocatable = corev1.ResourceList{}
						}
						n.Status.Allocatable[name] = q
					}
				}
			}
		}
		k.nodes = append(k.nodes, n)
		if pool != "" && !isTrue(n, karpv1.NodeInitializedLabelKey) {
			k.publish(n)
		}
		if pool != "" {
			k.use(pool, n.Status.Capacity)
		}
	}
	for _, c := range o.NodeClaims {
		if served[c.Name] || c.DeletionTimestamp != nil {
			continue
		}
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{corev1.LabelHostname: c.Name}},
			Spec:       corev1.NodeSpec{Taints: c.Spec.Taints},
			Status:     corev1.NodeStatus{Capacity: c.Status.Capacity, Allocatable: c.Status.Allocatable},
		}
		for _, r := range c.Spec.Requirements {
			if r.Operator == corev1.NodeSelectorOpIn && len(slices.Compact(slices.Sorted(slices.Values(r.Values)))) == 1 {
				n.Labels[r.Key] = r.Values[0]
			}
		}
		maps.Copy(n.Labels, c.Labels)
		if len(n.Status.Allocatable) == 0 {
			n.Status = k.least(c)
		}
		n.Labels[karpv1.NodeRegisteredLabelKey], n.Labels[karpv1.NodeInitializedLabelKey] = "true", "true"
		k.nodes = append(k.nodes, n)
		k.publish(n)
		k.use(c.Labels[karpv1.NodePoolLabelKey], n.Status.Capacity)
		for _, d := range k.daemonsOf(n) {
			k.bound = append(k.bound, d)
		}
	}
	return leaving
}

// least is the size that a claim not yet launched is certain to get: in every resource
// that of the smallest instance type that meets its requirements and holds its requests.
// Its capacity is that of the largest, since limits must hold whatever is launched.
func (k *cluster) least(c *karpv1.NodeClaim) corev1.NodeStatus {
	requests, _ := resources.FromQuantities(c.Spec.Resources.Requests)
	var allocatable, capacity resources.List
	for _, name := range slices.Sorted(maps.Keys(k.types)) {
		t := k.types[name]
		if !requests.FitsIn(t.Allocatable) || slices.ContainsFunc(c.Spec.Requirements, func(r karpv1.Requirement) bool {
			key := requirements.NormalizeKey(r.Key)
			return t.Requirements.Has(key) && !slices.ContainsFunc(t.Requirements.Get(key).Values(), func(v string) bool { return satisfies(map[string]string{key: v}, r) })
		}) {
			continue
		}
		if allocatable == nil {
			allocatable, capacity = t.Allocatable.Clone(), t.Capacity.Clone()
			continue
		}
		for res := range allocatable {
			allocatable[res] = min(allocatable[res], t.Allocatable[res])
		}
		capacity.MaxWith(t.Capacity)
	}
	if allocatable == nil {
		allocatable, capacity = requests, requests
	}
	return corev1.NodeStatus{Allocatable: allocatable.Quantities(), Capacity: capacity.Quantities()}
}

// passing reports whether a taint is gone once its node is ready for pods.
func passing(t *corev1.Taint, claim *karpv1.NodeClaim) bool {
	switch t.Key {
	case corev1.TaintNodeNotReady:
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	case corev1.TaintNodeUnreachable, "node.cloudprovider.kubernetes.io/uninitialized":
		return t.Effect == corev1.TaintEffectNoSchedule
	case karpv1.Group + "/unregistered":
		return t.Effect == corev1.TaintEffectNoExecute
	}
	if strings.HasPrefix(t.Key, "readiness.k8s.io/") {
		return true
	}
	return claim != nil && slices.ContainsFunc(claim.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(t) })
}

// publish adds the CSINode that a node not yet initialised will have.
func (k *cluster) publish(n *corev1.Node) {
	for _, c := range k.csiNodes {
		if c.Name == n.Name {
			return
		}
	}
	if t := k.types[n.Labels[corev1.LabelInstanceTypeStable]]; t != nil {
		k.csiNodes = append(k.csiNodes, k.csiNode(n.Name, t))
	}
}

func (k *cluster) csiNode(name string, t *catalog.InstanceType) *storagev1.CSINode {
	c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, driver := range slices.Sorted(maps.Keys(t.AttachLimits)) {
		count, keys := int32(t.AttachLimits[driver]), k.topology[driver]
		if keys == nil {
			keys = []string{corev1.LabelTopologyZone}
		}
		c.Spec.Drivers = append(c.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: name, TopologyKeys: keys, Allocatable: &storagev1.VolumeNodeResources{Count: &count}})
	}
	return c
}

func (k *cluster) use(pool string, capacity corev1.ResourceList) {
	if k.usage[pool] == nil {
		k.usage[pool] = resources.List{}
	}
	for name, q := range capacity {
		k.usage[pool][name] += resources.Amount(name, q)
	}
	k.usage[pool][snapshot.NodesResource]++
}

func owned(p *corev1.Pod, kind string) bool {
	return slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == kind })
}

func (k *cluster) addPods(o *snapshot.Objects, leaving map[string]bool) {
	for _, p := range o.Pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		p = admitted(p)
		id := snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
		fixed := owned(p, "DaemonSet") || owned(p, "Node")
		switch {
		case leaving[p.Spec.NodeName]:
			if !fixed && p.DeletionTimestamp == nil {
				p.Spec.NodeName = ""
				k.moving[id] = p
			}
		case p.Spec.NodeName != "":
			if slices.ContainsFunc(k.nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
				k.bound = append(k.bound, p)
			}
		case !fixed && p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) == 0 && p.Status.NominatedNodeName == "":
			k.pending[id] = p
		}
	}
}

// admitted is p after the API server's defaults, with matchLabelKeys and
// mismatchLabelKeys merged into the selectors as on creation.
func admitted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	defaults.SetObjectDefaults_Pod(p)
	if p.UID == "" {
		p.UID = types.UID(p.Namespace + "/" + p.Name)
	}
	merge := func(sel *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if v, ok := p.Labels[key]; ok && sel != nil {
				sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{v}})
			}
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			for i := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				term(&a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i])
			}
		}
		if a.PodAntiAffinity != nil {
			for i := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				term(&a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i])
			}
		}
	}
	return p
}

// addNamespaces keeps the given namespaces and those that pods are in.
func (k *cluster) addNamespaces(o *snapshot.Objects) {
	have := map[string]bool{}
	add := func(ns *corev1.Namespace) {
		if !have[ns.Name] {
			have[ns.Name] = true
			ns = ns.DeepCopy()
			metav1.SetMetaDataLabel(&ns.ObjectMeta, corev1.LabelMetadataName, ns.Name)
			k.namespaces = append(k.namespaces, ns)
		}
	}
	for _, ns := range o.Namespaces {
		add(ns)
	}
	for _, p := range o.Pods {
		add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}})
	}
}

// addClaims adds the claims that controllers would have made: those of generic
// ephemeral volumes, and the default class where a claim names none.
func (k *cluster) addClaims(o *snapshot.Objects) {
	k.volumes = o.PersistentVolumes
	class := ""
	for _, c := range o.StorageClasses {
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" && (class == "" || c.Name < class) {
			class = c.Name
		}
	}
	have := map[string]bool{}
	add := func(c *corev1.PersistentVolumeClaim) {
		if have[key(c)] {
			return
		}
		have[key(c)] = true
		if c.Spec.StorageClassName == nil && c.Spec.VolumeName == "" && class != "" {
			c = c.DeepCopy()
			c.Spec.StorageClassName = &class
		}
		k.claims = append(k.claims, c)
	}
	for _, c := range o.PersistentVolumeClaims {
		add(c)
	}
	yes := true
	each := func(p *corev1.Pod) {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
				continue
			}
			name, _ := claimName(p, v)
			add(&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}}},
				Spec:       v.Ephemeral.VolumeClaimTemplate.Spec,
			})
		}
	}
	for _, p := range k.bound {
		each(p)
	}
	for _, m := range []map[snapshot.PodKey]*corev1.Pod{k.pending, k.moving} {
		for _, id := range slices.SortedFunc(maps.Keys(m), comparePods) {
			each(m[id])
		}
	}
}

func comparePods(a, b snapshot.PodKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// daemonsOf are the daemon pods that the DaemonSet controller would run on n.
func (k *cluster) daemonsOf(n *corev1.Node) []*corev1.Pod {
	var out []*corev1.Pod
	for _, ds := range k.daemons {
		if run, _ := daemon.NodeShouldRunDaemonPod(klog.Background(), n, ds); run {
			p := daemon.NewPod(ds, n.Name)
			p.Name = ds.Name + "-on-" + n.Name
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: ds.Name, Controller: &yes}}
			out = append(out, admitted(resources.ApplyLimitRange(p, k.ranges)))
		}
	}
	return out
}

// missingDaemons are those of daemonsOf(n) without a pod on n.
func (k *cluster) missingDaemons(n *corev1.Node) []*corev1.Pod {
	return slices.DeleteFunc(k.daemonsOf(n), func(d *corev1.Pod) bool {
		return slices.ContainsFunc(k.bound, func(p *corev1.Pod) bool {
			return p.Spec.NodeName == n.Name && p.Namespace == d.Namespace && slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool {
				return r.Kind == "DaemonSet" && r.Name == d.OwnerReferences[0].Name
			})
		})
	})
}

// offeringOf finds the offering o names; nil if the catalogue has none.
func (k *cluster) offeringOf(o *schedule.Offer) *catalog.Offering {
	t := k.types[o.InstanceType]
	if t == nil {
		return nil
	}
	for i := range t.Offerings {
		f := &t.Offerings[i]
		if f.Zone == o.Zone && f.CapacityType == o.CapacityType && f.ReservationID == o.ReservationID {
			return f
		}
	}
	return nil
}

// launch is the node that buying o for n gives, and what is wrong with that offer.
func (k *cluster) launch(n *newNode, o *schedule.Offer) (*corev1.Node, []string) {
	var wrong []string
	pool, t, f := k.pools[n.Pool], k.types[o.InstanceType], k.offeringOf(o)
	switch {
	case pool == nil:
		return nil, []string{fmt.Sprintf("there is no NodePool %q", n.Pool)}
	case t == nil || f == nil:
		return nil, []string{fmt.Sprintf("offering %s/%s/%s/%s is not in the catalogue", o.InstanceType, o.Zone, o.CapacityType, o.ReservationID)}
	case f.Unavailable:
		wrong = append(wrong, fmt.Sprintf("offering %s/%s/%s is not available", o.InstanceType, o.Zone, o.CapacityType))
	}
	labels, more := k.labels(pool, t, f, n.requirements, n.Labels)
	labels[corev1.LabelHostname] = n.Name
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: pool.Spec.Template.Spec.Taints},
		Status:     corev1.NodeStatus{Capacity: t.Capacity.Quantities(), Allocatable: t.Allocatable.Quantities()},
	}
	return node, append(wrong, more...)
}

// labels are those of a node of offering f of t in pool. What neither settles is taken
// from claim, the NodeClaim's requirements, as a launch may: any value they allow. want
// are the labels that the plan counts on.
func (k *cluster) labels(pool *karpv1.NodePool, t *catalog.InstanceType, f *catalog.Offering, claim requirements.Set, want map[string]string) (labels map[string]string, wrong []string) {
	tmpl := &pool.Spec.Template
	labels = map[string]string{
		karpv1.NodePoolLabelKey: pool.Name, karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
		karpv1.CapacityTypeLabelKey: f.CapacityType, corev1.LabelInstanceTypeStable: t.Name,
		corev1.LabelTopologyZone: f.Zone, // a zone may have no name: the label is there all the same
	}
	if f.ReservationID != "" {
		labels[catalog.ReservationIDLabel] = f.ReservationID
	}
	if ref := tmpl.Spec.NodeClassRef; ref != nil {
		labels[ref.LabelKey()] = ref.Name
	}
	maps.Copy(labels, tmpl.Labels)
	for _, set := range []requirements.Set{t.Requirements, f.Requirements} {
		for _, key := range set.Keys() {
			if v, ok := set[key].IsSingle(); ok {
				labels[key] = v
			}
		}
	}
	for _, r := range tmpl.Spec.Requirements {
		if _, ok := labels[r.Key]; !ok && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
			labels[r.Key] = r.Values[0]
		}
	}
	for _, key := range claim.Keys() {
		if _, ok := labels[key]; ok || key == requirements.FieldName || key == corev1.LabelHostname {
			continue
		}
		if v, ok := someValue(claim[key]); ok && definedBy(key, t, f, tmpl) {
			labels[key] = v
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if key != corev1.LabelHostname && labels[key] != want[key] && want[key] != "" {
			wrong = append(wrong, fmt.Sprintf("label %s may be %q, the plan counts on %q", key, labels[key], want[key]))
		}
	}
	for _, r := range tmpl.Spec.Requirements {
		if !satisfies(labels, r) {
			wrong = append(wrong, fmt.Sprintf("label %s=%q breaks the NodePool's requirement %s %v", r.Key, labels[r.Key], r.Operator, r.Values))
		}
	}
	for _, key := range claim.Keys() {
		v, ok := labels[key]
		if r := claim[key]; key != corev1.LabelHostname && (ok && !r.Has(v) || !ok && !r.AllowsAbsent()) {
			wrong = append(wrong, fmt.Sprintf("label %s=%q breaks the claim's requirement %s", key, v, r))
		}
	}
	return labels, wrong
}

// definedBy reports whether a node gets label key at all.
func definedBy(key string, t *catalog.InstanceType, f *catalog.Offering, tmpl *karpv1.NodeClaimTemplate) bool {
	return t.Requirements.Has(key) || f.Requirements.Has(key) || slices.ContainsFunc(tmpl.Spec.Requirements, func(r karpv1.Requirement) bool { return requirements.NormalizeKey(r.Key) == key })
}

// someValue is a value that r allows.
func someValue(r requirements.Requirement) (string, bool) {
	if !r.Complement() {
		if v := r.Values(); len(v) > 0 {
			return v[len(v)-1], true
		}
		return "", false
	}
	from := int64(7)
	if gte, lte := r.Bounds(); gte != nil {
		from = *gte
	} else if lte != nil {
		from = *lte
	}
	for _, v := range []int64{from, from + 1, from - 1, from + 2, from - 2} {
		if s := strconv.FormatInt(v, 10); v >= 0 && r.Has(s) {
			return s, true
		}
	}
	return "", false
}

// satisfies is the meaning of a requirement of Karpenter's API on a node's labels.
func satisfies(labels map[string]string, r karpv1.Requirement) bool {
	v, ok := labels[requirements.NormalizeKey(r.Key)]
	number := func(s string) (int64, bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		return n, err == nil
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return ok && slices.Contains(r.Values, v)
	case corev1.NodeSelectorOpNotIn:
		return !ok || !slices.Contains(r.Values, v)
	case corev1.NodeSelectorOpExists:
		return ok
	case corev1.NodeSelectorOpDoesNotExist:
		return !ok
	}
	if !ok || len(r.Values) != 1 {
		return false
	}
	have, ok1 := number(v)
	want, ok2 := number(r.Values[0])
	if !ok1 || !ok2 {
		return false
	}
	switch r.Operator {
	case corev1.NodeSelectorOpGt:
		return have > want
	case corev1.NodeSelectorOpLt:
		return have < want
	case requirements.Gte:
		return have >= want
	case requirements.Lte:
		return have <= want
	}
	return false
}
