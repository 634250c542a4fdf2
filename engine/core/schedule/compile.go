package schedule

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// solver is one run of Solve.
type solver struct {
	ctx  context.Context
	snap *snapshot.Snapshot
	opts Options

	dims  []corev1.ResourceName
	dimOf map[corev1.ResourceName]int
	// drivers are the CSI drivers whose attach limits matter; dimension len(dims)+i.
	drivers []string
	D       int

	// relevant are the classes of pods that need a place now or, for a Planner, may need one.
	relevant []bool
	classes  []*class // by snapshot class; nil if it is not relevant
	demand   []int    // pending pods without a place, by class
	pending  [][]int32
	profiles []*profile
	filters  []*filter
	keys     []topologyKey
	keyOf    map[string]int
	groups   []*group
	// bySelector are the groups by their first selector, daemonAdds those that count
	// each daemon's pods.
	bySelector map[int32][]int32
	daemonAdds [][]int32
	// exclusive are the ReadWriteOncePod volumes that a planned pod uses.
	exclusive map[string]bool
	// volumeUsed are the free PersistentVolumes that planned pods take, claimed those that
	// claims of several pods have taken.
	volumeUsed map[string]bool
	claimed    map[string]string
	nodes      []*node // existing nodes, then new ones
	existing   int     // number of existing nodes
	kinds      map[string]int32

	shops   []*shop
	columns []column
	allocs  [][]float64    // distinct column.alloc
	supply  map[string]int // units left of reservations and commitments
	units   map[string]int // supply at the start
	daemons *daemonSets
	// offeringKeys are the labels that offerings of a catalogue have of their own.
	offeringKeys map[*catalog.Catalog]map[string]bool
	limits       []*limit // by pool index in snap.Pools; nil if unlimited

	// Of domains.go and buy.go.
	open       []bool
	sales      map[int32][]*sale // by profile
	placesOf   map[string][]*place
	sets       map[string]*columnSet
	colDomains [][]int32
	colKinds   []int32
	byPrice    map[int32][]int32 // columns by profile, as openFor tries them
	portGroup  map[string]int32
	// startAnyway lets affinity groups start on a node that does not hold all of them.
	startAnyway bool

	placed []placement
	// initial are the counts of bound pods, for the replay.
	initial []groupState
	bounds  bounds
	// blame collects, by class, why domains refused pods of it.
	blame map[int32][]Reason
	// boundClasses are the groups that pods on nodes count in.
	boundClasses map[int32]*boundClass

	// planner is what a Planner adds; nil for Solve.
	planner *Planner
}

// class is a snapshot class with pending pods, in numbers.
type class struct {
	id      int32
	snap    *snapshot.Class
	req     []float64
	profile *profile
	// shared are volumes that several pods use: on one node they count once. req counts
	// them all the same.
	shared []snapshot.Volume
	// ownNode is true if no two pods of the class may share a node.
	ownNode bool
	// takesFree is true if a pod takes PersistentVolumes that nobody has yet.
	takesFree bool
	spread    []spreadRule
	near      []podRule
	apart     []podRule
	soft      []softRule
	// nearAll is true if the class's own pods satisfy all its affinity terms, so that the
	// first of them may go anywhere.
	nearAll bool
	// adds are the groups that count pods of the class, guards the groups of its
	// anti-affinity, blocked the groups whose guards keep it away.
	adds, guards, blocked []int32
	// joint are groups of pods that share a volume which does not exist yet: the first
	// fixes the zone for all.
	joint []int32
	// zonal are the topology keys, beside the hostname, on which a node's place matters.
	zonal []int32
	// hostRules is true if rules about the hostname apply.
	hostRules bool
	// fits are the allocations (column.allocID) that hold one pod of the class.
	fits bitset
	size float64
}

type spreadRule struct {
	group, filter int32
	skew          int32
	minDomains    int32
	self          bool
}

type podRule struct {
	group int32
	self  bool
}

// softRule scores a node: Weight for each pod counted in its domain, negative to repel.
type softRule struct {
	group  int32
	weight int32
	spread bool
}

// profile is what nodes look at, room and other pods apart.
type profile struct {
	id     int32
	class  *snapshot.Class
	byKind []uint8 // by node kind: 0 unknown, 1 accepted, 2 not
	// perNode is true if the profile asks for a node by name.
	perNode bool
	// cols are the columns that accept the profile, preferred those of them that satisfy
	// most of its preferences.
	cols, preferred bitset
	// all are the columns that would accept it but for minValues.
	all bitset
}

