package schedule

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule/internal/relax"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Planner makes many plans for one snapshot, each without some of its nodes. What does not
// depend on the nodes is compiled once, so that a plan costs little more than the work on
// the pods that move.
//
// The pods that are pending in the snapshot have their places in all plans, which are those
// of Solve; nodes that would be bought for them take no other pod.
//
// A Planner is for one goroutine.
type Planner struct {
	s *solver
	// movable says of each existing node, by index, whether plans may be without it, and
	// closed whether it takes pods.
	movable, closed []bool
	indexOf         map[string]int32
	order           []*node
	// endless is true if no limit and no finite supply bounds what is bought.
	endless bool
	// ceiling is a price from which on no node is bought.
	ceiling float64
	// quick leaves out the search for a cheaper set of nodes.
	quick bool
	// worth are the columns worth buying, by sets of lots and resources that are needed.
	worth map[string][]int32
	// values are what one pod of each class costs at least.
	values []float64
	late   map[snapshot.PodKey]bool
	// guests are the pods, by node, that trials before have put there.
	guests map[int32][]int32
	// places are the nodes, by name, that pods are tried on first.
	places map[snapshot.PodKey]string

	clean cleanState
}

// cleanState is what a hypothesis changes, as it was before.
type cleanState struct {
	nodes     []node
	groups    []group
	supply    map[string]int
	remaining [][]float64
	exclusive map[string]bool
	volumes   map[string]bool
	claimed   map[string]string
}

// PlannerNodes say of the nodes of a snapshot what a Planner may do with them.
type PlannerNodes struct {
	// Leave are the nodes, by name, that plans may be without.
	Leave map[string]bool
	// Closed are nodes, by name, that take no pod that moves.
	Closed map[string]bool
	// Late are pods that a drain may evict only when the others have gone.
	Late map[snapshot.PodKey]bool
}

// NewPlanner compiles snap. It returns the error of [Options.Validate] or ctx.Err().
func NewPlanner(ctx context.Context, snap *snapshot.Snapshot, nodes PlannerNodes, opts Options) (*Planner, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	var pods []int32
	for _, n := range snap.Nodes {
		if nodes.Leave[n.Name] {
			for _, i := range n.Pods {
				if snap.Pods[i].Moves() {
					pods = append(pods, i)
				}
			}
		}
	}
	p := &Planner{late: nodes.Late, worth: map[string][]int32{}, indexOf: make(map[string]int32, len(snap.Nodes))}
	s := compile(ctx, snap, opts.withDefaults(), pods)
	p.s = s
	if len(snap.Pending) > 0 {
		s.run(false)
	}
	s.planner = p
	p.endless = len(s.supply) == 0
	for _, l := range s.limits {
		p.endless = p.endless && l == nil
	}
	p.movable, p.closed = make([]bool, len(s.nodes)), make([]bool, len(s.nodes))
	for i, n := range s.nodes {
		if n.existing == nil { // bought for a pending pod: it is not there yet
			p.closed[i] = true
			continue
		}
		p.indexOf[n.name] = int32(i)
		p.movable[i] = nodes.Leave[n.name]
		p.closed[i] = nodes.Closed[n.name] || n.existing.InFlight || !n.existing.Initialized
	}
	p.order = slices.DeleteFunc(slices.Clone(s.fullestFirst()), func(n *node) bool { return p.closed[n.index] })
	s.existing = len(s.nodes)
	s.placed, s.open = nil, nil
	for i := range s.demand { // pods that found no place are none of ours
		s.demand[i] = 0
		s.pending[i] = s.pending[i][:0:0]
	}
	for _, g := range s.groups {
		s.prepare(g)
	}
	for i, n := range s.nodes {
		if p.closed[i] {
			n.room = make([]float64, s.D)
		}
		n.pods = nil
	}
	s.refreshOpen()
	p.save(nil)
	return p, ctx.Err()
}

// Rank makes nodes with a smaller rank, by name, take pods first; of equal ones, and before
// the first call of all, the fullest does. A missing rank is 0.
func (p *Planner) Rank(rank map[string]float64) {
	slices.SortStableFunc(p.order, func(a, b *node) int { return cmp.Compare(rank[a.name], rank[b.name]) })
}

