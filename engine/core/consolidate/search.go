package consolidate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// search is one run of Propose.
type search struct {
	ctx     context.Context
	snap    *snapshot.Snapshot
	opts    Options
	prices  prices
	planner *schedule.Planner
	// scattered has the same moves as planner, with the pods where kube-scheduler puts them.
	scattered *schedule.Planner
	nodes     schedule.PlannerNodes
	// all are the candidates by name, byName indexes them.
	all    []*item
	byName map[string]*item
	pools  map[string]*poolSum
	// allowances are the budgets by pool and reason.
	allowances map[string]map[karpv1.DisruptionReason]*candidate.Allowance

	moves  []Move
	trials int
	// fragile are nodes whose moves were not robust, and state is that of nodes and pods.
	fragile map[string]bool
	state   uint64
	// covered is, by the size of a group, for how many seeds more that size is left out because
	// a group of mostly the same nodes was no use.
	covered map[int]int
	// unseen is true if a turn was skipped because trials ran out.
	unseen bool
}

// item is a candidate with what it costs.
type item struct {
	*candidate.Candidate
	price
	priced bool
	// waste is what the node costs beyond what its pods are worth; see the package.
	waste float64
	// gone is true once a move has the node, busy once a move puts pods on it.
	gone, busy bool
	// why are reasons found in the search.
	why []candidate.Reason
}

// ratio is the most that disrupting the node can save for each unit of disruption.
func (it *item) ratio() float64 { return it.waste / it.Candidate.Cost }

// poolSum is what the score of a Balanced NodePool is relative to.
type poolSum struct {
	balanced         bool
	cost, disruption float64
}

func (o Options) withDefaults() Options {
	o.MinSaving = cmp.Or(o.MinSaving, DefaultMinSaving)
	o.SpotTypes = cmp.Or(o.SpotTypes, DefaultSpotTypes)
	o.MaxNodes = cmp.Or(o.MaxNodes, DefaultMaxNodes)
	o.Trials = cmp.Or(o.Trials, DefaultTrials)
	if o.Memory == nil {
		o.Memory = &Memory{}
	}
	if o.Solve.Memo == nil {
		o.Solve.Memo = &o.Memory.memo
	}
	if o.Solve.ImproveSteps == 0 {
		o.Solve.ImproveSteps = improveSteps
	}
	return o
}

// improveSteps bounds the improvement of each of the many plans.
const improveSteps = 40

// Validate names every field that holds a value which is not allowed.
func (o Options) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{{"maxNodes", o.MaxNodes}, {"maxMoves", o.MaxMoves}, {"trials", o.Trials}} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d: must not be negative", f.name, f.value))
		}
	}
	if o.MinSaving >= 1000 {
		errs = append(errs, fmt.Errorf("minSaving: %d: must be less than 1000 permille", o.MinSaving))
	}
	return errors.Join(append(errs, o.Solve.Validate())...)
}

