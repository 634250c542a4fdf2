package state

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// nodeState is what pods make of a node, which need not be known itself.
type nodeState struct {
	pods map[key]*podState
	// used is what the pods request, daemons the part of those that belong to the node.
	used, daemons resources.List
	// revision of the last change that can matter to consolidation.
	revision uint64
	leaving  bool
}

// poolState are the sums over the machines of a NodePool.
type poolState struct {
	usage    resources.List
	nodes    int
	claims   map[string]bool
	revision uint64
}

// machine is what a node, or a claim without one, adds to its NodePool.
type machine struct {
	pool     string
	capacity resources.List
}

// index has names by a value that they share.
type index map[string]map[string]bool

func (x index) add(value, name string) {
	if value == "" {
		return
	}
	if x[value] == nil {
		x[value] = map[string]bool{}
	}
	x[value][name] = true
}

func (x index) remove(value, name string) {
	delete(x[value], name)
	if len(x[value]) == 0 {
		delete(x, value)
	}
}

// last is the last name of a value; two are a mistake of whoever made them, but the
// answer must not depend on which came first.
func (x index) last(value string) string {
	out := ""
	for name := range x[value] {
		out = max(out, name)
	}
	return out
}

func name1(name string) key { return key{Name: name} }

func (c *Cluster) nodeState(name string) *nodeState {
	n := c.nodes[name]
	if n == nil {
		n = &nodeState{pods: map[key]*podState{}, used: resources.List{}, daemons: resources.List{}}
		c.nodes[name] = n
	}
	return n
}

// dropEmpty forgets a node that neither exists nor has pods.
func (c *Cluster) dropEmpty(name string) {
	if n := c.nodes[name]; n != nil && len(n.pods) == 0 && c.nodeTable.by[name1(name)] == nil {
		delete(c.nodes, name)
	}
}

func (c *Cluster) poolState(name string) *poolState {
	p := c.pools[name]
	if p == nil {
		p = &poolState{usage: resources.List{}, claims: map[string]bool{}}
		c.pools[name] = p
	}
	return p
}

// touch notes that something changed on a node that can matter to consolidation.
func (c *Cluster) touch(node string) {
	if n := c.nodes[node]; n != nil {
		n.revision = c.revision
	}
	if m, ok := c.machines["node/"+node]; ok {
		c.poolState(m.pool).revision = c.revision
	}
}

// subtract takes other off l; what is left of nothing is dropped.
func subtract(l, other resources.List) {
	for name, v := range other {
		if l[name] -= v; l[name] == 0 {
			delete(l, name)
		}
	}
}

// initialized is as for snapshots: of a managed node, what its label says.
func initialized(n *corev1.Node) bool { return n.Labels[karpv1.NodeInitializedLabelKey] == "true" }

// leaving reports whether the node of a claim is going for good.
func (c *Cluster) leaving(o *karpv1.NodeClaim) bool {
	return o.DeletionTimestamp != nil || c.marked[o.Name] || o.Conditions().IsTrue(karpv1.ConditionInstanceTerminating)
}

// leavingClaim reports whether a claim is going or gone.
func (c *Cluster) leavingClaim(name string) bool {
	o := c.claimTable.by[name1(name)]
	return o == nil || c.leaving(o)
}

// claimOfNode is the claim of a node: the one that names it, or else the one with its
// provider ID; nil if there is none.
func (c *Cluster) claimOfNode(n *corev1.Node) *karpv1.NodeClaim {
	name := c.claimsByNode.last(n.Name)
	if name == "" && n.Spec.ProviderID != "" {
		name = c.claimsByProvider.last(n.Spec.ProviderID)
	}
	if name == "" {
		return nil
	}
	return c.claimTable.by[name1(name)]
}

// nodesOfClaim are the names of the nodes that belong to a claim; more than one is a
// mistake.
func (c *Cluster) nodesOfClaim(o *karpv1.NodeClaim) []string {
	var out []string
	for _, name := range c.candidates(o) {
		if n := c.nodeTable.by[name1(name)]; n != nil {
			if owner := c.claimOfNode(n); owner != nil && owner.Name == o.Name {
				out = append(out, name)
			}
		}
	}
	return out
}

