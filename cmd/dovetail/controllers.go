package main

import (
	"fmt"

	registry "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/dovetail-sh/dovetail/engine/controller/drift"
	"github.com/dovetail-sh/dovetail/engine/controller/metrics"
	"github.com/dovetail-sh/dovetail/engine/controller/nodeclaim"
	"github.com/dovetail-sh/dovetail/engine/controller/nodepolicy"
	"github.com/dovetail-sh/dovetail/engine/controller/nodepool"
	"github.com/dovetail-sh/dovetail/engine/controller/repair"
	"github.com/dovetail-sh/dovetail/engine/controller/static"
	"github.com/dovetail-sh/dovetail/engine/controller/terminate"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// addControllers registers the controllers. In shadow mode only provisioning and
// disruption run, which then write nothing, and what measures.
func (a *assembly) addControllers() error {
	s := a.settings
	provisioner, err := a.provisioner()
	if err != nil {
		return err
	}
	disruption, err := a.disruption()
	if err != nil {
		return err
	}
	changed := func() { provisioner.Trigger("policies"); disruption.Trigger() }
	controllers := map[string]registered{"provisioner": provisioner, "disruption": disruption}
	if !s.shadow {
		pools := nodepool.New(nodepool.Options{
			Client: a.mgr.GetClient(), Provider: a.provider, State: a.state, Metrics: a.metrics, Events: a.events,
			Policies: a.inForce.engine, Facts: a.facts,
		})
		controllers["nodepool"] = pools
		changed = func() { provisioner.Trigger("policies"); disruption.Trigger(); pools.Recheck() }
		claims := nodeclaim.Options{
			Client: a.mgr.GetClient(), Reader: a.mgr.GetAPIReader(), Provider: a.provider, Metrics: a.metrics, Events: a.events, State: a.state,
			LaunchTimeout: s.launchTimeout, RegistrationTimeout: s.registrationTimeout, CollectEvery: s.collectEvery,
			DeviceDrivers: false, Expected: a.state.Expected, Outcome: pools.Outcome,
		}
		if s.nominate {
			claims.BeforeReady = provisioner.Nominate
		}
		controllers["nodeclaim"] = nodeclaim.New(claims)
		controllers["drift"] = drift.New(drift.Options{Client: a.mgr.GetClient(), Provider: a.provider, State: a.state})
		controllers["terminate"] = terminate.New(terminate.Options{
			Client: a.mgr.GetClient(), Provider: a.provider, Metrics: a.metrics, Events: a.events, State: a.state,
		})
	}
	if s.gates.StaticCapacity && !s.shadow {
		controllers["static"] = static.New(static.Options{Client: a.mgr.GetClient(), Provider: a.provider, State: a.state, Metrics: a.metrics, Events: a.events})
	}
	if s.gates.NodeRepair && s.legacyRepair && !s.shadow {
		r, err := repair.New(repair.Options{Client: a.mgr.GetClient(), Provider: a.provider, Metrics: a.metrics, Events: a.events, State: a.state})
		if err != nil {
			return fmt.Errorf("--legacy-node-repair: %w", err)
		}
		controllers["repair"] = r
	}
	controllers["nodepolicy"] = nodepolicy.New(nodepolicy.Options{
		Client: a.mgr.GetClient(), Set: a.inForce.set, Metrics: a.metrics, Events: a.events,
		Changed: a.inForce.changed, InForce: changed, Elected: a.mgr.Elected(), Shadow: s.shadow,
	})
	if !s.disableStateMetrics {
		objects, err := observe.NewObjects(registry.Registry, metrics.Labels(a.provider))
		if err != nil {
			return fmt.Errorf("metrics of objects: %w", err)
		}
		controllers["metrics"] = metrics.New(metrics.Options{Provider: a.provider, State: a.state, Metrics: a.metrics, Objects: objects, Events: a.events})
	}
	for name, c := range controllers {
		if err := c.Register(a.mgr); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	return nil
}
