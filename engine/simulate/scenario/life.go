package scenario

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

const (
	loop = 10 * time.Second
	// manyPods is the number of pods from which on a life is repeated less often.
	manyPods = 400
)

// life is a case as it happens.
type life struct {
	p     *Problem
	w     *world.World
	wrong []string
	said  map[string]bool

	// bound is where pods were at the last step.
	bound map[snapshot.PodKey]string
	// guarded is what PodDisruptionBudgets had at the last step, and lost how many pods had
	// ended with their machine by then.
	guarded map[string]policyv1.PodDisruptionBudgetStatus
	lost    int
	seen    int
	// examined is when nodes had their turn in the search for moves.
	examined map[string]time.Time
	// began is when a node began to go, disturbed when something happened from outside.
	began, disturbed time.Time
	// states are those in which the cluster came to rest after a move, in order.
	states []string
	// end is when the case is over, rest when it must have come to rest.
	rest, end          time.Time
	disrupted, present []int
}

// judgeLife has p happen and holds it against its expectation and the invariants.
func judgeLife(ctx context.Context, p *Problem) (Verdict, error) {
	v := Verdict{Name: p.Name, About: p.About}
	if len(p.Policies.Enforced) < len(p.PolicyFiles) {
		return v, fmt.Errorf("scenario %s: its policies are not loaded", p.Name)
	}
	l, err := live(ctx, p, p.Objects, true)
	if err != nil {
		return v, fmt.Errorf("scenario %s: %w", p.Name, err)
	}
	v.Wrong = append(l.wrong, l.judge(&p.Expect)...)
	shuffles := cmp.Or(p.Shuffles, Shuffles)
	if len(p.Objects.Pods) > manyPods && p.Shuffles == 0 {
		shuffles = 1
	}
	wrong, err := otherOrders(ctx, p, l.outcome(), shuffles)
	if err != nil {
		return v, fmt.Errorf("scenario %s, shuffled: %w", p.Name, err)
	}
	v.Wrong = append(v.Wrong, wrong...)
	if p.Life.Arrivals {
		if wrong, err = otherArrivals(ctx, p, l.outcome()); err != nil {
			return v, fmt.Errorf("scenario %s, pods in another order: %w", p.Name, err)
		}
		v.Wrong = append(v.Wrong, wrong...)
	}
	return v, nil
}

// otherArrivals has p happen with its pending pods in all orders of their apps: what they are
// called says who comes first.
func otherArrivals(ctx context.Context, p *Problem, want string) ([]string, error) {
	byApp := map[string][]*corev1.Pod{}
	var bound []*corev1.Pod
	for _, pod := range p.Objects.Pods {
		if pod.Spec.NodeName != "" {
			bound = append(bound, pod)
			continue
		}
		byApp[pod.Labels[appLabel]] = append(byApp[pod.Labels[appLabel]], pod)
	}
	apps := slices.Sorted(maps.Keys(byApp))
	left := map[string]int{}
	total := 0
	for app, pods := range byApp {
		left[app] = len(pods)
		total += len(pods)
	}
	var wrong []string
	var try func(order []string) error
	try = func(order []string) error {
		for _, app := range apps {
			if left[app] > 0 {
				left[app]--
				if err := try(append(order, app)); err != nil {
					return err
				}
				left[app]++
			}
		}
		if len(order) < total {
			return nil
		}
		objs := p.Objects
		objs.Pods = slices.Clone(bound)
		used := map[string]int{}
		for i, app := range order {
			pod := byApp[app][used[app]].DeepCopy()
			used[app]++
			pod.Name = fmt.Sprintf("%04d-%s", i, app)
			objs.Pods = append(objs.Pods, pod)
		}
		other, err := live(ctx, p, objs, true)
		if err != nil {
			return err
		}
		if got := other.outcome(); got != want || len(other.wrong) > 0 {
			wrong = append(wrong, fmt.Sprintf("I5: if pods arrive as %v it ends with %s instead of %s: %q", order, got, want, other.wrong))
		}
		return nil
	}
	err := try(nil)
	return wrong, err
}

// otherOrders has p happen with its objects in other orders: it must end the same way (I5).
func otherOrders(ctx context.Context, p *Problem, want string, shuffles int) ([]string, error) {
	for seed := range shuffles {
		r := rand.New(rand.NewPCG(uint64(seed), 1)) //nolint:gosec // not for secrets: a fixed seed gives the same orders each time
		other, err := live(ctx, p, shuffled(p.Objects, r), false)
		if err != nil {
			return nil, err
		}
		if got := other.outcome(); got != want {
			return []string{fmt.Sprintf("I5: with the objects in another order (seed %d) it ends with %s instead of %s", seed, got, want)}, nil
		}
	}
	return nil, nil
}

