// Package metrics measures the objects of a cluster under Karpenter's names: what nodes
// hold, what NodePools cost, how long pods wait, and how conditions change.
//
// Gauges are read off the state of the cluster at every scrape. What happens once, such as
// a pod that starts, is taken from watches and not from comparisons at intervals, so that
// nothing is missed and a restart counts nothing twice. Only the process that leads
// measures: two would count everything twice.
package metrics

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// Options tune a controller. Provider, State, Metrics and Objects are required.
type Options struct {
	Provider cloud.Provider
	State    *state.Cluster
	Metrics  *observe.Metrics
	Objects  *observe.Objects
	// Events tell of conditions of NodeClaims and NodePools that change. Nil tells nobody.
	Events *observe.Events
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// PriceEvery is how often prices are looked up. Defaults to a minute.
	PriceEvery time.Duration
}

// Controller measures.
type Controller struct {
	opts    Options
	started time.Time
	// prices are what NodePools may buy, by name.
	prices atomic.Pointer[map[string]*catalog.Catalog]

	mu sync.Mutex
	// waiting are pods that have not run yet.
	waiting map[types.UID]*waiting
	// unpriced are claims whose cost is known not to be known.
	unpriced map[types.UID]bool
}

// New returns a controller, which measures once it is registered and runs.
func New(opts Options) *Controller {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.PriceEvery <= 0 {
		opts.PriceEvery = time.Minute
	}
	return &Controller{opts: opts, started: opts.Now(), waiting: map[types.UID]*waiting{}, unpriced: map[types.UID]bool{}}
}

// Labels are those that the objects of a provider have.
func Labels(p cloud.Provider) observe.ObjectOptions {
	o := observe.ObjectOptions{
		WellKnown: karpv1.DefaultLabelRules().WellKnown.UnsortedList(), NodePool: karpv1.NodePoolLabelKey, Initialized: karpv1.NodeInitializedLabelKey,
	}
	for _, gvk := range p.NodeClasses() {
		ref := karpv1.NodeClassReference{Group: gvk.Group, Kind: gvk.Kind}
		o.NodeClasses = append(o.NodeClasses, ref.LabelKey())
	}
	return o
}

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error {
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return c.run(ctx, mgr.GetCache()) }))
}

// run measures while the process leads.
func (c *Controller) run(ctx context.Context, source cache.Cache) error {
	watch := map[client.Object]toolscache.ResourceEventHandler{
		&corev1.Pod{}:       c.pods(),
		&karpv1.NodeClaim{}: c.conditions(c.opts.Objects.NodeClaim, true),
		&karpv1.NodePool{}:  c.nodePools(),
		&corev1.Node{}:      c.conditions(c.opts.Objects.Node, false),
	}
	c.mu.Lock()
	c.started = c.opts.Now()
	c.mu.Unlock()
	for kind, h := range watch {
		informer, err := source.GetInformer(ctx, kind)
		if err != nil {
			return fmt.Errorf("metrics of %T: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(h); err != nil {
			return fmt.Errorf("metrics of %T: %w", kind, err)
		}
	}
	c.opts.Objects.Live.From(c.read)
	defer c.opts.Objects.Live.From(nil)
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		next := c.opts.PriceEvery
		if why := c.opts.State.Unsynced(); why != "" {
			next = time.Second
		} else if err := c.price(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).WithName("metrics.nodepool").Error(err, "prices are those of before")
		}
		tick.Reset(next)
	}
}

// price looks up what NodePools may buy, and counts claims that cost what nobody knows.
func (c *Controller) price(ctx context.Context) error {
	m, err := c.opts.State.Snapshot(ctx)
	if err != nil {
		return err
	}
	prices := map[string]*catalog.Catalog{}
	for _, p := range m.Snapshot.Pools {
		prices[p.Name] = p.Catalog
	}
	c.prices.Store(&prices)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.unpriced
	c.unpriced = map[types.UID]bool{}
	for _, claim := range c.opts.State.Claims() {
		pool := claim.Labels[karpv1.NodePoolLabelKey]
		if _, ok := cost(prices, claim); ok || pool == "" || claim.Status.ProviderID == "" {
			continue
		}
		c.unpriced[claim.UID] = true
		if !before[claim.UID] {
			c.opts.Objects.PoolCostErrors.WithLabelValues(pool).Inc()
		}
	}
	return nil
}

// cost is what a claim's machine costs; false if its offering is not known.
func cost(prices map[string]*catalog.Catalog, claim *karpv1.NodeClaim) (catalog.Price, bool) {
	l := claim.Labels
	kind, ok := prices[l[karpv1.NodePoolLabelKey]].ByName(l[corev1.LabelInstanceTypeStable])
	if !ok {
		return 0, false
	}
	for i := range kind.Offerings {
		o := &kind.Offerings[i]
		id := l[catalog.ReservationIDLabel]
		if o.Zone == l[corev1.LabelTopologyZone] && o.CapacityType == l[karpv1.CapacityTypeLabelKey] && (id == "" || id == o.ReservationID) {
			return o.Price, true
		}
	}
	return 0, false
}