func newSearch(ctx context.Context, snap *snapshot.Snapshot, opts Options) (*search, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &search{
		ctx: ctx, snap: snap, opts: opts.withDefaults(), prices: priceList(snap, opts.Solve.Costs),
		byName: map[string]*item{}, covered: map[int]int{}, fragile: map[string]bool{}, pools: map[string]*poolSum{}, allowances: map[string]map[karpv1.DisruptionReason]*candidate.Allowance{},
	}
	for i := range s.opts.Allowances {
		a := s.opts.Allowances[i]
		if s.allowances[a.Pool] == nil {
			s.allowances[a.Pool] = map[karpv1.DisruptionReason]*candidate.Allowance{}
		}
		s.allowances[a.Pool][a.Reason] = &a
	}
	s.opts.Memory.prices.observe(snap)
	if s.state = stateOf(snap); s.opts.Memory.state != s.state {
		s.opts.Memory.fragile, s.opts.Memory.state = nil, s.state
	}
	here := map[string]bool{}
	for _, n := range snap.Nodes {
		here[n.Name] = true
	}
	nodes := schedule.PlannerNodes{Leave: map[string]bool{}, Closed: map[string]bool{}, Late: map[snapshot.PodKey]bool{}}
	for i := range s.opts.Candidates {
		it := &item{Candidate: &s.opts.Candidates[i]}
		if !here[it.Node] {
			continue
		}
		it.price, it.priced = s.prices.of(it.Candidate)
		s.all = append(s.all, it)
		s.byName[it.Node] = it
		s.count(it)
		if !it.Destination && it.Claim != "" {
			nodes.Closed[it.Node] = true
		}
		for _, p := range it.Late {
			nodes.Late[p] = true
		}
		if s.eligible(it, karpv1.DisruptionReasonUnderutilized) || s.eligible(it, karpv1.DisruptionReasonEmpty) || s.drifted(it) || s.broken(it) {
			nodes.Leave[it.Node] = true
		}
	}
	slices.SortFunc(s.all, func(a, b *item) int { return strings.Compare(a.Node, b.Node) })
	if len(nodes.Leave) == 0 {
		return s, ctx.Err()
	}
	var err error
	s.nodes = nodes
	if s.planner, err = schedule.NewPlanner(ctx, snap, nodes, s.opts.Solve); err != nil {
		return nil, err
	}
	// What takes pods first stays longest: nodes that cannot go, then those of little waste.
	values := s.planner.Values()
	var leaving []*item
	for _, n := range snap.Nodes {
		it := s.byName[n.Name]
		if it == nil || !nodes.Leave[n.Name] {
			continue
		}
		worth := 0.0
		for _, p := range n.Pods {
			if pod := &snap.Pods[p]; pod.Moves() {
				worth += values[pod.Class]
			}
		}
		it.waste = float64(it.cost+it.bias) - worth
		leaving = append(leaving, it)
	}
	slices.SortStableFunc(leaving, worthwhile)
	rank := make(map[string]float64, len(leaving))
	for i, it := range leaving {
		rank[it.Node] = float64(len(leaving) - i)
	}
	s.planner.Rank(rank)
	return s, ctx.Err()
}

// count adds a node to the sums of its pool.
func (s *search) count(it *item) {
	pool := s.prices.pools[it.Pool]
	if pool == nil {
		return
	}
	sum := s.pools[it.Pool]
	if sum == nil {
		sum = &poolSum{balanced: pool.Object != nil && pool.Object.Spec.Disruption.ConsolidationPolicy == karpv1.ConsolidationPolicyBalanced}
		s.pools[it.Pool] = sum
	}
	sum.cost += float64(it.cost)
	sum.disruption += it.Candidate.Cost
}

// eligible reports whether a node may go for a reason, budgets apart.
func (s *search) eligible(it *item, reason karpv1.DisruptionReason) bool {
	_, held := s.opts.Held[it.Node]
	return !held && len(it.Blocked(reason)) == 0
}

func (s *search) drifted(it *item) bool {
	return it.Drifted != "" && !it.Static && s.eligible(it, karpv1.DisruptionReasonDrifted)
}

func (s *search) broken(it *item) bool {
	return it.Fault != nil && !it.Static && s.eligible(it, karpv1.DisruptionReasonUnhealthy)
}

// free reports whether a node can still be part of a move.
func (it *item) free() bool { return !it.gone && !it.busy }

// left is how many more nodes of a pool may go for a reason.
func (s *search) left(pool string, reason karpv1.DisruptionReason) int {
	a := s.allowances[pool][reason]
	switch {
	case a == nil:
		return 0
	case a.Unlimited:
		return math.MaxInt
	}
	return a.Left
}

// spend counts the nodes of a move against all budgets of their pools: budgets bound how many
// nodes are disrupted, whatever for.
func (s *search) spend(items []*item) {
	for _, it := range items {
		if it.Uninitialized() {
			continue // they are not counted either
		}
		for _, a := range s.allowances[it.Pool] {
			a.Left = max(a.Left-1, 0)
			a.Consumed++
		}
	}
}

// within keeps of items as many as the budgets of their pools let go.
func (s *search) within(items []*item, reason karpv1.DisruptionReason) []*item {
	used := map[string]int{}
	var out []*item
	for _, it := range items {
		if used[it.Pool] < s.left(it.Pool, reason) {
			used[it.Pool]++
			out = append(out, it)
		}
	}
	return out
}

// turn reports whether there are trials left for one more.
func (s *search) turn() bool {
	if s.trials >= s.opts.Trials || s.opts.MaxMoves > 0 && len(s.moves) >= s.opts.MaxMoves {
		s.unseen = true
		return false
	}
	return s.ctx.Err() == nil
}