// candidates are the names of nodes that may belong to a claim, sorted.
func (c *Cluster) candidates(o *karpv1.NodeClaim) []string {
	set := map[string]bool{}
	if o.Status.NodeName != "" {
		set[o.Status.NodeName] = true
	}
	if o.Status.ProviderID != "" {
		for name := range c.nodesByProvider[o.Status.ProviderID] {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func (c *Cluster) claimInitialized(o *karpv1.NodeClaim) bool {
	return slices.ContainsFunc(c.nodesOfClaim(o), func(name string) bool { return initialized(c.nodeTable.by[name1(name)]) })
}

// group are nodes and claims that may belong to each other.
type group struct{ nodes, claims map[string]bool }

// addClaim adds a claim, the nodes that may be its own, and the other claims that may then
// win or lose those.
func (g *group) addClaim(c *Cluster, o *karpv1.NodeClaim) {
	if o == nil {
		return
	}
	g.claims[o.Name] = true
	for _, name := range c.candidates(o) {
		g.nodes[name] = true
		maps.Copy(g.claims, c.claimsByNode[name])
		if n := c.nodeTable.by[name1(name)]; n != nil && n.Spec.ProviderID != "" {
			maps.Copy(g.claims, c.claimsByProvider[n.Spec.ProviderID])
		}
	}
}

// addNode adds a node and the claims that it may belong to.
func (g *group) addNode(c *Cluster, o *corev1.Node) {
	g.nodes[o.Name] = true
	maps.Copy(g.claims, c.claimsByNode[o.Name])
	if o.Spec.ProviderID != "" {
		maps.Copy(g.claims, c.claimsByProvider[o.Spec.ProviderID])
	}
}

func newGroup() *group { return &group{map[string]bool{}, map[string]bool{}} }

// settle counts the machines of a group anew, and judges the pods that are on their way to
// them. It reports whether pods came to need other nodes.
func (c *Cluster) settle(g *group, now time.Time) (moved bool) {
	for name := range g.nodes {
		var m machine
		ok := false
		leaving := false
		n := c.nodeTable.by[name1(name)]
		if n != nil {
			owner := c.claimOfNode(n)
			leaving = n.DeletionTimestamp != nil || owner != nil && c.leaving(owner)
			if !leaving {
				m, ok = machineOfNode(n, owner)
			}
		}
		if s := c.nodes[name]; s != nil && s.leaving != leaving {
			s.leaving = leaving
			if leaving {
				c.leavingNodes++
			} else {
				c.leavingNodes--
			}
			moved = moved || leaving && len(s.pods) > 0
			c.touch(name)
		}
		c.count("node/"+name, m, ok)
	}
	for name := range g.claims {
		var m machine
		ok := false
		if o := c.claimTable.by[name1(name)]; o != nil && !c.leaving(o) && len(c.nodesOfClaim(o)) == 0 {
			m.pool = o.Labels[karpv1.NodePoolLabelKey]
			m.capacity, _ = resources.FromQuantities(o.Status.Capacity)
			ok = m.pool != ""
		}
		c.count("claim/"+name, m, ok)
	}
	for _, name := range slices.Sorted(maps.Keys(g.nodes)) {
		for k := range c.nominatedFor[name] {
			c.settlePod(k, c.pods[k], now, false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.claims)) {
		o := c.claimTable.by[name1(name)]
		ready := o != nil && c.claimInitialized(o)
		for pk := range c.expectedOn[name] {
			if e := c.expected[pk]; ready && e.until.After(now.Add(c.opts.Settle)) {
				e.until = now.Add(c.opts.Settle)
				c.expected[pk] = e
			}
			c.settlePod(tableKey(pk), c.pods[tableKey(pk)], now, false)
		}
	}
	return moved
}

// machineOfNode reads capacity as snapshots do.
func machineOfNode(n *corev1.Node, owner *karpv1.NodeClaim) (machine, bool) {
	m := machine{pool: n.Labels[karpv1.NodePoolLabelKey]}
	from := n.Status.Capacity
	if len(from) == 0 {
		from = n.Status.Allocatable
	}
	m.capacity, _ = resources.FromQuantities(from)
	if owner != nil {
		m.pool = owner.Labels[karpv1.NodePoolLabelKey]
		if !initialized(n) {
			promised, _ := resources.FromQuantities(owner.Status.Capacity)
			for name, v := range promised {
				if m.capacity[name] == 0 {
					m.capacity[name] = v
				}
			}
		}
	}
	return m, m.pool != ""
}

func (c *Cluster) count(id string, m machine, ok bool) {
	old, had := c.machines[id]
	if had == ok && (!ok || m.pool == old.pool && maps.Equal(m.capacity, old.capacity)) {
		return
	}
	if had {
		p := c.poolState(old.pool)
		subtract(p.usage, old.capacity)
		p.nodes--
		p.revision = c.revision
		delete(c.machines, id)
		c.dropPool(old.pool)
	}
	if ok {
		p := c.poolState(m.pool)
		p.usage.AddTo(m.capacity)
		p.nodes++
		p.revision = c.revision
		c.machines[id] = m
	}
}

func (c *Cluster) dropPool(name string) {
	if p := c.pools[name]; p != nil && p.nodes == 0 && len(p.claims) == 0 && c.poolTable.by[name1(name)] == nil {
		delete(c.pools, name)
	}
}

func (c *Cluster) updateNode(o *corev1.Node, seen bool, now time.Time) {
	before, had := c.nodeTable.by[keyOf(o)]
	if _, taken := c.nodeTable.put(o, seen, now); !taken || had && sameNode(before, o) {
		return
	}
	g := newGroup()
	if had {
		g.addNode(c, before)
		c.nodesByProvider.remove(before.Spec.ProviderID, o.Name)
	}
	c.nodesByProvider.add(o.Spec.ProviderID, o.Name)
	g.addNode(c, o)
	n := c.nodeState(o.Name)
	c.changed("Node", keyOf(o), false)
	if !had || before.UID != o.UID || initialized(before) != initialized(o) {
		c.touch(o.Name)
	}
	moved := c.settle(g, now)
	if (moved || disrupted(o) && !(had && disrupted(before))) && len(n.pods) > 0 {
		c.tell("Node/"+o.Name+"/leaves", true)
	}
}

// disrupted reports whether a node is about to be drained.
func disrupted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.DisruptedTaintKey })
}

func (c *Cluster) removeNode(o *corev1.Node, now time.Time) {
	before, dropped := c.nodeTable.drop(o, now)
	if !dropped {
		return
	}
	g := newGroup()
	g.addNode(c, before)
	c.nodesByProvider.remove(before.Spec.ProviderID, before.Name)
	c.changed("Node", keyOf(before), c.wants())
	c.touch(before.Name)
	c.settle(g, now)
	delete(c.nominated, before.Name)
	c.dropEmpty(before.Name)
}

func (c *Cluster) updateClaim(o *karpv1.NodeClaim, seen bool, now time.Time) {
	before, had := c.claimTable.by[keyOf(o)]
	if _, taken := c.claimTable.put(o, seen, now); !taken || had && sameClaim(before, o) {
		return
	}
	wasLeaving := had && before.UID == o.UID && c.leaving(before)
	g := newGroup()
	if had {
		g.addClaim(c, before)
		c.unindex(before)
		if before.UID != o.UID {
			c.forgetClaim(o.Name, now)
		}
	}
	c.claimsByProvider.add(o.Status.ProviderID, o.Name)
	c.claimsByNode.add(o.Status.NodeName, o.Name)
	if pool := o.Labels[karpv1.NodePoolLabelKey]; pool != "" {
		c.poolState(pool).claims[o.Name] = true
	}
	g.addClaim(c, o)
	goes := c.leaving(o) && !wasLeaving
	c.changed("NodeClaim", keyOf(o), goes && c.wants())
	if moved := c.settle(g, now); moved {
		c.tell("NodeClaim/"+o.Name+"/leaves", true)
	}
}

func (c *Cluster) unindex(o *karpv1.NodeClaim) {
	c.claimsByProvider.remove(o.Status.ProviderID, o.Name)
	c.claimsByNode.remove(o.Status.NodeName, o.Name)
	if pool := o.Labels[karpv1.NodePoolLabelKey]; pool != "" {
		delete(c.poolState(pool).claims, o.Name)
		c.dropPool(pool)
	}
}

// forgetClaim drops what was remembered about a claim that is gone.
func (c *Cluster) forgetClaim(name string, now time.Time) {
	delete(c.marked, name)
	delete(c.nominated, name)
	for pk := range c.expectedOn[name] {
		c.unexpect(pk)
		c.settlePod(tableKey(pk), c.pods[tableKey(pk)], now, false)
	}
}

func (c *Cluster) removeClaim(o *karpv1.NodeClaim, now time.Time) {
	before, dropped := c.claimTable.drop(o, now)
	if !dropped {
		return
	}
	g := newGroup()
	g.addClaim(c, before)
	c.unindex(before)
	c.changed("NodeClaim", keyOf(before), c.wants())
	c.settle(g, now)
	c.forgetClaim(before.Name, now)
}

func (c *Cluster) updatePool(o *karpv1.NodePool, seen bool, now time.Time) {
	before, had := c.poolTable.by[keyOf(o)]
	if _, taken := c.poolTable.put(o, seen, now); !taken || had && samePool(before, o) {
		return
	}
	c.changed("NodePool", keyOf(o), c.wants())
	c.poolState(o.Name).revision = c.revision
}

func (c *Cluster) removePool(o *karpv1.NodePool, now time.Time) {
	before, dropped := c.poolTable.drop(o, now)
	if !dropped {
		return
	}
	c.changed("NodePool", keyOf(before), c.wants())
	c.poolState(before.Name).revision = c.revision
	c.dropPool(before.Name)
}

// Mark tells that claims are about to be deleted: their nodes take no more pods, and
// their pods need others. Claims that are not known are passed over.
func (c *Cluster) Mark(claims ...string) { c.setMarked(true, claims) }

// Unmark takes marks back.
func (c *Cluster) Unmark(claims ...string) { c.setMarked(false, claims) }

func (c *Cluster) setMarked(marked bool, claims []string) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.unlock()
	g := newGroup()
	different := false
	for _, name := range claims {
		o := c.claimTable.by[name1(name)]
		if o == nil || c.marked[name] == marked {
			continue
		}
		different = true
		if marked {
			c.marked[name] = true
		} else {
			delete(c.marked, name)
		}
		g.addClaim(c, o)
		c.changed("NodeClaim", name1(name), false)
	}
	if different && c.settle(g, now) {
		c.tell("mark", true)
	}
}

