package judge

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	request "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

// Judge replays plans. It is not safe for concurrent use.
type Judge struct {
	ctx        context.Context
	schedulers map[string]*scheduler
}

// New makes a Judge, which works until ctx is done.
func New(ctx context.Context) *Judge {
	return &Judge{ctx: ctx, schedulers: map[string]*scheduler{}}
}

// Finding is one thing wrong with a plan.
type Finding struct {
	// Pod and Node are what it is about; either may be empty.
	Pod  snapshot.PodKey
	Node string
	// Plugin is the filter that refuses, or the rule that is broken; Message says more.
	Plugin, Message string
}

func (f Finding) String() string {
	return fmt.Sprintf("pod=%s node=%s plugin=%s: %s", f.Pod, f.Node, f.Plugin, f.Message)
}

// Verdict is all that is wrong with a plan. The zero Verdict is a good plan.
type Verdict struct {
	// Refused are placements that kube-scheduler accepts in no order, on the planned
	// offering or on an alternative.
	Refused []Finding
	// Missed are pods left unscheduled although kube-scheduler accepts them on a node
	// that is there or is planned.
	Missed []Finding
	// Unbought are pods left unscheduled although one more node that a NodePool may
	// still buy would take them. That is no fault of the placements, and another order of
	// buying may leave other pods out, so OK does not look at it.
	Unbought []Finding
	// Broken are other rules: every pod exactly once, limits, minValues, sums.
	Broken []Finding
}

// OK reports whether nothing is wrong.
func (v *Verdict) OK() bool { return len(v.Refused)+len(v.Missed)+len(v.Broken) == 0 }

// Judge judges plan as an answer to p, under strict minValues if strict is true.
func (j *Judge) Judge(p *problem.Problem, plan *schedule.Plan, strict bool) (Verdict, error) {
	nodes := make([]newNode, len(plan.NewNodes))
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		nodes[i] = newNode{NewNode: *n, alternatives: n.Alternatives(), requirements: n.Requirements()}
	}
	return j.judge(p, plan, nodes, strict)
}

// newNode is a node of a plan with what it computes when asked.
type newNode struct {
	schedule.NewNode
	alternatives []schedule.Offer
	requirements requirements.Set
}

func (j *Judge) judge(p *problem.Problem, plan *schedule.Plan, nodes []newNode, strict bool) (Verdict, error) {
	s, err := j.scheduler(p.Options.DefaultSpread)
	if err != nil {
		return Verdict{}, err
	}
	r := &replay{s: s, k: newCluster(p), p: p, plan: plan, nodes: nodes, strict: strict}
	r.shape()
	if len(r.v.Broken) > 0 {
		return r.v, nil // what follows needs a plan that hangs together
	}
	r.offers()
	r.limits()
	if err := r.alternatives(); err != nil {
		return Verdict{}, err
	}
	if err := r.place(nil); err != nil {
		return Verdict{}, err
	}
	r.missed()
	return r.v, nil
}

// scheduler returns the one with these default spread constraints.
func (j *Judge) scheduler(spread []corev1.TopologySpreadConstraint) (*scheduler, error) {
	b, err := json.Marshal(spread)
	if err != nil {
		return nil, err
	}
	if s := j.schedulers[string(b)]; s != nil {
		return s, nil
	}
	s, err := newScheduler(j.ctx, spread)
	if err != nil {
		return nil, err
	}
	j.schedulers[string(b)] = s
	return s, nil
}

// replay is one plan under judgement.
type replay struct {
	s      *scheduler
	k      *cluster
	p      *problem.Problem
	plan   *schedule.Plan
	nodes  []newNode
	strict bool
	v      Verdict
}

func (r *replay) broken(pod snapshot.PodKey, node, rule, format string, args ...any) {
	r.v.Broken = append(r.v.Broken, Finding{Pod: pod, Node: node, Plugin: rule, Message: fmt.Sprintf(format, args...)})
}

func (r *replay) pod(id snapshot.PodKey) *corev1.Pod {
	if p := r.k.pending[id]; p != nil {
		return p
	}
	return r.k.moving[id]
}

