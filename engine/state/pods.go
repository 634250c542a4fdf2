package state

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// role is what a pod counts as.
type role int

const (
	// idle pods need nothing and use nothing: they have ended, are about to, wait for
	// something that is no node, or have not been judged by a scheduler.
	idle role = iota
	// bound pods use room on their node.
	bound
	// expected pods will be bound to a node that was bought for them.
	expected
	// wanting pods need a node.
	wanting
)

// podState is what is known of a pod.
type podState struct {
	obj  *corev1.Pod
	role role
	// node is that of a bound pod; claim or node is where an expected one will be.
	node, claim string
	// counted is what a bound pod adds to its node.
	counted resources.List
	daemon  bool
	first   time.Time
	wait    Wait
	// nominated is when the present nomination was first seen.
	nominated time.Time
	// released is a claim that the pod was expected on in vain: a nomination for its node
	// no longer holds.
	released string
}

// expectation is a pod that a claim was bought for.
type expectation struct {
	claim string
	uid   types.UID
	until time.Time
}

func podKey(k key) snapshot.PodKey { return snapshot.PodKey{Namespace: k.Namespace, Name: k.Name} }

func tableKey(k snapshot.PodKey) key { return key{Namespace: k.Namespace, Name: k.Name} }

func (c *Cluster) updatePod(o *corev1.Pod, seen bool, now time.Time) {
	k := keyOf(o)
	before, had := c.podTable.by[k]
	if _, taken := c.podTable.put(o, seen, now); !taken {
		return
	}
	p := c.pods[k]
	if had && before.UID != o.UID {
		c.forgetPod(k, p)
		p, had = nil, false
	}
	if p == nil {
		p = &podState{first: now}
		c.pods[k] = p
	}
	equal := had && samePod(before, o)
	p.obj = o
	if equal {
		c.show(k, p)
		return
	}
	if n := nomination(o); had && nomination(before) != n || !had {
		if had {
			c.renominate(k, nomination(before), "")
		}
		c.renominate(k, "", n)
		p.nominated = now
	}
	if o.Spec.NodeName != "" || o.DeletionTimestamp != nil {
		c.unexpect(podKey(k))
	}
	c.settlePod(k, p, now, true)
}

// nomination is the node that an unbound pod is nominated for.
func nomination(o *corev1.Pod) string {
	if o.Spec.NodeName != "" {
		return ""
	}
	return o.Status.NominatedNodeName
}

func (c *Cluster) renominate(k key, from, to string) {
	if from != "" {
		delete(c.nominatedFor[from], k)
		if len(c.nominatedFor[from]) == 0 {
			delete(c.nominatedFor, from)
		}
	}
	if to != "" {
		if c.nominatedFor[to] == nil {
			c.nominatedFor[to] = map[key]bool{}
		}
		c.nominatedFor[to][k] = true
	}
}

func (c *Cluster) removePod(o *corev1.Pod, now time.Time) {
	k := keyOf(o)
	if _, dropped := c.podTable.drop(o, now); !dropped {
		return
	}
	c.forgetPod(k, c.pods[k])
}

// forgetPod undoes everything that a pod that is gone was counted for.
func (c *Cluster) forgetPod(k key, p *podState) {
	c.unexpect(podKey(k))
	c.renominate(k, nomination(p.obj), "")
	c.uncount(k, p)
	delete(c.flying, k)
	delete(c.due, k)
	delete(c.pods, k)
	if p.role == idle {
		return
	}
	c.live.remove(k)
	c.changed("Pod", k, false)
	if p.role == bound {
		c.touch(p.node)
	}
}

// show puts a pod into snapshots, or takes it out.
func (c *Cluster) show(k key, p *podState) {
	if p.role != idle {
		c.live.set(k, p.obj)
	} else {
		c.live.remove(k)
	}
	delete(c.flying, k)
	if p.role == expected {
		c.flying[k] = p
	}
}

// uncount takes a pod off what its role counts it for.
func (c *Cluster) uncount(k key, p *podState) {
	switch p.role {
	case bound:
		n := c.nodes[p.node]
		delete(n.pods, k)
		subtract(n.used, p.counted)
		if p.daemon {
			subtract(n.daemons, p.counted)
		}
		c.dropEmpty(p.node)
	case wanting:
		c.wanting--
	}
}

