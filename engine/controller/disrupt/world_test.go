package disrupt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/state"
	"github.com/prometheus/client_golang/prometheus"
)

const gib = 1 << 30

// market is a stage's cloud that sells something.
type market struct {
	*stage.Cloud
	catalog *catalog.Catalog
}

func (m market) Catalog(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
	return m.catalog, nil
}

// sizes are machines of so many CPUs, with 2 GiB and $0.04 for each.
func sizes(t testing.TB, cpus ...int64) *catalog.Catalog {
	t.Helper()
	var types []catalog.InstanceType
	for _, n := range cpus {
		name := fmt.Sprintf("c.%d", n)
		size := resources.List{corev1.ResourceCPU: n * 1000, corev1.ResourceMemory: n * 2 * gib, corev1.ResourcePods: 110}
		types = append(types, catalog.InstanceType{
			Name: name, Capacity: size, Allocatable: size,
			Requirements: requirements.FromLabels(map[string]string{corev1.LabelInstanceTypeStable: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}),
			Offerings:    []catalog.Offering{{Zone: "z1", CapacityType: catalog.OnDemand, Price: catalog.Price(n) * 40_000}},
		})
	}
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	return c
}

// world is a cluster with everything but the controllers of other packages, for which it
// stands in: machines start and end, pods are drained and bound.
type world struct {
	*stage.Stage
	t        testing.TB
	market   market
	state    *state.Cluster
	metrics  *observe.Metrics
	registry *prometheus.Registry
	opts     Options
	c        *Controller

	// refuse is a launch that finds no capacity.
	refuse func(claim *karpv1.NodeClaim) bool
	// slow keeps machines from starting.
	slow bool
	// stuck keeps nodes from being drained.
	stuck bool
	// launches are the claims that were asked for, with when.
	launches map[string]time.Time
	begin    time.Time
	next     time.Time
	// watched is called now and then.
	watched func()
}

func newWorld(t testing.TB, sold *catalog.Catalog, objects ...client.Object) *world {
	t.Helper()
	s := stage.New(t, objects...)
	w := &world{Stage: s, t: t, market: market{s.Cloud, sold}, launches: map[string]time.Time{}, begin: s.Now(), next: s.Now()}
	w.registry = prometheus.NewRegistry()
	var err error
	if w.metrics, err = observe.NewMetrics(w.registry); err != nil {
		t.Fatal(err)
	}
	w.opts = Options{Client: s.Client, Provider: w.market, Metrics: w.metrics, Events: s.Events, Now: s.Now, MinSaving: 50}
	w.restart()
	return w
}

// restart is a new process: what it knows, it knows from objects.
func (w *world) restart() {
	w.state = state.New(state.Options{Provider: w.market, Now: w.Now})
	w.state.AssumeSynced()
	w.opts.State = w.state
	var err error
	if w.c, err = New(w.opts); err != nil {
		w.t.Fatal(err)
	}
	w.next = w.Now()
	w.watch()
}

// watch tells the state of all that is stored.
func (w *world) watch() {
	w.t.Helper()
	ctx := context.Background()
	var pools karpv1.NodePoolList
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	var pods corev1.PodList
	var budgets policyv1.PodDisruptionBudgetList
	exists := map[string]bool{}
	see := func(o client.Object) {
		exists[fmt.Sprintf("%T %s %s", o, o.GetName(), o.GetUID())] = true
		w.state.Update(o)
	}
	for _, l := range []client.ObjectList{&pools, &claims, &nodes, &pods, &budgets} {
		if err := w.Truth.List(ctx, l); err != nil {
			w.t.Fatal(err)
		}
	}
	for i := range pools.Items {
		see(&pools.Items[i])
	}
	for i := range claims.Items {
		see(&claims.Items[i])
	}
	for i := range nodes.Items {
		see(&nodes.Items[i])
	}
	for i := range pods.Items {
		see(&pods.Items[i])
	}
	for i := range budgets.Items {
		see(&budgets.Items[i])
	}
	known := []client.Object{}
	for _, o := range w.state.Claims() {
		known = append(known, o)
	}
	for _, o := range w.state.Nodes() {
		known = append(known, o)
		for _, p := range w.state.PodsOn(o.Name) {
			known = append(known, p)
		}
	}
	for _, o := range known {
		if !exists[fmt.Sprintf("%T %s %s", o, o.GetName(), o.GetUID())] {
			w.state.Remove(o)
		}
	}
}