// shape checks that the plan speaks of the problem's pods and nodes, each once.
func (r *replay) shape() {
	none := snapshot.PodKey{}
	fresh := map[string]*newNode{}
	last := ""
	for i := range r.nodes {
		n := &r.nodes[i]
		if fresh[n.Name] != nil || i > 0 && !follows(last, n.Name) {
			r.broken(none, n.Name, "order", "new nodes must be distinct and numbered within their pool; this one comes after %q", last)
		}
		last, fresh[n.Name] = n.Name, n
		if len(n.Pods) == 0 {
			r.broken(none, n.Name, "empty", "a node without pods")
		}
	}
	seen, on := map[snapshot.PodKey]bool{}, map[string][]snapshot.PodKey{}
	for _, a := range r.plan.Assignments {
		existing := slices.ContainsFunc(r.k.nodes, func(n *corev1.Node) bool { return n.Name == a.Node })
		switch {
		case r.pod(a.Pod) == nil:
			r.broken(a.Pod, a.Node, "pods", "assigned, but not a pending pod")
		case seen[a.Pod]:
			r.broken(a.Pod, a.Node, "pods", "assigned twice")
		case a.New != (fresh[a.Node] != nil) || !a.New && !existing:
			r.broken(a.Pod, a.Node, "pods", "assigned to a node that is not there (new=%t)", a.New)
		}
		seen[a.Pod] = true
		on[a.Node] = append(on[a.Node], a.Pod)
	}
	for name, n := range fresh {
		if !slices.Equal(on[name], n.Pods) {
			r.broken(none, name, "pods", "has pods %v, but %v are assigned to it", n.Pods, on[name])
		}
	}
	for i, u := range r.plan.Unscheduled {
		if seen[u.Pod] {
			r.broken(u.Pod, "", "pods", "assigned and unscheduled, or unscheduled twice")
		}
		seen[u.Pod] = true
		if len(u.Reasons) == 0 {
			r.broken(u.Pod, "", "reasons", "unscheduled without a reason")
		}
		if i > 0 && comparePods(r.plan.Unscheduled[i-1].Pod, u.Pod) >= 0 {
			r.broken(u.Pod, "", "order", "unscheduled pods are not in order")
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(r.k.pending), comparePods) {
		if !seen[id] {
			r.broken(id, "", "pods", "pending, but not in the plan")
		}
	}
}

// follows reports whether a node named "<pool>/<number>" may come after last: of another
// pool, or of a higher number.
func follows(last, name string) bool {
	i, j := strings.LastIndexByte(last, '/'), strings.LastIndexByte(name, '/')
	return i < 0 || j < 0 || last[:i] != name[:j] || len(last) < len(name) || len(last) == len(name) && last < name
}

// offers checks what every new node says about what it costs and holds.
func (r *replay) offers() {
	none := snapshot.PodKey{}
	var cost, bias catalog.Price
	reserved := map[string]int{}
	for i := range r.nodes {
		n := &r.nodes[i]
		cost, bias = cost+n.Planned.Cost, bias+n.Planned.Bias
		if id := n.Planned.ReservationID; id != "" {
			reserved[id]++
		}
		if !slices.Contains(n.alternatives, n.Planned) {
			r.broken(none, n.Name, "alternatives", "the planned offering is not among the alternatives")
		}
		for k := 1; k < len(n.alternatives); k++ {
			a, b := &n.alternatives[k-1], &n.alternatives[k]
			if a.Cost+a.Bias > b.Cost+b.Bias {
				r.broken(none, n.Name, "alternatives", "not in order of cost: %v before %v", *a, *b)
			}
		}
		if f := r.k.offeringOf(&n.Planned); f != nil && r.plainPrices() && n.Planned.Cost != f.Price {
			r.broken(none, n.Name, "cost", "planned offering costs %d, the catalogue says %d", n.Planned.Cost, f.Price)
		}
		pods := make([]*corev1.Pod, 0, len(n.Pods))
		for _, id := range n.Pods {
			pods = append(pods, r.pod(id))
		}
		if requests := sum(pods); requests.Compare(n.Requests) != 0 {
			r.broken(none, n.Name, "requests", "says %v, its pods request %v", n.Requests, requests)
		}
		if t := r.k.types[n.Planned.InstanceType]; t != nil && t.Allocatable.Compare(n.Allocatable) != 0 {
			r.broken(none, n.Name, "allocatable", "says %v, the instance type has %v", n.Allocatable, t.Allocatable)
		}
		node, wrong := r.k.launch(n, &n.Planned)
		for _, w := range wrong {
			r.broken(none, n.Name, "planned", "%s", w)
		}
		if node != nil {
			if daemons := sum(r.k.daemonsOf(node)); daemons.Compare(n.Daemons) != 0 {
				r.broken(none, n.Name, "daemons", "says %v, its daemons request %v", n.Daemons, daemons)
			}
		}
	}
	for id, count := range reserved {
		for i := range r.p.Types {
			for k := range r.p.Types[i].Offerings {
				if f := &r.p.Types[i].Offerings[k]; f.ReservationID == id && count > f.ReservationCapacity {
					r.broken(none, id, "reservation", "%d nodes of %d", count, f.ReservationCapacity)
				}
			}
		}
	}
	if cost != r.plan.Cost || bias != r.plan.Bias {
		r.broken(none, "", "cost", "says %d + %d, the nodes are %d + %d", r.plan.Cost, r.plan.Bias, cost, bias)
	}
	if r.plan.Bound > r.plan.Cost {
		r.broken(none, "", "bound", "%d is above the cost %d", r.plan.Bound, r.plan.Cost)
	}
}

// sum adds up what pods request, as kube-scheduler counts it.
func sum(pods []*corev1.Pod) resources.List {
	l := resources.List{}
	for _, p := range pods {
		for name, q := range request.PodRequests(p, request.PodResourcesOptions{}) {
			l[name] += resources.Amount(name, q)
		}
		l[corev1.ResourcePods]++
	}
	return l
}

// plainPrices reports whether offerings cost their list price.
func (r *replay) plainPrices() bool { return len(r.p.Objects.NodeOverlays) == 0 }

// limits checks pool limits for the planned types, and for every single alternative,
// and minValues over the alternatives.
func (r *replay) limits() {
	none := snapshot.PodKey{}
	planned := map[string]resources.List{}
	capacity := func(o *schedule.Offer) resources.List {
		l := resources.List{}
		if t := r.k.types[o.InstanceType]; t != nil {
			l.AddTo(t.Capacity)
		}
		l[snapshot.NodesResource] = 1
		return l
	}
	for i := range r.nodes {
		n := &r.nodes[i]
		if planned[n.Pool] == nil {
			planned[n.Pool] = resources.List{}
			planned[n.Pool].AddTo(r.k.usage[n.Pool])
		}
		planned[n.Pool].AddTo(capacity(&n.Planned))
	}
	for name, used := range planned {
		for res, q := range r.k.pools[name].Spec.Limits {
			if limit := resources.Amount(res, q); used[res] > limit {
				r.broken(none, name, "limits", "%s: %d in use and planned, limit %d", res, used[res], limit)
			}
		}
	}
	for i := range r.nodes {
		n := &r.nodes[i]
		pool := r.k.pools[n.Pool]
		own := capacity(&n.Planned)
		for a := range n.alternatives {
			other := capacity(&n.alternatives[a])
			for res, q := range pool.Spec.Limits {
				if limit := resources.Amount(res, q); planned[n.Pool][res] <= limit && planned[n.Pool][res]-own[res]+other[res] > limit {
					r.broken(none, n.Name, "limits", "alternative %s would exceed %s: limit %d", n.alternatives[a].InstanceType, res, limit)
				}
			}
		}
		for _, req := range pool.Spec.Template.Spec.Requirements {
			if req.MinValues == nil || !r.strict {
				continue
			}
			values := map[string]bool{}
			for a := range n.alternatives {
				o := &n.alternatives[a]
				switch req.Key {
				case corev1.LabelInstanceTypeStable:
					values[o.InstanceType] = true
				case corev1.LabelTopologyZone:
					values[o.Zone] = true
				case karpv1.CapacityTypeLabelKey:
					values[o.CapacityType] = true
				default:
					if t := r.k.types[o.InstanceType]; t != nil && t.Requirements.Has(req.Key) {
						for _, v := range t.Requirements.Get(req.Key).Values() {
							values[v] = true
						}
					}
				}
			}
			if len(values) < *req.MinValues {
				r.broken(none, n.Name, "minValues", "%s: %d values, %d are required", req.Key, len(values), *req.MinValues)
			}
		}
	}
}

// place binds the plan's pods one after the other. A placement counts as refused if two
// orders both end with it: what goes to existing nodes first, before the new ones are
// there, as in a cluster; and plan order with all nodes there from the start. swapped
// offers replace planned ones; then only their nodes' pods are judged.
func (r *replay) place(swapped map[string]*schedule.Offer) error {
	for _, early := range []bool{true, false} {
		refused, err := r.try(swapped, early)
		if err != nil || len(refused) == 0 {
			return err
		}
		if !early {
			r.v.Refused = append(r.v.Refused, refused...)
		}
	}
	return nil
}

// try is one order of place. Within it a refused pod is tried again after the others,
// until nothing changes.
func (r *replay) try(swapped map[string]*schedule.Offer, early bool) ([]Finding, error) {
	w := r.k.world
	w.nodes, w.csiNodes = slices.Clone(w.nodes), slices.Clone(w.csiNodes)
	var fresh []*corev1.Node
	for i := range r.nodes {
		n := &r.nodes[i]
		offer := &n.Planned
		if o := swapped[n.Name]; o != nil {
			offer = o
		}
		node, _ := r.k.launch(n, offer)
		if node == nil {
			return nil, nil // named by offers
		}
		fresh = append(fresh, node)
		w.csiNodes = append(w.csiNodes, r.k.csiNode(n.Name, r.k.types[offer.InstanceType]))
	}
	if err := r.s.load(&w); err != nil {
		return nil, err
	}
	for _, p := range r.k.bound {
		r.s.nodes.bind(p, p.Spec.NodeName)
	}
	queue := slices.Clone(r.plan.Assignments)
	why := map[snapshot.PodKey]*Refusal{}
	cycle := func(ready func(a schedule.Assignment) bool) error {
		for progress := true; progress; {
			progress = false
			var rest []schedule.Assignment
			for _, a := range queue {
				if !ready(a) {
					rest = append(rest, a)
					continue
				}
				pod := r.pod(a.Pod)
				if why[a.Pod] = r.s.accepts(r.s.begin(pod), a.Node); why[a.Pod] != nil {
					rest = append(rest, a)
					continue
				}
				if err := r.bind(pod, a.Node); err != nil {
					return err
				}
				progress = true
			}
			queue = rest
		}
		return nil
	}
	if early && len(fresh) > 0 {
		if err := cycle(func(a schedule.Assignment) bool { return !a.New }); err != nil {
			return nil, err
		}
	}
	for _, n := range fresh {
		r.s.nodes.add(n)
		for _, d := range r.k.daemonsOf(n) {
			r.s.nodes.bind(d, n.Name)
		}
	}
	if err := cycle(func(schedule.Assignment) bool { return true }); err != nil {
		return nil, err
	}
	var out []Finding
	for _, a := range queue {
		f := Finding{Pod: a.Pod, Node: a.Node, Plugin: why[a.Pod].Plugin, Message: why[a.Pod].Message}
		if len(swapped) > 0 {
			o := swapped[a.Node]
			if o == nil {
				continue
			}
			f.Message += fmt.Sprintf(" (on alternative %s/%s/%s)", o.InstanceType, o.Zone, o.CapacityType)
		}
		out = append(out, f)
	}
	return out, nil
}

func (r *replay) bind(pod *corev1.Pod, node string) error {
	if err := r.s.bindVolumes(pod, r.s.nodes.byName[node].Node()); err != nil {
		return err
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	r.s.nodes.bind(pod, node)
	return nil
}

const (
	// cheapAlternatives is the number of alternatives per node that are judged by room,
	// affinity and taints; fullAlternatives the number per plan that are replayed.
	cheapAlternatives = 5
	fullAlternatives  = 3
)

// alternatives judges a sample of every new node's alternatives, the ends included.
func (r *replay) alternatives() error {
	var full []map[string]*schedule.Offer
	for i := range r.nodes {
		n := &r.nodes[i]
		count := len(n.alternatives)
		for k := range min(cheapAlternatives, count) {
			at := k
			if count > cheapAlternatives {
				at = k * (count - 1) / (cheapAlternatives - 1)
			}
			o := &n.alternatives[at]
			if *o == n.Planned {
				continue
			}
			if k == cheapAlternatives-1 || o.Zone != n.Planned.Zone {
				full = append(full, map[string]*schedule.Offer{n.Name: o})
			}
			r.cheap(n, o)
		}
	}
	for k := range min(fullAlternatives, len(full)) {
		if err := r.place(full[k*len(full)/min(fullAlternatives, len(full))]); err != nil {
			return err
		}
	}
	return nil
}

// cheap judges an offer by its room, labels and taints.
func (r *replay) cheap(n *newNode, o *schedule.Offer) {
	alt := *n
	alt.Labels = nil // those of the planned offering
	node, wrong := r.k.launch(&alt, o)
	for _, w := range wrong {
		r.broken(snapshot.PodKey{}, n.Name, "alternatives", "%s/%s/%s: %s", o.InstanceType, o.Zone, o.CapacityType, w)
	}
	if node == nil {
		return
	}
	info := framework.NewNodeInfo(r.k.daemonsOf(node)...)
	info.SetNode(node)
	on := fmt.Sprintf(" (on alternative %s/%s/%s)", o.InstanceType, o.Zone, o.CapacityType)
	for _, id := range n.Pods {
		pod := r.pod(id)
		refuse := func(plugin, message string) {
			r.v.Refused = append(r.v.Refused, Finding{Pod: id, Node: n.Name, Plugin: plugin, Message: message + on})
		}
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !ok {
			refuse(names.NodeAffinity, fmt.Sprintf("node affinity does not match (%v)", err))
		}
		if t := untolerated(pod, node); t != nil {
			refuse(names.TaintToleration, "untolerated taint "+t.ToString())
		}
		for _, short := range noderesources.Fits(pod, info, nil, noderesources.ResourceRequestsOptions{EnablePodLevelResources: true}) {
			refuse(names.NodeResourcesFit, short.Reason)
		}
		info.AddPod(pod)
	}
}

// missed looks, in the state that place left, for a node that takes a pod which the plan
// leaves out: one that is there or planned, or one more that some NodePool may still buy.
func (r *replay) missed() {
	if len(r.plan.Unscheduled) == 0 || len(r.v.Refused) > 0 {
		return
	}
	for _, n := range r.k.nodes {
		for _, d := range r.k.missingDaemons(n) {
			r.s.nodes.bind(d, n.Name)
		}
	}
	var names []string
	for _, n := range r.s.nodes.list {
		if p := r.k.pools[n.Node().Labels[karpv1.NodePoolLabelKey]]; !r.planned(n.Node().Name) || !choosy(p) {
			names = append(names, n.Node().Name) // one more pod may leave a choosy pool too few types
		}
	}
	var more *market
	hopeless := map[string]bool{}
pods:
	for _, u := range r.plan.Unscheduled {
		pod := r.pod(u.Pod)
		if pod == nil {
			r.broken(u.Pod, "", "pods", "unscheduled, but not a pending pod")
			continue
		}
		twin := fingerprint(pod)
		if hopeless[twin] {
			continue
		}
		c := r.s.begin(pod)
		for _, name := range names {
			if r.s.accepts(c, name) == nil {
				r.v.Missed = append(r.v.Missed, Finding{Pod: u.Pod, Node: name, Plugin: "existing", Message: fmt.Sprintf("every filter accepts it; the plan says %v", u.Reasons)})
				continue pods
			}
		}
		if more == nil {
			more = r.market()
		}
		if pool, offer := r.oneMore(more, pod); pool != "" {
			r.v.Unbought = append(r.v.Unbought, Finding{Pod: u.Pod, Node: pool, Plugin: "new", Message: fmt.Sprintf("one more node of %s would hold it; the plan says %v", offer, u.Reasons)})
			continue
		}
		hopeless[twin] = true
	}
}

// choosy reports whether p asks for a choice of values.
func choosy(p *karpv1.NodePool) bool {
	return slices.ContainsFunc(p.Spec.Template.Spec.Requirements, func(q karpv1.Requirement) bool { return q.MinValues != nil })
}

func (r *replay) planned(name string) bool {
	return slices.ContainsFunc(r.nodes, func(n newNode) bool { return n.Name == name })
}