// live has p happen with objects.
func live(ctx context.Context, p *Problem, objs snapshot.Objects, check bool) (*life, error) {
	opts := world.Options{
		Start: start, Catalog: p.Snapshot.Catalog, Register: 60 * time.Second, Initialize: 30 * time.Second, DefaultSpread: p.Snapshot.DefaultSpread, Solve: p.Solve,
		Consolidate: consolidate.Options{MinSaving: p.Life.MinSaving, SpotTypes: p.Life.SpotTypes},
		Policies:    p.Policies.Enforced, Facts: p.Policies.Facts,
	}
	w, err := world.New(objs, opts)
	if err != nil {
		return nil, err
	}
	none := func(snapshot.PodKey) (string, string) { return "", "" }
	w.Know([]load.Workload{}, none)
	l := &life{p: p, w: w, said: map[string]bool{}, examined: map[string]time.Time{}, bound: map[snapshot.PodKey]string{}, guarded: map[string]policyv1.PodDisruptionBudgetStatus{}}
	last := start
	for i := range p.Life.Events {
		e := &p.Life.Events[i]
		e.Schedule(w, start)
		if at := e.Time(start); at.After(last) {
			last = at
		}
	}
	l.rest = last.Add(time.Duration(p.Life.Loops) * loop)
	l.end = l.rest.Add(time.Duration(p.Life.Quiet) * loop)
	for _, pod := range objs.Pods {
		l.bound[snapshot.PodKey{Namespace: pod.Namespace, Name: pod.Name}] = pod.Spec.NodeName
	}
	for at := start; !at.After(l.end); at = at.Add(loop) {
		if err := w.Run(ctx, at); err != nil {
			return nil, err
		}
		if check {
			l.step(at)
		}
	}
	return l, nil
}

// outcome is what must not depend on the order of objects.
func (l *life) outcome() string {
	return fmt.Sprintf("$%.6f/h, %d evictions, %d nodes", l.cost(), l.w.Record().TotalEvictions(), len(l.nodes()))
}

// fault notes something wrong, once.
func (l *life) fault(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !l.said[s] && len(l.wrong) < 20 {
		l.said[s] = true
		l.wrong = append(l.wrong, s)
	}
}

func (l *life) cost() float64 {
	points := l.w.Record().Points
	if len(points) == 0 {
		return 0
	}
	return points[len(points)-1].Cost.Dollars()
}

// nodes are the nodes of NodePools that take pods or will.
func (l *life) nodes() []*corev1.Node {
	var out []*corev1.Node
	for _, n := range l.w.Objects().Nodes {
		if n.Labels[karpv1.NodePoolLabelKey] != "" && n.DeletionTimestamp == nil {
			out = append(out, n)
		}
	}
	return out
}

// step holds what has happened since the last step against the invariants.
func (l *life) step(at time.Time) {
	objs := l.w.Objects()
	l.entries()
	l.hardRules(&objs)
	l.budgets(&objs)
	l.reasons(l.w.Left())
	l.turns()
	if !l.w.Busy() {
		l.waiting(&objs, l.w.Waiting(), at)
		l.remember(&objs)
	}
	going, present := 0, 0
	for _, c := range objs.NodeClaims {
		if c.DeletionTimestamp != nil {
			going++
		}
	}
	for _, n := range objs.Nodes {
		if n.DeletionTimestamp == nil && n.Labels[karpv1.NodeInitializedLabelKey] == "true" {
			present++
		}
	}
	l.disrupted, l.present = append(l.disrupted, going+l.w.Leaving()), append(l.present, present)
}

// entries looks at the timeline: no move costs more (I2), and none makes pods wait for a node
// that has to be bought (I3).
func (l *life) entries() {
	all := l.w.Record().Entries
	for ; l.seen < len(all); l.seen++ {
		e := &all[l.seen]
		switch e.Kind {
		case world.Decided:
			if voluntary(e.Reason) && e.Delta > 1e-9 {
				l.fault("I2: at +%s a move raises the cost by $%.4f/h: %s", e.At.Sub(start), e.Delta, e.Text)
			}
		case world.Deleting:
			if voluntary(e.Reason) {
				l.began = e.At
			}
		case world.Interrupted, world.Scaled, world.Scripted, world.LaunchFailed, world.Expired:
			l.disturbed = e.At
		case world.Bought:
			if e.Moved > 0 && !l.disturbed.After(l.began) { // else something else took their room
				l.fault("I3: at +%s %s is bought for %d pods that a move had evicted", e.At.Sub(start), e.Object, e.Moved)
			}
		}
	}
}

