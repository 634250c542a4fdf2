// Package provision buys nodes for pods that have none. It gathers pending pods, plans
// them on a snapshot under the policies in force, creates the NodeClaims of the plan, and
// says for every pod what becomes of it.
package provision

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/purchase"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// Name of the controller, as Karpenter's.
const Name = "provisioner"

// Options tune a [Controller]. State, Client and Policies are required.
type Options struct {
	Client client.Client
	// Pods writes the status of pods. Nominations of a whole plan come at once, so it
	// should not limit its rate. Defaults to Client.
	Pods     client.Client
	State    *state.Cluster
	Policies *policy.Engine
	Metrics  *observe.Metrics
	Events   *observe.Events
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// BatchIdle and BatchMax are the window's. Default to 1 s and 10 s.
	BatchIdle, BatchMax time.Duration
	// Solve tunes plans; Costs are those of the policies.
	Solve schedule.Options
	// Facts are what snapshots do not say. Pod and Namespace are those of the state.
	Facts func() policy.Facts
	// Shadow plans and writes nothing.
	Shadow bool
	// Planned is told of every plan that places or leaves out a pod. Defaults to none.
	Planned func(Outcome)
	// Retry is when pods without a place are planned again although nothing happened.
	// Defaults to 10 s.
	Retry time.Duration
	// Creations is how many NodeClaims are created at the same time. Defaults to 32.
	Creations int
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.BatchIdle, time.Second}, {&o.BatchMax, 10 * time.Second}, {&o.Retry, 10 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	if o.Pods == nil {
		o.Pods = o.Client
	}
	if o.Facts == nil {
		o.Facts = func() policy.Facts { return policy.Facts{} }
	}
	if o.Creations <= 0 {
		o.Creations = 32
	}
	return o
}

// Controller is the provisioner.
type Controller struct {
	opts   Options
	batch  *batcher
	inputs policy.Inputs
	passes atomic.Int64
	// daemons are the DaemonSets of the last pass.
	daemons atomic.Pointer[[]*appsv1.DaemonSet]
	// following are the claims whose pods are being led to their nodes.
	following sync.Map
	release   release

	// revision is that of the last pass; it and waits are used by the loop only.
	revision string
	waits    int
}

// Outcome is what a pass did.
type Outcome struct {
	Result *gate.Result
	// Claims are those created, by the name of the node in the plan.
	Claims map[string]*karpv1.NodeClaim
	// Failed are those that could not be created.
	Failed map[string]error
	Took   time.Duration
}

// New returns a provisioner, which acts once it runs.
func New(opts Options) *Controller {
	opts = opts.withDefaults()
	return &Controller{opts: opts, batch: newBatcher(opts.BatchIdle, opts.BatchMax)}
}

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error {
	c.opts.State.OnChange(func(ch state.Change) {
		if ch.Provision {
			c.batch.trigger(ch.Key)
		}
	})
	return mgr.Add(c)
}

// NeedLeaderElection reports that only one provisioner may act; in shadow mode none does.
func (c *Controller) NeedLeaderElection() bool { return !c.opts.Shadow }

// Trigger asks for a plan, because of key.
func (c *Controller) Trigger(key string) { c.batch.trigger(key) }

// Start runs passes until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	log := ctrl.LoggerFrom(ctx).WithName(Name)
	ctx = ctrl.LoggerInto(ctx, log)
	c.batch.trigger("start")
	for c.batch.wait(ctx) {
		again, err := c.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to stop
		case err != nil:
			log.Error(err, "a pass failed, and is repeated")
			again = time.Second
		}
		if again > 0 {
			c.later(ctx, again)
		}
	}
	return nil
}

// later triggers a pass after d.
func (c *Controller) later(ctx context.Context, d time.Duration) {
	pass := c.passes.Load()
	time.AfterFunc(d, func() {
		if ctx.Err() == nil && c.passes.Load() == pass {
			c.batch.trigger("retry")
		}
	})
}

