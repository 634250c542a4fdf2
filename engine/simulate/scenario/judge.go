package scenario

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate"
)

// Shuffles is the number of object orders that each scenario is planned in.
const Shuffles = 10

// Verdict is how a scenario came out.
type Verdict struct {
	Name  string
	About string
	// Wrong lists what does not hold; empty means that all holds.
	Wrong []string
	// Plan is the plan that was judged.
	Plan     schedule.Plan
	Snapshot *snapshot.Snapshot
}

// Judge plans p and holds the plan against its expectation and the invariants. The
// error is that of [schedule.Solve].
func Judge(ctx context.Context, p *Problem) (Verdict, error) {
	if p.Life != nil {
		return judgeLife(ctx, p)
	}
	v := Verdict{Name: p.Name, About: p.About}
	snap, problems := snapshot.Build(p.Objects, p.Snapshot)
	for _, problem := range problems {
		v.Wrong = append(v.Wrong, "unexpected problem: "+problem.String())
	}
	if len(p.Policies.Enforced) < len(p.PolicyFiles) {
		return v, fmt.Errorf("scenario %s: its policies are not loaded", p.Name)
	}
	snap, plan, err := p.plan(ctx, snap, p.Objects)
	if err != nil {
		return v, fmt.Errorf("scenario %s: %w", p.Name, err)
	}
	v.Plan, v.Snapshot = plan, snap
	v.Wrong = append(v.Wrong, p.Expect.judge(p, plan)...)
	v.Wrong = append(v.Wrong, pendingAsExpected(&p.Expect, plan)...)
	v.Wrong = append(v.Wrong, check(p, plan)...)
	again, err := askAgain(ctx, p, plan)
	if err != nil {
		return v, fmt.Errorf("scenario %s, asked again: %w", p.Name, err)
	}
	v.Wrong = append(v.Wrong, again...)
	shuffled, err := shuffle(ctx, p, plan)
	if err != nil {
		return v, fmt.Errorf("scenario %s, shuffled: %w", p.Name, err)
	}
	v.Wrong = append(v.Wrong, shuffled...)
	return v, nil
}

// plan plans snap, which is made of objs, under the policies of p. The snapshot returned is
// the one that was planned.
func (p *Problem) plan(ctx context.Context, snap *snapshot.Snapshot, objs snapshot.Objects) (*snapshot.Snapshot, schedule.Plan, error) {
	if len(p.Policies.Enforced) > 0 {
		return simulate.Under(ctx, snap, objs, p.Policies, p.Solve)
	}
	plan, err := schedule.Solve(ctx, snap, p.Solve)
	return snap, plan, err
}

func ints(what string, want, got map[string]int) []string {
	if want == nil {
		return nil
	}
	for k := range got {
		if got[k] == 0 {
			delete(got, k)
		}
	}
	want = maps.Clone(want)
	for k := range want {
		if want[k] == 0 {
			delete(want, k)
		}
	}
	if maps.Equal(want, got) {
		return nil
	}
	return []string{fmt.Sprintf("%s: got %v, want %v", what, got, want)}
}

