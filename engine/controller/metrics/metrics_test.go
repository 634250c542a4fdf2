package metrics

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// shop is the stage's cloud with a catalogue.
type shop struct{ *stage.Cloud }

func (shop) Catalog(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
	size := resources.List{corev1.ResourceCPU: 4000, corev1.ResourceMemory: 16 << 30, corev1.ResourcePods: 110}
	c, errs := catalog.New([]catalog.InstanceType{{Name: "large", Capacity: size, Allocatable: size, Offerings: []catalog.Offering{
		{Zone: "zone-a", CapacityType: catalog.Spot, Price: 50_000}, {Zone: "zone-a", CapacityType: catalog.OnDemand, Price: 200_000},
	}}})
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return c, nil
}

// registry remembers the names of all metrics.
type registry struct {
	*prometheus.Registry
	names []string
}

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

func (r *registry) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() { c.Describe(descs); close(descs) }()
	for d := range descs {
		r.names = append(r.names, fqName.FindStringSubmatch(d.String())[1])
	}
	return r.Registry.Register(c)
}

// bench measures a stage.
type bench struct {
	*Controller
	*stage.Stage
	t        *testing.T
	state    *state.Cluster
	registry *registry
	objects  *observe.Objects
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	b := &bench{t: t, Stage: stage.New(t), registry: &registry{Registry: prometheus.NewRegistry()}}
	market := shop{b.Cloud}
	b.state = state.New(state.Options{Provider: market, Now: b.Now})
	b.state.AssumeSynced()
	m, err := observe.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if b.objects, err = observe.NewObjects(b.registry, Labels(market)); err != nil {
		t.Fatal(err)
	}
	b.Controller = New(Options{Provider: market, State: b.state, Metrics: m, Objects: b.objects, Events: b.Events, Now: b.Now})
	b.registry.MustRegister(m.AllowedDisruptions, m.BudgetConsumers)
	b.registry.MustRegister(m.PodsBound, m.PodsStartup, m.PodsProvisioningBound, m.PodsProvisioningStart)
	for _, c := range []prometheus.Collector{m.PodsBound, m.PodsStartup, m.PodsProvisioningBound, m.PodsProvisioningStart} {
		descs := make(chan *prometheus.Desc, 9)
		c.Describe(descs)
		b.registry.names = append(b.registry.names, fqName.FindStringSubmatch((<-descs).String())[1])
	}
	b.objects.Live.From(b.read)
	for _, o := range objects {
		b.put(nil, o)
	}
	return b
}

// handler is that of an object's kind.
func (b *bench) handler(o client.Object) toolscache.ResourceEventHandler {
	switch o.(type) {
	case *corev1.Pod:
		return b.pods()
	case *karpv1.NodeClaim:
		return b.conditions(b.objects.NodeClaim, true)
	case *karpv1.NodePool:
		return b.nodePools()
	default:
		return b.conditions(b.objects.Node, false)
	}
}

// put makes an object known, in place of before unless that is nil.
func (b *bench) put(before, o client.Object) {
	if before == nil {
		if o.GetUID() == "" {
			b.Create(o)
		}
		b.state.Update(o)
		b.handler(o).OnAdd(o, false)
		return
	}
	b.state.Update(o)
	b.handler(o).OnUpdate(before, o)
}

// change changes a copy of an object, and makes that known.
func change[T client.Object](b *bench, o T, f func(T)) T {
	after := o.DeepCopyObject().(T)
	f(after)
	var version int
	_, _ = fmt.Sscan(o.GetResourceVersion(), &version)
	after.SetResourceVersion(fmt.Sprint(version + 1))
	b.put(o, after)
	return after
}

func (b *bench) drop(o client.Object) {
	b.state.Remove(o)
	b.handler(o).OnDelete(o)
}

// series are the series of the metrics whose name begins with prefix: "name{label="value"} 1".
// Labels that are empty are left out, and histograms show their count and sum.
func (b *bench) series(prefix string) []string {
	b.t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	round := func(v float64) string { return fmt.Sprint(math.Round(v*1000) / 1000) }
	var out []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					labels = append(labels, fmt.Sprintf("%s=%s", l.GetName(), l.GetValue()))
				}
			}
			value := ""
			switch {
			case m.GetGauge() != nil:
				value = round(m.GetGauge().GetValue())
			case m.GetCounter() != nil:
				value = round(m.GetCounter().GetValue())
			case m.GetHistogram() != nil:
				value = fmt.Sprint(m.GetHistogram().GetSampleCount(), " of ", round(m.GetHistogram().GetSampleSum()))
			case m.GetSummary() != nil:
				value = fmt.Sprint(m.GetSummary().GetSampleCount(), " of ", round(m.GetSummary().GetSampleSum()))
			}
			out = append(out, fmt.Sprintf("%s{%s} %s", strings.TrimPrefix(f.GetName(), prefix), strings.Join(labels, " "), value))
		}
	}
	slices.Sort(out)
	return out
}