// pass plans once. It returns when to plan again at the latest; zero is when something
// happens.
func (c *Controller) pass(ctx context.Context) (again time.Duration, err error) {
	c.passes.Add(1)
	log := ctrl.LoggerFrom(ctx)
	if why := c.opts.State.Unsynced(); why != "" {
		log.V(1).Info("waiting for the state of the cluster", "cause", why)
		return time.Second, nil
	}
	moment, err := c.opts.State.Snapshot(ctx)
	if err != nil {
		return 0, fmt.Errorf("the state of the cluster: %w", err)
	}
	for _, p := range moment.Problems {
		log.V(1).Info("left out", "problem", p.String())
	}
	if len(moment.Snapshot.Pending) == 0 && len(moment.Snapshot.Blocked) == 0 {
		c.opts.count(func(m *observe.Metrics) {
			m.UnschedulablePods.WithLabelValues(Name).Set(0)
			m.IgnoredPods.Set(0)
			m.QueueDepth.WithLabelValues(Name, "").Set(0)
			m.PendingByZone.Reset()
		})
		c.revision, c.waits = "", 0
		return 0, nil
	}
	if moment.Revision == c.revision && c.waits > 0 && c.waits < 6 {
		// Nothing has changed since a plan that left pods out: only prices, policies or
		// the time of day can make a difference.
		c.waits++
		return c.opts.Retry, nil
	}
	c.revision, c.waits = moment.Revision, 0

	c.daemons.Store(&moment.Objects.DaemonSets)
	begin := c.opts.Now()
	facts := c.opts.Facts()
	facts.Pod, facts.Namespace = c.opts.State.Pod, c.opts.State.Namespace
	facts.SnapshotRevision = moment.Revision
	facts.PlanID = fmt.Sprintf("provision-%d", begin.UnixMilli())
	done := func() {}
	c.opts.count(func(m *observe.Metrics) { done = m.UnfinishedWork.Begin(Name) })
	result, err := gate.Plan(ctx, c.opts.Policies, &c.inputs, moment.Snapshot, moment.Objects.NodePools, facts, c.opts.Solve)
	done()
	if err != nil {
		return 0, err
	}
	out := Outcome{Result: result, Took: c.opts.Now().Sub(begin)}
	c.opts.measure(result, out.Took)
	c.opts.decide(result)
	if c.opts.Shadow {
		c.report(ctx, moment, &out)
		return c.after(result), nil
	}
	out.Claims, out.Failed = c.create(ctx, moment, result)
	c.nominate(ctx, result)
	c.report(ctx, moment, &out)
	if len(out.Failed) > 0 {
		return time.Second, nil
	}
	return c.after(result), nil
}

// after is when pods without a place are planned again.
func (c *Controller) after(r *gate.Result) time.Duration {
	if len(r.Plan.Unscheduled) == 0 {
		return 0
	}
	if d := r.RetryAfter(); d > 0 && d < c.opts.Retry {
		return d
	}
	c.waits = 1
	return c.opts.Retry
}

// create creates the NodeClaims of the plan. Those of one pool do not wait for those of
// another, and one that cannot be created does not stop the rest.
func (c *Controller) create(ctx context.Context, moment *state.Moment, r *gate.Result) (map[string]*karpv1.NodeClaim, map[string]error) {
	pools := map[string]*karpv1.NodePool{}
	for _, p := range moment.Objects.NodePools {
		pools[p.Name] = p
	}
	var mu sync.Mutex
	fallbacks := r.Fallbacks()
	made, failed := map[string]*karpv1.NodeClaim{}, map[string]error{}
	var wg sync.WaitGroup
	slots := make(chan struct{}, c.opts.Creations)
	for _, i := range byPool(r.Plan.NewNodes) {
		n := &r.Plan.NewNodes[i]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			allowed, offers := r.Allowed(n)
			claim := purchase.Claim(pools[n.Pool], n, allowed, offers, c.opts.State.Pod)
			if f, ok := fallbacks[n.Name]; ok {
				claim.Annotations[fact.FallbackAnnotation] = fact.FormatFallback(f)
			}
			err := c.createOne(ctx, claim, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[n.Name] = err
				return
			}
			made[n.Name] = claim
		})
	}
	wg.Wait()
	return made, failed
}

// createOne creates one claim, and expects its pods there.
func (c *Controller) createOne(ctx context.Context, claim *karpv1.NodeClaim, n *schedule.NewNode) error {
	if err := purchase.Create(ctx, c.opts.Client, claim); err != nil {
		return err
	}
	c.opts.State.Update(claim)
	c.opts.State.Expect(claim.Name, n.Pods)
	c.opts.count(func(m *observe.Metrics) {
		m.NodeClaimsCreated.WithLabelValues(observe.ReasonProvisioned, n.Pool, claim.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey]).Inc()
	})
	return nil
}

