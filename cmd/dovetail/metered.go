package main

import (
	"context"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// metered counts and times the calls of a provider.
type metered struct {
	cloud.Provider
	metrics *observe.Metrics
}

// Unwrap gives capabilities of the provider within.
func (m metered) Unwrap() cloud.Provider { return m.Provider }

// call notes a call; pool may be empty.
func (m metered) call(controller, method, pool string, begin time.Time, err error) {
	name := m.Name()
	m.metrics.CloudDuration.WithLabelValues(controller, method, name).Observe(time.Since(begin).Seconds())
	if err != nil {
		m.metrics.CloudErrors.WithLabelValues(controller, method, name, cloud.Class(err), pool).Inc()
	}
}

func (m metered) Launch(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
	begin := time.Now()
	machine, err := m.Provider.Launch(ctx, c)
	m.call("nodeclaim.lifecycle", "Create", c.Labels[karpv1.NodePoolLabelKey], begin, err)
	return machine, err
}

func (m metered) Terminate(ctx context.Context, c *karpv1.NodeClaim) error {
	begin := time.Now()
	err := m.Provider.Terminate(ctx, c)
	m.call("nodeclaim.lifecycle", "Delete", c.Labels[karpv1.NodePoolLabelKey], begin, err)
	return err
}

func (m metered) Get(ctx context.Context, id string) (*cloud.Machine, error) {
	begin := time.Now()
	machine, err := m.Provider.Get(ctx, id)
	m.call("node.termination", "Get", "", begin, err)
	return machine, err
}

func (m metered) List(ctx context.Context) ([]*cloud.Machine, error) {
	begin := time.Now()
	machines, err := m.Provider.List(ctx)
	m.call("nodeclaim.garbagecollection", "List", "", begin, err)
	return machines, err
}

func (m metered) Catalog(ctx context.Context, p *karpv1.NodePool) (*catalog.Catalog, error) {
	begin := time.Now()
	c, err := m.Provider.Catalog(ctx, p)
	m.call("provisioner", "GetInstanceTypes", p.Name, begin, err)
	return c, err
}

func (m metered) Drift(ctx context.Context, c *karpv1.NodeClaim) (string, error) {
	begin := time.Now()
	reason, err := m.Provider.Drift(ctx, c)
	m.call("nodeclaim.disruption", "IsDrifted", c.Labels[karpv1.NodePoolLabelKey], begin, err)
	return reason, err
}