// settlePod counts a pod for what it is now. changed says that more than its role may be
// different.
func (c *Cluster) settlePod(k key, p *podState, now time.Time, changed bool) {
	was, wasNode, wasClaim := p.role, p.node, p.claim
	is, node, claim, again := c.judge(k, p, now)
	if e, ok := c.expected[podKey(k)]; ok && (again.IsZero() || e.until.Before(again)) {
		again = e.until // it must end, also while it is of no effect
	}
	if again.IsZero() {
		delete(c.due, k)
	} else {
		c.judgeAgain(k, again)
	}
	if !changed && was == is && wasNode == node && wasClaim == claim {
		return
	}
	c.uncount(k, p)
	p.role, p.node, p.claim, p.counted = is, node, claim, nil
	switch is {
	case bound:
		p.daemon = ownedByNode(p.obj)
		p.counted = resources.PodRequests(p.obj)
		n := c.nodeState(node)
		n.pods[k] = p
		n.used.AddTo(p.counted)
		if p.daemon {
			n.daemons.AddTo(p.counted)
		}
	case wanting:
		c.wanting++
		if p.wait.Wanted.IsZero() {
			p.wait.Wanted = now
		}
	}
	c.show(k, p)
	if was == idle && is == idle {
		return // no snapshot holds it
	}
	c.changed("Pod", k, is == wanting)
	if was != is || wasNode != node {
		for _, name := range []string{wasNode, node} {
			if name != "" {
				c.touch(name)
			}
		}
	}
}

func (c *Cluster) judgeAgain(k key, at time.Time) {
	c.due[k] = at
	if c.nextDue.IsZero() || at.Before(c.nextDue) {
		c.nextDue = at
	}
}

// judge says what a pod counts as, and until when that holds if nothing happens; the zero
// time is for ever.
func (c *Cluster) judge(k key, p *podState, now time.Time) (is role, node, claim string, again time.Time) {
	o := p.obj
	switch {
	case o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed:
		return idle, "", "", time.Time{}
	case o.Spec.NodeName != "":
		return bound, o.Spec.NodeName, "", time.Time{}
	case o.DeletionTimestamp != nil || ownedByNode(o) || len(o.Spec.SchedulingGates) > 0 || avoidsPools(o):
		return idle, "", "", time.Time{}
	}
	if e, ok := c.expected[podKey(k)]; ok && now.Before(e.until) && !c.leavingClaim(e.claim) {
		return expected, "", e.claim, e.until
	}
	if name := o.Status.NominatedNodeName; name != "" {
		if n := c.nodeTable.by[name1(name)]; n != nil {
			owner := c.claimOfNode(n)
			giveUp := p.nominated.Add(c.opts.GiveUp)
			switch {
			case owner != nil && owner.Name == p.released:
			case owner != nil && !c.leaving(owner) && !initialized(n) && now.Before(giveUp):
				return expected, name, "", giveUp
			default:
				if until := c.preemptedUntil(p, name, now); now.Before(until) {
					return idle, "", "", until
				}
			}
		}
	}
	if unschedulable(o) {
		return wanting, "", "", time.Time{}
	}
	return idle, "", "", time.Time{}
}

// preemptedUntil is how long a pod that waits for preemption on a node is left to it.
func (c *Cluster) preemptedUntil(p *podState, node string, now time.Time) time.Time {
	until := p.nominated.Add(c.opts.Preemption)
	if now.Before(until) {
		return until
	}
	if n := c.nodes[node]; n != nil {
		for _, q := range n.pods {
			if q.obj.DeletionTimestamp != nil && priority(q.obj) < priority(p.obj) {
				return now.Add(10 * time.Second)
			}
		}
	}
	return until
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// unschedulable reports whether a scheduler has found no node for a pod.
func unschedulable(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
}

// ownedByNode reports whether a pod belongs to its node: of a DaemonSet, or a mirror pod.
func ownedByNode(p *corev1.Pod) bool {
	for i := range p.OwnerReferences {
		switch o := &p.OwnerReferences[i]; o.Kind {
		case "DaemonSet", "Node":
			return true
		}
	}
	return false
}

// avoidsPools reports whether a pod can only run on nodes that no NodePool makes: the
// usual way to keep an autoscaler off its own nodes.
func avoidsPools(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == karpv1.NodePoolLabelKey && e.Operator == corev1.NodeSelectorOpDoesNotExist
		})
	})
}