func (b *bench) want(prefix string, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	got := b.series(prefix)
	if len(want)+len(got) > 0 {
		if diff := cmp.Diff(want, got); diff != "" {
			b.t.Errorf("series %s (-want +got):\n%s", prefix, diff)
		}
	}
}

func pool(change ...func(p *karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: stage.NodeClass.Group, Kind: stage.NodeClass.Kind, Name: "default"}
	for _, f := range change {
		f(p)
	}
	return p
}

// running is a claim with its node.
func running(at time.Time) (*karpv1.NodeClaim, *corev1.Node) {
	c := stage.Claim("a", func(c *karpv1.NodeClaim) {
		c.Labels[corev1.LabelInstanceTypeStable], c.Labels[corev1.LabelTopologyZone], c.Labels[karpv1.CapacityTypeLabelKey] = "large", "zone-a", "spot"
	}, stage.Launched(at))
	return c, stage.Node("a", stage.Of(c), func(n *corev1.Node) {
		n.CreationTimestamp = metav1.NewTime(at)
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("3900m"), "memory": resource.MustParse("15Gi"), "pods": resource.MustParse("110"), "ephemeral-storage": resource.MustParse("10")}
		n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
	})
}

func requests(cpu, memory string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
}

func TestController_nodes(t *testing.T) {
	start := time.Now().Truncate(time.Second)
	c, n := running(start)
	b := newBench(t, pool(), c, n, stage.Node("other", func(n *corev1.Node) { n.Status = corev1.NodeStatus{} }))
	b.Pass(start.Sub(b.Now()) + time.Minute)
	b.put(nil, stage.Pod("web", "a", requests("975m", "1Gi"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("2Gi")}
	}))
	b.put(nil, stage.Pod("agent", "a", requests("975m", "0"), func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }))
	b.put(nil, stage.Pod("done", "a", requests("1", "1Gi"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	const a = "capacity_type=spot instance_type=large managed=true node_name=a nodepool=default "
	const zone = " zone=zone-a}"
	var want []string
	for name, v := range map[string]string{
		"allocatable cpu": "3.9", "allocatable memory": "1.610612736e+10", "allocatable pods": "110", "allocatable ephemeral_storage": "10",
		"system_overhead cpu": "0.1", "system_overhead memory": "1.073741824e+09", "system_overhead pods": "0",
		"total_pod_requests cpu": "1.95", "total_pod_requests memory": "1.073741824e+09", "total_pod_requests pods": "2",
		"total_pod_limits memory": "2.147483648e+09", "total_pod_limits pods": "2",
		"total_daemon_requests cpu": "0.975", "total_daemon_requests memory": "0", "total_daemon_requests pods": "1", "total_daemon_limits pods": "1",
	} {
		metric, kind, _ := strings.Cut(name, " ")
		want = append(want, metric+"{"+a+"resource_type="+kind+zone+" "+v)
	}
	want = append(want, "current_lifetime_seconds{"+strings.TrimSuffix(a, " ")+zone+" 60")
	other := b.Now().Sub(b.state.Node("other").CreationTimestamp.Time).Seconds()
	want = append(want, fmt.Sprintf("current_lifetime_seconds{managed=false node_name=other} %v", other))
	b.want("karpenter_nodes_", want...)
	b.want("karpenter_cluster_utilization_percent", "{resource_type=cpu} 50", "{resource_type=memory} 6.667", "{resource_type=pods} 1.818", "{resource_type=ephemeral_storage} 0")

	b.drop(n)
	b.drop(b.state.Node("other"))
	b.want("karpenter_nodes_")
	b.want("karpenter_cluster_utilization_percent")
}

func TestController_pools(t *testing.T) {
	c, n := running(time.Now())
	p := pool(func(p *karpv1.NodePool) {
		p.Spec.Limits = corev1.ResourceList{"cpu": resource.MustParse("10500m"), "ephemeral-storage": resource.MustParse("7")}
	})
	b := newBench(t, p, c, n, pool(func(p *karpv1.NodePool) { p.Name, p.Spec.Template.Spec.NodeClassRef.Group = "foreign", "example.com" }))
	usage := []string{
		"limit{nodepool=default resource_type=cpu} 10.5", "limit{nodepool=default resource_type=ephemeral_storage} 7",
		"usage{nodepool=default resource_type=cpu} 4", "usage{nodepool=default resource_type=memory} 1.7179869184e+10", "usage{nodepool=default resource_type=pods} 110",
		"usage{nodepool=default resource_type=ephemeral_storage} 0", "usage{nodepool=default resource_type=nodes} 1",
	}
	b.want("karpenter_nodepools_", usage...) // nothing is said of costs before prices are known
	look := func() {
		t.Helper()
		if err := b.price(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	look()
	b.want("karpenter_nodepools_", append(usage, "cost_total{nodepool=default} 0.05")...)

	// A machine that changes from spot to on-demand costs something else at once.
	c = change(b, c, func(c *karpv1.NodeClaim) { c.Labels[karpv1.CapacityTypeLabelKey] = "on-demand" })
	b.want("karpenter_nodepools_cost_total", "{nodepool=default} 0.2")

	c = change(b, c, func(c *karpv1.NodeClaim) { c.Labels[corev1.LabelInstanceTypeStable] = "unknown" })
	for range 3 {
		look()
	}
	b.want("karpenter_nodepools_cost_", "total{nodepool=default} 0", "tracker_errors_total{nodepool=default} 1")

	b.drop(c)
	b.drop(n)
	for _, g := range []*prometheus.GaugeVec{b.opts.Metrics.AllowedDisruptions, b.opts.Metrics.BudgetConsumers} {
		g.WithLabelValues("default", "empty").Set(1)
	}
	b.drop(p)
	b.want("karpenter_nodepools_", "cost_tracker_errors_total{nodepool=default} 1")
}

func TestController_pods(t *testing.T) {
	c, n := running(time.Now())
	b := newBench(t, pool(), c, n)
	b.begin()
	p := stage.Pod("web", "", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	})
	b.put(nil, p)
	key := []snapshot.PodKey{{Namespace: "default", Name: "web"}}
	const web = "name=web namespace=default"
	state := func(more string) string {
		return "state{" + more + "} 1"
	}
	b.Pass(2 * time.Second)
	const owner = " owner=/apis/apps/v1/namespaces/default/replicasets/web"
	b.want("karpenter_pods_",
		state("managed=false "+web+owner+" phase=Pending ready=false scheduled=false"), "unstarted_time_seconds{"+web+"} 2", "unbound_time_seconds{dynamic_resources=true "+web+"} 2",
		"provisioning_scheduling_undecided_time_seconds{"+web+"} 2", "startup_duration_seconds{} 0 of 0", "provisioning_startup_duration_seconds{} 0 of 0")
	b.state.Decide(key, nil)
	b.Pass(3 * time.Second)
	b.want("karpenter_pods_",
		state("managed=false "+web+owner+" phase=Pending ready=false scheduled=false"), "unstarted_time_seconds{"+web+"} 5", "unbound_time_seconds{dynamic_resources=true "+web+"} 5",
		"provisioning_unbound_time_seconds{dynamic_resources=true "+web+"} 3", "provisioning_unstarted_time_seconds{"+web+"} 3", "startup_duration_seconds{} 0 of 0", "provisioning_startup_duration_seconds{} 0 of 0")

	p = change(b, p, func(p *corev1.Pod) {
		p.Spec.NodeName = "a"
		p.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(b.Now())}
	})
	b.Pass(4 * time.Second)
	const on = " node=a nodepool=default" + owner
	// A pod that runs and is not ready has not started.
	p = change(b, p, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	bound := []string{"bound_duration_seconds{dynamic_resources=true} 1 of 5", "provisioning_bound_duration_seconds{dynamic_resources=true} 1 of 3"}
	b.want("karpenter_pods_", append([]string{
		state("capacity_type=spot instance_type=large managed=true " + web + on + " phase=Running ready=false scheduled=true zone=zone-a"), "unstarted_time_seconds{" + web + "} 9",
		"provisioning_unstarted_time_seconds{" + web + "} 7", "startup_duration_seconds{} 0 of 0", "provisioning_startup_duration_seconds{} 0 of 0",
	}, bound...)...)

	ready := func(status corev1.ConditionStatus) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions[:1:1], corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(b.Now())})
		}
	}
	started := append([]string{"startup_duration_seconds{} 1 of 9", "provisioning_startup_duration_seconds{} 1 of 7"}, bound...)
	// It starts once, whatever becomes of it.
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue} {
		p = change(b, p, ready(status))
		b.want("karpenter_pods_", append([]string{state("capacity_type=spot instance_type=large managed=true " + web + on + fmt.Sprintf(" phase=Running ready=%t scheduled=true zone=zone-a", status == corev1.ConditionTrue))}, started...)...)
		b.Pass(time.Hour)
	}
	b.drop(p)
	b.want("karpenter_pods_", started...)
}