// judge compares what e sets with the plan.
func (e *Expect) judge(p *Problem, plan schedule.Plan) []string {
	var wrong []string
	cost := plan.Cost.Dollars()
	if e.Cost != nil && !e.Cost.keeps(cost) {
		wrong = append(wrong, fmt.Sprintf("cost: got $%.4f, want %s", cost, e.Cost))
	}
	if e.MaxCost != nil && math.Round(cost*1e6) > math.Round(*e.MaxCost*1e6) {
		wrong = append(wrong, fmt.Sprintf("cost: got $%.4f, want at most $%.4f", cost, *e.MaxCost))
	}
	if e.Nodes != nil && len(plan.NewNodes) != *e.Nodes {
		wrong = append(wrong, fmt.Sprintf("new nodes: got %d, want %d", len(plan.NewNodes), *e.Nodes))
	}
	count := func(of func(*schedule.NewNode) string) map[string]int {
		out := map[string]int{}
		for i := range plan.NewNodes {
			out[of(&plan.NewNodes[i])]++
		}
		return out
	}
	wrong = append(wrong, ints("types", e.Types, count(func(n *schedule.NewNode) string { return n.Planned.InstanceType }))...)
	wrong = append(wrong, ints("pools", e.Pools, count(func(n *schedule.NewNode) string { return n.Pool }))...)
	wrong = append(wrong, ints("zones", e.Zones, count(func(n *schedule.NewNode) string { return n.Planned.Zone }))...)
	wrong = append(wrong, ints("capacity types", e.CapacityTypes, count(func(n *schedule.NewNode) string { return n.Planned.CapacityType }))...)
	if len(e.OneOf) > 0 {
		var all []string
		ok := false
		for i := range e.OneOf {
			w := e.OneOf[i].judge(p, plan)
			ok = ok || len(w) == 0
			all = append(all, fmt.Sprintf("alternative %d: %s", i+1, strings.Join(w, "; ")))
		}
		if !ok {
			wrong = append(wrong, all...)
		}
	}
	if e.Offers != nil {
		wrong = append(wrong, e.Offers.judge(plan)...)
	}
	if e.Placed != nil {
		got := map[string]int{}
		for _, a := range plan.Assignments {
			if !a.New {
				got[a.Node]++
			}
		}
		wrong = append(wrong, ints("pods on existing nodes", e.Placed, got)...)
	}
	for app, want := range e.PodsIn {
		wrong = append(wrong, ints("pods of "+app+" by zone", want, podsByZone(p, plan, app))...)
	}
	if e.Relaxed != nil {
		got := slices.ContainsFunc(plan.NewNodes, func(n schedule.NewNode) bool { return n.MinValuesRelaxed })
		if got != *e.Relaxed {
			wrong = append(wrong, fmt.Sprintf("minValues relaxed: got %v, want %v", got, *e.Relaxed))
		}
	}
	return wrong
}

