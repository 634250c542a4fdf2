package main

import (
	"context"
	"fmt"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/state"
	"github.com/dovetail-sh/dovetail/engine/webhook"
)

// addWebhook answers the API server about NodePools and NodePolicies, on all replicas.
func (a *assembly) addWebhook() error {
	s := a.settings
	if !s.webhook() {
		return nil
	}
	w := webhook.New(webhook.Options{
		Namespace: s.namespace, Moment: a.moment, Catalog: a.sold, Solve: s.solve(),
		Policies: a.inForce.engine, Facts: a.facts, Loader: a.inForce.loader, Open: a.inForce.open,
	})
	return w.Serve(a.mgr, s.webhookPort, webhook.NewCertificates(webhook.CertificateOptions{
		Reader: a.mgr.GetAPIReader(), Writer: a.mgr.GetClient(),
		Namespace: s.namespace, Service: s.webhookService, Secret: s.webhookSecret, Configuration: s.webhookConfiguration,
		Served: func(end time.Time) {
			a.metrics.CertificateExpiry.WithLabelValues(s.webhookService).Set(float64(end.Unix()))
		},
	}))
}

// sold is what a NodePool may buy; nothing if its NodeClass is another cloud's.
func (a *assembly) sold(ctx context.Context, np *karpv1.NodePool) (*catalog.Catalog, error) {
	if !state.Provides(a.provider, np.Spec.Template.Spec.NodeClassRef) {
		return nil, nil
	}
	return a.provider.Catalog(ctx, np)
}

// moment is the state of the cluster for the webhook, once all of it is known.
func (a *assembly) moment(ctx context.Context) (webhook.Moment, error) {
	if why := a.state.Unsynced(); why != "" {
		return webhook.Moment{}, fmt.Errorf("not known yet: %s", why)
	}
	m, err := a.state.Snapshot(ctx)
	if err != nil {
		return webhook.Moment{}, err
	}
	return webhook.Moment{Snapshot: m.Snapshot, Objects: m.Objects, Catalogs: m.Catalogs}, nil
}
