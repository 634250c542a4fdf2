package candidate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Examine returns a candidate for every node of the objects that snap was built from, by
// name: those that nobody manages, that are being deleted, and that are claims without a
// Node yet are among them, with the reasons why they stay.
//
// All causes are named, in the order of §5.3, not only the first. consolidateAfter counts
// from what the claim says of its pods, not from its condition Consolidatable, which may be
// late.
func Examine(snap *snapshot.Snapshot, objs snapshot.Objects, facts Facts) []Candidate {
	e := newExaminer(snap, objs, facts)
	subjects := e.subjects(objs)
	out := make([]Candidate, len(subjects))
	for i := range subjects {
		e.examine(&subjects[i], &out[i])
	}
	return out
}

// subject is a node with its objects, any of which may be nil.
type subject struct {
	name  string
	node  *corev1.Node
	claim *karpv1.NodeClaim
	snap  *snapshot.Node
	// pods are bound to a node that is not in the snapshot.
	pods []*corev1.Pod
}

// labels are those that the node has or will have.
func (s *subject) labels() map[string]string {
	switch {
	case s.snap != nil:
		return s.snap.Labels
	case s.node != nil:
		return s.node.Labels
	}
	return s.claim.Labels
}

type examiner struct {
	snap    *snapshot.Snapshot
	facts   Facts
	pods    []*corev1.Pod // by namespace and name
	objects []*corev1.Pod // of snap.Pods
	pools   map[string]*snapshot.Pool
	guards  *guards

	// Room for the examination of one node.
	matched []*guard
	tallies []tally
	pod     podReasons
}

// podReasons are those that pods are the cause of.
type podReasons struct{ protected, several, blocked []Reason }

func newExaminer(snap *snapshot.Snapshot, objs snapshot.Objects, facts Facts) *examiner {
	e := &examiner{snap: snap, facts: facts, pods: objs.Pods, pools: make(map[string]*snapshot.Pool, len(snap.Pools)), guards: newGuards(objs.PodDisruptionBudgets)}
	for _, p := range snap.Pools {
		e.pools[p.Name] = p
	}
	if !slices.IsSortedFunc(e.pods, comparePods) {
		e.pods = slices.Clone(e.pods)
		slices.SortFunc(e.pods, func(a, b *corev1.Pod) int {
			return cmp.Or(comparePods(a, b), strings.Compare(string(a.UID), string(b.UID)))
		})
	}
	e.objects = make([]*corev1.Pod, len(snap.Pods))
	at := 0
	for i := range snap.Pods {
		key := snap.Pods[i].Key
		for at < len(e.pods) && compareKeys(keyOf(e.pods[at]), key) < 0 {
			at++
		}
		// Of pods with one name, the snapshot has the first that has not ended.
		for n := at; n < len(e.pods) && keyOf(e.pods[n]) == key; n++ {
			if !Terminal(e.pods[n]) {
				e.objects[i] = e.pods[n]
				break
			}
		}
	}
	return e
}

func keyOf(p *corev1.Pod) snapshot.PodKey {
	return snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
}

func compareKeys(a, b snapshot.PodKey) int {
	if a.Namespace != b.Namespace {
		return strings.Compare(a.Namespace, b.Namespace)
	}
	return strings.Compare(a.Name, b.Name)
}

func comparePods(a, b *corev1.Pod) int { return compareKeys(keyOf(a), keyOf(b)) }