// Marked reports whether a claim is marked, being deleted, or its machine terminating.
func (c *Cluster) Marked(claim string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	o := c.claimTable.by[name1(claim)]
	return c.marked[claim] || o != nil && c.leaving(o)
}

// Nominate tells that pods are expected to be bound to a running node, or to that of a
// claim, until a time. An earlier time than is known is ignored.
func (c *Cluster) Nominate(node string, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until.After(c.nominated[node]) {
		c.nominated[node] = until
	}
}

// Nominated reports whether pods are expected to be bound to a node: it was nominated, or
// it was bought for pods that are not there yet.
func (c *Cluster) Nominated(node string) bool {
	now := c.opts.Now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	claim := ""
	if n := c.nodeTable.by[name1(node)]; n != nil {
		if o := c.claimOfNode(n); o != nil {
			claim = o.Name
		}
	} else if c.claimTable.by[name1(node)] != nil {
		claim = node
	}
	if now.Before(c.nominated[node]) || claim != "" && now.Before(c.nominated[claim]) {
		return true
	}
	return claim != "" && len(c.expectedOn[claim]) > 0
}

// PoolUsage is the capacity of a NodePool's nodes together, and their number. Claims
// without a node count with what their machine promises, those that have not launched with
// nothing; what is leaving does not count.
func (c *Cluster) PoolUsage(pool string) (resources.List, int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pools[pool]; p != nil {
		return p.usage.Clone(), p.nodes
	}
	return resources.List{}, 0
}