func voluntary(reason string) bool {
	return reason == string(karpv1.DisruptionReasonEmpty) || reason == string(karpv1.DisruptionReasonUnderutilized)
}

// hardRules checks the pods that were bound since the last step (I6).
func (l *life) hardRules(objs *snapshot.Objects) {
	var fresh []*corev1.Pod
	now := make(map[snapshot.PodKey]string, len(objs.Pods))
	for _, p := range objs.Pods {
		key := snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
		now[key] = p.Spec.NodeName
		if p.Spec.NodeName != "" && l.bound[key] != p.Spec.NodeName && p.DeletionTimestamp == nil {
			fresh = append(fresh, p)
		}
	}
	l.bound = now
	if len(fresh) == 0 {
		return
	}
	// What is going counts no more: kube-scheduler waits for it to be gone.
	staying := *objs
	staying.Nodes = slices.DeleteFunc(slices.Clone(objs.Nodes), func(n *corev1.Node) bool { return n.DeletionTimestamp != nil })
	c := newCluster(&staying, l.p.Snapshot.DefaultSpread)
	for _, p := range fresh {
		m := c.byName[p.Spec.NodeName]
		if m == nil {
			if !slices.ContainsFunc(objs.Nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
				l.fault("I6: pod %s/%s is on node %s, which is not there", p.Namespace, p.Name, p.Spec.NodeName)
			}
			continue // its node's taint came after the pod
		}
		m.pods = slices.DeleteFunc(m.pods, func(o *corev1.Pod) bool { return o == p })
		rules := []func(*corev1.Pod, *machine) string{c.taints, c.affinityToNode, c.room, c.ports, c.volumes, c.apart}
		if len(fresh) == 1 { // with more of them, it depends on who was first
			rules = append(rules, c.spread, c.near)
		}
		for _, rule := range rules {
			if why := rule(p, m); why != "" {
				l.fault("I6: at +%s pod %s/%s is on node %s against its rules: %s", l.w.Now().Sub(start), p.Namespace, p.Name, m.Name, why)
			}
		}
		m.pods = append(m.pods, p)
	}
}

// budgets checks that no eviction took more from a PodDisruptionBudget than it allows (I6).
// Machines that end and workloads that are scaled take from them as well, and may.
func (l *life) budgets(objs *snapshot.Objects) {
	lost := l.w.Record().Lost
	for _, b := range objs.PodDisruptionBudgets {
		name := b.Namespace + "/" + b.Name
		was, now := l.guarded[name], b.Status
		fewer := now.CurrentHealthy < was.CurrentHealthy && now.ExpectedPods == was.ExpectedPods
		if fewer && now.CurrentHealthy < now.DesiredHealthy && lost == l.lost {
			l.fault("I6: PodDisruptionBudget %s wants %d pods and has %d of the %d before", name, now.DesiredHealthy, now.CurrentHealthy, was.CurrentHealthy)
		}
		l.guarded[name] = now
	}
	l.lost = lost
}

// reasons checks that every node that was left alone has a reason (I7).
func (l *life) reasons(left map[string][]candidate.Reason, moved map[string]bool) {
	for node, reasons := range left {
		if len(reasons) == 0 && !moved[node] {
			l.fault("I7: node %s is left alone without a reason", node)
		}
	}
}

// turns notes which nodes have been looked at.
func (l *life) turns() {
	left, moved := l.w.Left()
	had := func(node string) {
		if l.examined[node].IsZero() {
			l.examined[node] = l.w.Now()
		}
	}
	for node, reasons := range left {
		if !slices.ContainsFunc(reasons, func(r candidate.Reason) bool { return r.Code == consolidate.NotReached }) {
			had(node)
		}
	}
	for node := range moved {
		had(node)
	}
}

// waiting checks that no pod waits that a node could take (I1).
func (l *life) waiting(objs *snapshot.Objects, waiting map[snapshot.PodKey]string, at time.Time) {
	if len(waiting) == 0 {
		return
	}
	c := newCluster(objs, l.p.Snapshot.DefaultSpread)
	for _, key := range slices.SortedFunc(maps.Keys(waiting), func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) }) {
		p := c.pods[key]
		if p == nil || len(p.Spec.SchedulingGates) > 0 {
			continue
		}
		for _, m := range c.nodes {
			if m.DeletionTimestamp == nil && c.refuses(p, m) == "" {
				l.fault("I1: at +%s pod %s waits, and node %s would take it", at.Sub(start), key, m.Name)
				return
			}
		}
	}
}

