package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	simkube "github.com/dovetail-sh/dovetail/engine/cloud/sim/kube"
	"github.com/dovetail-sh/dovetail/engine/controller/disrupt"
	"github.com/dovetail-sh/dovetail/engine/controller/provision"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// component is the source of events, which tells who decided.
const component = "dovetail"

// assembly is what the controllers share while they are put together.
type assembly struct {
	settings *settings
	mgr      manager.Manager
	provider cloud.Provider
	state    *state.Cluster
	metrics  *observe.Metrics
	events   *observe.Events
	inForce  *inForce
}

// registered is a controller that has been made.
type registered interface {
	Register(manager.Manager) error
}

// assemble puts the controllers together. Nothing runs before the manager is started.
func assemble(s *settings, config *rest.Config) (manager.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       metricsServer(s),
		HealthProbeBindAddress:        address(s.probePort),
		LeaderElection:                !s.disableElection && !s.shadow,
		LeaderElectionID:              s.electionName,
		LeaderElectionNamespace:       s.electionNamespace,
		LeaderElectionReleaseOnCancel: true,
		Cache:                         cache.Options{DefaultTransform: state.Slim},
		Logger:                        ctrl.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	a := &assembly{settings: s, mgr: mgr}
	if a.metrics, err = observe.NewMetrics(metrics.Registry); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	a.metrics.BuildInfo.WithLabelValues(version(), runtime.Version(), runtime.GOARCH, "").Set(1)
	if err := a.addEvents(config, scheme); err != nil {
		return nil, err
	}
	if err := a.addCloud(); err != nil {
		return nil, err
	}
	if err := a.addState(); err != nil {
		return nil, err
	}
	if err := a.addPolicies(); err != nil {
		return nil, err
	}
	if err := a.addControllers(); err != nil {
		return nil, err
	}
	if err := a.addWebhook(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return mgr, a.addChecks()
}

// addEvents publishes events through a client of their own, which does not hold up others.
func (a *assembly) addEvents(config *rest.Config, scheme *kruntime.Scheme) error {
	if a.settings.shadow {
		return nil // observe.Events may be nil: shadow writes nothing
	}
	clients, err := kubernetes.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component})
	a.events = observe.NewEvents(func(about kruntime.Object, kind, reason, message string) {
		recorder.Event(about, kind, reason, message)
	}, time.Now)
	return a.mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		broadcaster.Shutdown()
		return nil
	}))
}

func (a *assembly) addCloud() error {
	provider, err := simkube.Register(a.mgr, simkube.Options{Shadow: a.settings.shadow, StandIns: a.settings.standInKinds})
	if err != nil {
		return fmt.Errorf("--cloud %s: %w", a.settings.cloud, err)
	}
	a.provider = metered{Provider: provider, metrics: a.metrics}
	return nil
}

func (a *assembly) addState() error {
	spread, err := defaultSpread(a.settings)
	if err != nil {
		return exit{2, err}
	}
	settle := provision.Settle
	if !a.settings.nominate {
		settle = 0 // the state's own
	}
	a.state = state.New(state.Options{Provider: a.provider, DefaultSpread: spread, NodeOverlays: a.settings.gates.NodeOverlay, Settle: settle})
	return a.mgr.Add(everywhere(func(ctx context.Context) error {
		if err := a.state.Watch(ctx, a.mgr.GetCache()); err != nil {
			return fmt.Errorf("state of the cluster: %w", err)
		}
		return a.measureState(ctx)
	}))
}

// measureState exports gauges of the state every five seconds.
func (a *assembly) measureState(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	since := time.Now()
	for {
		synced := a.state.Synced()
		if synced {
			since = time.Now()
			a.metrics.StateSynced.Set(1)
		} else {
			a.metrics.StateSynced.Set(0)
		}
		a.metrics.StateUnsynced.Set(time.Since(since).Seconds())
		if !a.settings.disableStateMetrics {
			a.metrics.StateNodes.Set(float64(len(a.state.Nodes())))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// everywhere runs on all replicas, whoever leads.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// facts are what policies are told besides a snapshot.
func (a *assembly) facts() policy.Facts {
	f := policy.Facts{Cluster: policy.Cluster{Name: a.settings.cluster}}
	hour := time.Now().Add(-time.Hour)
	for _, c := range a.state.Claims() {
		if c.CreationTimestamp.After(hour) {
			f.History.Launches++
		}
	}
	return f
}

func (a *assembly) provisioner() (*provision.Controller, error) {
	s := a.settings
	unlimited := rest.CopyConfig(a.mgr.GetConfig())
	unlimited.QPS = -1
	pods, err := client.New(unlimited, client.Options{Scheme: a.mgr.GetScheme(), Mapper: a.mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("client of pods: %w", err)
	}
	return provision.New(provision.Options{
		Client: a.mgr.GetClient(), Pods: pods, State: a.state, Policies: a.inForce.engine, Metrics: a.metrics, Events: a.events,
		BatchIdle: s.batchIdle, BatchMax: s.batchMax, Facts: a.facts, Shadow: s.shadow,
		Solve: s.solve(),
	}), nil
}

func (a *assembly) disruption() (*disrupt.Controller, error) {
	s := a.settings
	spotTypes := 0 // the default
	if !s.gates.SpotToSpotConsolidation {
		spotTypes = -1
	}
	return disrupt.New(disrupt.Options{
		Client: a.mgr.GetClient(), Provider: a.provider, State: a.state, Policies: a.inForce.engine, Metrics: a.metrics, Events: a.events,
		Facts: a.facts, Shadow: s.shadow, SpotTypes: spotTypes, DeletionCost: !s.gates.PodDeletionCostManagement,
		DriftFirst: s.gates.TerminateFirstDrift, RepairFirst: s.gates.TerminateFirstRepair, Repair: s.gates.NodeRepair && !s.legacyRepair,
		Solve: s.solve(), MinSaving: leastSaving(s.minSaving),
	})
}

// addChecks makes the process ready once the kinds it needs are known to the API server and
// the caches are filled.
func (a *assembly) addChecks() error {
	synced := make(chan struct{})
	if err := a.mgr.Add(everywhere(func(ctx context.Context) error {
		if a.mgr.GetCache().WaitForCacheSync(ctx) {
			close(synced)
		}
		return nil
	})); err != nil {
		return err
	}
	ready := func(*http.Request) error {
		select {
		case <-synced:
		default:
			return errors.New("caches are not filled yet")
		}
		for _, kind := range []string{"NodePool", "NodeClaim"} {
			if _, err := a.mgr.GetRESTMapper().RESTMapping(karpv1.GroupVersion.WithKind(kind).GroupKind(), karpv1.GroupVersion.Version); err != nil {
				if meta.IsNoMatchError(err) {
					return fmt.Errorf("the API server does not know %s: install the CustomResourceDefinitions", kind)
				}
				return err
			}
		}
		return nil
	}
	return errors.Join(a.mgr.AddHealthzCheck("ping", healthz.Ping), a.mgr.AddReadyzCheck("kinds", ready))
}
