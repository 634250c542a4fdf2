// Package world is a cluster in virtual time: its objects, a clock, and all that acts on them.
//
// Nodes come from the simulated cloud and take the time that it says; workload controllers
// keep the number of their pods; package binder schedules; pending pods are planned and
// nodes disrupted by the same calls as in a cluster. Whatever changes, everybody who is
// concerned looks at it at the same instant or after the delay that they have in a cluster,
// and nothing happens in between: a quiet night costs nothing.
//
// Equal worlds that are told the same live the same lives. Nothing reads the host's clock.
package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Defaults of Options.
const (
	DefaultRegister   = 60 * time.Second
	DefaultInitialize = 30 * time.Second
	DefaultShutdown   = time.Second
	DefaultLoop       = 10 * time.Second
)

// Options tune a World. The zero value is ready to use, with the built-in catalogue.
type Options struct {
	// Start is the time at which it begins. Defaults to noon on a Wednesday, 2025-06-04 UTC.
	Start time.Time
	// Catalog is what is sold where no class says otherwise. Defaults to the built-in one.
	Catalog *catalog.Catalog
	// Classes are simulated clouds. Those that NodePools refer to and that are not among them
	// sell Catalog without bounds, and take Register until a Node is there.
	Classes  []*v1alpha1.SimNodeClass
	Register time.Duration
	// Initialize is the time from then until a Node is initialized. Defaults to
	// DefaultInitialize; negative is none.
	Initialize time.Duration
	// Shutdown is how long a pod takes to end, if its grace period allows. Defaults to
	// DefaultShutdown; negative is no time.
	Shutdown time.Duration
	// BatchIdle, BatchMax and Loop are those of the controllers. Default to 1 s, 10 s and
	// 10 s.
	BatchIdle, BatchMax, Loop time.Duration
	// DefaultSpread are kube-scheduler's default constraints.
	DefaultSpread []corev1.TopologySpreadConstraint
	Solve         schedule.Options
	// Consolidate tunes the search for moves; its Solve, Candidates, Allowances, Held and
	// Memory are set by the world.
	Consolidate consolidate.Options
	// Still keeps all nodes: nothing is disrupted on purpose.
	Still bool
	// Policies are in force; Facts are what they are told beside the objects.
	Policies   []policy.Policy
	Facts      policy.Facts
	OnDecision func(policy.Record, any)
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&o.Register, DefaultRegister}, {&o.Initialize, DefaultInitialize}, {&o.Shutdown, DefaultShutdown}, {&o.Loop, DefaultLoop},
		{&o.BatchIdle, time.Second}, {&o.BatchMax, 10 * time.Second},
	} {
		*d.v = max(cmp.Or(*d.v, d.d), 0)
	}
	if o.Start.IsZero() {
		o.Start = time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)
	}
	return o
}

// World is a cluster in virtual time. It is for one goroutine.
type World struct {
	opts   Options
	ctx    context.Context
	now    time.Time
	queue  queue
	engine *policy.Engine
	inputs policy.Inputs
	err    error

	cloud *sim.Provider
	store *sim.Memory
	// cloudDue is when the cloud is to be stepped next; zero for never.
	cloudDue time.Time

	// classes are the names of the simulated clouds.
	classes []string

	// rest are the objects but for pods, nodes and claims.
	rest   snapshot.Objects
	pods   []*corev1.Pod // by namespace and name
	nodes  map[string]*corev1.Node
	claims map[string]*karpv1.NodeClaim
	// machines are what is paid for, by claim.
	machines map[string]*machine
	// causes are why claims are being deleted.
	causes    map[string]string
	workloads map[owner]*workload
	aliases   map[owner]owner

	// version counts changes of what snapshots are made of.
	version  int
	memo     snapshot.Memo
	built    built
	catalogs map[string]*catalog.Catalog
	noise    *noise
	// adopted is true if nodes were there in the beginning, zonal once something was seen to
	// tell zones apart, and choosy once something asked for any other label; thinned are
	// catalogues by what they were made of.
	adopted, zonal, choosy bool
	thinned                map[thinKey]*catalog.Catalog
	expected               map[snapshot.PodKey]expectation
	nominated              map[string]time.Time
	budgets                int // version at which PodDisruptionBudgets were counted, at budgetsAt
	budgetsAt              time.Time

	unbound map[snapshot.PodKey]bool
	// arrived orders pods by when they came.
	arrived   map[types.UID]int64
	rebind    bool
	batch     batch
	disrupter disrupter
	serial    int

	record *Record
}

type built struct {
	version int
	at      time.Time
	until   time.Time
	snap    *snapshot.Snapshot
	objs    snapshot.Objects
}