// begin begins to measure now.
func (b *bench) begin() { b.started = b.Now() }

func TestController_seePod(t *testing.T) {
	at := func(b *bench, kind corev1.PodConditionType, after time.Duration) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(b.started.Add(after))}
	}
	tests := map[string]struct {
		pod            func(b *bench, p *corev1.Pod)
		bound, started string
	}{
		"a pod that ran before": {pod: func(b *bench, p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{at(b, corev1.PodScheduled, -time.Minute), at(b, corev1.PodReady, -time.Second)}
		}},
		"a pod that was bound before and starts": {pod: func(b *bench, p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = []corev1.PodCondition{at(b, corev1.PodScheduled, -time.Minute), at(b, corev1.PodReady, time.Second)}
		}, started: "1 of 61"},
		"a pod that is bound as it is seen": {pod: func(b *bench, p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = []corev1.PodCondition{at(b, corev1.PodScheduled, 0)}
		}, bound: "1 of 60"},
		"a pod that fails": {pod: func(b *bench, p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Conditions = []corev1.PodCondition{at(b, corev1.PodScheduled, 0)}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.begin()
			b.put(nil, stage.Pod("web", "a", func(p *corev1.Pod) {
				p.CreationTimestamp = metav1.NewTime(b.started.Add(-time.Minute))
				tt.pod(b, p)
			}))
			var bound []string
			if tt.bound != "" {
				bound = []string{"{dynamic_resources=false} " + tt.bound}
			}
			b.want("karpenter_pods_bound_duration_seconds", bound...)
			if tt.started == "" {
				tt.started = "0 of 0"
			}
			b.want("karpenter_pods_startup_duration_seconds", "{} "+tt.started)
		})
	}
}