// NodeUsage is what the pods on a node request, and the part of those that belong to the
// node.
func (c *Cluster) NodeUsage(node string) (used, daemons resources.List) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.nodes[node]; n != nil {
		return n.used.Clone(), n.daemons.Clone()
	}
	return resources.List{}, resources.List{}
}

// NodeRevision is the [Cluster.Revision] of the last change of a node that can matter to
// consolidation: it came or went, was initialized or marked, or a pod came or went.
func (c *Cluster) NodeRevision(node string) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.nodes[node]; n != nil {
		return n.revision
	}
	return 0
}

// PoolRevision is that of the last change of a NodePool itself, its size, or one of its
// nodes as of [Cluster.NodeRevision].
func (c *Cluster) PoolRevision(pool string) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pools[pool]; p != nil {
		return p.revision
	}
	return 0
}

// PodsOn are the pods bound to a node that have not ended, by namespace and name.
func (c *Cluster) PodsOn(node string) []*corev1.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes[node]
	if n == nil {
		return nil
	}
	out := make([]*corev1.Pod, 0, len(n.pods))
	for _, p := range n.pods {
		out = append(out, p.obj)
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return compareKeys(keyOf(a), keyOf(b)) })
	return out
}

// ClaimOf is the claim of a node, or nil.
func (c *Cluster) ClaimOf(node string) *karpv1.NodeClaim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.nodeTable.by[name1(node)]; n != nil {
		return c.claimOfNode(n)
	}
	return nil
}