// New makes a world of objects, which it does not change. Nodes of NodePools without a
// NodeClaim get one.
func New(objs snapshot.Objects, opts Options) (*World, error) {
	opts = opts.withDefaults()
	w := &World{
		opts: opts, now: opts.Start, store: &sim.Memory{}, nodes: map[string]*corev1.Node{}, claims: map[string]*karpv1.NodeClaim{},
		machines: map[string]*machine{}, workloads: map[owner]*workload{}, aliases: map[owner]owner{}, catalogs: map[string]*catalog.Catalog{},
		causes:   map[string]string{},
		expected: map[snapshot.PodKey]expectation{}, nominated: map[string]time.Time{}, unbound: map[snapshot.PodKey]bool{}, arrived: map[types.UID]int64{}, budgets: -1,
		engine: policy.NewEngine(policy.Options{Records: -1, OnDecision: opts.OnDecision}),
	}
	if err := w.engine.Swap(opts.Policies); err != nil {
		return nil, err
	}
	w.disrupter.init()
	w.record = newRecord(w.now)
	w.rest = objs
	w.rest.Pods, w.rest.Nodes, w.rest.NodeClaims = nil, nil, nil
	w.rest.NodePools = slices.Clone(objs.NodePools)
	w.rest.ReplicaSets = slices.Clone(objs.ReplicaSets)
	w.rest.PersistentVolumes, w.rest.PersistentVolumeClaims = slices.Clone(objs.PersistentVolumes), slices.Clone(objs.PersistentVolumeClaims)
	w.rest.PodDisruptionBudgets = slices.Clone(objs.PodDisruptionBudgets)
	w.cloud = sim.New(w.store, w.store, sim.Options{Now: func() time.Time { return w.now }, Catalog: opts.Catalog, StandIns: w.standIns()})
	for _, c := range opts.Classes {
		w.setClass(c)
	}
	w.addClasses()
	for _, n := range objs.Nodes {
		w.nodes[n.Name] = n
	}
	for _, c := range objs.NodeClaims {
		w.claims[c.Name] = c
	}
	w.adopted = len(w.nodes)+len(w.claims) > 0
	if err := w.adopt(); err != nil {
		return nil, err
	}
	for _, p := range objs.Pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		w.insert(p)
		w.know(p)
		if p.Spec.NodeName != "" {
			w.record.use(p, 1)
		}
	}
	w.changed()
	w.stir()
	w.rebind = true
	return w, nil
}

// standIns are the kinds of NodeClass that NodePools refer to.
func (w *World) standIns() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, np := range w.rest.NodePools {
		if ref := np.Spec.Template.Spec.NodeClassRef; ref != nil && ref.Kind != sim.Kind {
			if kind := (schema.GroupVersionKind{Group: ref.Group, Version: "v1", Kind: ref.Kind}); !slices.Contains(out, kind) {
				out = append(out, kind)
			}
		}
	}
	return out
}

// addClasses adds the classes that NodePools refer to and that nobody gave.
func (w *World) addClasses() {
	for _, np := range w.rest.NodePools {
		ref := np.Spec.Template.Spec.NodeClassRef
		if ref == nil {
			continue
		}
		if _, err := w.store.NodeClass(context.Background(), ref.Name); !errors.Is(err, sim.ErrNotFound) {
			continue
		}
		class := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: ref.Name}}
		class.Spec.LaunchLatency.Base.Duration = w.opts.Register / 2
		class.Spec.RegistrationLatency.Base.Duration = w.opts.Register - w.opts.Register/2
		w.setClass(class)
	}
}

func (w *World) setClass(c *v1alpha1.SimNodeClass) {
	c = c.DeepCopy()
	if c.CreationTimestamp.IsZero() {
		c.CreationTimestamp = metav1.NewTime(w.opts.Start)
	}
	w.store.SetNodeClass(c)
	if !slices.Contains(w.classes, c.Name) {
		w.classes = append(w.classes, c.Name)
	}
	w.wakeCloud(w.now)
	// What is sold changes by itself when the rules say so.
	at := func(t v1alpha1.SimTime) {
		if when, err := t.Resolve(c.CreationTimestamp.Time); err == nil && when.After(w.now) {
			w.queue.push(when, func() { w.marketChanged() })
		}
	}
	for i := range c.Spec.Prices {
		at(c.Spec.Prices[i].At)
	}
	for i := range c.Spec.Capacity {
		at(c.Spec.Capacity[i].From)
		at(c.Spec.Capacity[i].Until)
	}
	for i := range c.Spec.Failures {
		at(c.Spec.Failures[i].Until)
	}
	w.marketChanged()
}

// marketChanged looks again at what is sold, at the same instant.
func (w *World) marketChanged() {
	w.changed()
	w.stir()
	if w.record != nil {
		w.record.reprice = true
	}
}

// changed notes that snapshots are out of date.
func (w *World) changed() {
	w.version++
	w.batch.changed = true
}

// stir has the next loop look for moves: something has changed that makes a difference to
// them. That pods wait or that nodes are on their way makes none.
func (w *World) stir() { w.disrupter.wake = true }

// Now is the time that the world has reached.
func (w *World) Now() time.Time { return w.now }

// At has do called when the world reaches a time, before anybody else acts. A time that has
// passed is now.
func (w *World) At(t time.Time, do func() error) {
	if t.Before(w.now) {
		t = w.now
	}
	w.queue.push(t, func() {
		if err := do(); err != nil {
			w.fail(err)
		}
	})
}

