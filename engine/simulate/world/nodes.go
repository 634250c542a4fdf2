package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

const (
	// launchAgain is how long a launch that failed for another cause than capacity waits.
	launchAgain = 10 * time.Second
	// launchWithin and registerWithin bound how long a claim may take, as in a cluster.
	launchWithin   = 5 * time.Minute
	registerWithin = 15 * time.Minute
	// evictAgain is how long an eviction that a PodDisruptionBudget forbids waits.
	evictAgain = 10 * time.Second
)

// machine is what is paid for.
type machine struct {
	claim, pool string
	offering    cloud.Offering
	// price is the last that the catalogue told.
	price catalog.Price
	// notices is the number of interruptions that were heard of.
	notices int
}

// adopt makes machines of the nodes that there are, and claims of those that lack one.
func (w *World) adopt() error {
	byNode := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(w.claims)) {
		if n := w.claims[name].Status.NodeName; n != "" {
			byNode[n] = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[name]
		claim := byNode[name]
		if claim == "" && w.claims[name] != nil {
			claim = name
		}
		if pool := n.Labels[karpv1.NodePoolLabelKey]; claim == "" && pool != "" {
			c := w.claimFor(n, pool)
			w.claims[c.Name] = c
			claim = c.Name
		}
		if claim == "" {
			continue
		}
		if err := w.adoptNode(n, w.claims[claim]); err != nil {
			return err
		}
	}
	// Claims that are still to be launched, or whose node is on its way.
	for _, name := range slices.Sorted(maps.Keys(w.claims)) {
		c := w.claims[name]
		if w.machines[name] != nil || c.DeletionTimestamp != nil {
			continue
		}
		q := c.DeepCopy()
		if q.UID == "" {
			q.UID = types.UID("claim-" + q.Name)
		}
		w.claims[name] = q
		w.queue.push(w.now, func() { w.launch(name) })
	}
	return nil
}

// claimFor is the claim that a node of a NodePool must have had.
func (w *World) claimFor(n *corev1.Node, pool string) *karpv1.NodeClaim {
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, Annotations: map[string]string{}, CreationTimestamp: n.CreationTimestamp}}
	for _, np := range w.rest.NodePools {
		if np.Name == pool {
			made := np.NewClaim()
			c.Spec, c.Annotations = made.Spec, made.Annotations
			c.Spec.ExpireAfter = karpv1.NillableDuration{} // its age is not known
		}
	}
	c.Spec.Taints = n.Spec.Taints
	c.Status.NodeName = n.Name
	c.Status.Capacity, c.Status.Allocatable = n.Status.Capacity, n.Status.Allocatable
	return c
}