// filter says which nodes a spread constraint counts.
type filter struct {
	class          *snapshot.Class // whose affinity and tolerations
	affinity       bool
	taints         bool
	keys           []int32
	byKind         []uint8
	perNode        bool
	identification string
}

// topologyKey is a label, beside the hostname, that constraints spread over.
type topologyKey struct {
	name    string
	values  []string
	valueOf map[string]int32
}

func (k *topologyKey) value(v string) int32 {
	if i, ok := k.valueOf[v]; ok {
		return i
	}
	i := int32(len(k.values))
	k.values = append(k.values, v)
	k.valueOf[v] = i
	return i
}

const hostname = -1

// group counts pods that a selector selects, by domain of a key.
type group struct {
	kind groupKind
	key  int32 // topology key, or hostname
	// selectors must all select a pod (several affinity terms count pods that match all).
	selectors []int32
	filter    int32 // of spread groups; -1 otherwise
	// counts by domain and, for anti-affinity, how many pods there have the term. Those
	// of hostname groups are kept in the nodes.
	counts, guards []int32
	total          int
	// elsewhere counts pods of a joint group on nodes without the label.
	elsewhere int32
	id        int32
	// built is true once a spread group knows its domains: present is the number of
	// counted nodes per domain. Of a hostname group, domains is the number of counted
	// nodes, hist[c] that of those with c pods, and least the smallest such c.
	built   bool
	present []int32
	domains int32
	hist    []int32
	least   int32
}

type groupKind uint8

const (
	spreadGroup groupKind = iota
	nearGroup
	apartGroup
	softGroup
	jointGroup
)

// node is a node that takes pods: existing, in flight or new.
type node struct {
	index    int32
	existing *snapshot.Node
	column   int32 // of new nodes; -1 otherwise
	shop     *shop
	kind     int32
	room     []float64
	domains  []int32 // by topology key; -1 if the node lacks the label
	counts   []groupCount
	// boundCounts are the counts of the pods that were bound before.
	boundCounts []groupCount
	ports       []snapshot.Port
	attached    map[string]bool
	pods        []placedPods
	name        string
	dropped     bool
	choice      *choice
}

type groupCount struct{ group, count, guards int32 }

type placedPods struct {
	class int32
	n     int32
}

// placement is n pods of a class on a node. Placements are kept in the order of binding.
type placement struct {
	class, node, n int32
}

func newSolver(ctx context.Context, snap *snapshot.Snapshot, opts Options) *solver {
	return compile(ctx, snap, opts, nil)
}

// compile makes a solver for the pending pods and for pods, by index, that may become so.
func compile(ctx context.Context, snap *snapshot.Snapshot, opts Options, movable []int32) *solver {
	s := &solver{
		ctx: ctx, snap: snap, opts: opts, dimOf: map[corev1.ResourceName]int{}, keyOf: map[string]int{},
		kinds: map[string]int32{}, supply: map[string]int{}, blame: map[int32][]Reason{},
		sales: map[int32][]*sale{}, placesOf: map[string][]*place{}, sets: map[string]*columnSet{}, portGroup: map[string]int32{}, byPrice: map[int32][]int32{}, exclusive: map[string]bool{}, volumeUsed: map[string]bool{}, claimed: map[string]string{},
	}
	s.countDemand()
	s.relevant = make([]bool, len(snap.Classes))
	for c, n := range s.demand {
		s.relevant[c] = n > 0
	}
	for _, p := range movable {
		s.relevant[snap.Pods[p].Class] = true
	}
	s.chooseDims()
	s.compileClasses()
	s.compileNodes()
	s.compileShops()
	s.colDomains = make([][]int32, len(s.keys))
	s.measure()
	s.saveCounts()
	return s
}

func (s *solver) countDemand() {
	n := len(s.snap.Classes)
	s.demand, s.pending, s.classes = make([]int, n), make([][]int32, n), make([]*class, n)
	for _, p := range s.snap.Pending {
		s.demand[s.snap.Pods[p].Class]++
	}
	flat := make([]int32, 0, len(s.snap.Pending))
	at := make([]int, n)
	for c, d := range s.demand {
		at[c] = len(flat)
		s.pending[c] = flat[at[c] : at[c] : at[c]+d]
		flat = flat[:at[c]+d]
	}
	for _, p := range s.snap.Pending {
		c := s.snap.Pods[p].Class
		s.pending[c] = append(s.pending[c], p)
	}
}