// subjects are all nodes, by name.
func (e *examiner) subjects(objs snapshot.Objects) []subject {
	claims := make(map[string]*karpv1.NodeClaim, len(objs.NodeClaims))
	byNode := make(map[string]*karpv1.NodeClaim, len(objs.NodeClaims))
	byProvider := make(map[string]*karpv1.NodeClaim, len(objs.NodeClaims))
	for _, c := range objs.NodeClaims {
		claims[c.Name] = c
		if c.Status.NodeName != "" {
			byNode[c.Status.NodeName] = c
		}
		if c.Status.ProviderID != "" {
			byProvider[c.Status.ProviderID] = c
		}
	}
	nodes := make(map[string]*corev1.Node, len(objs.Nodes))
	out := make([]subject, 0, max(len(e.snap.Nodes), len(objs.Nodes)))
	here := make(map[string]bool, len(e.snap.Nodes))
	for _, n := range e.snap.Nodes {
		here[n.Name] = true
	}
	gone := map[string]int{} // index in out by name
	for _, n := range objs.Nodes {
		if nodes[n.Name] != nil {
			continue
		}
		nodes[n.Name] = n
		if here[n.Name] {
			continue
		}
		claim := byNode[n.Name]
		if claim == nil && n.Spec.ProviderID != "" {
			claim = byProvider[n.Spec.ProviderID]
		}
		gone[n.Name] = len(out)
		out = append(out, subject{name: n.Name, node: n, claim: claim})
	}
	if len(gone) > 0 {
		for _, p := range e.pods {
			if i, ok := gone[p.Spec.NodeName]; ok && !Terminal(p) {
				out[i].pods = append(out[i].pods, p)
			}
		}
	}
	for _, n := range e.snap.Nodes {
		s := subject{name: n.Name, claim: claims[n.Claim], snap: n}
		if !n.InFlight {
			s.node = nodes[n.Name]
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b subject) int { return strings.Compare(a.name, b.name) })
	return out
}

func (e *examiner) examine(s *subject, c *Candidate) {
	labels := s.labels()
	*c = Candidate{
		Node: s.name, InstanceType: labels[corev1.LabelInstanceTypeStable], Zone: labels[corev1.LabelTopologyZone],
		CapacityType: labels[karpv1.CapacityTypeLabelKey], Pool: labels[karpv1.NodePoolLabelKey],
		Cost: 1, Rounds: 1, Lifetime: 1, Destination: true,
	}
	if s.snap != nil && s.snap.Pool != "" {
		c.Pool = s.snap.Pool
	}
	e.addPods(s, c)
	if s.claim == nil {
		why := "no NodeClaim manages it"
		if s.snap != nil && s.snap.Claim != "" {
			c.Claim, why = s.snap.Claim, fmt.Sprintf("NodeClaim %s is not there", s.snap.Claim)
		}
		no := []Reason{{Code: NoClaim, Message: why}}
		c.Graceful, c.Eventual, c.Repair = no, no, no
		return
	}
	c.Claim = s.claim.Name
	c.Lifetime = lifetime(s.claim, e.facts.Now)
	if d := condition(s.claim, karpv1.ConditionDrifted); d != nil && d.Status == metav1.ConditionTrue {
		c.Drifted, c.DriftedSince = d.Reason, d.LastTransitionTime.Time
		if c.Drifted == "" || c.Drifted == karpv1.ConditionDrifted {
			c.Drifted = cmp.Or(d.Message, karpv1.ConditionDrifted)
		}
	}
	if f, ok := e.facts.Broken[s.name]; ok {
		c.Fault, c.Destination = &f, false
	}
	pool := e.pools[c.Pool]
	c.ReservationID = reservation(pool, c, labels)
	general, repair := e.general(s, c, pool)
	e.classes(s, c, general, repair)
	if pool != nil && pool.Object != nil {
		e.methods(s, c, pool)
	}
}

// classes sets the reasons against each class of method: general ones, and pods.
func (e *examiner) classes(s *subject, c *Candidate, general, repair []Reason) {
	pods := e.pod
	c.Graceful = slices.Concat(general, pods.protected, pods.several, pods.blocked)
	c.Eventual, c.Repair = c.Graceful, repair
	bounded := s.claim.Spec.TerminationGracePeriod != nil
	if bounded {
		c.Eventual = general
	}
	if bounded || c.Fault != nil && c.Fault.Drain != nil {
		return
	}
	c.Repair = slices.Concat(repair, pods.protected, pods.several, pods.blocked)
}