// nominate keeps nodes that pods were planned onto from being disrupted before the pods
// are there: twice the longest batch.
func (c *Controller) nominate(_ context.Context, r *gate.Result) {
	until := c.opts.Now().Add(max(2*c.opts.BatchMax, 10*time.Second))
	seen := map[string]bool{}
	for _, a := range r.Plan.Assignments {
		if !a.New && !seen[a.Node] {
			seen[a.Node] = true
			c.opts.State.Nominate(a.Node, until)
		}
	}
}

// report says what was decided: a line in the log, and events on pods, NodePools and
// NodeClaims.
func (c *Controller) report(ctx context.Context, moment *state.Moment, out *Outcome) {
	r := out.Result
	log := ctrl.LoggerFrom(ctx)
	if len(r.Plan.NewNodes) > 0 || len(out.Failed) > 0 {
		c.logPlan(ctx, out)
	}
	for name, err := range out.Failed {
		log.Error(err, "creating a NodeClaim failed", "node", name)
	}
	if c.opts.Planned != nil {
		c.opts.Planned(*out)
	}
	if c.opts.Shadow {
		return
	}
	c.events(moment, out)
}

func (c *Controller) logPlan(ctx context.Context, out *Outcome) {
	r := out.Result
	verb := "bought nodes"
	if c.opts.Shadow {
		verb = "would buy nodes"
	}
	types := map[string]int{}
	pods := 0
	for i := range r.Plan.NewNodes {
		types[r.Plan.NewNodes[i].Planned.InstanceType]++
		pods += len(r.Plan.NewNodes[i].Pods)
	}
	ctrl.LoggerFrom(ctx).Info(verb, "nodes", len(r.Plan.NewNodes), "types", countsText(types), "pods", pods,
		"cost", fmt.Sprintf("$%.4f/h", r.Plan.Cost.Dollars()), "bound", fmt.Sprintf("$%.4f/h", r.Plan.Bound.Dollars()),
		"unscheduled", len(r.Plan.Unscheduled), "took", out.Took.Round(time.Millisecond).String())
}

func countsText(counts map[string]int) string {
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[n], n))
	}
	const shown = 8
	if len(parts) > shown {
		parts = append(parts[:shown], fmt.Sprintf("%d more types", len(parts)-shown))
	}
	return strings.Join(parts, ", ")
}

func (c *Controller) events(moment *state.Moment, out *Outcome) {
	r := out.Result
	pod := c.opts.State.Pod
	for _, a := range r.Plan.Assignments {
		p := pod(a.Pod)
		if p == nil {
			continue
		}
		target := "node " + a.Node
		if a.New {
			claim := out.Claims[a.Node]
			if claim == nil {
				continue
			}
			target = "NodeClaim " + claim.Name
		}
		c.opts.Events.Publish(observe.Event{About: p, Reason: observe.Nominated, Message: "Pod should schedule on: " + target, Limited: true})
	}
	for _, u := range r.Plan.Unscheduled {
		p := pod(u.Pod)
		if p == nil {
			continue
		}
		c.opts.Events.Publish(observe.Event{About: p, Warning: true, Reason: reasonOf(u), Message: describe(u), Every: 5 * time.Minute})
	}
	pools := map[string]*karpv1.NodePool{}
	for _, p := range moment.Objects.NodePools {
		pools[p.Name] = p
	}
	for _, v := range r.Pools {
		np := pools[v.Pool]
		if np == nil {
			continue
		}
		for _, s := range v.Deny {
			c.opts.Events.Publish(observe.Event{About: np, Warning: true, Reason: observe.PolicyDenied, Message: s.String()})
		}
		for _, s := range v.Warnings {
			c.opts.Events.Publish(observe.Event{About: np, Warning: true, Reason: observe.PolicyWarning, Message: s.String(), Every: time.Hour})
		}
	}
	for i := range r.Plan.NewNodes {
		claim := out.Claims[r.Plan.NewNodes[i].Name]
		if claim == nil {
			continue
		}
		for _, s := range r.Launch.Warnings {
			c.opts.Events.Publish(observe.Event{About: claim, Warning: true, Reason: observe.PolicyWarning, Message: s.String()})
		}
	}
}

// reasonOf is the event's reason for a pod without a place.
func reasonOf(u schedule.Unscheduled) string {
	for _, r := range u.Reasons {
		switch r.Code {
		case schedule.PolicyDenied:
			return observe.PolicyDenied
		case schedule.PolicyDeferred:
			return observe.PolicyDeferred
		}
	}
	return observe.FailedScheduling
}