// takeBroken replaces nodes that are broken, the most urgent first.
func (s *search) takeBroken() error {
	return s.renew(karpv1.DisruptionReasonUnhealthy, s.broken, func(a, b *item) int {
		return cmp.Or(-cmp.Compare(a.Fault.Urgency, b.Fault.Urgency), cmp.Compare(a.Candidate.Cost, b.Candidate.Cost))
	})
}

// takeEmpty deletes nodes on which nothing runs that needs a place. Nodes that cost nothing
// although their price is known, such as prepaid reservations, stay: others may move there.
func (s *search) takeEmpty() error {
	for _, it := range s.byRatio(func(it *item) bool { return it.Empty() && s.eligible(it, karpv1.DisruptionReasonEmpty) }) {
		if it.priced && it.cost+it.bias <= 0 && it.ReservationID != "" {
			it.why = append(it.why, candidate.Reason{Code: NothingToGain, Message: "its reservation is paid for anyway"})
			continue
		}
		if s.left(it.Pool, karpv1.DisruptionReasonEmpty) == 0 {
			s.closed(it, karpv1.DisruptionReasonEmpty)
			continue
		}
		if !s.turn() {
			return nil
		}
		if _, err := s.try([]*item{it}, karpv1.DisruptionReasonEmpty, 0); err != nil {
			return err
		}
	}
	return nil
}

// takeDrifted replaces drifted nodes, those without pods first, then the ones that have waited
// longest.
func (s *search) takeDrifted() error {
	return s.renew(karpv1.DisruptionReasonDrifted, s.drifted, func(a, b *item) int {
		if a.Empty() != b.Empty() {
			if a.Empty() {
				return -1
			}
			return 1
		}
		return cmp.Or(a.DriftedSince.Compare(b.DriftedSince), cmp.Compare(a.Candidate.Cost, b.Candidate.Cost))
	})
}

// renew replaces nodes one by one for what they are, not for what they cost: what replaces
// them may cost more.
func (s *search) renew(reason karpv1.DisruptionReason, suits func(*item) bool, order func(a, b *item) int) error {
	var list []*item
	for _, it := range s.all {
		if it.free() && suits(it) {
			list = append(list, it)
		}
	}
	slices.SortStableFunc(list, order)
	for _, it := range list {
		if it.busy {
			continue
		}
		if !it.Uninitialized() && s.left(it.Pool, reason) == 0 {
			s.closed(it, reason)
			continue
		}
		if !s.turn() {
			return nil
		}
		if _, err := s.try([]*item{it}, reason, math.MaxInt64); err != nil {
			return err
		}
	}
	return nil
}

// takeAway deletes nodes whose pods have room on others.
func (s *search) takeAway() error {
	list := s.byRatio(func(it *item) bool {
		return !it.Empty() && it.priced && it.cost > 0 && it.cost+it.bias > 0 && s.eligible(it, karpv1.DisruptionReasonUnderutilized)
	})
	// Half of the trials are for the best; the turn of the rest goes round.
	first := s.trials
	for _, it := range rotated(list, s.opts.Trials/4, s.opts.Memory.away) {
		if !it.free() {
			continue
		}
		if s.left(it.Pool, karpv1.DisruptionReasonUnderutilized) == 0 {
			s.closed(it, karpv1.DisruptionReasonUnderutilized)
			continue
		}
		if s.trials-first >= s.opts.Trials/2 || !s.turn() {
			s.unseen = true
			s.opts.Memory.away = it.Node
			return nil
		}
		if _, err := s.try([]*item{it}, karpv1.DisruptionReasonUnderutilized, 0); err != nil {
			return err
		}
	}
	s.opts.Memory.away = ""
	return nil
}

// replace looks for nodes whose pods have a cheaper place, alone and together.
func (s *search) replace() error {
	list := s.byRatio(func(it *item) bool {
		return !it.Empty() && it.priced && it.cost+it.bias > 0 && s.eligible(it, karpv1.DisruptionReasonUnderutilized)
	})
	for _, seed := range rotated(list, s.opts.Trials/16, s.opts.Memory.swap) {
		if !seed.free() {
			continue
		}
		if s.left(seed.Pool, karpv1.DisruptionReasonUnderutilized) == 0 {
			s.closed(seed, karpv1.DisruptionReasonUnderutilized)
			continue
		}
		if !s.turn() {
			s.opts.Memory.swap = seed.Node
			return nil
		}
		if err := s.replaceWith(seed, list); err != nil {
			return err
		}
	}
	s.opts.Memory.swap = ""
	return nil
}