// save makes the present state the one that hypotheses start from. touched are the nodes
// that changed, by index; nil means all.
func (p *Planner) save(touched []int32) {
	s := p.s
	for _, n := range s.nodes[:s.existing] {
		if touched == nil {
			n.boundCounts = slices.Clone(n.counts)
		}
	}
	if touched == nil {
		p.clean.nodes = make([]node, s.existing)
		for i := range p.clean.nodes {
			p.keep(int32(i))
		}
	}
	for _, i := range touched {
		s.nodes[i].boundCounts = slices.Clone(s.nodes[i].counts)
		s.nodes[i].pods = nil
		p.keep(i)
	}
	p.clean.groups = make([]group, len(s.groups))
	for i, g := range s.groups {
		c := *g
		c.counts, c.guards, c.present, c.hist = slices.Clone(g.counts), slices.Clone(g.guards), slices.Clone(g.present), slices.Clone(g.hist)
		p.clean.groups[i] = c
	}
	p.clean.supply = maps.Clone(s.supply)
	p.clean.remaining = nil
	for _, l := range s.limits {
		if l == nil {
			p.clean.remaining = append(p.clean.remaining, nil)
		} else {
			p.clean.remaining = append(p.clean.remaining, slices.Clone(l.remaining))
		}
	}
	p.clean.exclusive, p.clean.volumes, p.clean.claimed = maps.Clone(s.exclusive), maps.Clone(s.volumeUsed), maps.Clone(s.claimed)
}

// keep copies a node into the clean state.
func (p *Planner) keep(i int32) {
	n := *p.s.nodes[i]
	n.room, n.counts = slices.Clone(n.room), slices.Clone(n.counts)
	n.ports = slices.Clip(n.ports)
	n.attached = maps.Clone(n.attached)
	n.pods = nil
	p.clean.nodes[i] = n
}

// restore undoes a hypothesis.
func (p *Planner) restore(out *Trial) {
	s := p.s
	for _, i := range out.gone {
		p.restoreNode(i)
	}
	for _, pl := range s.placed {
		if int(pl.node) < s.existing {
			p.restoreNode(pl.node)
		}
	}
	s.nodes = s.nodes[:s.existing]
	for i := range p.clean.groups {
		c, g := &p.clean.groups[i], s.groups[i]
		g.counts, g.guards = append(g.counts[:0], c.counts...), append(g.guards[:0], c.guards...)
		g.present, g.hist = append(g.present[:0], c.present...), append(g.hist[:0], c.hist...)
		g.total, g.elsewhere, g.built, g.domains, g.least = c.total, c.elsewhere, c.built, c.domains, c.least
	}
	p.forgetDemand()
	if !p.endless {
		maps.Copy(s.supply, p.clean.supply)
		for i, l := range s.limits {
			if l != nil {
				copy(l.remaining, p.clean.remaining[i])
			}
		}
	}
	if len(s.exclusive)+len(s.volumeUsed)+len(s.claimed) > 0 {
		s.exclusive, s.volumeUsed, s.claimed = maps.Clone(p.clean.exclusive), maps.Clone(p.clean.volumes), maps.Clone(p.clean.claimed)
	}
}

// forgetDemand ends a hypothesis: nothing is wanted, nothing is placed.
func (p *Planner) forgetDemand() {
	s := p.s
	for c, pods := range s.pending {
		if len(pods) > 0 {
			s.pending[c] = pods[:0]
			s.demand[c] = 0
		}
	}
	s.placed, s.startAnyway = nil, false
	if len(s.blame) > 0 {
		s.blame = map[int32][]Reason{}
	}
	s.bounds = bounds{}
}

func (p *Planner) restoreNode(i int32) {
	n, c := p.s.nodes[i], &p.clean.nodes[i]
	copy(n.room, c.room)
	n.counts = append(n.counts[:0], c.counts...)
	n.ports, n.dropped = c.ports, c.dropped
	n.attached = maps.Clone(c.attached)
	n.pods = n.pods[:0]
}

// Trial is what came of a hypothesis.
type Trial struct {
	// Nodes are those that the hypothesis is without.
	Nodes []string
	// Complete is true if every pod that moves has a place. Cost and Bias are those of the
	// new nodes, New is their number, Moved that of the pods.
	Complete   bool
	Cost, Bias catalog.Price
	New, Moved int
	// Left is a pod without a place, if there is one.
	Left snapshot.PodKey
	// AtLeast is what new nodes for the pods that have no room would cost at least, if that is
	// why the trial ended: more than the ceiling. Else it is 0.
	AtLeast catalog.Price

	gone []int32
	// open is true until Undo or Apply.
	open bool
}