// chooseDims picks the resources that can be scarce: those that a relevant pod asks for.
func (s *solver) chooseDims() {
	names, drivers := map[corev1.ResourceName]bool{}, map[string]bool{}
	for c, ok := range s.relevant {
		if !ok {
			continue
		}
		for name, v := range s.snap.Classes[c].Requests {
			if v > 0 {
				names[name] = true
			}
		}
		for _, v := range s.snap.Classes[c].Volumes {
			if v.Driver != "" {
				drivers[v.Driver] = true
			}
		}
	}
	for name := range names {
		s.dims = append(s.dims, name)
	}
	slices.Sort(s.dims)
	for i, name := range s.dims {
		s.dimOf[name] = i
	}
	for d := range drivers {
		s.drivers = append(s.drivers, d)
	}
	slices.Sort(s.drivers)
	s.D = len(s.dims) + len(s.drivers)
}

// unlimited stands for a resource without a limit, such as volumes of a driver that
// publishes none.
const unlimited = 1 << 50

// vector is list in the solver's dimensions, with the drivers' all unlimited or as given.
func (s *solver) vector(list resources.List, attach map[string]int64) []float64 {
	v := make([]float64, s.D)
	for i, name := range s.dims {
		v[i] = float64(list[name])
	}
	for i, d := range s.drivers {
		v[len(s.dims)+i] = unlimited
		if n, ok := attach[d]; ok {
			v[len(s.dims)+i] = float64(n)
		}
	}
	return v
}

func (s *solver) compileClasses() {
	profiles := map[string]*profile{}
	groups := map[string]int32{}
	filters := map[string]int32{}
	// Groups are made for the constraints of every class that is bound or pending, since
	// pods keep others away after they are bound.
	seen := slices.Clone(s.relevant)
	for _, n := range s.snap.Nodes {
		for _, p := range n.Pods {
			seen[s.snap.Pods[p].Class] = true
		}
	}
	for c, sc := range s.snap.Classes {
		if s.relevant[c] {
			s.classes[c] = s.compileClass(int32(c), sc, profiles, groups, filters)
		} else if seen[c] && len(sc.Apart) > 0 {
			for _, t := range sc.Apart {
				s.group(groups, apartGroup, t.Key, []int32{t.Selector}, -1)
			}
		}
	}
	s.indexGroups()
}

func (s *solver) compileClass(id int32, sc *snapshot.Class, profiles map[string]*profile, groups, filters map[string]int32) *class {
	c := &class{id: id, snap: sc, req: make([]float64, s.D)}
	for i, name := range s.dims {
		c.req[i] = float64(sc.Requests[name])
	}
	for _, v := range sc.Volumes {
		if i, ok := slices.BinarySearch(s.drivers, v.Driver); ok {
			c.req[len(s.dims)+i]++
		}
		c.takesFree = c.takesFree || v.Free != nil
		if v.Shared {
			c.shared = append(c.shared, v)
		}
	}
	if p, ok := profiles[sc.ProfileKey]; ok {
		c.profile = p
	} else {
		c.profile = &profile{id: int32(len(s.profiles)), class: sc, perNode: namesNode(sc.Terms)}
		profiles[sc.ProfileKey] = c.profile
		s.profiles = append(s.profiles, c.profile)
	}
	hard := make([]string, 0, len(sc.Spread))
	for _, sp := range sc.Spread {
		if !sp.Soft {
			hard = append(hard, sp.Key)
		}
	}
	slices.Sort(hard)
	for _, sp := range sc.Spread {
		if sp.Soft {
			if s.opts.Preferences != Ignore {
				c.soft = append(c.soft, softRule{group: s.group(groups, softGroup, sp.Key, []int32{sp.Selector}, -1), weight: -1, spread: true})
			}
			continue
		}
		f := s.filter(filters, sc, sp, hard)
		c.spread = append(c.spread, spreadRule{
			group: s.group(groups, spreadGroup, sp.Key, []int32{sp.Selector}, f), filter: f,
			skew: sp.MaxSkew, minDomains: sp.MinDomains, self: sp.SelfMatch,
		})
	}
	if len(sc.Near) > 0 {
		all := make([]int32, 0, len(sc.Near))
		c.nearAll = true
		for _, t := range sc.Near {
			all = append(all, t.Selector)
			c.nearAll = c.nearAll && t.SelfMatch
		}
		slices.Sort(all)
		all = slices.Compact(all)
		for _, t := range sc.Near {
			c.near = append(c.near, podRule{group: s.group(groups, nearGroup, t.Key, all, -1), self: c.nearAll})
		}
	}
	for _, v := range sc.Volumes {
		if v.Shared && v.Unbound {
			id := "volume " + v.ID
			g, ok := groups[id]
			if !ok {
				g = int32(len(s.groups))
				groups[id] = g
				s.groups = append(s.groups, &group{id: g, kind: jointGroup, key: s.topologyKey(corev1.LabelTopologyZone), filter: -1})
			}
			c.joint = append(c.joint, g)
		}
	}
	for _, t := range sc.Apart {
		c.apart = append(c.apart, podRule{group: s.group(groups, apartGroup, t.Key, []int32{t.Selector}, -1), self: t.SelfMatch})
		c.ownNode = c.ownNode || t.SelfMatch && t.Key == corev1.LabelHostname
	}
	if s.opts.Preferences != Ignore {
		for _, t := range sc.SoftNear {
			c.soft = append(c.soft, softRule{group: s.group(groups, softGroup, t.Key, []int32{t.Selector}, -1), weight: t.Weight})
		}
		for _, t := range sc.SoftApart {
			c.soft = append(c.soft, softRule{group: s.group(groups, softGroup, t.Key, []int32{t.Selector}, -1), weight: -t.Weight})
		}
	}
	return c
}