// adoptNode puts the machine of a node into the cloud.
func (w *World) adoptNode(n *corev1.Node, c *karpv1.NodeClaim) error {
	c = c.DeepCopy()
	c.UID = cmp.Or(c.UID, types.UID("claim-"+c.Name))
	if c.CreationTimestamp.IsZero() {
		c.CreationTimestamp = cmp.Or(n.CreationTimestamp, metav1.NewTime(w.opts.Start.Add(-24*time.Hour)))
	}
	class := ""
	if c.Spec.NodeClassRef != nil {
		class = c.Spec.NodeClassRef.Name
	}
	pool := c.Labels[karpv1.NodePoolLabelKey]
	for _, np := range w.rest.NodePools {
		if ref := np.Spec.Template.Spec.NodeClassRef; np.Name == pool && ref != nil {
			if c.Spec.NodeClassRef == nil {
				c.Spec.NodeClassRef = ref.DeepCopy()
			}
			class = cmp.Or(class, ref.Name)
		}
	}
	id := "i-" + c.Name
	m := &machine{claim: c.Name, pool: pool, offering: cloud.Offering{
		InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Zone: n.Labels[corev1.LabelTopologyZone],
		CapacityType: n.Labels[karpv1.CapacityTypeLabelKey], ReservationID: n.Labels[catalog.ReservationIDLabel],
	}}
	in := &v1alpha1.SimInstance{ObjectMeta: metav1.ObjectMeta{Name: id}}
	in.Spec = v1alpha1.SimInstanceSpec{
		Claim: v1alpha1.SimClaim{Name: c.Name, UID: string(c.UID)}, NodePool: pool, NodeClass: class,
		InstanceType: m.offering.InstanceType, Zone: m.offering.Zone, CapacityType: m.offering.CapacityType, ReservationID: m.offering.ReservationID,
		ProviderID: "sim:///" + m.offering.Zone + "/" + id, Labels: n.Labels, LaunchTime: metav1.NewMicroTime(c.CreationTimestamp.Time),
	}
	if sc, err := w.store.NodeClass(w.context(), class); err == nil {
		in.Spec.TerminateLatency = sc.Spec.TerminateLatency.Base
	}
	at := metav1.NewMicroTime(c.CreationTimestamp.Time)
	in.Status.NodeName, in.Status.NodeTime, in.Status.RunningTime = n.Name, &at, &at
	if err := w.store.Create(w.context(), in); err != nil {
		return fmt.Errorf("machine of node %s: %w", n.Name, err)
	}
	q := n.DeepCopy()
	q.Spec.ProviderID, c.Status.ProviderID, c.Status.NodeName = in.Spec.ProviderID, in.Spec.ProviderID, n.Name
	w.nodes[n.Name], w.machines[c.Name], w.claims[c.Name] = q, m, c
	set := c.Conditions().At(c.CreationTimestamp.Time)
	set.SetTrue(karpv1.ConditionLaunched)
	set.SetTrue(karpv1.ConditionRegistered)
	if n.Labels[karpv1.NodeInitializedLabelKey] == "true" {
		set.SetTrue(karpv1.ConditionInitialized)
	} else {
		w.queue.push(w.now.Add(w.opts.Initialize), func() { w.initialize(c.Name) })
	}
	w.watchAge(c)
	w.wakeCloud(w.now)
	if q.DeletionTimestamp != nil || c.DeletionTimestamp != nil {
		at := cmp.Or(q.DeletionTimestamp, c.DeletionTimestamp)
		q.DeletionTimestamp, c.DeletionTimestamp = at, at
		w.queue.push(w.now, func() { w.drain(n.Name) })
	}
	return nil
}

// changeClaim replaces a claim by a changed copy.
func (w *World) changeClaim(name string, do func(*karpv1.NodeClaim)) {
	c := w.claims[name].DeepCopy()
	do(c)
	w.claims[name] = c
	w.changed()
}

// podEvent notes that a pod came to a node or left it.
func (w *World) podEvent(node string) {
	n := w.nodes[node]
	if n == nil {
		return
	}
	claim := w.claimOf(node)
	if c := w.claims[claim]; c != nil {
		q := *c // shares all but the time
		q.Status.LastPodEventTime = metav1.NewTime(w.now)
		w.claims[claim] = &q
		w.changed()
	}
}

// claimOf is the name of a node's claim, or "".
func (w *World) claimOf(node string) string {
	if c := w.claims[node]; c != nil && (c.Status.NodeName == node || c.Status.NodeName == "") {
		return node
	}
	for name, c := range w.claims {
		if c.Status.NodeName == node {
			return name
		}
	}
	return ""
}

func (w *World) wakeCloud(at time.Time) {
	if w.cloudDue.IsZero() || at.Before(w.cloudDue) {
		w.cloudDue = at
	}
}

// launch buys the machine of a claim.
func (w *World) launch(name string) {
	c := w.claims[name]
	if c == nil || c.DeletionTimestamp != nil || w.machines[name] != nil {
		return
	}
	m, err := w.cloud.Launch(w.context(), c)
	w.watchCapacity(c)
	switch {
	case err == nil:
		w.launched(c, m)
	case cloud.IsInsufficientCapacity(err):
		w.say(Entry{Kind: LaunchFailed, Object: name, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: err.Error()})
		w.marketChanged()
		w.dropClaim(name)
	case w.now.Sub(c.CreationTimestamp.Time) >= launchWithin:
		w.say(Entry{Kind: LaunchFailed, Object: name, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: err.Error()})
		w.dropClaim(name)
	default:
		w.say(Entry{Kind: LaunchFailed, Object: name, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: err.Error() + "; it is tried again"})
		w.queue.push(w.now.Add(launchAgain), func() { w.launch(name) })
	}
}