// Try plans the cluster without the named nodes. New nodes may only be bought below a price
// of ceiling each; none at all if it is 0. A quick trial takes the first set of new nodes that
// it finds, which may be some percent dearer than the one of a careful trial. The planner stays in the hypothesis until
// [Planner.Undo] or [Planner.Apply], one of which must be called before the next Try. It
// panics if a node is not one of those that may leave, or has left.
func (p *Planner) Try(nodes []string, ceiling catalog.Price, quick bool) *Trial {
	s := p.s
	p.quick = quick
	out := &Trial{Nodes: nodes, open: true}
	for _, name := range nodes {
		i, ok := p.indexOf[name]
		if !ok || !p.movable[i] || s.nodes[i].dropped {
			panic(fmt.Sprintf("schedule: node %q cannot leave", name))
		}
		out.gone = append(out.gone, i)
	}
	p.ceiling = float64(ceiling)
	for _, i := range out.gone {
		out.Moved += p.leave(s.nodes[i])
	}
	p.initial()
	p.usePlaces()
	s.useExisting()
	if ceiling > 0 && s.short() {
		if least := p.atLeast(); least > float64(ceiling) {
			out.AtLeast = catalog.Price(least)
			return out
		}
		if !p.endless {
			s.open = nil
			s.refreshOpen()
		}
		classes := s.order()
		s.buy(classes)
		s.serveSingly()
	}
	if len(s.groups) > 0 {
		before := total(s.placed)
		s.replay()
		if total(s.placed) < before && ceiling > 0 {
			s.serveSingly()
		}
	}
	out.Complete = !s.short() && s.ctx.Err() == nil
	if !out.Complete {
		for c, n := range s.demand {
			if n > 0 {
				out.Left = s.snap.Pods[s.pending[c][len(s.pending[c])-1]].Key
				break
			}
		}
		return out
	}
	for _, n := range s.nodes[s.existing:] {
		if len(n.pods) > 0 && !n.dropped {
			out.New++
			out.Cost += s.columns[n.column].cost
			out.Bias += s.columns[n.column].bias
		}
	}
	return out
}

// Prefer makes trials put pods on the nodes that are named for them, as far as these take them,
// before they look for a place for the others: so a plan that was made can be found again. nil
// prefers nothing.
func (p *Planner) Prefer(places map[snapshot.PodKey]string) { p.places = places }

// usePlaces puts pods on the nodes that are preferred for them.
func (p *Planner) usePlaces() {
	if len(p.places) == 0 {
		return
	}
	s := p.s
	for _, c := range s.order() {
		pods, later := s.pending[c.id], s.pending[c.id][:0:0]
		for _, i := range pods {
			at, ok := p.indexOf[p.places[s.snap.Pods[i].Key]]
			if n := s.nodes[at]; !ok || p.closed[at] || n.dropped || !s.accepts(c.profile, n) || s.admits(c, n) == 0 {
				later = append(later, i)
				continue
			}
			s.put(c, s.nodes[at], 1, false)
		}
		// Pods of a class get their places in this order.
		s.pending[c.id] = append(slices.DeleteFunc(slices.Clone(pods), func(i int32) bool { return slices.Contains(later, i) }), later...)
	}
}

// atLeast is what new nodes for the pods without a place cost at least; 0 if that is not known.
func (p *Planner) atLeast() float64 {
	s := p.s
	if p.values == nil || len(s.supply) > 0 { // what supplies cover may cost less
		return 0
	}
	sum := 0.0
	for c, n := range s.demand {
		if n > 0 {
			sum += float64(n) * p.values[c]
		}
	}
	return sum
}

// leave takes a node away and makes its pods pending; it returns how many.
func (p *Planner) leave(n *node) int {
	s := p.s
	moved := 0
	for _, g := range s.groups {
		if g.built {
			s.removeDomain(g, n)
		}
	}
	built := make([]bool, len(s.groups))
	for i, g := range s.groups { // the histogram no longer has the node
		built[i], g.built = g.built, false
	}
	s.eachMissing(n, -1)
	for _, i := range slices.Concat(n.existing.Pods, p.guests[n.index]) {
		pod := &s.snap.Pods[i]
		s.countBound(n, pod, -1)
		if pod.Moves() {
			s.pending[pod.Class] = append(s.pending[pod.Class], i)
			s.demand[pod.Class]++
			moved++
		}
	}
	for i, g := range s.groups {
		g.built = built[i]
	}
	n.dropped = true
	clear(n.room)
	if pool := p.poolOf(n); pool >= 0 && s.limits[pool] != nil {
		l := s.limits[pool]
		for i, name := range l.names {
			if name == snapshot.NodesResource {
				l.remaining[i]++
			} else {
				l.remaining[i] += float64(n.existing.Capacity[name])
			}
		}
	}
	return moved
}

func (p *Planner) poolOf(n *node) int {
	return slices.IndexFunc(p.s.snap.Pools, func(q *snapshot.Pool) bool { return q.Name == n.existing.Pool })
}

// initial notes the counts that the replay starts from.
func (p *Planner) initial() {
	s := p.s
	if len(s.initial) != len(s.groups) {
		s.initial = make([]groupState, len(s.groups))
	}
	for i, g := range s.groups {
		in := &s.initial[i]
		in.counts, in.guards, in.total = append(in.counts[:0], g.counts...), append(in.guards[:0], g.guards...), g.total
	}
}

// Undo leaves the hypothesis.
func (p *Planner) Undo(t *Trial) {
	if !t.open {
		panic("schedule: the trial is over")
	}
	t.open = false
	p.restore(t)
}

