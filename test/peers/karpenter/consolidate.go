package karpenter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
	"sigs.k8s.io/karpenter/pkg/test"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/peers/fleet"
)

// between is how much later the next round is. Nominations have ended by then, and the
// controller looks at a cluster again although it has not changed.
const between = 6 * time.Minute

// Consolidation is Karpenter's disruption controller, with its own state of the cluster,
// provisioner and queue, over a fleet. Commands are carried out between rounds: what they
// buy is initialised at once, and their nodes are gone then.
type Consolidation struct {
	fleet       *fleet.Fleet
	store       *store
	clock       *skipping
	provider    *fake.CloudProvider
	cluster     *state.Cluster
	provisioner *provisioning.Provisioner
	queue       *disruption.Queue
	controller  *disruption.Controller
	nodes       *informer.NodeController
	claims      *informer.NodeClaimController
	pods        *informer.PodController
	// What the store has been given of the fleet.
	seenNodes  map[string]*corev1.Node
	seenClaims map[string]*karpv1.NodeClaim
	seenPods   map[types.NamespacedName]*corev1.Pod
}

var _ fleet.Engine = (*Consolidation)(nil)

// NewConsolidation sets the controllers up over f, with the options of that project's
// tests, and fills their state.
func NewConsolidation(ctx context.Context, f *fleet.Fleet) (*Consolidation, error) {
	Prepare(f.Types)
	ctx = withOptions(ctx)
	c := &Consolidation{
		fleet: f, store: newStore(), clock: newSkipping(f.Start.Add(time.Hour)), provider: fake.NewCloudProvider(),
		seenNodes: map[string]*corev1.Node{}, seenClaims: map[string]*karpv1.NodeClaim{}, seenPods: map[types.NamespacedName]*corev1.Pod{},
	}
	for _, it := range f.Types {
		c.provider.InstanceTypes = append(c.provider.InstanceTypes, ToKarpenter(it))
	}
	recorder := events.NewRecorder(&record.FakeRecorder{})
	c.cluster = state.NewCluster(c.clock, c.store, c.provider)
	spending := cost.NewClusterCost(ctx, c.provider, c.store)
	c.nodes = informer.NewNodeController(c.store, c.cluster)
	c.claims = informer.NewNodeClaimController(c.store, c.provider, c.cluster, spending)
	c.pods = informer.NewPodController(c.store, c.cluster)
	c.provisioner = provisioning.NewProvisioner(c.store, recorder, c.provider, c.cluster, c.clock,
		deviceallocation.NewController(c.store), virtualpods.NewVirtualPodCache(c.store))
	c.queue = disruption.NewQueue(c.store, recorder, c.cluster, c.clock, c.provisioner)
	c.controller = disruption.NewController(ctx, c.clock, c.store, c.provisioner, c.provider, recorder, c.cluster, c.queue, spending)

	var fixed []client.Object
	for _, p := range f.Pools {
		pool, err := toNodePool(p)
		if err != nil {
			return nil, err
		}
		pool.Spec.Template.Spec.NodeClassRef = nodeClass()
		fixed = append(fixed, pool)
	}
	for _, n := range f.Namespaces {
		fixed = append(fixed, n)
	}
	for _, b := range f.Budgets {
		fixed = append(fixed, b)
	}
	for _, o := range fixed {
		if err := c.store.put(o); err != nil {
			return nil, err
		}
	}
	return c, c.sync(ctx)
}

func withOptions(ctx context.Context) context.Context {
	return options.ToContext(injection.WithControllerName(ctx, "disruption"), test.Options())
}

// nodeClass is one that the fake provider says it supports.
func nodeClass() *karpenterv1.NodeClassReference {
	return &karpenterv1.NodeClassReference{Group: v1alpha1.Group, Kind: "TestNodeClass", Name: "default"}
}

// Round reconciles the disruption controller once and carries its commands out.
func (c *Consolidation) Round(ctx context.Context) (fleet.Round, error) {
	ctx = withOptions(ctx)
	var r fleet.Round
	c.clock.skip(between)
	stop := fleet.Watch(&r)
	_, err := c.controller.Reconcile(ctx)
	stop()
	if err != nil {
		return r, fmt.Errorf("karpenter: disruption: %w", err)
	}
	for _, cmd := range c.queue.GetCommands() {
		if err := c.carryOut(ctx, cmd, &r); err != nil {
			return r, err
		}
	}
	return r, c.settlePods(ctx, &r)
}

// carryOut buys what a command replaces its nodes by and takes those away.
func (c *Consolidation) carryOut(ctx context.Context, cmd *disruption.Command, r *fleet.Round) error {
	for _, replacement := range cmd.Replacements {
		if err := c.launch(ctx, replacement.Name, r); err != nil {
			return err
		}
	}
	if err := c.sync(ctx); err != nil {
		return err
	}
	if _, err := c.queue.Reconcile(ctx, cmd.Candidates[0].NodeClaim); err != nil {
		return fmt.Errorf("karpenter: queue: %w", err)
	}
	if !cmd.Succeeded {
		return fmt.Errorf("karpenter: queue: command %s is not done although its replacements are ready", cmd)
	}
	for _, candidate := range cmd.Candidates {
		if err := c.fleet.Remove(candidate.Name()); err != nil {
			return fmt.Errorf("karpenter: command %s: %w", cmd, err)
		}
		r.Removed++
	}
	return nil
}