// watchCapacity looks again at what is sold when an offering that was out of capacity counts
// as available again.
func (w *World) watchCapacity(c *karpv1.NodeClaim) {
	if c.Spec.NodeClassRef == nil {
		return
	}
	class, err := w.store.NodeClass(w.context(), c.Spec.NodeClassRef.Name)
	if err != nil || len(class.Spec.Capacity) == 0 {
		return
	}
	after := sim.DefaultUnavailableFor
	if set := class.Spec.UnavailableFor; set != nil {
		after = set.Duration
	}
	w.queue.push(w.now.Add(after), w.marketChanged)
}

func (w *World) launched(c *karpv1.NodeClaim, m *cloud.Machine) {
	w.machines[c.Name] = &machine{claim: c.Name, pool: c.Labels[karpv1.NodePoolLabelKey], offering: cloud.Offering{
		InstanceType: m.Labels[corev1.LabelInstanceTypeStable], Zone: m.Labels[corev1.LabelTopologyZone],
		CapacityType: m.Labels[karpv1.CapacityTypeLabelKey], ReservationID: m.Labels[catalog.ReservationIDLabel],
	}}
	w.changeClaim(c.Name, func(c *karpv1.NodeClaim) {
		for k, v := range m.Labels {
			if _, ok := c.Labels[k]; !ok {
				c.Labels[k] = v
			}
		}
		c.Status.ProviderID, c.Status.Capacity, c.Status.Allocatable = m.ProviderID, m.Capacity, m.Allocatable
		c.Conditions().At(w.now).SetTrue(karpv1.ConditionLaunched)
	})
	w.record.reprice = true
	w.wakeCloud(w.now)
	name := c.Name
	w.queue.push(w.now.Add(registerWithin), func() {
		if c := w.claims[name]; c != nil && c.Status.NodeName == "" && c.DeletionTimestamp == nil {
			w.say(Entry{Kind: LaunchFailed, Object: name, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: "its node did not register within " + registerWithin.String()})
			w.deleteClaim(name, CauseFailed, "it did not register")
		}
	})
	w.watchAge(w.claims[name])
}

// dropClaim forgets a claim that has no machine. Its pods are planned anew.
func (w *World) dropClaim(name string) {
	delete(w.claims, name)
	w.unexpect(name)
	w.disrupter.lost(w, name)
	w.changed()
}

// unexpect plans the pods anew that were expected on a node.
func (w *World) unexpect(node string) {
	var keys []snapshot.PodKey
	for key, e := range w.expected {
		if e.node == node {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		delete(w.expected, key)
		w.batch.trigger(w, key)
	}
	if len(keys) > 0 {
		w.rebind = true
		w.changed()
	}
}

// stepCloud brings machines to what they are now.
func (w *World) stepCloud() {
	w.cloudDue = time.Time{}
	events, next, err := w.cloud.Step(w.context())
	if err != nil {
		w.fail(err)
		return
	}
	if !next.IsZero() {
		w.cloudDue = next
		w.queue.push(next, func() {})
	}
	w.hear()
	for _, e := range events {
		claim := e.Instance.Spec.Claim.Name
		if e.Node != nil {
			w.register(claim, e.Node)
		} else {
			w.machineGone(claim)
		}
	}
}

// hear takes in what the cloud announces.
func (w *World) hear() {
	all, err := w.store.List(w.context())
	if err != nil {
		w.fail(err)
		return
	}
	for _, in := range all {
		m := w.machines[in.Spec.Claim.Name]
		if m == nil || len(in.Status.Interruptions) <= m.notices {
			continue
		}
		notice := in.Status.Interruptions[len(in.Status.Interruptions)-1]
		m.notices = len(in.Status.Interruptions)
		text := string(notice.Kind)
		if notice.End != nil {
			text += ": it ends at " + notice.End.UTC().Format(time.RFC3339)
		}
		w.say(Entry{Kind: Interrupted, Object: m.claim, Pool: m.pool, Text: text})
		if notice.End != nil {
			w.disrupter.lost(w, m.claim)
			w.deleteClaim(m.claim, CauseTaken, text)
		}
	}
}

// register makes a Node that has appeared the node of its claim.
func (w *World) register(claim string, n *corev1.Node) {
	c := w.claims[claim]
	if c == nil {
		return
	}
	if c.DeletionTimestamp != nil {
		n.DeletionTimestamp = c.DeletionTimestamp
	}
	n.UID = types.UID("node-" + n.Name)
	n.CreationTimestamp = metav1.NewTime(w.now)
	n.Finalizers = []string{karpv1.TerminationFinalizer}
	maps.Copy(n.Labels, c.Labels)
	n.Annotations = maps.Clone(c.Annotations)
	delete(n.Annotations, cloud.PreferredAnnotation)
	n.Labels[karpv1.NodeRegisteredLabelKey] = "true"
	n.Spec.Taints = slices.DeleteFunc(slices.Concat(n.Spec.Taints, c.Spec.Taints, c.Spec.StartupTaints), func(t corev1.Taint) bool { return t.Key == karpv1.UnregisteredTaintKey })
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	w.nodes[n.Name] = n
	w.changeClaim(claim, func(c *karpv1.NodeClaim) {
		c.Status.NodeName = n.Name
		c.Conditions().At(w.now).SetTrue(karpv1.ConditionRegistered)
	})
	w.queue.push(w.now.Add(w.opts.Initialize), func() { w.initialize(claim) })
}

// initialize opens a node to pods.
func (w *World) initialize(claim string) {
	c := w.claims[claim]
	if c == nil || c.DeletionTimestamp != nil || w.nodes[c.Status.NodeName] == nil {
		return
	}
	n := w.nodes[c.Status.NodeName].DeepCopy()
	n.Labels[karpv1.NodeInitializedLabelKey] = "true"
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return karpv1.IsKnownEphemeralTaint(t) || slices.ContainsFunc(c.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(&t) })
	})
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}}
	w.nodes[n.Name] = n
	w.changeClaim(claim, func(c *karpv1.NodeClaim) { c.Conditions().At(w.now).SetTrue(karpv1.ConditionInitialized) })
	w.say(Entry{Kind: Ready, Object: n.Name, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: w.describe(claim)})
	w.rebind = true
	w.stir()
	// Pods that find no room within a moment are planned anew.
	for key, e := range w.expected {
		if e.node == claim {
			e.until = w.now.Add(expectFor)
			w.expected[key] = e
		}
	}
	w.queue.push(w.now.Add(expectFor), func() { w.giveUpExpecting() })
	w.disrupter.ready(w, claim)
}