// wasteful reports whether new nodes alone could replace the node for enough less. One that is
// not may still be replaced if part of its pods have room on others, so it is tried alone.
func (s *search) wasteful(it *item) bool {
	return it.waste >= float64(max(s.opts.MinSaving, 0))/1000*float64(it.cost+it.bias)
}

// replaceWith finds the best move that has seed in it: alone or together with those of list
// that follow it, of its own pool first.
func (s *search) replaceWith(seed *item, list []*item) error {
	group := []*item{seed}
	for _, own := range []bool{true, false} {
		for _, it := range list {
			if it != seed && s.wasteful(seed) && s.wasteful(it) && it.free() && (it.Pool == seed.Pool) == own && len(group) < s.opts.MaxNodes {
				group = append(group, it)
			}
		}
	}
	group = s.within(group, karpv1.DisruptionReasonUnderutilized)
	type found struct {
		n     int
		ratio float64
		most  catalog.Price
	}
	var all []found
	best := 0.0
	for _, n := range sizes(len(group)) {
		if s.covered[n] > 0 {
			s.covered[n]--
			continue // most of these were tried together
		}
		waste, disruption, own := 0.0, 0.0, catalog.Price(0)
		for _, it := range group[:n] {
			waste += it.waste
			disruption += it.Candidate.Cost
			own += it.cost
		}
		if s.opts.Approve == nil && waste/disruption < best {
			continue // even if all waste were saved
		}
		if !s.turn() {
			break
		}
		most := s.ceiling(own)
		m, t := s.examine(group[:n], karpv1.DisruptionReasonUnderutilized, most, true)
		s.planner.Undo(t)
		if m == nil && t.Complete && float64(t.Cost) < nearly*float64(most) && s.turn() {
			m, t = s.examine(group[:n], karpv1.DisruptionReasonUnderutilized, most, false)
			s.planner.Undo(t)
		}
		if m == nil {
			s.covered[n] = n / 2
			continue
		}
		r := float64(m.Saving()) / disruption
		all = append(all, found{n, r, most})
		best = max(best, r)
	}
	slices.SortStableFunc(all, func(a, b found) int { return -cmp.Compare(a.ratio, b.ratio) })
	for _, f := range all { // the next one if policies deny the best
		if made, err := s.try(group[:f.n], karpv1.DisruptionReasonUnderutilized, f.most); made || err != nil {
			return err
		}
	}
	return nil
}

// nearly is how much too dear what a quick trial finds may be for a careful one to be worth it.
const nearly = 1.08

// sizes are the numbers of nodes that are tried together, up to n.
func sizes(n int) []int {
	var out []int
	for _, k := range []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64} {
		if k < n {
			out = append(out, k)
		}
	}
	return append(out, n)
}

// ceiling is the most that what replaces nodes of this cost may cost.
func (s *search) ceiling(cost catalog.Price) catalog.Price {
	if s.opts.MinSaving < 0 {
		return cost - 1
	}
	return cost - cost*catalog.Price(s.opts.MinSaving)/1000
}

// byRatio lists the candidates that are free and suit, the most worthwhile first.
func (s *search) byRatio(suits func(*item) bool) []*item {
	var list []*item
	for _, it := range s.all {
		if it.free() && s.planner != nil && suits(it) {
			list = append(list, it)
		}
	}
	slices.SortStableFunc(list, func(a, b *item) int {
		if x, y := s.opts.Memory.denied[a.Node], s.opts.Memory.denied[b.Node]; x != y {
			if x {
				return 1
			}
			return -1
		}
		return worthwhile(a, b)
	})
	return list
}

// worthwhile orders nodes by what disrupting them may save, then by what it costs.
func worthwhile(a, b *item) int {
	return cmp.Or(-cmp.Compare(a.ratio(), b.ratio()), cmp.Compare(a.Candidate.Cost, b.Candidate.Cost), strings.Compare(a.Node, b.Node))
}

// rotated puts the node that is called next, and those after it by name, behind the first n.
func rotated(list []*item, n int, next string) []*item {
	if len(list) <= n || next == "" {
		return list
	}
	out := slices.Clone(list[:n])
	rest := slices.Clone(list[n:])
	slices.SortFunc(rest, func(a, b *item) int { return strings.Compare(a.Node, b.Node) })
	i, _ := slices.BinarySearchFunc(rest, next, func(it *item, name string) int { return strings.Compare(it.Node, name) })
	out = append(out, rest[i:]...)
	return append(out, rest[:i]...)
}