// remember notes a state of rest that differs from the last: one that comes back means that
// moves undo each other (I4).
func (l *life) remember(objs *snapshot.Objects) {
	on := map[string][]string{}
	for _, p := range objs.Pods {
		owner := p.Name
		if len(p.OwnerReferences) > 0 {
			owner = p.OwnerReferences[0].Name
		}
		on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p.Namespace+"/"+owner)
	}
	var nodes []string
	for _, n := range objs.Nodes {
		pods := on[n.Name]
		slices.Sort(pods)
		nodes = append(nodes, fmt.Sprint(n.Labels[corev1.LabelInstanceTypeStable], n.Labels[zoneKey], n.Labels[karpv1.CapacityTypeLabelKey], n.Labels[karpv1.NodePoolLabelKey], pods))
	}
	slices.Sort(nodes)
	state := strings.Join(nodes, "\n")
	if n := len(l.states); n > 0 && l.states[n-1] == state {
		return
	}
	if slices.Contains(l.states, state) && len(l.p.Life.Events) == 0 {
		l.fault("I4: a state comes back that was there before: moves undo each other")
	}
	l.states = append(l.states, state)
}

// judge holds what came of it against e.
func (l *life) judge(e *Expect) []string {
	var wrong []string
	fault := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	rec := l.w.Record()
	bound := func(what string, b *Bound, got float64) {
		if b != nil && !b.keeps(got) {
			fault("%s: got %s, want %s", what, strings.TrimSuffix(fmt.Sprintf("%.4f", got), ".0000"), b)
		}
	}
	bound("cost", e.Cost, l.cost())
	if e.MaxCost != nil {
		bound("cost", &Bound{op: "<=", value: *e.MaxCost}, l.cost())
	}
	bound("evictions", e.Evictions, float64(rec.TotalEvictions()))
	bound("pods evicted more than once", e.EvictedTwice, float64(len(rec.EvictedTwice())))
	l.judgeMoves(e, bound, fault)
	l.judgeNodes(e, &wrong)
	for _, n := range l.disrupted {
		if e.Disrupted != nil && !e.Disrupted.keeps(float64(n)) {
			fault("nodes in disruption: %d at some time, want %s", n, e.Disrupted)
			break
		}
	}
	for _, n := range l.present {
		if e.Present != nil && !e.Present.keeps(float64(n)) {
			fault("nodes: %d at some time, want %s", n, e.Present)
			break
		}
	}
	wrong = append(wrong, l.judgePending(e)...)
	left, _ := l.w.Left()
	for _, node := range slices.Sorted(maps.Keys(e.Left)) {
		var texts []string
		for _, r := range left[node] {
			texts = append(texts, string(r.Code)+": "+r.String())
		}
		all := strings.Join(texts, "; ")
		for _, words := range e.Left[node] {
			if !strings.Contains(all, words) {
				fault("node %s is left for %q, want %q in it", node, all, words)
			}
		}
	}
	lines := make([]string, len(rec.Entries))
	for i := range rec.Entries {
		x := &rec.Entries[i]
		lines[i] = fmt.Sprintf("+%s %s %s: %s (%s)", x.At.Sub(start), x.Kind, x.Object, x.Text, x.Why)
	}
	all := strings.Join(lines, "\n")
	for _, words := range e.Says {
		if !strings.Contains(all, words) {
			fault("the timeline has no %q", words)
		}
	}
	for _, words := range e.Silent {
		if strings.Contains(all, words) {
			fault("the timeline has %q", words)
		}
	}
	if len(wrong)+len(l.wrong) > 0 {
		const shown = 60
		wrong = append(wrong, "what happened:\n        "+strings.Join(lines[:min(len(lines), shown)], "\n        "))
	}
	return wrong
}