func namesNode(terms []requirements.Set) bool {
	for _, t := range terms {
		if t.Has(requirements.FieldName) || t.Has(corev1.LabelHostname) {
			return true
		}
	}
	return false
}

func (s *solver) topologyKey(name string) int32 {
	if name == corev1.LabelHostname {
		return hostname
	}
	name = requirements.NormalizeKey(name)
	if i, ok := s.keyOf[name]; ok {
		return int32(i)
	}
	s.keyOf[name] = len(s.keys)
	s.keys = append(s.keys, topologyKey{name: name, valueOf: map[string]int32{}})
	return int32(len(s.keys) - 1)
}

func (s *solver) group(known map[string]int32, kind groupKind, key string, selectors []int32, filter int32) int32 {
	id := fmt.Sprint(kind, "|", key, "|", selectors, "|", filter)
	if g, ok := known[id]; ok {
		return g
	}
	g := int32(len(s.groups))
	known[id] = g
	s.groups = append(s.groups, &group{id: g, kind: kind, key: s.topologyKey(key), selectors: selectors, filter: filter})
	return g
}

func (s *solver) filter(known map[string]int32, sc *snapshot.Class, sp snapshot.Spread, hard []string) int32 {
	f := &filter{class: sc, affinity: !sp.IgnoreAffinity, taints: sp.HonorTaints}
	var id strings.Builder
	if f.affinity {
		for _, t := range sc.Affinity {
			for _, k := range t.Keys() {
				id.WriteString(t[k].String() + ";")
			}
			id.WriteByte('|')
		}
		f.perNode = namesNode(sc.Affinity)
	}
	if f.taints {
		tolerations := make([]string, len(sc.Tolerations))
		for i, t := range sc.Tolerations {
			tolerations[i] = fmt.Sprintf("%s\x00%s\x00%s\x00%s", t.Key, t.Operator, t.Value, t.Effect)
		}
		slices.Sort(tolerations)
		fmt.Fprintf(&id, "~%q", tolerations)
	}
	for _, k := range hard {
		if i := s.topologyKey(k); i != hostname {
			f.keys = append(f.keys, i)
		}
		id.WriteString("#" + k)
	}
	f.identification = id.String()
	if i, ok := known[f.identification]; ok {
		return i
	}
	i := int32(len(s.filters))
	known[f.identification] = i
	s.filters = append(s.filters, f)
	return i
}