// closed notes that budgets keep a node.
func (s *search) closed(it *item, reason karpv1.DisruptionReason) {
	r := candidate.Reason{Code: BudgetClosed, Object: "NodePool " + it.Pool, Message: fmt.Sprintf("no budget lets nodes go for reason %s", reason)}
	if a := s.allowances[it.Pool][reason]; a != nil {
		r.Message, r.Until = a.String(), a.Opens
	}
	it.why = append(it.why, r)
}

// try examines a set of nodes and makes it a move if it is worth it and approved of.
func (s *search) try(items []*item, reason karpv1.DisruptionReason, ceiling catalog.Price) (bool, error) {
	m, t, scattered, err := s.robust(items, reason, ceiling)
	if m == nil {
		return false, err
	}
	if s.opts.Approve != nil {
		v, err := s.opts.Approve(s.ctx, m)
		if err != nil || len(v.Deny)+len(v.Keep) > 0 {
			s.scattered.Undo(scattered)
			s.planner.Undo(t)
			return false, cmp.Or(err, s.shrink(items, reason, ceiling, v))
		}
	}
	for _, name := range s.planner.Destinations() {
		if it := s.byName[name]; it != nil {
			it.busy = true
		}
	}
	s.planner.Apply(t)
	s.scattered.Apply(scattered)
	for _, it := range items {
		it.gone = true
	}
	s.spend(items)
	s.moves = append(s.moves, *m)
	return true, nil
}

// robust examines a set of nodes, and whether all pods find a place however kube-scheduler
// spreads them. The trials are open if the move is not nil.
func (s *search) robust(items []*item, reason karpv1.DisruptionReason, ceiling catalog.Price) (*Move, *schedule.Trial, *schedule.Trial, error) {
	m, t := s.examine(items, reason, ceiling, false)
	if m == nil {
		s.planner.Undo(t)
		return nil, nil, nil, nil
	}
	fragile := func(it *item) bool { return s.opts.Memory.fragile[it.Node] }
	if reason == karpv1.DisruptionReasonUnderutilized && slices.ContainsFunc(items, fragile) {
		s.planner.Undo(t)
		s.note(items, NoPlace, "some of its pods would have no place once kube-scheduler has spread the others", ceiling)
		return nil, nil, nil, nil
	}
	scattered, err := s.scatter(t)
	if err != nil {
		s.planner.Undo(t)
		return nil, nil, nil, err
	}
	if scattered.Complete || reason != karpv1.DisruptionReasonUnderutilized { // what has to go goes all the same
		return m, t, scattered, nil
	}
	s.scattered.Undo(scattered)
	s.planner.Undo(t)
	s.note(items, NoPlace, fmt.Sprintf("pod %s would have no place once kube-scheduler has spread the others", scattered.Left), ceiling)
	for _, it := range items {
		s.fragile[it.Node] = true
	}
	return nil, nil, nil, nil
}

// stateOf tells states of nodes and pods apart.
func stateOf(snap *snapshot.Snapshot) uint64 {
	h := fnv.New64a()
	write := func(text string) { _, _ = h.Write(append([]byte(text), 0)) }
	for _, n := range snap.Nodes {
		write(n.Name)
		for _, i := range n.Pods {
			write(snap.Pods[i].Key.String())
		}
	}
	for _, i := range snap.Pending {
		write(snap.Pods[i].Key.String())
	}
	return h.Sum64()
}

// scatter tries an open trial as it may come out: kube-scheduler knows nothing of the plan, and
// spreads the pods of this move and those before it over all nodes.
func (s *search) scatter(t *schedule.Trial) (*schedule.Trial, error) {
	if s.scattered == nil {
		var err error
		if s.scattered, err = schedule.NewPlanner(s.ctx, s.snap, s.nodes, s.opts.Solve); err != nil {
			return nil, err
		}
	}
	return s.scattered.Scatter(s.planner, t), nil
}