// giveUpExpecting plans pods anew that should have been bound by now.
func (w *World) giveUpExpecting() {
	var late []snapshot.PodKey
	for key, e := range w.expected {
		if !e.until.IsZero() && !w.now.Before(e.until) {
			late = append(late, key)
		}
	}
	slices.SortFunc(late, func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range late {
		delete(w.expected, key)
		w.batch.trigger(w, key)
		w.changed()
	}
}

func (w *World) describe(claim string) string {
	m := w.machines[claim]
	if m == nil {
		return ""
	}
	return m.offering.InstanceType + " in " + cmp.Or(m.offering.Zone, "no zone") + ", " + m.offering.CapacityType
}

// deleteClaim ends the node of a claim: no pod comes, its pods leave, its machine ends.
func (w *World) deleteClaim(name, cause, why string) {
	c := w.claims[name]
	if c == nil || c.DeletionTimestamp != nil {
		return
	}
	w.causes[name] = cause
	now := metav1.NewTime(w.now)
	w.changeClaim(name, func(c *karpv1.NodeClaim) { c.DeletionTimestamp = &now })
	w.unexpect(name)
	node := c.Status.NodeName
	if node == "" || w.nodes[node] == nil {
		if w.machines[name] == nil {
			delete(w.claims, name)
			return
		}
		w.terminate(name)
		return
	}
	w.unexpect(node)
	n := w.nodes[node].DeepCopy()
	n.DeletionTimestamp = &now
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.DisruptedTaintKey }) {
		n.Spec.Taints = append(n.Spec.Taints, karpv1.DisruptedTaint())
	}
	w.nodes[node] = n
	w.say(Entry{Kind: Deleting, Object: node, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: why, Reason: cause})
	w.changed()
	w.batch.trigger(w, snapshot.PodKey{Name: node})
	if p := c.Spec.TerminationGracePeriod; p != nil {
		w.queue.push(w.now.Add(p.Duration), func() { w.drain(node) })
	}
	w.drain(node)
}