func TestController_conditions(t *testing.T) {
	b := newBench(t)
	b.begin()
	c := stage.Claim("a")
	b.put(nil, c)
	c = change(b, c, func(c *karpv1.NodeClaim) {
		c.Finalizers = []string{karpv1.TerminationFinalizer}
		c.Conditions().At(b.Now()).SetUnknown(karpv1.ConditionLaunched, "Trying", "")
	})
	b.Pass(5 * time.Second)
	c = change(b, c, func(c *karpv1.NodeClaim) { c.Conditions().At(b.Now()).SetTrue(karpv1.ConditionLaunched) })
	b.Pass(time.Second)
	const labels = "karpenter_sh_nodepool=default "
	const own = "stage_dovetail_sh_stageclass=default "
	series := func(name string) (out []string) {
		for _, s := range b.series(name) {
			if strings.Contains(s, "type=Launched") {
				out = append(out, s)
			}
		}
		return out
	}
	if diff := cmp.Diff([]string{
		"_count{karpenter_sh_nodepool=default name=a reason=Launched stage_dovetail_sh_stageclass=default status=True type=Launched} 1",
		"_current_status_seconds{karpenter_sh_nodepool=default name=a reason=Launched stage_dovetail_sh_stageclass=default status=True type=Launched} 1",
		"_transition_seconds{karpenter_sh_nodepool=default stage_dovetail_sh_stageclass=default status=Unknown to_status=True type=Launched} 1 of 5",
		"_transitions_total{karpenter_sh_nodepool=default reason=Launched stage_dovetail_sh_stageclass=default status=True type=Launched} 1",
		"_transitions_total{karpenter_sh_nodepool=default reason=Trying stage_dovetail_sh_stageclass=default status=Unknown type=Launched} 1",
	}, series("operator_nodeclaim_status_condition")); diff != "" {
		t.Errorf("series of the kind (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"_count{group=karpenter.sh kind=NodeClaim name=a reason=Launched status=True type=Launched} 1",
		"_current_status_seconds{group=karpenter.sh kind=NodeClaim name=a reason=Launched status=True type=Launched} 1",
		"_transition_seconds{group=karpenter.sh kind=NodeClaim status=Unknown to_status=True type=Launched} 1 of 5",
		"_transitions_total{group=karpenter.sh kind=NodeClaim reason=Launched status=True type=Launched} 1",
		"_transitions_total{group=karpenter.sh kind=NodeClaim reason=Trying status=Unknown type=Launched} 1",
	}, series("operator_status_condition")); diff != "" {
		t.Errorf("series of all kinds (-want +got):\n%s", diff)
	}
	if !b.WasTold("NodeClaim a Normal Launched") {
		t.Errorf("events %v do not tell of the launch", b.Told())
	}

	c = change(b, c, func(c *karpv1.NodeClaim) { c.DeletionTimestamp = new(metav1.NewTime(b.Now())) })
	b.Pass(7 * time.Second)
	b.want("operator_nodeclaim_termination", "_current_time_seconds{"+labels+"name=a "+strings.TrimSpace(own)+"} 7")
	b.drop(c)
	b.want("operator_nodeclaim_termination", "_duration_seconds{"+labels+strings.TrimSpace(own)+"} 1 of 7")
	b.want("operator_termination", "_duration_seconds{group=karpenter.sh kind=NodeClaim} 1 of 7")
	b.want("operator_nodeclaim_status_condition_c")
	if !b.WasTold("NodeClaim a Normal Finalized") {
		t.Errorf("events %v do not tell of the end", b.Told())
	}
}