// indexGroups finds for each class the groups it belongs to.
func (s *solver) indexGroups() {
	bySelector := map[int32][]int32{}
	for g, gr := range s.groups {
		if len(gr.selectors) > 0 {
			bySelector[gr.selectors[0]] = append(bySelector[gr.selectors[0]], int32(g))
		}
	}
	s.bySelector = bySelector
	for _, d := range s.snap.Daemons {
		s.daemonAdds = append(s.daemonAdds, s.groupsOf(d.Class, bySelector))
	}
	for _, c := range s.classes {
		if c == nil {
			continue
		}
		c.adds = append(s.groupsOf(c.snap, bySelector), c.joint...)
		for _, r := range c.apart {
			c.guards = append(c.guards, r.group)
		}
		for _, g := range c.adds {
			if s.groups[g].kind == apartGroup {
				c.blocked = append(c.blocked, g)
			}
		}
		zonal := map[int32]bool{}
		look := func(g int32) {
			gr := s.groups[g]
			switch {
			case gr.kind == softGroup:
			case gr.key == hostname:
				c.hostRules = true
			default:
				zonal[gr.key] = true
			}
		}
		for _, g := range c.adds {
			look(g)
		}
		for _, r := range c.spread {
			look(r.group)
		}
		for _, r := range c.near {
			look(r.group)
		}
		for _, g := range c.joint {
			look(g)
		}
		for _, r := range c.apart {
			look(r.group)
		}
		for k := range zonal {
			c.zonal = append(c.zonal, k)
		}
		slices.Sort(c.zonal)
	}
}

// groupsOf are the groups whose selectors all select pods of sc.
func (s *solver) groupsOf(sc *snapshot.Class, bySelector map[int32][]int32) []int32 {
	var out []int32
	for _, sel := range sc.Matches {
		for _, g := range bySelector[sel] {
			ok := true
			for _, other := range s.groups[g].selectors[1:] {
				if _, found := slices.BinarySearch(sc.Matches, other); !found {
					ok = false
				}
			}
			if ok {
				out = append(out, g)
			}
		}
	}
	slices.Sort(out)
	return out
}

// boundClass is a class in numbers, as far as pods on nodes count.
type boundClass struct {
	adds, guards []int32
}

// boundClass finds the groups that count bound pods of a class.
func (s *solver) boundClass(id int32) *boundClass {
	if b := s.boundClasses[id]; b != nil {
		return b
	}
	sc := s.snap.Classes[id]
	b := &boundClass{adds: s.groupsOf(sc, s.bySelector)}
	for _, t := range sc.Apart {
		key := s.topologyKey(t.Key)
		for _, g := range s.bySelector[t.Selector] {
			if gr := s.groups[g]; gr.kind == apartGroup && gr.key == key {
				b.guards = append(b.guards, g)
			}
		}
	}
	s.boundClasses[id] = b
	return b
}

// countBound counts one bound pod in its groups; k is -1 to take it away.
func (s *solver) countBound(n *node, pod *snapshot.Pod, k int32) {
	b := s.boundClass(pod.Class)
	for _, g := range b.adds {
		if pod.Terminating && s.groups[g].kind == spreadGroup {
			continue // kube-scheduler's spread does not count pods that are leaving
		}
		s.countPod(n, g, k)
	}
	for _, g := range b.guards {
		s.guard(n, g, k)
	}
}

// compileNodes makes the existing nodes and counts the pods that are bound.
func (s *solver) compileNodes() {
	s.boundClasses = map[int32]*boundClass{}
	s.existing = len(s.snap.Nodes)
	s.nodes = make([]*node, 0, s.existing+64)
	for i, sn := range s.snap.Nodes {
		n := &node{index: int32(i), existing: sn, column: -1, name: sn.Name, room: s.vector(sn.Allocatable, sn.AttachLimits)}
		for j, name := range s.dims {
			n.room[j] -= float64(sn.Used[name] + sn.DaemonReserve[name])
		}
		n.kind = s.kindOf(sn)
		s.setDomains(n, func(key string) (string, bool) { v, ok := sn.Labels[key]; return v, ok })
		s.nodes = append(s.nodes, n)
		s.eachMissing(n, 1)
		for _, p := range sn.Pods {
			pod := &s.snap.Pods[p]
			sc := s.snap.Classes[pod.Class]
			n.ports = append(n.ports, sc.Ports...)
			for _, v := range sc.Volumes {
				if d, ok := slices.BinarySearch(s.drivers, v.Driver); ok && (!v.Shared || n.attach(v)) {
					n.room[len(s.dims)+d]--
				}
			}
			s.countBound(n, pod, 1)
		}
	}
}

// eachMissing keeps the ports of the daemons that an existing node will have, and counts
// their pods if its Node is not there yet; k is -1 to take the counts away.
func (s *solver) eachMissing(n *node, k int32) {
	for _, d := range n.existing.Missing {
		if k > 0 {
			n.ports = append(n.ports, s.snap.Daemons[d].Class.Ports...)
		}
		if !n.existing.InFlight {
			continue // who knows why it is not there yet: only keep its place
		}
		for _, g := range s.daemonAdds[d] {
			s.countPod(n, g, k)
		}
	}
}