// pool is a NodePool that lets all nodes go, of on-demand machines.
func pool(name string, change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: stage.NodeClass.Group, Kind: stage.NodeClass.Kind, Name: "default"}
	p.Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{Text: karpv1.Never}
	p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	p.SetDefaults()
	p.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}}
	for _, f := range change {
		f(p)
	}
	return p
}

// machine adds a node of NodePool default, an hour old, with its claim.
func (w *world) machine(name, kind string, change ...func(*karpv1.NodeClaim)) {
	w.t.Helper()
	claim := w.claimOf(name, kind, w.Now().Add(-time.Hour))
	for _, f := range change {
		f(claim)
	}
	w.Create(claim)
	w.Create(w.nodeOf(claim, kind))
	w.watch()
}

func (w *world) claimOf(name, kind string, at time.Time) *karpv1.NodeClaim {
	return stage.Claim(name, stage.Launched(at), func(c *karpv1.NodeClaim) {
		c.Labels[corev1.LabelInstanceTypeStable] = kind
		c.Labels[corev1.LabelTopologyZone], c.Labels[karpv1.CapacityTypeLabelKey] = "z1", catalog.OnDemand
		c.Labels[corev1.LabelArchStable], c.Labels[corev1.LabelOSStable] = "amd64", "linux"
		c.Spec.ExpireAfter = karpv1.NillableDuration{Text: karpv1.Never}
		c.Status.Capacity, c.Status.Allocatable = w.size(kind), w.size(kind)
	})
}

func (w *world) size(kind string) corev1.ResourceList {
	it, ok := w.market.catalog.ByName(kind)
	if !ok {
		w.t.Fatalf("no instance type %s", kind)
	}
	return it.Capacity.Quantities()
}

func (w *world) nodeOf(claim *karpv1.NodeClaim, kind string) *corev1.Node {
	return stage.Node(claim.Name, stage.Of(claim), func(n *corev1.Node) {
		n.Status.Capacity, n.Status.Allocatable = w.size(kind), w.size(kind)
		n.CreationTimestamp = claim.CreationTimestamp
	})
}

// pod runs on a node: cpu in cores, and as many GiB.
func (w *world) pod(name, node string, cpu float64, change ...func(*corev1.Pod)) {
	w.t.Helper()
	w.Create(stage.Pod(name, node, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(int64(cpu*1000), resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(int64(cpu*gib), resource.BinarySI),
		}
		for _, f := range change {
			f(p)
		}
	}))
	w.watch()
}

// budget lets n pods of an app go.
func (w *world) budget(app string, n int32) {
	w.Create(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, MaxUnavailable: new(intstr.FromInt32(n))},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: n},
	})
	w.watch()
}

func drifted(c *karpv1.NodeClaim) {
	c.Conditions().At(c.CreationTimestamp.Add(time.Minute)).SetTrueBecause(karpv1.ConditionDrifted, "NodePoolDrifted", "")
}

// tick is how much time passes at once: a second, or more while commands only wait.
func (w *world) tick() time.Duration {
	if slices.ContainsFunc(w.c.commands, func(c *command) bool { return c.phase != confirming && c.phase != launching && c.phase != draining }) {
		return time.Second
	}
	return 5 * time.Second
}

// second lets some time pass: the others act, then the controller.
func (w *world) second() {
	w.t.Helper()
	w.Pass(w.tick())
	w.others()
	w.watch()
	w.act()
	if w.watched != nil {
		w.watched()
	}
}

func (w *world) act() {
	w.t.Helper()
	if err := w.c.Step(w.t.Context()); err != nil {
		w.t.Fatalf("step: %v", err)
	}
	if w.Now().Before(w.next) {
		return
	}
	acted, err := w.c.Decide(w.t.Context())
	if err != nil {
		w.t.Fatalf("pass: %v", err)
	}
	if w.next = w.Now().Add(10 * time.Second); acted {
		w.next = w.Now()
	}
}

