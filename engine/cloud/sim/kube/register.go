// Package kube runs the simulated cloud in a cluster: its machines are SimInstances, and
// Nodes appear and go with them. Nobody runs the Nodes; a kubelet, real or fake, is
// another's affair.
//
// The controllers need to get, list, watch, create and delete SimInstances and Nodes, to
// get, list and watch SimNodeClasses, to update the status of SimInstances and
// SimNodeClasses, and to get the ConfigMaps that hold catalogues.
package kube

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

// DefaultWorkers is how many machines are moved at the same time.
const DefaultWorkers = 32

// Options tune [Register]. The zero value is ready to use.
type Options struct {
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Workers is how many machines are moved at the same time. Defaults to DefaultWorkers.
	Workers int
	// Shadow registers no controllers: the provider can be asked, and nothing is written
	// but for a Launch or Terminate that somebody calls.
	Shadow bool
	// StandIns are kinds of NodeClass of other clouds that are taken for a SimNodeClass of
	// the same name, or for one that has nothing set if there is none. They are made ready.
	StandIns []schema.GroupVersionKind
}

// Register adds the simulated cloud to a manager that has not started, and its kinds to
// the manager's scheme, and returns the provider. The controllers run on the leader only.
func Register(mgr manager.Manager, opts Options) (*sim.Provider, error) {
	if err := v1alpha1.AddToScheme(mgr.GetScheme()); err != nil {
		return nil, fmt.Errorf("kinds of the simulated cloud: %w", err)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Workers <= 0 {
		opts.Workers = DefaultWorkers
	}
	objects := newObjects(mgr.GetClient(), mgr.GetAPIReader(), opts.Now)
	objects.standIns = opts.StandIns
	provider := sim.New(objects, objects, sim.Options{Now: opts.Now, StandIns: opts.StandIns})
	if opts.Shadow {
		return provider, nil
	}
	if err := (&instances{client: mgr.GetClient(), objects: objects, provider: provider, now: opts.Now}).register(mgr, opts.Workers); err != nil {
		return nil, fmt.Errorf("controller of SimInstances: %w", err)
	}
	if err := (&classes{client: mgr.GetClient(), provider: provider, now: opts.Now}).register(mgr); err != nil {
		return nil, fmt.Errorf("controller of SimNodeClasses: %w", err)
	}
	for _, kind := range opts.StandIns {
		if err := (&standIns{client: mgr.GetClient(), kind: kind, now: opts.Now}).register(mgr); err != nil {
			return nil, fmt.Errorf("controller of stand-ins of kind %s: %w", kind.Kind, err)
		}
	}
	return provider, nil
}