func (o *Offers) judge(plan schedule.Plan) []string {
	var wrong []string
	one := func(node, what, value string, allowed []string) {
		if allowed != nil && !slices.Contains(allowed, value) {
			wrong = append(wrong, fmt.Sprintf("node %s may be launched with %s %q, want only %q", node, what, value, allowed))
		}
	}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		for _, a := range n.Alternatives() {
			one(n.Name, "type", a.InstanceType, o.Types)
			one(n.Name, "capacity type", a.CapacityType, o.CapacityTypes)
			one(n.Name, "zone", a.Zone, o.Zones)
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

func podsByZone(p *Problem, plan schedule.Plan, app string) map[string]int {
	zone := map[string]string{}
	for _, n := range p.Objects.Nodes {
		zone[n.Name] = n.Labels[corev1.LabelTopologyZone]
	}
	for i := range plan.NewNodes {
		zone[plan.NewNodes[i].Name] = plan.NewNodes[i].Planned.Zone
	}
	of := map[snapshot.PodKey]bool{}
	out := map[string]int{}
	for _, pod := range p.Objects.Pods {
		if pod.Labels[appLabel] != app {
			continue
		}
		of[snapshot.PodKey{Namespace: pod.Namespace, Name: pod.Name}] = true
		if pod.Spec.NodeName != "" {
			out[zone[pod.Spec.NodeName]]++
		}
	}
	for _, a := range plan.Assignments {
		if of[a.Pod] {
			out[zone[a.Node]]++
		}
	}
	return out
}

// pendingAsExpected holds the plan's unscheduled pods against e.
func pendingAsExpected(e *Expect, plan schedule.Plan) []string {
	var wrong []string
	matched := map[snapshot.PodKey]bool{}
	for _, want := range e.Pending {
		n := 0
		for _, u := range plan.Unscheduled {
			if u.Pod.Name != want.Pod && !numberedName(u.Pod.Name, want.Pod) {
				continue
			}
			n++
			matched[u.Pod] = true
			var codes, texts []string
			found := want.Reason == ""
			for _, r := range u.Reasons {
				codes = append(codes, string(r.Code))
				texts = append(texts, r.String())
				found = found || r.Code == want.Reason
			}
			if !found {
				wrong = append(wrong, fmt.Sprintf("%s is pending for %v, want %s (%s)", u.Pod, codes, want.Reason, strings.Join(texts, "; ")))
			}
			for _, say := range want.Says {
				if !strings.Contains(strings.Join(texts, "\n"), say) {
					wrong = append(wrong, fmt.Sprintf("%s is pending with %q, want %q in it", u.Pod, texts, say))
				}
			}
		}
		if n != max(want.Count, 1) {
			wrong = append(wrong, fmt.Sprintf("pending pods of %s: got %d, want %d", want.Pod, n, max(want.Count, 1)))
		}
	}
	for _, u := range plan.Unscheduled {
		if !matched[u.Pod] {
			var texts []string
			for _, r := range u.Reasons {
				texts = append(texts, r.String())
			}
			wrong = append(wrong, fmt.Sprintf("%s stays pending: %s", u.Pod, strings.Join(texts, "; ")))
		}
	}
	return wrong
}

func numberedName(name, base string) bool {
	rest, ok := strings.CutPrefix(name, base+"-")
	return ok && rest != "" && strings.Trim(rest, "0123456789") == ""
}

// askAgain applies the plan and plans anew: no pod that was left may then find a place
// on a node that is there (I1), and none may be bought for it.
func askAgain(ctx context.Context, p *Problem, plan schedule.Plan) ([]string, error) {
	objs := p.Objects
	objs.Nodes = slices.Clone(objs.Nodes)
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		objs.Nodes = append(objs.Nodes, machineOf(n, applied(n.Name), p.Snapshot.Catalog))
	}
	where := map[snapshot.PodKey]string{}
	for _, a := range plan.Assignments {
		where[a.Pod] = a.Node
		if a.New {
			where[a.Pod] = applied(a.Node)
		}
	}
	objs.Pods = slices.Clone(objs.Pods)
	for i, pod := range objs.Pods {
		if node, ok := where[snapshot.PodKey{Namespace: pod.Namespace, Name: pod.Name}]; ok {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = node
			objs.Pods[i] = pod
		}
	}
	snap, _ := snapshot.Build(objs, p.Snapshot)
	_, next, err := p.plan(ctx, snap, objs)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, a := range next.Assignments {
		wrong = append(wrong, fmt.Sprintf("I1: once the plan is applied, %s goes to %s", a.Pod, a.Node))
	}
	return wrong, nil
}

func applied(node string) string { return "applied-" + strings.ReplaceAll(node, "/", "-") }

// shuffle plans p with its objects in other orders: the plans must be equal (I5).
func shuffle(ctx context.Context, p *Problem, plan schedule.Plan) ([]string, error) {
	want, err := plan.MarshalText()
	if err != nil {
		return nil, err
	}
	for seed := range cmp.Or(p.Shuffles, Shuffles) {
		r := rand.New(rand.NewPCG(uint64(seed), 1)) //nolint:gosec // not for secrets: a fixed seed gives the same orders each time
		objs := shuffled(p.Objects, r)
		snap, _ := snapshot.Build(objs, p.Snapshot)
		_, other, err := p.plan(ctx, snap, objs)
		if err != nil {
			return nil, err
		}
		if other.Cost != plan.Cost {
			return []string{fmt.Sprintf("I5: with the objects in another order (seed %d) the plan costs $%.4f instead of $%.4f", seed, other.Cost.Dollars(), plan.Cost.Dollars())}, nil
		}
		got, err := other.MarshalText()
		if err != nil {
			return nil, err
		}
		if string(got) != string(want) {
			return []string{fmt.Sprintf("I5: with the objects in another order (seed %d) the plan is another:\n%s\ninstead of\n%s", seed, got, want)}, nil
		}
	}
	return nil, nil
}

func shuffled(o snapshot.Objects, r *rand.Rand) snapshot.Objects {
	o.Pods = mix(o.Pods, r)
	o.Nodes = mix(o.Nodes, r)
	o.NodePools = mix(o.NodePools, r)
	o.NodeClaims = mix(o.NodeClaims, r)
	o.NodeOverlays = mix(o.NodeOverlays, r)
	o.DaemonSets = mix(o.DaemonSets, r)
	o.ReplicaSets = mix(o.ReplicaSets, r)
	o.StatefulSets = mix(o.StatefulSets, r)
	o.ReplicationControllers = mix(o.ReplicationControllers, r)
	o.Services = mix(o.Services, r)
	o.Namespaces = mix(o.Namespaces, r)
	o.LimitRanges = mix(o.LimitRanges, r)
	o.PersistentVolumes = mix(o.PersistentVolumes, r)
	o.PersistentVolumeClaims = mix(o.PersistentVolumeClaims, r)
	o.StorageClasses = mix(o.StorageClasses, r)
	o.CSINodes = mix(o.CSINodes, r)
	o.PodDisruptionBudgets = mix(o.PodDisruptionBudgets, r)
	return o
}

func mix[T any](in []T, r *rand.Rand) []T {
	out := slices.Clone(in)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