// shrink asks again without the nodes that must stay, and notes why they do.
func (s *search) shrink(items []*item, reason karpv1.DisruptionReason, ceiling catalog.Price, v Verdict) error {
	var rest []*item
	cost := catalog.Price(0)
	for _, it := range items {
		switch r, kept := v.Keep[it.Node]; {
		case kept:
			it.why = append(it.why, r)
			it.busy = true
		case len(v.Deny) > 0:
			it.why = append(it.why, v.Deny...)
			if s.opts.Memory.denied == nil {
				s.opts.Memory.denied = map[string]bool{}
			}
			s.opts.Memory.denied[it.Node] = true
		default:
			rest = append(rest, it)
			cost += it.cost
		}
	}
	if len(rest) == 0 || len(rest) == len(items) {
		return nil
	}
	if ceiling > 0 && ceiling < math.MaxInt64 {
		ceiling = s.ceiling(cost)
	}
	_, err := s.try(rest, reason, ceiling)
	return err
}

// examine plans the cluster without items. The move is nil if it is not worth it; the trial
// is open in any case.
func (s *search) examine(items []*item, reason karpv1.DisruptionReason, ceiling catalog.Price, quick bool) (*Move, *schedule.Trial) {
	m := &Move{Reason: reason}
	for _, it := range items {
		m.Nodes = append(m.Nodes, it.Node)
		m.Cost += it.cost
		m.Bias += it.bias
		m.Evictions += len(it.Pods)
		m.Disruption += it.Candidate.Cost
	}
	slices.Sort(m.Nodes)
	s.trials++
	t := s.planner.Try(m.Nodes, ceiling, quick)
	if t.AtLeast > 0 {
		s.note(items, SavingTooSmall, fmt.Sprintf("what would replace it costs at least $%.4f/h of $%.4f/h", t.AtLeast.Dollars(), m.Cost.Dollars()), ceiling)
		return nil, t
	}
	if !t.Complete {
		s.note(items, NoPlace, fmt.Sprintf("pod %s would have no place", t.Left), ceiling)
		return nil, t
	}
	m.Plan = s.planner.Plan(t)
	m.NewCost, m.NewBias = t.Cost, t.Bias
	if reason != karpv1.DisruptionReasonUnderutilized {
		return m, t
	}
	if t.New > 0 {
		if t.Cost > ceiling || t.Cost+t.Bias >= m.Cost+m.Bias {
			s.note(items, SavingTooSmall, fmt.Sprintf("what would replace it costs $%.4f/h of $%.4f/h", t.Cost.Dollars(), m.Cost.Dollars()), ceiling)
			return nil, t
		}
		m.Ceiling = ceiling
		if !s.lasts(items, m) {
			s.note(items, SavingTooSmall, fmt.Sprintf("what would replace it costs $%.4f/h of $%.4f/h now, but prices moved as much in the last minutes", t.Cost.Dollars(), m.Cost.Dollars()), ceiling)
			return nil, t
		}
		if have, ok := s.spotTypes(items, m); !ok {
			s.note(items, TooFewSpotTypes, fmt.Sprintf("a spot node in its place could be of %d instance types: %d < %d", have, have, s.opts.SpotTypes), ceiling)
			return nil, t
		}
		for i := range m.Plan.NewNodes {
			if n := &m.Plan.NewNodes[i]; !s.prices.keepsMinValues(n, m.Share(n)) {
				s.note(items, SavingTooSmall, "too few instance types that cost less are left for minValues", ceiling)
				return nil, t
			}
		}
	}
	if r := s.score(items, m); r != nil {
		s.note(items, r.Code, r.Message, ceiling)
		return nil, t
	}
	return m, t
}

// note keeps why a node alone is left: what is found of groups is not about one node.
func (s *search) note(items []*item, code candidate.Code, message string, ceiling catalog.Price) {
	if len(items) != 1 {
		return
	}
	it := items[0]
	for i := range it.why { // what is known with a replacement counts more than without
		if it.why[i].Code == NoPlace || it.why[i].Code == code {
			it.why[i] = candidate.Reason{Code: code, Message: message}
			return
		}
	}
	if ceiling == 0 && code == NoPlace && len(it.why) > 0 {
		return
	}
	it.why = append(it.why, candidate.Reason{Code: code, Message: message})
}

// lasts reports whether a move saves enough at the worst prices of late, too.
func (s *search) lasts(items []*item, m *Move) bool {
	before, after := catalog.Price(0), catalog.Price(0)
	for _, it := range items {
		before += s.opts.Memory.prices.least(it.Candidate, it.cost)
	}
	for i := range m.Plan.NewNodes {
		after += s.opts.Memory.prices.most(&m.Plan.NewNodes[i])
	}
	return after <= s.ceiling(before)
}