// judgeMoves looks at what was decided, and when.
func (l *life) judgeMoves(e *Expect, bound func(string, *Bound, float64), fault func(string, ...any)) {
	moves, launches, attempts := 0, 0, 0
	by := map[string]int{}
	first := map[string]time.Time{}
	var last time.Time
	for i := range l.w.Record().Entries {
		x := &l.w.Record().Entries[i]
		switch x.Kind {
		case world.Decided:
			moves++
			by[x.Reason]++
			attempts += len(x.Bought)
			last = x.At
			for _, n := range x.Nodes {
				if first[n].IsZero() {
					first[n] = x.At
				}
			}
		case world.Bought:
			attempts++
		case world.Ready:
			launches++
		case world.Deleting:
			if first[x.Object].IsZero() {
				first[x.Object] = x.At
			}
		}
	}
	bound("commands", e.Commands, float64(moves))
	bound("launches", e.Launches, float64(launches))
	bound("attempts to launch", e.Attempts, float64(attempts))
	for _, reason := range slices.Sorted(maps.Keys(e.ByReason)) {
		b := e.ByReason[reason]
		bound("commands for "+reason, &b, float64(by[reason]))
	}
	if !e.Restless && (last.After(l.rest) || l.w.Busy()) {
		fault("I4: it has not come to rest within %s of the last event: the last move is at +%s", l.rest.Sub(start), last.Sub(start))
	}
	present := map[string]bool{}
	for _, n := range l.w.Objects().Nodes {
		present[n.Name] = n.DeletionTimestamp == nil
	}
	for _, n := range e.Untouched {
		if at := first[n]; !at.IsZero() || !present[n] {
			fault("node %s was disrupted at +%s, and must not be", n, at.Sub(start))
		}
	}
	deadline := func(text string) (time.Time, bool) {
		d, err := time.ParseDuration(text)
		if text != "" && err != nil {
			fault("%q is no duration", text)
		}
		return start.Add(d), text != "" && err == nil
	}
	allBy, hasAll := deadline(e.AllBy)
	for _, n := range e.Gone {
		if present[n] {
			fault("node %s is still there", n)
		}
		if hasAll && (first[n].IsZero() || first[n].After(allBy)) {
			fault("node %s was not disrupted by +%s", n, e.AllBy)
		}
	}
	if at, ok := deadline(e.Examined); ok {
		for _, n := range l.p.Objects.Nodes {
			if when := l.examined[n.Name]; when.IsZero() || when.After(at) {
				fault("node %s had not had its turn by +%s", n.Name, e.Examined)
				break
			}
		}
	}
	if at, ok := deadline(e.By); ok && last.After(at) {
		fault("the last move was decided at +%s, later than +%s", last.Sub(start), e.By)
	}
	for _, n := range slices.Sorted(maps.Keys(e.NotBefore)) {
		if at, ok := deadline(e.NotBefore[n]); ok {
			for name, when := range first {
				if (name == n || n == "*") && when.Before(at) {
					fault("node %s was disrupted at +%s, before +%s", name, when.Sub(start), e.NotBefore[n])
				}
			}
		}
	}
}

// judgeNodes counts what is there at the end.
func (l *life) judgeNodes(e *Expect, wrong *[]string) {
	nodes := l.nodes()
	if e.Nodes != nil && len(nodes) != *e.Nodes {
		*wrong = append(*wrong, fmt.Sprintf("nodes: got %d, want %d", len(nodes), *e.Nodes))
	}
	count := func(label string) map[string]int {
		out := map[string]int{}
		for _, n := range nodes {
			out[n.Labels[label]]++
		}
		return out
	}
	*wrong = append(*wrong, ints("types", e.Types, count(corev1.LabelInstanceTypeStable))...)
	*wrong = append(*wrong, ints("pools", e.Pools, count(karpv1.NodePoolLabelKey))...)
	*wrong = append(*wrong, ints("zones", e.Zones, count(zoneKey))...)
	*wrong = append(*wrong, ints("capacity types", e.CapacityTypes, count(karpv1.CapacityTypeLabelKey))...)
	for _, app := range slices.Sorted(maps.Keys(e.On)) {
		got := map[string]int{}
		for _, p := range l.w.Objects().Pods {
			if p.Labels[appLabel] == app {
				got[p.Spec.NodeName]++
			}
		}
		*wrong = append(*wrong, ints("pods of "+app+" by node", e.On[app], got)...)
	}
}

func (l *life) judgePending(e *Expect) []string {
	var wrong []string
	waiting := l.w.Waiting()
	for _, want := range e.Pending {
		n := 0
		for _, key := range slices.SortedFunc(maps.Keys(waiting), func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) }) {
			if key.Name != want.Pod && !numberedName(key.Name, want.Pod) {
				continue
			}
			n++
			for _, say := range want.Says {
				if !strings.Contains(waiting[key], say) {
					wrong = append(wrong, fmt.Sprintf("%s waits with %q, want %q in it", key, waiting[key], say))
				}
			}
			delete(waiting, key)
		}
		if n != max(want.Count, 1) {
			wrong = append(wrong, fmt.Sprintf("pending pods of %s: got %d, want %d", want.Pod, n, max(want.Count, 1)))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(waiting), func(a, b snapshot.PodKey) int { return strings.Compare(a.String(), b.String()) }) {
		wrong = append(wrong, fmt.Sprintf("%s has no node at the end: %s", key, waiting[key]))
	}
	return wrong
}