// attach reports whether v was not attached to n before, and attaches it.
func (n *node) attach(v snapshot.Volume) bool {
	key := v.Driver + "\x00" + v.ID
	if n.attached[key] {
		return false
	}
	if n.attached == nil {
		n.attached = map[string]bool{}
	}
	n.attached[key] = true
	return true
}

func (s *solver) setDomains(n *node, label func(string) (string, bool)) {
	n.domains = make([]int32, len(s.keys))
	for k := range s.keys {
		n.domains[k] = -1
		if v, ok := label(s.keys[k].name); ok {
			n.domains[k] = s.keys[k].value(v)
		}
	}
}

// kindOf numbers nodes by the labels that constraints look at, and by taints.
func (s *solver) kindOf(n *snapshot.Node) int32 {
	var b strings.Builder
	keys := make([]string, 0, len(s.snap.LabelKeys))
	for k := range s.snap.LabelKeys {
		if k != corev1.LabelHostname && k != requirements.FieldName {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if v, ok := n.Labels[k]; ok {
			b.WriteString(k + "=" + v)
		}
		b.WriteByte(0)
	}
	for _, t := range n.Taints {
		b.WriteString(t.Key + "\x01" + t.Value + "\x01" + string(t.Effect) + "\x00")
	}
	return s.kind(b.String())
}

func (s *solver) kind(id string) int32 {
	if k, ok := s.kinds[id]; ok {
		return k
	}
	k := int32(len(s.kinds))
	s.kinds[id] = k
	return k
}

// accepts reports whether a node's labels and taints suit a profile.
func (s *solver) accepts(p *profile, n *node) bool {
	if n.column >= 0 {
		return p.cols.has(int(n.column))
	}
	if p.perNode {
		return s.acceptsNode(p, n.existing)
	}
	p.byKind = grown(p.byKind, n.kind)
	if p.byKind[n.kind] == 0 {
		p.byKind[n.kind] = 2
		if s.acceptsNode(p, n.existing) {
			p.byKind[n.kind] = 1
		}
	}
	return p.byKind[n.kind] == 1
}

func grown(l []uint8, i int32) []uint8 {
	for int(i) >= len(l) {
		l = append(l, 0)
	}
	return l
}

func (s *solver) acceptsNode(p *profile, n *snapshot.Node) bool {
	return snapshot.Tolerates(p.class.Tolerations, n.Taints) && snapshot.MatchesNode(p.class.Terms, n)
}

// counted reports whether a spread filter counts the pods and the domain of a node.
func (s *solver) counted(f *filter, n *node) bool {
	for _, k := range f.keys {
		if n.domains[k] < 0 {
			return false
		}
	}
	if f.perNode {
		return s.countsNode(f, n)
	}
	f.byKind = grown(f.byKind, n.kind)
	if f.byKind[n.kind] == 0 {
		f.byKind[n.kind] = 2
		if s.countsNode(f, n) {
			f.byKind[n.kind] = 1
		}
	}
	return f.byKind[n.kind] == 1
}

func (s *solver) countsNode(f *filter, n *node) bool {
	if n.existing == nil {
		return s.countsColumn(f, n)
	}
	return (!f.affinity || snapshot.MatchesNode(f.class.Affinity, n.existing)) &&
		(!f.taints || snapshot.Tolerates(f.class.Tolerations, n.existing.Taints))
}

// compareSize orders classes for placement: most important first, then those whose
// constraints look at other pods, then the largest.
func (s *solver) compareSize(a, b *class) int {
	constrained := func(c *class) int {
		switch {
		case c.ownNode:
			return 0 // each takes a node for itself, and little of it
		case len(c.near) > 0:
			return 1
		case len(c.spread)+len(c.apart) > 0:
			return 2
		}
		return 3
	}
	return cmp.Or(
		-cmp.Compare(a.snap.Priority, b.snap.Priority),
		cmp.Compare(constrained(a), constrained(b)),
		-cmp.Compare(a.size, b.size),
		cmp.Compare(s.firstKey(a), s.firstKey(b)),
	)
}

func (s *solver) firstKey(c *class) string {
	return s.snap.Pods[s.pending[c.id][0]].Key.String()
}