func TestController_conditionsOfBefore(t *testing.T) {
	c, n := running(time.Now().Add(-time.Hour))
	b := newBench(t, pool(), c, n)
	for _, s := range append(b.series("operator_nodeclaim_status_condition_transition"), b.series("operator_node_status_condition_transition")...) {
		t.Errorf("what was so before is counted: %s", s)
	}
	// A watch that missed a deletion shows another object of the name.
	next := c.DeepCopy()
	next.UID, next.ResourceVersion, next.Status.Conditions = "other", "999999", nil
	gone := c.DeepCopy()
	gone.DeletionTimestamp = new(metav1.NewTime(b.Now()))
	b.handler(c).OnUpdate(gone, next)
	b.want("operator_termination_duration_seconds", "{group=karpenter.sh kind=NodeClaim} 1 of 0")
	b.handler(c).OnDelete(toolscache.DeletedFinalStateUnknown{Key: "a", Obj: gone})
	b.want("operator_termination_duration_seconds", "{group=karpenter.sh kind=NodeClaim} 2 of 0")
}

// TestController_all lets a cluster live once, and finds series of every metric.
func TestController_all(t *testing.T) {
	b := newBench(t, pool(func(p *karpv1.NodePool) { p.Spec.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")} }))
	b.begin()
	claim, node := running(b.Now())
	b.put(nil, node)
	lost := stage.Claim("lost", stage.Launched(b.Now()))
	b.put(nil, claim)
	b.put(nil, lost)
	if err := b.price(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	look := func() {
		families, err := b.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			seen[f.GetName()] = true
		}
	}
	b.put(nil, stage.Pod("agent", "a", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }))
	web := stage.Pod("web", "", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}
	})
	b.put(nil, web)
	look()
	b.state.Decide([]snapshot.PodKey{{Namespace: "default", Name: "web"}}, nil)
	look()
	change(b, web, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "True", LastTransitionTime: metav1.NewTime(b.Now())}, {Type: corev1.PodReady, Status: "True", LastTransitionTime: metav1.NewTime(b.Now())}}
	})
	change(b, node, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
	change(b, claim, func(c *karpv1.NodeClaim) {
		c.Conditions().At(b.Now()).SetUnknown(karpv1.ConditionInitialized, "Rebooting", "")
	})
	np := b.state.Pool("default")
	np = change(b, np, func(p *karpv1.NodePool) { p.Conditions().At(b.Now()).SetTrue(karpv1.ConditionValidationSucceeded) })
	np = change(b, np, func(p *karpv1.NodePool) {
		p.Conditions().At(b.Now()).SetFalse(karpv1.ConditionValidationSucceeded, "Bad", "")
	})
	for _, o := range []client.Object{np, b.state.Claim("a"), b.state.Node("a")} {
		going := o.DeepCopyObject().(client.Object)
		going.SetDeletionTimestamp(new(metav1.NewTime(b.Now())))
		going.SetResourceVersion("99999")
		b.put(o, going)
		look()
		b.drop(going)
	}
	look()
	for _, name := range b.registry.names {
		if !seen[name] {
			t.Errorf("nothing sets %s", name)
		}
	}
	if len(b.registry.names) < 45 {
		t.Errorf("only %d metrics are registered: %v", len(b.registry.names), b.registry.names)
	}
}
