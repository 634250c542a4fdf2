// Package karpenter runs a work through Karpenter's own scheduler, set up in process
// as that project's scheduling benchmark does it.
package karpenter

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/test"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// Engine is the name in outcomes.
const Engine = "karpenter"

// concurrency is what Karpenter's benchmark gives its scheduler.
const concurrency = 5

// Prepare makes the types' labels known to Karpenter and silences its log. Both are
// globals of that project, as for every provider linked with it.
func Prepare(offered []*catalog.InstanceType) {
	log.SetLogger(logging.NopLogger)
	for _, it := range offered {
		karpenterv1.WellKnownLabels.Insert(it.Requirements.Keys()...)
		for _, o := range it.Offerings {
			karpenterv1.WellKnownLabels.Insert(o.Requirements.Keys()...)
		}
	}
}

// Solve plans the pending pods of w. Outcome.Solve is the call that Karpenter's
// benchmark measures; Outcome.Build, which it leaves out, is the making of the topology
// and the scheduler. Pods are copied first, since Karpenter may relax them.
//
// Existing nodes are not supported and an error.
func Solve(ctx context.Context, w *work.Work) (*work.Outcome, error) {
	if len(w.Nodes) > 0 {
		return nil, fmt.Errorf("work %s: karpenter: existing nodes are not supported", w.Name)
	}
	Prepare(w.Types)
	pool, err := toNodePool(w.Pool)
	if err != nil {
		return nil, err
	}
	var types []*cloudprovider.InstanceType
	for _, it := range w.Types {
		types = append(types, ToKarpenter(it))
	}
	original := make(map[string]*corev1.Pod, len(w.Pods))
	pods := make([]*corev1.Pod, 0, len(w.Pods))
	for _, p := range w.Pods {
		original[p.Name] = p
		pods = append(pods, p.DeepCopy())
	}
	ctx = options.ToContext(injection.WithControllerName(ctx, "provisioner"), test.Options())
	provider := fake.NewCloudProvider()
	provider.InstanceTypes = types
	client := fakeclient.NewFakeClient()
	clk := clock.RealClock{}
	cluster := state.NewCluster(clk, client, provider)
	byPool := map[string][]*cloudprovider.InstanceType{pool.Name: types}
	pools := []*karpenterv1.NodePool{pool}
	opts := []scheduling.Options{scheduling.NumConcurrentReconciles(concurrency)}

	out := &work.Outcome{Engine: Engine}
	start := time.Now()
	topology, err := scheduling.NewTopology(ctx, client, cluster, nil, pools, byPool, pods, opts...)
	if err != nil {
		return nil, fmt.Errorf("work %s: karpenter: topology: %w", w.Name, err)
	}
	scheduler := scheduling.NewScheduler(ctx, client, pools, cluster, nil, topology, byPool, nil,
		events.NewRecorder(&record.FakeRecorder{}), clk, nil, nil, opts...)
	out.Build = time.Since(start)
	start = time.Now()
	results, err := scheduler.Solve(ctx, pods)
	out.Solve = time.Since(start)
	if err != nil {
		return nil, fmt.Errorf("work %s: karpenter: %w", w.Name, err)
	}
	for i, claim := range results.NewNodeClaims {
		it, offering := cheapest(claim.InstanceTypeOptions, claim.Requirements)
		if it == nil {
			return nil, fmt.Errorf("work %s: karpenter: claim %d: no offering can be launched", w.Name, i)
		}
		n := work.Node{InstanceType: it.Name, Zone: offering.Zone(), CapacityType: offering.CapacityType()}
		for _, p := range claim.Pods {
			n.Pods = append(n.Pods, original[p.Name])
		}
		out.New = append(out.New, n)
	}
	first := ""
	for p, cause := range results.PodErrors {
		out.Unscheduled = append(out.Unscheduled, original[p.Name])
		if first == "" || p.Name < first {
			first, out.Why = p.Name, cause.Error()
		}
	}
	return out, nil
}