// launch does for a NodeClaim what a provider does: it buys the cheapest offering that
// the claim allows.
func (c *Consolidation) launch(ctx context.Context, name string, r *fleet.Round) error {
	claim := &karpenterv1.NodeClaim{}
	if err := c.store.Get(ctx, client.ObjectKey{Name: name}, claim); err != nil {
		return fmt.Errorf("karpenter: launch: %w", err)
	}
	reqs := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	allowed := reqs.Get(corev1.LabelInstanceTypeStable)
	it, offering := cheapest(slices.DeleteFunc(slices.Clone(c.provider.InstanceTypes), func(it *cloudprovider.InstanceType) bool {
		return !allowed.Has(it.Name)
	}), reqs)
	if it == nil {
		return fmt.Errorf("karpenter: launch %s: no offering is left", name)
	}
	r.Launched++
	return c.fleet.Launch(name, claim.Labels[karpenterv1.NodePoolLabelKey], it.Name, offering.Zone())
}

// settlePods places the pods that lost their node, and buys nodes for those that find no
// room.
func (c *Consolidation) settlePods(ctx context.Context, r *fleet.Round) error {
	for attempt := 0; ; attempt++ {
		pending := c.fleet.Bind()
		if err := c.sync(ctx); err != nil {
			return err
		}
		if pending == 0 || attempt == attempts {
			return nil
		}
		results, err := c.provisioner.Schedule(ctx)
		if err != nil {
			return fmt.Errorf("karpenter: provisioner: %w", err)
		}
		names, err := c.provisioner.CreateNodeClaims(ctx, results.NewNodeClaims)
		if err != nil {
			return fmt.Errorf("karpenter: provisioner: %w", err)
		}
		r.Rescued += len(names)
		for _, name := range names {
			if err := c.launch(ctx, name, r); err != nil {
				return err
			}
		}
	}
}

// attempts bounds how often nodes are bought for the pods of one round: a scheduler that
// does not know which pod a node was bought for may give it to another.
const attempts = 5

// sync tells the store, and through it the state of the cluster, what has changed in the
// fleet. Nodes come before pods, and go after them.
func (c *Consolidation) sync(ctx context.Context) error {
	var errs []error
	do := func(err error) {
		if err != nil && len(errs) < 10 {
			errs = append(errs, err)
		}
	}
	named := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
	}
	for name, claim := range c.fleet.Claims {
		if c.seenClaims[name] != claim {
			c.seenClaims[name] = claim
			converted, err := toNodeClaim(claim)
			do(err)
			do(c.store.put(converted))
			_, err = c.claims.Reconcile(ctx, named(name))
			do(err)
		}
	}
	for name, n := range c.fleet.Nodes {
		if c.seenNodes[name] != n {
			c.seenNodes[name] = n
			do(c.store.put(n))
			_, err := c.nodes.Reconcile(ctx, named(name))
			do(err)
		}
	}
	for key, p := range c.seenPods {
		if c.fleet.Pods[key] == nil {
			delete(c.seenPods, key)
			do(c.store.Delete(ctx, p))
			_, err := c.pods.Reconcile(ctx, reconcile.Request{NamespacedName: key})
			do(err)
		}
	}
	for key, p := range c.fleet.Pods {
		if c.seenPods[key] != p {
			c.seenPods[key] = p
			do(c.store.put(p))
			_, err := c.pods.Reconcile(ctx, reconcile.Request{NamespacedName: key})
			do(err)
		}
	}
	for name, n := range c.seenNodes {
		if c.fleet.Nodes[name] == nil {
			delete(c.seenNodes, name)
			delete(c.seenClaims, name)
			do(c.store.Delete(ctx, n))
			do(c.store.Delete(ctx, &karpenterv1.NodeClaim{ObjectMeta: n.ObjectMeta}))
			_, err := c.nodes.Reconcile(ctx, named(name))
			do(err)
			_, err = c.claims.Reconcile(ctx, named(name))
			do(err)
		}
	}
	return errors.Join(errs...)
}

// toNodeClaim goes through JSON, which both types share.
func toNodeClaim(in *karpv1.NodeClaim) (*karpenterv1.NodeClaim, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("nodeclaim %s: %w", in.Name, err)
	}
	out := &karpenterv1.NodeClaim{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("nodeclaim %s: %w", in.Name, err)
	}
	out.Spec.NodeClassRef = nodeClass()
	return out, nil
}

// skipping is a clock that runs as the real one does, but that nobody waits for: to wait
// moves it ahead. So limits of the time to think hold, and pauses cost nothing.
type skipping struct {
	clock.RealClock
	ahead atomic.Int64
}

func newSkipping(now time.Time) *skipping {
	c := &skipping{}
	c.ahead.Store(int64(now.Sub(time.Now())))
	return c
}

func (c *skipping) skip(d time.Duration) { c.ahead.Add(int64(d)) }

func (c *skipping) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *skipping) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *skipping) After(d time.Duration) <-chan time.Time {
	c.skip(d)
	at := make(chan time.Time, 1)
	at <- c.Now()
	return at
}