// general are the reasons that the node, its claim and its pool are the cause of. Repair is
// kept by fewer: what is unhealthy may not get initialized, and is no use to anybody.
func (e *examiner) general(s *subject, c *Candidate, pool *snapshot.Pool) (all, repair []Reason) {
	add := func(r Reason) {
		all, repair = append(all, r), append(repair, r)
	}
	conditionTrue := func(kind string) bool {
		d := condition(s.claim, kind)
		return d != nil && d.Status == metav1.ConditionTrue
	}
	rebooting := conditionTrue(karpv1.ConditionRebooting)
	if s.node == nil {
		add(Reason{Code: NoNode, Message: "its NodeClaim has no Node yet"})
	}
	if rebooting {
		add(Reason{Code: Rebooting, Message: "it is being rebooted"})
	}
	switch {
	case s.node != nil && s.node.DeletionTimestamp != nil, s.claim.DeletionTimestamp != nil, conditionTrue(karpv1.ConditionInstanceTerminating):
		add(Reason{Code: Deleting, Message: "it is being deleted"})
	case e.facts.Leaving[s.claim.Name], s.snap == nil:
		add(Reason{Code: Deleting, Message: "it is part of a disruption that is under way"})
	}
	if s.node != nil && s.node.Labels[karpv1.NodeInitializedLabelKey] != "true" && !rebooting {
		if s.node.Labels[karpv1.NodeRegisteredLabelKey] == "true" {
			all = append(all, Reason{Code: NotInitialized, Message: "it is registered, but not initialized yet"})
		} else {
			add(Reason{Code: NotInitialized, Message: "it has not registered yet"})
		}
	}
	if e.facts.Nominated != nil && e.facts.Nominated(s.name) {
		add(Reason{Code: Nominated, Message: "pending pods are expected on it"})
	}
	// The claim's annotation counts until the Node has it.
	annotations := s.claim.Annotations
	if s.node != nil && s.node.Labels[karpv1.NodeRegisteredLabelKey] == "true" {
		annotations = s.node.Annotations
	}
	if c.Fault != nil {
		repair = append(repair, e.unrepaired(c.Pool, annotations)...)
	}
	if annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		all = append(all, Reason{Code: NodeDoNotDisrupt, Message: "it has the annotation " + karpv1.DoNotDisruptAnnotationKey})
	}
	switch {
	case c.Pool == "":
		add(Reason{Code: LabelMissing, Message: "it lacks the label " + karpv1.NodePoolLabelKey})
	case pool == nil:
		add(Reason{Code: NoPool, Object: "nodepool " + c.Pool, Message: "it is not there"})
	case pool.Catalog == nil || pool.Catalog.Len() == 0:
		add(Reason{Code: NoPool, Object: "nodepool " + c.Pool, Message: "its instance types are not known"})
	}
	return all, repair
}

// unrepaired are the reasons for which a broken node is not replaced.
func (e *examiner) unrepaired(pool string, annotations map[string]string) (out []Reason) {
	if annotations[karpv1.DoNotRepairAnnotationKey] == "true" {
		out = append(out, Reason{Code: NodeDoNotRepair, Message: "it has the annotation " + karpv1.DoNotRepairAnnotationKey})
	}
	if why := e.facts.Tripped[pool]; why != "" {
		out = append(out, Reason{Code: TooManyBroken, Object: "nodepool " + pool, Message: why})
	}
	return out
}