// Expect tells that a claim was bought for pods. Until they are bound they count as being
// on the claim's node. It ends when the pod is bound or goes, when the claim goes or is
// marked, and Settle after the node is initialized.
func (c *Cluster) Expect(claim string, pods []snapshot.PodKey) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.unlock()
	until := now.Add(c.opts.GiveUp)
	if o := c.claimTable.by[name1(claim)]; o != nil && c.claimInitialized(o) {
		until = now.Add(c.opts.Settle)
	}
	for _, pk := range pods {
		p := c.pods[tableKey(pk)]
		if p == nil || p.obj.Spec.NodeName != "" || p.obj.DeletionTimestamp != nil {
			continue
		}
		c.unexpect(pk)
		c.expected[pk] = expectation{claim: claim, uid: p.obj.UID, until: until}
		if c.expectedOn[claim] == nil {
			c.expectedOn[claim] = map[snapshot.PodKey]bool{}
		}
		c.expectedOn[claim][pk] = true
		c.settlePod(tableKey(pk), p, now, false)
	}
}

// Unexpect ends what [Cluster.Expect] began for pods: those that are not bound need a node
// again.
func (c *Cluster) Unexpect(pods ...snapshot.PodKey) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.unlock()
	for _, pk := range pods {
		if _, ok := c.expected[pk]; !ok {
			continue
		}
		c.unexpect(pk)
		if p := c.pods[tableKey(pk)]; p != nil {
			c.settlePod(tableKey(pk), p, now, false)
		}
	}
}

// unexpect forgets which claim was bought for a pod.
func (c *Cluster) unexpect(pk snapshot.PodKey) {
	e, ok := c.expected[pk]
	if !ok {
		return
	}
	delete(c.expected, pk)
	delete(c.expectedOn[e.claim], pk)
	if len(c.expectedOn[e.claim]) == 0 {
		delete(c.expectedOn, e.claim)
	}
}

// Expected are the pods that a claim was bought for and that are not bound yet, by
// namespace and name.
func (c *Cluster) Expected(claim string) []snapshot.PodKey {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]snapshot.PodKey, 0, len(c.expectedOn[claim]))
	for pk := range c.expectedOn[claim] {
		out = append(out, pk)
	}
	slices.SortFunc(out, comparePods)
	return out
}

func comparePods(a, b snapshot.PodKey) int {
	if n := strings.Compare(a.Namespace, b.Namespace); n != 0 {
		return n
	}
	return strings.Compare(a.Name, b.Name)
}

// ExpectedOn is the claim that was bought for a pod, and false if there is none or the pod
// is bound.
func (c *Cluster) ExpectedOn(pod snapshot.PodKey) (string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.expected[pod]
	return e.claim, ok
}

// FirstSeen is when the cluster was first told of a pod; the zero time if it does not know
// it.
func (c *Cluster) FirstSeen(pod snapshot.PodKey) time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pods[tableKey(pod)]; p != nil {
		return p.first
	}
	return time.Time{}
}

// Wanting is how many pods need a node: a scheduler has found none for them, and none was
// bought.
func (c *Cluster) Wanting() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.wanting
}

// Expire judges anew what depends on the time. [Cluster.Watch] calls it every second, and
// [Cluster.Snapshot] before it makes a snapshot.
func (c *Cluster) Expire() {
	now := c.opts.Now()
	c.mu.RLock()
	idle := c.nextDue.IsZero() || now.Before(c.nextDue)
	c.mu.RUnlock()
	if idle {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	var ripe []key
	c.nextDue = time.Time{}
	for k, at := range c.due {
		if !now.Before(at) {
			ripe = append(ripe, k)
		} else if c.nextDue.IsZero() || at.Before(c.nextDue) {
			c.nextDue = at
		}
	}
	slices.SortFunc(ripe, compareKeys)
	for _, k := range ripe {
		p := c.pods[k]
		if e, ok := c.expected[podKey(k)]; ok && !now.Before(e.until) {
			p.released = e.claim
			c.unexpect(podKey(k))
		}
		c.settlePod(k, p, now, false)
	}
}