func (w *World) fail(err error) {
	if w.err == nil {
		w.err = fmt.Errorf("at %s: %w", w.now.UTC().Format(time.RFC3339), err)
	}
}

// Run goes on until a time, which is then the world's. The error is that of a scripted event,
// of planning, or ctx.Err(); the world must not be used after it.
func (w *World) Run(ctx context.Context, until time.Time) error {
	w.ctx = ctx
	w.settle()
	for w.err == nil && ctx.Err() == nil {
		at, ok := w.queue.next()
		if !ok || at.After(until) {
			break
		}
		w.moveTo(at)
		for _, do := range w.queue.pop(at) {
			do()
		}
		w.settle()
	}
	if w.err == nil && ctx.Err() == nil {
		w.moveTo(until)
	}
	return cmp.Or(w.err, ctx.Err())
}

// Idle reports whether nothing will happen by itself any more but what time alone brings.
func (w *World) Idle() bool {
	_, ok := w.queue.next()
	return !ok
}

func (w *World) moveTo(t time.Time) {
	if t.After(w.now) {
		w.record.pass(w, t)
		w.now = t
	}
}

// settle lets everybody act who acts at once, until nobody does.
func (w *World) settle() {
	for range 1000 {
		switch {
		case w.err != nil:
			return
		case !w.cloudDue.IsZero() && !w.cloudDue.After(w.now):
			w.stepCloud()
		case w.rebind:
			w.rebind = false
			w.bind()
		default:
			w.batch.settle(w)
			w.disrupter.settle(w)
			w.record.take(w)
			return
		}
	}
	w.fail(errors.New("the world does not settle"))
}

// Objects of the world at its time, which must not be changed.
func (w *World) Objects() snapshot.Objects {
	w.countBudgets()
	objs := w.rest
	objs.Pods = w.pods
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		objs.Nodes = append(objs.Nodes, w.nodes[name])
	}
	for _, name := range slices.Sorted(maps.Keys(w.claims)) {
		objs.NodeClaims = append(objs.NodeClaims, w.claims[name])
	}
	return objs
}

// snapshot is the present state. It is made anew only if something has changed.
func (w *World) snapshot() (*snapshot.Snapshot, snapshot.Objects) {
	b := &w.built
	if b.snap == nil || b.version != w.version || w.budgetsStale() || !b.until.IsZero() && !w.now.Before(b.until) {
		objs := w.Objects()
		opts := snapshot.Options{
			Now: w.now, PoolCatalogs: map[string]*catalog.Catalog{}, DefaultSpread: w.opts.DefaultSpread, AssumeReady: true,
			Unusable: map[string]string{}, Expected: map[snapshot.PodKey]string{}, Sorted: true,
		}
		for _, np := range objs.NodePools {
			c, err := w.sold(np)
			if err != nil {
				opts.Unusable[np.Name] = err.Error()
			}
			opts.PoolCatalogs[np.Name] = c
		}
		for key, e := range w.expected {
			opts.Expected[key] = e.node
		}
		snap, _ := w.memo.Build(objs, opts)
		if w.notice(snap) {
			return w.snapshot()
		}
		*b = built{version: w.version, at: w.now, until: w.memo.Until(), snap: snap, objs: objs}
	}
	if !b.at.Equal(w.now) {
		s := *b.snap
		s.Now = w.now
		b.snap, b.at = &s, w.now
	}
	return b.snap, b.objs
}

// Snapshot is the present state, with the objects that it is made of. They must not be
// changed.
func (w *World) Snapshot() (*snapshot.Snapshot, snapshot.Objects) { return w.snapshot() }

// sold is what a NodePool may buy now.
func (w *World) sold(np *karpv1.NodePool) (*catalog.Catalog, error) {
	c, err := w.cloud.Catalog(w.context(), np)
	if err != nil {
		return nil, err
	}
	if w.noise != nil {
		c = w.noise.over(c)
	}
	c = w.offered(np, c)
	if w.catalogs[np.Name] != c {
		w.catalogs[np.Name] = c
		w.record.reprice = true
	}
	return c, nil
}

func (w *World) context() context.Context {
	if w.ctx == nil {
		return context.Background()
	}
	return w.ctx
}

// Record is what has happened so far.
func (w *World) Record() *Record { return w.record }

// Candidates say of every node whether it may be disrupted now.
func (w *World) Candidates() []candidate.Candidate {
	snap, objs := w.snapshot()
	return candidate.Examine(snap, objs, w.candidateFacts())
}

func (w *World) facts() policy.Facts {
	f := w.opts.Facts
	f.Pod = w.pod
	f.Namespace = func(name string) *corev1.Namespace {
		for _, n := range w.rest.Namespaces {
			if n.Name == name {
				return n
			}
		}
		return nil
	}
	return f
}

// say adds a line to the record.
func (w *World) say(e Entry) {
	e.At = w.now
	w.record.Entries = append(w.record.Entries, e)
}