// spotTypes reports whether every spot node that replaces spot nodes may be of enough types,
// so that it is not replaced or interrupted again at once; else have is the number.
func (s *search) spotTypes(items []*item, m *Move) (have int, ok bool) {
	if !slices.ContainsFunc(items, func(it *item) bool { return it.CapacityType == catalog.Spot }) {
		return 0, true
	}
	for i := range m.Plan.NewNodes {
		n := &m.Plan.NewNodes[i]
		if n.Planned.CapacityType != catalog.Spot {
			continue
		}
		have = choices(n, m.Share(n))[corev1.LabelInstanceTypeStable]
		if s.opts.SpotTypes < 0 || have < s.opts.SpotTypes {
			return have, false
		}
	}
	return 0, true
}

// score fills in the scores of the pools that are Balanced; the reason is not nil if one of
// them is too low.
func (s *search) score(items []*item, m *Move) *candidate.Reason {
	type part struct{ cost, disruption float64 }
	parts := map[string]*part{}
	for _, it := range items {
		if sum := s.pools[it.Pool]; sum != nil && sum.balanced {
			if parts[it.Pool] == nil {
				parts[it.Pool] = &part{}
			}
			parts[it.Pool].cost += float64(it.cost)
			parts[it.Pool].disruption += it.Candidate.Cost
		}
	}
	for _, name := range sortedKeys(parts) {
		p, sum := parts[name], s.pools[name]
		saving := float64(m.Saving())
		if m.Cost > 0 {
			saving *= p.cost / float64(m.Cost)
		}
		score := 0.0
		if saving > 0 && sum.cost > 0 && sum.disruption > 0 {
			score = (saving / sum.cost) / (p.disruption / sum.disruption)
		}
		if m.Score == nil {
			m.Score = map[string]float64{}
		}
		m.Score[name] = score
		if score < BalancedScore {
			return &candidate.Reason{Code: BalancedTooLow, Message: fmt.Sprintf("its score in NodePool %s, the share of savings over that of disruption, is %.2f: %.1f is asked for", name, score, BalancedScore)}
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// result lists the moves, and why every other node is left.
func (s *search) result() Result {
	if !s.unseen {
		s.opts.Memory.denied = nil
		if len(s.moves) == 0 && s.opts.Memory.fragile == nil {
			s.opts.Memory.fragile = s.fragile
		}
	}
	r := Result{Moves: s.moves, Left: make(map[string][]candidate.Reason, len(s.opts.Candidates)), Trials: s.trials, Complete: !s.unseen}
	for i := range s.opts.Candidates {
		c := &s.opts.Candidates[i]
		it := s.byName[c.Node]
		if it != nil {
			r.Cost += it.cost
			if it.gone {
				continue
			}
		}
		r.Left[c.Node] = s.reasons(c, it)
	}
	return r
}

// reasons says why a node is left: never nothing.
func (s *search) reasons(c *candidate.Candidate, it *item) []candidate.Reason {
	if h, ok := s.opts.Held[c.Node]; ok {
		return []candidate.Reason{h}
	}
	var kinds []karpv1.DisruptionReason
	if c.Fault != nil {
		kinds = append(kinds, karpv1.DisruptionReasonUnhealthy)
	}
	if c.Drifted != "" {
		kinds = append(kinds, karpv1.DisruptionReasonDrifted)
	}
	if c.Empty() {
		kinds = append(kinds, karpv1.DisruptionReasonEmpty)
	} else {
		kinds = append(kinds, karpv1.DisruptionReasonUnderutilized)
	}
	var out []candidate.Reason
	for _, kind := range kinds {
		for _, b := range c.Blocked(kind) {
			if !slices.Contains(out, b) {
				out = append(out, b)
			}
		}
	}
	if it != nil {
		for _, r := range it.why {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
		if it.busy && len(it.why) == 0 {
			out = append(out, candidate.Reason{Code: Busy, Message: "it takes pods of another move"})
		}
		if len(out) == 0 && !it.priced {
			out = append(out, candidate.Reason{Code: candidate.TypeUnknown, Message: fmt.Sprintf("what %s %s in %q costs is not known", it.CapacityType, it.InstanceType, it.Zone)})
		}
	}
	if len(out) == 0 {
		out = append(out, candidate.Reason{Code: NotReached, Message: "its turn comes in a later round"})
	}
	return out
}