// methods sets the reasons against consolidation and emptiness.
func (e *examiner) methods(s *subject, c *Candidate, pool *snapshot.Pool) {
	both := func(r Reason) {
		c.Consolidation, c.Emptiness = append(c.Consolidation, r), append(c.Emptiness, r)
	}
	only := func(r Reason) { c.Consolidation = append(c.Consolidation, r) }
	d := &pool.Object.Spec.Disruption
	c.Static = pool.Object.Static()
	if c.Static {
		both(Reason{Code: StaticPool, Message: fmt.Sprintf("NodePool %s keeps a fixed number of nodes", c.Pool)})
	}
	if pool.Catalog != nil && pool.Catalog.Len() > 0 {
		if _, ok := pool.Catalog.ByName(c.InstanceType); !ok {
			only(Reason{Code: TypeUnknown, Message: fmt.Sprintf("instance type %q is not among those of NodePool %s", c.InstanceType, c.Pool)})
		}
	}
	if c.CapacityType == "" {
		only(Reason{Code: LabelMissing, Message: "it lacks the label " + karpv1.CapacityTypeLabelKey})
	}
	if _, ok := s.labels()[corev1.LabelTopologyZone]; !ok {
		only(Reason{Code: LabelMissing, Message: "it lacks the label " + corev1.LabelTopologyZone})
	}
	after, bounded := d.ConsolidateAfter.Value()
	if d.ConsolidateAfter.IsZero() {
		after, bounded = karpv1.DefaultConsolidateAfter, true
	}
	if !bounded {
		both(Reason{Code: ConsolidateNever, Message: fmt.Sprintf("consolidateAfter of NodePool %s is %s", c.Pool, karpv1.Never)})
	}
	if c.Empty() {
		only(Reason{Code: NodeEmpty, Message: "it is empty, and goes for that reason alone"})
	} else {
		if d.ConsolidationPolicy == karpv1.ConsolidationPolicyWhenEmpty {
			only(Reason{Code: OnlyWhenEmpty, Message: fmt.Sprintf("NodePool %s is consolidated when nodes are empty, and this one is not", c.Pool)})
		}
		c.Emptiness = append(c.Emptiness, notEmpty(c))
	}
	if !bounded {
		return
	}
	what, at := lastEvent(s.claim)
	if until := at.Add(after); !at.IsZero() && e.facts.Now.Before(until) {
		both(Reason{Code: NotConsolidatable, Message: fmt.Sprintf("%s at %s, and consolidateAfter of NodePool %s is %s", what, at.UTC().Format(time.RFC3339), c.Pool, cmp.Or(d.ConsolidateAfter.Text, after.String())), Until: until})
		if pool.Object.Annotations[v1alpha1.ProtectDestinationsAnnotation] == "true" {
			c.Destination = false
		}
	}
}

func notEmpty(c *Candidate) Reason {
	if n := len(c.Pods) - c.Disposable; n > 0 {
		return Reason{Code: NotEmpty, Message: fmt.Sprintf("%d pods on it need another node", n)}
	}
	return Reason{Code: NotEmpty, Message: fmt.Sprintf("%d pods on it are ending and will be made again", c.Returning)}
}

// lastEvent is what consolidateAfter counts from.
func lastEvent(c *karpv1.NodeClaim) (what string, at time.Time) {
	if !c.Status.LastPodEventTime.IsZero() {
		return "a pod came or went", c.Status.LastPodEventTime.Time
	}
	if d := condition(c, karpv1.ConditionInitialized); d != nil && d.Status == metav1.ConditionTrue {
		return "it was initialized", d.LastTransitionTime.Time
	}
	return "", time.Time{}
}