func (w *world) run(d time.Duration) {
	w.t.Helper()
	for end := w.Now().Add(d); w.Now().Before(end); {
		w.second()
	}
}

// until runs until something holds, for a while at most.
func (w *world) until(what string, d time.Duration, holds func() bool) {
	w.t.Helper()
	for end := w.Now().Add(d); !holds(); w.second() {
		if w.Now().After(end) {
			w.t.Fatalf("%s: not within %s; commands %v, events %v", what, d, w.phases(), w.Told())
		}
	}
}

func (w *world) phases() []string {
	var out []string
	for _, c := range w.c.commands {
		out = append(out, fmt.Sprintf("%s %s %s", c.condition(), c.nodes(), c.phase))
	}
	return out
}

// others start and end machines, and drain and bind pods.
func (w *world) others() {
	w.t.Helper()
	ctx := context.Background()
	var claims karpv1.NodeClaimList
	if err := w.Truth.List(ctx, &claims); err != nil {
		w.t.Fatal(err)
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		switch {
		case c.DeletionTimestamp != nil:
			if !w.stuck {
				w.end(c)
			}
		case !c.Conditions().IsTrue(karpv1.ConditionInitialized):
			w.start(c)
		}
	}
	w.bind()
}

// start goes on with a claim: launched at once, initialized after 90 s.
func (w *world) start(c *karpv1.NodeClaim) {
	w.t.Helper()
	if _, ok := w.launches[c.Name]; !ok {
		w.launches[c.Name] = w.Now()
	}
	if !c.Conditions().IsTrue(karpv1.ConditionLaunched) && w.refuse != nil && w.refuse(c) {
		w.Delete(c)
		w.end(c)
		return
	}
	if w.slow {
		return
	}
	kind := w.kindOf(c)
	done := w.claimOf(c.Name, kind, w.Now())
	for k, v := range c.Labels {
		done.Labels[k] = v
	}
	done.ObjectMeta.Annotations = c.Annotations
	c.Labels = done.Labels
	if w.Now().Sub(w.launches[c.Name]) < 90*time.Second {
		done.Conditions().At(w.Now()).SetFalse(karpv1.ConditionInitialized, "Waiting", "")
		done.Conditions().At(w.Now()).SetFalse(karpv1.ConditionRegistered, "Waiting", "")
	} else if w.NodeNamed(c.Name) == nil {
		done.UID, done.CreationTimestamp = c.UID, c.CreationTimestamp
		w.Create(w.nodeOf(done, kind))
	}
	status := done.Status
	if err := w.Truth.Update(context.Background(), c); err != nil {
		w.t.Fatal(err)
	}
	c.Status = status
	if err := w.Truth.Status().Update(context.Background(), c); err != nil {
		w.t.Fatal(err)
	}
}

// kindOf is the smallest machine that a claim asks for; a static one takes the first.
func (w *world) kindOf(c *karpv1.NodeClaim) string {
	for _, o := range cloud.Preferred(c) {
		return o.InstanceType
	}
	types := w.market.catalog.Types()
	return slices.MinFunc(types, func(a, b catalog.InstanceType) int { return cmp.Compare(a.Offerings[0].Price, b.Offerings[0].Price) }).Name
}