// Apply makes the hypothesis true for all that follow: its nodes are gone and its pods in
// their places. New nodes take no more pods.
func (p *Planner) Apply(t *Trial) {
	if !t.open {
		panic("schedule: the trial is over")
	}
	t.open = false
	s := p.s
	p.receive(t)
	touched := slices.Clone(t.gone)
	for _, pl := range s.placed {
		if int(pl.node) < s.existing && !slices.Contains(touched, pl.node) {
			touched = append(touched, pl.node)
		}
	}
	for _, n := range s.nodes[s.existing:] {
		n.room = make([]float64, s.D)
		n.pods = nil
		p.movable, p.closed = append(p.movable, false), append(p.closed, true)
		p.clean.nodes = append(p.clean.nodes, node{})
		touched = append(touched, n.index)
	}
	s.existing = len(s.nodes)
	for _, g := range s.groups {
		s.prepare(g)
	}
	p.forgetDemand()
	p.save(touched)
}

// receive notes where the pods of a trial are.
func (p *Planner) receive(t *Trial) {
	s := p.s
	if p.guests == nil {
		p.guests = map[int32][]int32{}
	}
	for _, i := range t.gone {
		delete(p.guests, i)
	}
	next := make([]int, len(s.pending))
	for _, pl := range s.placed {
		from := next[pl.class]
		next[pl.class] += int(pl.n)
		p.guests[pl.node] = append(p.guests[pl.node], s.pending[pl.class][from:next[pl.class]]...)
	}
}

// Destinations are the existing nodes, by name, that take pods in a trial.
func (p *Planner) Destinations() []string {
	var out []string
	for _, pl := range p.s.placed {
		if n := p.s.nodes[pl.node]; n.existing != nil && !slices.Contains(out, n.name) {
			out = append(out, n.name)
		}
	}
	slices.Sort(out)
	return out
}

// Plan is the plan of a trial that is Complete, without a Bound. New nodes move to the
// cheapest offering that holds what is on them, so it must be called before the cost of the
// trial counts; it updates t.Cost and t.Bias.
func (p *Planner) Plan(t *Trial) Plan {
	s := p.s
	plan := s.listed()
	t.Cost, t.Bias = plan.Cost, plan.Bias
	return plan
}

// candidates are the columns worth buying below the ceiling.
func (p *Planner) candidates(lots []*lot) []int32 {
	s := p.s
	var list []int32
	if p.endless {
		key := p.worthKey(lots)
		known, ok := p.worth[key]
		if !ok {
			known = s.worthBuying(lots)
			p.worth[key] = known
		}
		list = known
	} else {
		list = s.worthBuying(lots)
	}
	out := make([]int32, 0, len(list))
	for _, k := range list {
		if s.columns[k].price() < p.ceiling {
			out = append(out, k)
		}
	}
	return out
}

func (p *Planner) worthKey(lots []*lot) string {
	ids := make([]int, 0, len(lots))
	need := make([]bool, p.s.D)
	mark := func(req []float64) {
		for r, q := range req {
			need[r] = need[r] || q > 0
		}
	}
	for _, l := range lots {
		ids = append(ids, l.cols.id)
		mark(l.class.req)
		for _, part := range l.bundle {
			mark(p.s.classes[part.class].req)
		}
	}
	slices.Sort(ids)
	return fmt.Sprint(slices.Compact(ids), need)
}

// Values are what one pod of each class, by its index in the snapshot, costs at least per
// hour on new nodes, whatever is bought for it together with others: no set of new nodes for
// any of the pods that may move costs less than the sum of their values. Rules between pods
// are left out, which only lowers them. It is 0 for classes that do not move.
func (p *Planner) Values() []float64 {
	if p.values != nil {
		return p.values
	}
	s := p.s
	count := make([]int, len(s.classes))
	for i, n := range s.nodes {
		if n.existing == nil || !p.movable[i] {
			continue
		}
		for _, pod := range n.existing.Pods {
			if s.snap.Pods[pod].Moves() {
				count[s.snap.Pods[pod].Class]++
			}
		}
	}
	p.values = s.values(count)
	return p.values
}

// valueSteps bounds the steps for Values: the last ones gain little.
const valueSteps = 120

// values divides a lower bound of what the pods cost on new nodes among their classes.
func (s *solver) values(count []int) []float64 {
	out := make([]float64, len(s.classes))
	pr, itemOf, _ := s.relaxation(count)
	if len(pr.Count) == 0 {
		return out
	}
	d := relax.New(pr)
	d.Ascend(pr, min(relaxSteps(pr), valueSteps))
	for id, i := range itemOf {
		if i >= 0 && d.Pi[i] < unlimited {
			out[id] = max(d.Pi[i], 0)
		}
	}
	return out
}