// addPods sets what the pods of a node mean for it, and e.pod.
func (e *examiner) addPods(s *subject, c *Candidate) {
	e.pod, e.tallies = podReasons{}, e.tallies[:0]
	if s.snap == nil {
		for _, p := range s.pods {
			e.addPod(c, keyOf(p), p, false)
		}
	} else {
		c.Pods = make([]snapshot.PodKey, 0, len(s.snap.Pods))
		for _, i := range s.snap.Pods {
			p := &e.snap.Pods[i]
			switch object := e.objects[i]; {
			case object != nil:
				e.addPod(c, p.Key, object, p.Daemon)
			case !p.Daemon && !p.Terminating:
				c.Pods = append(c.Pods, p.Key)
				c.Cost++
			}
		}
	}
	slices.SortFunc(e.tallies, func(a, b tally) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for i := range e.tallies {
		t := &e.tallies[i]
		if t.blocked() {
			e.pod.blocked = append(e.pod.blocked, t.reason())
			continue
		}
		if n := t.rounds(); n > 1 {
			c.Rounds = max(c.Rounds, n)
			c.Late = append(c.Late, t.pods...)
			c.Warnings = append(c.Warnings, Reason{
				Code: DrainInRounds, Object: "poddisruptionbudget " + t.Namespace + "/" + t.Name,
				Message: fmt.Sprintf("%d of its pods are here and %d may go at a time: a drain takes %d rounds", len(t.pods), t.Status.DisruptionsAllowed, n),
			})
		}
	}
}

func (e *examiner) addPod(c *Candidate, key snapshot.PodKey, p *corev1.Pod, daemon bool) {
	mirror := Mirror(p)
	stays := daemon || mirror || Daemon(p)
	if !Active(p) {
		if !stays && !Terminal(p) && returns(p) {
			c.Returning++
			c.Cost += max(EvictionCost(p, e.facts.DeletionCost), 0)
		}
		return
	}
	if !stays {
		c.Pods = append(c.Pods, key)
		if Disposable(p) {
			c.Disposable++
			c.LeftOut = append(c.LeftOut, key)
		} else {
			c.Cost += max(EvictionCost(p, e.facts.DeletionCost), 0)
			if metav1.GetControllerOfNoCopy(p) == nil {
				c.Lost = append(c.Lost, key)
				c.Warnings = append(c.Warnings, Reason{Code: NoOwner, Object: "pod " + key.String(), Message: "it has no controller: evicted, it is gone for good"})
			}
		}
	}
	protection := snapshot.ProtectionOf(p, e.facts.Now)
	if protection.Problem != "" {
		c.Warnings = append(c.Warnings, Reason{Code: InvalidAnnotation, Object: "pod " + key.String(), Message: protection.Problem})
	}
	if protection.On {
		e.pod.protected = append(e.pod.protected, Reason{Code: PodDoNotDisrupt, Object: "pod " + key.String(), Message: "it has the annotation " + karpv1.DoNotDisruptAnnotationKey, Until: protection.Until})
		return
	}
	e.matched = e.guards.of(p, e.matched[:0])
	switch {
	case len(e.matched) == 0 || mirror || Stays(p):
		return
	case len(e.matched) > 1 && p.Status.Phase != corev1.PodPending:
		names := make([]string, len(e.matched))
		for i, g := range e.matched {
			names[i] = g.Name
		}
		e.pod.several = append(e.pod.several, Reason{Code: SeveralBudgets, Object: "pod " + key.String(), Message: fmt.Sprintf("it cannot be evicted, since several PodDisruptionBudgets select it: %s", strings.Join(names, ", "))})
		return
	}
	g := e.matched[0]
	if g.free(p) {
		return
	}
	i := slices.IndexFunc(e.tallies, func(t tally) bool { return t.guard == g })
	if i < 0 {
		i = len(e.tallies)
		e.tallies = append(e.tallies, tally{guard: g})
	}
	e.tallies[i].pods = append(e.tallies[i].pods, key)
}

// reservation is the ID of the reservation that a node was bought from. A provider may have
// a label of its own for it, which the offering names.
func reservation(pool *snapshot.Pool, c *Candidate, labels map[string]string) string {
	if id := labels[catalog.ReservationIDLabel]; id != "" || c.CapacityType != karpv1.CapacityTypeReserved || pool == nil || pool.Catalog == nil {
		return id
	}
	it, ok := pool.Catalog.ByName(c.InstanceType)
	if !ok {
		return ""
	}
	for i := range it.Offerings {
		o := &it.Offerings[i]
		if o.ReservationID == "" || o.Zone != c.Zone {
			continue
		}
		for key := range o.Requirements {
			if labels[key] == o.ReservationID {
				return o.ReservationID
			}
		}
	}
	return ""
}

// lifetime is the part of a claim's expireAfter that is left at now.
func lifetime(c *karpv1.NodeClaim, now time.Time) float64 {
	after, bounded := c.Spec.ExpireAfter.Value()
	switch {
	case c.Spec.ExpireAfter.IsZero():
		after = karpv1.DefaultExpireAfter
	case !bounded:
		return 1
	}
	if after <= 0 {
		return 0
	}
	if c.CreationTimestamp.IsZero() {
		return 1
	}
	return min(max(float64(after-now.Sub(c.CreationTimestamp.Time))/float64(after), 0), 1)
}

func condition(c *karpv1.NodeClaim, kind string) *metav1.Condition {
	for i := range c.Status.Conditions {
		if c.Status.Conditions[i].Type == kind {
			return &c.Status.Conditions[i]
		}
	}
	return nil
}