// drain evicts the pods of a node that is being deleted, and ends its machine when they are
// gone.
func (w *World) drain(node string) {
	n := w.nodes[node]
	if n == nil || n.DeletionTimestamp == nil {
		return
	}
	claim := w.claimOf(node)
	force := false
	if c := w.claims[claim]; c != nil && c.DeletionTimestamp != nil && c.Spec.TerminationGracePeriod != nil {
		force = !w.now.Before(c.DeletionTimestamp.Add(c.Spec.TerminationGracePeriod.Duration))
	}
	waits, blocked := 0, false
	pods := w.on(node)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return -cmp.Compare(candidate.Part(a, n), candidate.Part(b, n)) })
	for _, p := range pods {
		if candidate.Daemon(p) || candidate.Stays(p) {
			continue
		}
		waits++
		if candidate.Terminating(p) {
			continue
		}
		guarded := snapshot.ProtectionOf(p, w.now)
		if !force && guarded.On {
			if !guarded.Until.IsZero() {
				w.queue.push(guarded.Until, func() { w.drain(node) })
			}
			continue
		}
		if !force && !w.mayEvict(p) {
			blocked = true
			continue
		}
		w.evict(p, "")
	}
	if blocked {
		w.queue.push(w.now.Add(evictAgain), func() { w.drain(node) })
	}
	if waits == 0 {
		w.terminate(claim)
	}
}

// on are the pods that are bound to a node.
func (w *World) on(node string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range w.pods {
		if p.Spec.NodeName == node {
			out = append(out, p)
		}
	}
	return out
}

// terminate ends the machine of a claim.
func (w *World) terminate(claim string) {
	c := w.claims[claim]
	if c == nil {
		return
	}
	if err := w.cloud.Terminate(w.context(), c); err != nil && !cloud.IsNotFound(err) {
		w.fail(err)
		return
	}
	w.wakeCloud(w.now)
}

// machineGone takes away the node of a machine that is no more. What still ran there is lost.
func (w *World) machineGone(claim string) {
	c := w.claims[claim]
	delete(w.machines, claim)
	defer delete(w.causes, claim)
	w.record.reprice = true
	w.disrupter.lost(w, claim)
	if c == nil {
		return
	}
	node := c.Status.NodeName
	delete(w.claims, claim)
	w.unexpect(claim)
	if node != "" {
		delete(w.nodes, node)
		w.unexpect(node)
		for _, p := range w.on(node) {
			switch {
			case candidate.Daemon(p) || candidate.Mirror(p) || candidate.Terminating(p):
				w.remove(p)
			default:
				w.evict(p, "its machine ended")
			}
		}
		if w.disrupter.shut {
			w.stir()
		}
		w.say(Entry{Kind: Gone, Object: node, Pool: c.Labels[karpv1.NodePoolLabelKey]})
	}
	w.changed()
	w.rebind = true
}

// watchAge deletes a node when it has reached its age.
func (w *World) watchAge(c *karpv1.NodeClaim) {
	name := c.Name
	var pool *karpv1.NodePool
	for _, np := range w.rest.NodePools {
		if np.Name == c.Labels[karpv1.NodePoolLabelKey] {
			pool = np
		}
	}
	e := candidate.ExpiryOf(pool)
	if at, ok := e.Forced(c); ok {
		w.queue.push(maxTime(at, w.now), func() {
			if c := w.claims[name]; c != nil && c.DeletionTimestamp == nil {
				w.say(Entry{Kind: Expired, Object: name, Pool: c.Labels[karpv1.NodePoolLabelKey], Text: "it has reached its age"})
				w.disrupter.lost(w, name)
				w.deleteClaim(name, CauseExpired, "it has reached its age")
			}
		})
	}
	if at, ok := e.At(c); ok && e.Graceful {
		w.queue.push(maxTime(at, w.now), func() { w.wakeExpired(name) })
	}
}

// wakeExpired has nodes looked at that have reached their age, whenever their NodePool's window
// opens.
func (w *World) wakeExpired(name string) {
	c := w.claims[name]
	if c == nil || c.DeletionTimestamp != nil {
		return
	}
	w.stir()
	var pool *karpv1.NodePool
	for _, np := range w.rest.NodePools {
		if np.Name == c.Labels[karpv1.NodePoolLabelKey] {
			pool = np
		}
	}
	if next := candidate.ExpiryOf(pool).Opens(w.now); !next.IsZero() {
		w.queue.push(next, func() { w.wakeExpired(name) })
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