// describe is why a pod has no place. What was nearest to a place comes first: of many
// NodePools, most are for other pods.
func describe(u schedule.Unscheduled) string {
	const most = 1000 // an event's message holds 1024 bytes
	reasons := slices.Clone(u.Reasons)
	slices.SortStableFunc(reasons, func(a, b schedule.Reason) int { return cmp.Compare(distance(a.Code), distance(b.Code)) })
	parts := make([]string, len(reasons))
	for i, r := range reasons {
		parts[i] = r.String()
	}
	s := strings.Join(parts, "; ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// distance is how far a NodePool or node with a reason is from having taken the pod.
func distance(c schedule.Code) int {
	switch c {
	case schedule.LabelMismatch:
		return 3
	case schedule.UntoleratedTaint:
		return 2
	case schedule.PoolUnusable:
		return 1
	}
	return 0
}

func (o *Options) count(f func(*observe.Metrics)) {
	if o.Metrics != nil {
		f(o.Metrics)
	}
}

// effectiveZone is the only zone in which pods of a class may run by what they and their
// volumes ask for, "flexible" for several, "none" if no zone will do.
func effectiveZone(c *snapshot.Class) string {
	zones := map[string]bool{}
	for _, term := range c.Terms {
		zone := term.Get(corev1.LabelTopologyZone)
		if zone.Complement() {
			return "flexible"
		}
		for _, v := range zone.Values() {
			zones[v] = true
		}
	}
	switch len(zones) {
	case 0:
		return "none"
	case 1:
		return slices.Collect(maps.Keys(zones))[0]
	}
	return "flexible"
}

func (o *Options) measure(r *gate.Result, took time.Duration) {
	o.count(func(m *observe.Metrics) {
		m.SchedulingDuration.WithLabelValues(Name).Observe(took.Seconds())
		m.QueueDepth.WithLabelValues(Name, "").Set(float64(len(r.Snapshot.Pending)))
		m.PendingByZone.Reset()
		for _, i := range r.Snapshot.Pending {
			m.PendingByZone.WithLabelValues(Name, effectiveZone(r.Snapshot.Classes[r.Snapshot.Pods[i].Class])).Inc()
		}
		m.UnschedulablePods.WithLabelValues(Name).Set(float64(len(r.Plan.Unscheduled)))
		m.IgnoredPods.Set(float64(len(r.Snapshot.Blocked)))
		m.PlanCost.Set(r.Plan.Cost.Dollars())
		m.PlanBound.Set(r.Plan.Bound.Dollars())
		m.PlanNodes.Set(float64(len(r.Plan.NewNodes)))
		outcome := "applied"
		switch {
		case o.Shadow:
			outcome = "shadow"
		case len(r.Plan.NewNodes) == 0:
			outcome = "empty"
		}
		m.PlansTotal.WithLabelValues(outcome).Inc()
		existing, bought := 0, 0
		for _, a := range r.Plan.Assignments {
			if a.New {
				bought++
			} else {
				existing++
			}
		}
		m.PodsPlaced.WithLabelValues("existing").Add(float64(existing))
		m.PodsPlaced.WithLabelValues("new").Add(float64(bought))
	})
}

// decide tells the state which pods the plan has an answer for, and measures how long they
// have waited for one.
func (o *Options) decide(r *gate.Result) {
	placed := make([]snapshot.PodKey, len(r.Plan.Assignments))
	for i, a := range r.Plan.Assignments {
		placed[i] = a.Pod
	}
	refused := make([]snapshot.PodKey, len(r.Plan.Unscheduled))
	for i, u := range r.Plan.Unscheduled {
		refused[i] = u.Pod
	}
	waited := o.State.Decide(placed, refused)
	o.count(func(m *observe.Metrics) {
		for _, d := range waited {
			m.PodsDecision.Observe(d.Seconds())
		}
	})
}

// byPool orders nodes so that pools take turns: a pool whose launches fail does not keep
// those of others waiting.
func byPool(nodes []schedule.NewNode) []int {
	turn := map[string]int{}
	type place struct{ index, turn int }
	places := make([]place, len(nodes))
	for i := range nodes {
		places[i] = place{i, turn[nodes[i].Pool]}
		turn[nodes[i].Pool]++
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.turn, b.turn) })
	out := make([]int, len(places))
	for i, p := range places {
		out[i] = p.index
	}
	return out
}
