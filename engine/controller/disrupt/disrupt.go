package disrupt

import (
	"context"
	"fmt"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/health"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// Name of the controller, as Karpenter's.
const Name = "disruption"

// Options tune a [Controller]. Client, Provider and State are required.
type Options struct {
	Client   client.Client
	Provider cloud.Provider
	State    *state.Cluster
	// Policies are asked about every move. Nil has none.
	Policies *policy.Engine
	Metrics  *observe.Metrics
	Events   *observe.Events
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Facts are what policies are told besides a snapshot. Pod and Namespace are those of the
	// state; what is known of disruptions is added.
	Facts func() policy.Facts
	// Solve tunes plans; Costs are those of the policies.
	Solve schedule.Options
	// MinSaving and SpotTypes are those of [consolidate.Options].
	MinSaving, SpotTypes int
	// DeletionCost is that of [candidate.Facts].
	DeletionCost bool
	// Repair replaces nodes that are broken. The Provider must be a [cloud.Repairer].
	Repair bool
	// DriftFirst and RepairFirst delete drifted and broken nodes of static NodePools for which
	// limits leave no room to replace them first. NodePools can ask for the former by
	// annotation, too.
	DriftFirst, RepairFirst bool
	// Shadow decides and writes nothing.
	Shadow bool

	// Every is the longest time between two passes. Defaults to 10 s.
	Every time.Duration
	// Confirm is how long a saving must hold before it is acted upon. Defaults to 15 s;
	// negative is not at all.
	Confirm time.Duration
	// Settle is how long after a node was tainted pods may still come to it. Defaults to 2 s.
	Settle time.Duration
	// Decided is told of every pass. Defaults to none.
	Decided func(*gate.Disruption)
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.Every, 10 * time.Second}, {&o.Confirm, 15 * time.Second}, {&o.Settle, 2 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if o.Facts == nil {
		o.Facts = func() policy.Facts { return policy.Facts{} }
	}
	return o
}

// Controller disrupts nodes. Its methods are for one goroutine, but for Trigger.
type Controller struct {
	*fleet.Kit
	opts   Options
	state  *state.Cluster
	inputs policy.Inputs
	memory consolidate.Memory
	rules  *health.Rules // nil without Repair
	wake   chan struct{}

	// mu guards what follows, and plans, while commands are written at the same time.
	mu sync.Mutex
	// commands are those under way, in the order of their start.
	commands []*command
	started  int
	// held are nodes, by name, that must not be part of a move for a while.
	held map[string]candidate.Reason
	// failures are how often commands for a node failed in a row, by name.
	failures map[string]int
	barred   barred
	history  history
	quiet    quiet
	// told are the moves that shadow mode has reported, with when.
	told map[string]time.Time
}

// quiet is a pass that found nothing to do, which the next would not either.
type quiet struct {
	revision string
	until    time.Time
}

// New returns the controller, which acts once it runs. The error says what is wrong with the
// options.
func New(opts Options) (*Controller, error) {
	opts = opts.withDefaults()
	if err := (consolidate.Options{MinSaving: opts.MinSaving, Solve: opts.Solve}).Validate(); err != nil {
		return nil, fmt.Errorf("disruption: %w", err)
	}
	var rules *health.Rules
	if opts.Repair {
		var err error
		if rules, err = health.New(opts.Provider); err != nil {
			return nil, err
		}
	}
	c := &Controller{
		Kit: fleet.NewKit(fleet.Kit{
			Client: opts.Client, Provider: opts.Provider, Metrics: opts.Metrics, Events: opts.Events, Mirror: opts.State, Now: opts.Now,
		}),
		opts: opts, state: opts.State, rules: rules, wake: make(chan struct{}, 1),
		held: map[string]candidate.Reason{}, failures: map[string]int{}, told: map[string]time.Time{},
	}
	c.barred.now = opts.Now
	c.history.now = opts.Now
	return c, nil
}

// Register adds the controller to mgr.
func (c *Controller) Register(mgr manager.Manager) error { return mgr.Add(c) }

// NeedLeaderElection reports that only one process may disrupt; in shadow mode none does.
func (c *Controller) NeedLeaderElection() bool { return !c.opts.Shadow }

// Trigger asks for a pass at once, such as after policies changed.
func (c *Controller) Trigger() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// step is the time between two steps of commands.
const step = time.Second

// Start runs until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	log := ctrl.LoggerFrom(ctx).WithName(Name)
	ctx = ctrl.LoggerInto(ctx, log)
	tick := time.NewTicker(step)
	defer tick.Stop()
	next := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			c.quiet = quiet{}
			next = time.Now()
		case <-tick.C:
		}
		if why := c.state.Unsynced(); why != "" {
			log.V(1).Info("waiting for the state of the cluster", "cause", why)
			continue
		}
		if err := c.Step(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "a step failed, and is repeated")
		}
		if time.Now().Before(next) {
			continue
		}
		acted, err := c.Decide(ctx)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "a pass failed, and is repeated")
		}
		if next = time.Now().Add(c.opts.Every); acted {
			next = time.Now()
		}
	}
}

// labelOf is a reason as a metric label, and as the one that a claim is deleted for.
func (c *command) label() string {
	switch {
	case c.expired:
		return observe.ReasonExpired
	case c.reason == karpv1.DisruptionReasonEmpty:
		return observe.ReasonEmpty
	case c.reason == karpv1.DisruptionReasonUnderutilized:
		return observe.ReasonUnderutilized
	case c.reason == karpv1.DisruptionReasonUnhealthy:
		return observe.ReasonUnhealthy
	}
	return observe.ReasonDrifted
}

// kind is the metric label consolidation_type.
func (c *command) kind() string { return consolidationType(c.reason, len(c.targets)) }

func consolidationType(reason karpv1.DisruptionReason, nodes int) string {
	switch {
	case reason == karpv1.DisruptionReasonEmpty:
		return "empty"
	case reason != karpv1.DisruptionReasonUnderutilized:
		return ""
	case nodes > 1:
		return "multi"
	}
	return "single"
}

// decision is the metric label of that name.
func (c *command) decision() string {
	switch {
	case c.first:
		return "terminate-first"
	case c.want > 0:
		return "replace"
	}
	return "delete"
}

// about are the nodes of a command, in words.
func (c *command) about() string {
	names := make([]string, len(c.targets))
	for i := range c.targets {
		names[i] = c.targets[i].node
	}
	return some(names)
}

func some(names []string) string {
	const most = 5
	s := ""
	for i, n := range names {
		if i == most {
			return s + fmt.Sprintf(" and %d more", len(names)-most)
		}
		if i > 0 {
			s += ", "
		}
		s += n
	}
	return s
}
