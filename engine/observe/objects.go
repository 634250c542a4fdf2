package observe

import (
	"errors"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Objects are the metrics of what the objects of a cluster are and have become, under
// Karpenter's names.
type Objects struct {
	// Live are the gauges, which are read off at every scrape.
	Live *Live

	// Of nodes, in the units of Kubernetes: [Objects.NodeLabels], and resource_type but for
	// the lifetime.
	NodeAllocatable, NodePodRequests, NodePodLimits, NodeDaemonRequests, NodeDaemonLimits, NodeOverhead, NodeLifetime LiveGauge

	Utilization               LiveGauge              // resource_type
	PoolLimit, PoolUsage      LiveGauge              // resource_type, nodepool
	PoolCost                  LiveGauge              // nodepool
	PoolCostErrors            *prometheus.CounterVec // nodepool
	PodState                  LiveGauge              // see PodLabels
	PodUnstarted              LiveGauge              // name, namespace
	PodUnbound                LiveGauge              // name, namespace, dynamic_resources
	PodProvisioningUnbound    LiveGauge              // name, namespace, dynamic_resources
	PodProvisioningUnstarted  LiveGauge              // name, namespace
	PodProvisioningUndecided  LiveGauge              // name, namespace
	NodeClaim, NodePool, Node *Conditions

	wellKnown []string
}

// PodLabels are the labels of [Objects.PodState], in order.
var PodLabels = [...]string{
	"name", "namespace", "owner", "node", "scheduled", "nodepool", "zone", "arch", "capacity_type", "instance_type", "phase", "ready", "managed",
}

// NodeLabels are the labels of Kubernetes that are labels of the metrics of nodes, in their
// order. The name of the node, its phase, and whether it is managed come before them.
func (o *Objects) NodeLabels() []string { return o.wellKnown }

// Conditions are the metrics of the conditions of one kind.
type Conditions struct {
	// Labels are labels of the object that are labels of all of its metrics, after those
	// that are named here.
	Labels []string

	Count, Seconds LiveGauge                // namespace, name, type, status, reason
	Terminating    LiveGauge                // namespace, name
	Transition     *prometheus.HistogramVec // type, status, to_status
	Transitions    *prometheus.CounterVec   // type, status, reason
	Termination    *prometheus.HistogramVec

	// Old are the same without the kind in their name: group and kind take the place of
	// Labels. Nil for kinds that never had them.
	Old *Conditions
	// Group and Kind are the last labels of Old.
	Group, Kind string
}

// ObjectOptions say what labels objects have.
type ObjectOptions struct {
	// WellKnown are labels of Nodes that become labels of their metrics, by the part after
	// the slash.
	WellKnown []string
	// NodeClasses are the labels of claims and nodes that name a NodeClass.
	NodeClasses []string
	// NodePool and Initialized are labels that name the NodePool, and initialized nodes.
	NodePool, Initialized string
}

// NewObjects makes the metrics and registers them.
func NewObjects(reg prometheus.Registerer, opts ObjectOptions) (*Objects, error) {
	m := &maker{reg: reg}
	l := &Live{}
	o := &Objects{Live: l}
	names := []string{"node_name", "phase", "managed"}
	for _, label := range slices.Sorted(slices.Values(opts.WellKnown)) {
		if name := ShortLabel(label); name != "" && !slices.Contains(names, name) {
			o.wellKnown, names = append(o.wellKnown, label), append(names, name)
		}
	}
	perResource := append(slices.Clone(names), "resource_type")
	node := func(name, help string) LiveGauge { return l.gauge("karpenter_nodes_"+name, help, perResource...) }
	o.NodeAllocatable = node("allocatable", "What pods may use of nodes.")
	o.NodePodRequests = node("total_pod_requests", "Requests of the pods on nodes, those of DaemonSets included.")
	o.NodePodLimits = node("total_pod_limits", "Limits of the pods on nodes, those of DaemonSets included.")
	o.NodeDaemonRequests = node("total_daemon_requests", "Requests of the pods of DaemonSets on nodes.")
	o.NodeDaemonLimits = node("total_daemon_limits", "Limits of the pods of DaemonSets on nodes.")
	o.NodeOverhead = node("system_overhead", "What nodes have and pods may not use.")
	o.NodeLifetime = l.gauge("karpenter_nodes_current_lifetime_seconds", "Age of nodes.", names...)
	o.Utilization = l.gauge("karpenter_cluster_utilization_percent", "Requests of pods as a share of what nodes hold.", "resource_type")
	o.PoolLimit = l.gauge("karpenter_nodepools_limit", "Limits of NodePools.", "resource_type", "nodepool")
	o.PoolUsage = l.gauge("karpenter_nodepools_usage", "What the nodes of NodePools use of their limits.", "resource_type", "nodepool")
	o.PoolCost = l.gauge("karpenter_nodepools_cost_total", "USD per hour of the nodes of NodePools.", "nodepool")
	o.PoolCostErrors = m.counters("karpenter_nodepools_cost_tracker_errors_total", "NodeClaims whose cost is not known.", "nodepool")

	o.PodState = l.gauge("karpenter_pods_state", "1 for each pod, with what it is as labels.", PodLabels[:]...)
	o.PodUnstarted = l.gauge("karpenter_pods_unstarted_time_seconds", "Time since the creation of pods that have not run yet.", "name", "namespace")
	o.PodUnbound = l.gauge("karpenter_pods_unbound_time_seconds", "Time since the creation of pods that are not bound yet.", "name", "namespace", "dynamic_resources")
	o.PodProvisioningUnbound = l.gauge("karpenter_pods_provisioning_unbound_time_seconds", "Time since a plan had a node for pods that are not bound yet.", "name", "namespace", "dynamic_resources")
	o.PodProvisioningUnstarted = l.gauge("karpenter_pods_provisioning_unstarted_time_seconds", "Time since a plan had a node for pods that have not run yet.", "name", "namespace")
	o.PodProvisioningUndecided = l.gauge("karpenter_pods_provisioning_scheduling_undecided_time_seconds", "Time since pods that no plan has an answer for were first seen.", "name", "namespace")

	old := conditions(m, l, "", nil, "group", "kind")
	kind := func(kind string, hadOld bool, labels ...string) *Conditions {
		c := conditions(m, l, strings.ToLower(kind)+"_", labels)
		if c.Labels, c.Group, c.Kind = labels, "karpenter.sh", kind; hadOld {
			c.Old = old
		}
		return c
	}
	claims := append(slices.Sorted(slices.Values(opts.NodeClasses)), opts.NodePool)
	o.NodeClaim = kind("NodeClaim", true, claims...)
	o.NodePool = kind("NodePool", true)
	o.Node = kind("Node", false, append(slices.Clone(claims), opts.Initialized)...)
	m.add(l)
	return o, errors.Join(m.errs...)
}

// conditions makes the metrics of a kind, of which infix is the name; labels are those of
// its objects.
func conditions(m *maker, l *Live, infix string, labels []string, more ...string) *Conditions {
	for _, label := range labels {
		more = append(more, longLabel(label))
	}
	with := func(names ...string) []string { return append(names, more...) }
	buckets := prometheus.DefBuckets
	if infix != "" {
		buckets = prometheus.ExponentialBuckets(.5, 2, 15)
	}
	prefix := "operator_" + infix
	return &Conditions{
		Count:       l.gauge(prefix+"status_condition_count", "1 for each condition of each object.", with("namespace", "name", "type", "status", "reason")...),
		Seconds:     l.gauge(prefix+"status_condition_current_status_seconds", "How long each condition of each object has had its status.", with("namespace", "name", "type", "status", "reason")...),
		Terminating: l.gauge(prefix+"termination_current_time_seconds", "How long each object that is being deleted has been.", with("namespace", "name")...),
		Transition:  m.histograms(prefix+"status_condition_transition_seconds", "How long conditions had a status before they got another.", buckets, with("type", "status", "to_status")...),
		Transitions: m.counters(prefix+"status_condition_transitions_total", "Conditions that got another status.", with("type", "status", "reason")...),
		Termination: m.histograms(prefix+"termination_duration_seconds", "How long objects took to go once they were deleted.", buckets, with()...),
	}
}

// ShortLabel is the name that a label of Kubernetes has in the metrics of nodes: the part
// after its domain in snake case; "" for a label without domain.
func ShortLabel(label string) string {
	_, name, ok := strings.Cut(label, "/")
	if !ok {
		return ""
	}
	return Snake(name)
}

// Snake is a name of Kubernetes, such as that of a resource, as the value of a label.
func Snake(name string) string { return strings.ReplaceAll(strings.ToLower(name), "-", "_") }

// longLabel is the name that a label of Kubernetes has in the metrics of conditions.
func longLabel(label string) string {
	return strings.NewReplacer("/", "_", ".", "_", "-", "_").Replace(label)
}