// NodeOf is the node of a claim, or nil.
func (c *Cluster) NodeOf(claim string) *corev1.Node {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if o := c.claimTable.by[name1(claim)]; o != nil {
		if names := c.nodesOfClaim(o); len(names) > 0 {
			return c.nodeTable.by[name1(names[0])]
		}
	}
	return nil
}

// ClaimByProviderID is the claim of a machine, or nil.
func (c *Cluster) ClaimByProviderID(id string) *karpv1.NodeClaim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.claimTable.by[name1(c.claimsByProvider.last(id))]
}

// NodeByProviderID is the node of a machine, or nil.
func (c *Cluster) NodeByProviderID(id string) *corev1.Node {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.nodeTable.by[name1(c.nodesByProvider.last(id))]
}

// ClaimsOf are the claims of a NodePool, by name.
func (c *Cluster) ClaimsOf(pool string) []*karpv1.NodeClaim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	p := c.pools[pool]
	if p == nil {
		return nil
	}
	var out []*karpv1.NodeClaim
	for _, name := range slices.Sorted(maps.Keys(p.claims)) {
		out = append(out, c.claimTable.by[name1(name)])
	}
	return out
}

// expectations are where snapshots are to count pods that are not bound yet: nowhere, if
// they need a node although one was named to them.
func (c *Cluster) expectations() map[snapshot.PodKey]string {
	out := map[snapshot.PodKey]string{}
	for _, pods := range c.nominatedFor {
		for k := range pods {
			if c.pods[k].role == wanting {
				out[podKey(k)] = ""
			}
		}
	}
	for k, p := range c.flying {
		at := p.node
		if at == "" {
			at = p.claim
			if o := c.claimTable.by[name1(p.claim)]; o != nil {
				if names := c.nodesOfClaim(o); len(names) > 0 {
					at = names[0]
				}
			}
		}
		out[podKey(k)] = at
	}
	return out
}