// end drains a node, and ends it and its claim.
func (w *world) end(c *karpv1.NodeClaim) {
	w.t.Helper()
	ctx := context.Background()
	for _, p := range w.podsOn(c.Name) {
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		w.store(p)
	}
	if n := w.NodeNamed(c.Name); n != nil {
		n.Finalizers = nil
		if err := w.Truth.Update(ctx, n); err != nil {
			w.t.Fatal(err)
		}
		w.Delete(n)
	}
	if have := w.Claim(c.Name); have != nil {
		have.Finalizers = nil
		if err := w.Truth.Update(ctx, have); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) store(p *corev1.Pod) {
	w.t.Helper()
	status := p.Status
	if err := w.Truth.Update(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
	p.Status = status
	if err := w.Truth.Status().Update(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pods() []*corev1.Pod {
	w.t.Helper()
	var list corev1.PodList
	if err := w.Truth.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	out := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out
}

func (w *world) podsOn(node string) []*corev1.Pod {
	return slices.DeleteFunc(w.pods(), func(p *corev1.Pod) bool { return p.Spec.NodeName != node })
}

// bind gives unbound pods the first node with room.
func (w *world) bind() {
	w.t.Helper()
	if !w.unbound() {
		return
	}
	var nodes corev1.NodeList
	if err := w.Truth.List(context.Background(), &nodes); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range w.pods() {
		if p.Spec.NodeName != "" {
			continue
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			if n.DeletionTimestamp != nil || snapshot.Untolerated(p.Spec.Tolerations, n.Spec.Taints) != nil {
				continue
			}
			free, _ := resources.FromQuantities(n.Status.Allocatable)
			for _, q := range w.podsOn(n.Name) {
				free.SubFrom(resources.PodRequests(q))
			}
			if need := resources.PodRequests(p); free[corev1.ResourceCPU] >= need[corev1.ResourceCPU] && free[corev1.ResourceMemory] >= need[corev1.ResourceMemory] {
				p.Spec.NodeName = n.Name
				p.Status.Conditions = nil
				w.store(p)
				break
			}
		}
	}
}

// nodes are the types of nodes that are there, with their pods: "a c.4: x y".
func (w *world) nodes() []string {
	w.t.Helper()
	var nodes corev1.NodeList
	if err := w.Truth.List(context.Background(), &nodes); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for i := range nodes.Items {
		n := &nodes.Items[i]
		var names []string
		for _, p := range w.podsOn(n.Name) {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		name := n.Name
		if strings.HasPrefix(name, "default-") {
			name = "new"
		}
		out = append(out, strings.TrimSuffix(fmt.Sprintf("%s %s: %s", name, n.Labels[corev1.LabelInstanceTypeStable], strings.Join(names, " ")), " "))
	}
	slices.Sort(out)
	return out
}

// traces are what commands leave behind on objects.
func (w *world) traces() []string {
	w.t.Helper()
	var out []string
	var nodes corev1.NodeList
	var claims karpv1.NodeClaimList
	if err := errors.Join(w.Truth.List(context.Background(), &nodes), w.Truth.List(context.Background(), &claims)); err != nil {
		w.t.Fatal(err)
	}
	for i := range nodes.Items {
		if tainted(&nodes.Items[i]) {
			out = append(out, "taint of "+nodes.Items[i].Name)
		}
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.Conditions().Get(karpv1.ConditionDisruptionReason) != nil {
			out = append(out, "condition of "+c.Name)
		}
		if c.Annotations[v1alpha1.ReplacesAnnotation] != "" {
			out = append(out, "note of "+c.Name)
		}
		if w.state.Marked(c.Name) {
			out = append(out, "mark of "+c.Name)
		}
	}
	return out
}

// engine has disrupt policies that answer by a function.
func engine(t testing.TB, answer func(in *policy.DisruptInput) policy.GateAnswer) *policy.Engine {
	t.Helper()
	e := policy.NewEngine(policy.Options{})
	if err := e.Swap([]policy.Policy{{Name: "guard", Hook: policy.Disrupt, Revision: "1", Evaluator: script{answer}}}); err != nil {
		t.Fatal(err)
	}
	return e
}

type script struct {
	answer func(in *policy.DisruptInput) policy.GateAnswer
}

func (s script) Score(context.Context, *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	return policy.ScoreAnswer{}, policy.Stats{}, nil
}

func (s script) Gate(_ context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	return s.answer(in.(*policy.DisruptInput)), policy.Stats{}, nil
}

func (s script) Reads() policy.Reads { return nil }

func metaName(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// counter is the sum of a counter over the series with a label; an empty label is all.
func (w *world) counter(name, label, value string) float64 {
	w.t.Helper()
	sum := 0.0
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			ok := label == ""
			for _, l := range m.GetLabel() {
				ok = ok || l.GetName() == label && l.GetValue() == value
			}
			if ok {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// gaugeOf is a gauge with these labels, or -1.
func (w *world) gaugeOf(name string, labels map[string]string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n := 0
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == l.GetValue() {
					n++
				}
			}
			if f.GetName() == name && n == len(labels) {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
