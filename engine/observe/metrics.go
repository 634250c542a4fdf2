package observe

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters, gauges and histograms of a controller. Names that begin with
// karpenter_ have Karpenter's meaning and labels; those that begin with dovetail_ are of
// our own.
type Metrics struct {
	NodeClaimsCreated    *prometheus.CounterVec // reason, nodepool, min_values_relaxed
	NodeClaimsTerminated *prometheus.CounterVec // nodepool, capacity_type, zone
	// NodeClaimsDisrupted and PodsDisruptionInitiated: reason, nodepool, capacity_type,
	// consolidation_policy, termination_mode.
	NodeClaimsDisrupted, PodsDisruptionInitiated *prometheus.CounterVec
	NodeClaimsUnhealthyDisrupted                 *prometheus.CounterVec   // condition, nodepool, capacity_type, image_id, termination_mode
	InstanceTermination, NodeClaimTermination    *prometheus.HistogramVec // nodepool
	NodesCreated, NodesTerminated                *prometheus.CounterVec   // nodepool, zone
	NodeTermination                              *prometheus.SummaryVec   // nodepool
	NodesDrained                                 *prometheus.CounterVec   // nodepool
	NodeLifetime                                 *prometheus.HistogramVec // nodepool

	// DisruptionDuration and the counters of decisions: reason, consolidation_type beside
	// what is named.
	DisruptionDuration                                 *prometheus.HistogramVec // reason, consolidation_type
	DisruptionDecisions                                *prometheus.CounterVec   // decision
	DisruptionDecisionsByPool                          *prometheus.CounterVec   // decision, nodepool
	TerminateFirst                                     *prometheus.CounterVec   // nodepool, reason, terminate_first_reason
	EligibleNodes                                      *prometheus.GaugeVec     // reason
	AllowedDisruptions, BudgetConsumers                *prometheus.GaugeVec     // nodepool, reason
	ConsolidationTimeouts, DisruptionFailedValidations *prometheus.CounterVec   // consolidation_type
	DisruptionQueueFailures                            *prometheus.CounterVec   // decision
	ConsolidationScore                                 *prometheus.HistogramVec // decision, nodepool, policy
	ConsolidationMoves                                 *prometheus.CounterVec   // decision, nodepool, policy

	// DisruptionCommands are those under way; DisruptionSaved is USD per hour, of commands
	// that ended well.
	DisruptionCommands  *prometheus.GaugeVec   // phase
	DisruptionRollbacks *prometheus.CounterVec // reason, cause
	DisruptionSaved     prometheus.Counter

	SchedulingDuration    *prometheus.HistogramVec // controller
	QueueDepth            *prometheus.GaugeVec     // controller, scheduling_id
	UnfinishedWork        *Work
	IgnoredPods           prometheus.Gauge
	UnschedulablePods     *prometheus.GaugeVec // controller
	PendingByZone         *prometheus.GaugeVec // controller, zone
	StateNodes            prometheus.Gauge
	StateSynced           prometheus.Gauge
	StateUnsynced         prometheus.Gauge
	PodsStartup           prometheus.Summary
	PodsBound             *prometheus.HistogramVec // dynamic_resources
	PodsProvisioningBound *prometheus.HistogramVec // dynamic_resources
	PodsProvisioningStart prometheus.Histogram
	PodsDecision          prometheus.Histogram
	EvictionRequests      *prometheus.CounterVec   // code
	PodsDrained           *prometheus.CounterVec   // reason
	CloudDuration         *prometheus.HistogramVec // controller, method, provider
	CloudErrors           *prometheus.CounterVec   // controller, method, provider, error, nodepool
	BuildInfo             *prometheus.GaugeVec     // version, goversion, goarch, commit

	// PlanCost and PlanBound are USD per hour of the last plan's new nodes, PlanNodes
	// their number.
	PlanCost, PlanBound, PlanNodes prometheus.Gauge
	PlansTotal                     *prometheus.CounterVec   // outcome: empty, applied, shadow
	PolicyDecisions                *prometheus.CounterVec   // hook, policy, mode, verdict
	PolicyDuration                 *prometheus.HistogramVec // hook, policy
	PolicyErrors                   *prometheus.CounterVec   // hook, policy, class
	PolicyReady                    *prometheus.GaugeVec     // policy, hook, runtime
	PodsPlaced                     *prometheus.CounterVec   // target: existing, new
	// CertificateExpiry has no series without a webhook.
	CertificateExpiry *prometheus.GaugeVec // service
}

// Buckets for durations in seconds: 5 ms to 10 minutes.
var durationBuckets = []float64{
	.005, .01, .02, .03, .04, .05, .06, .07, .08, .09, .1, .15, .2, .25, .3, .35, .4, .45, .5, .6, .7, .8, .9,
	1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 60, 90, 120, 180, 240, 300, 450, 600,
}

var quantiles = map[float64]float64{0: 0, .5: .01, .9: .01, .99: .01, 1: .01}

// maker registers collectors and keeps the errors.
type maker struct {
	reg  prometheus.Registerer
	errs []error
}

func (m *maker) add(c prometheus.Collector) {
	if err := m.reg.Register(c); err != nil {
		m.errs = append(m.errs, err)
	}
}

func (m *maker) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.add(c)
	return c
}

func (m *maker) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	c := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.add(c)
	return c
}

func (m *maker) gauge(name, help string) prometheus.Gauge {
	c := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.add(c)
	return c
}

func (m *maker) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	c := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.add(c)
	return c
}

func (m *maker) histogram(name, help string) prometheus.Histogram {
	c := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durationBuckets})
	m.add(c)
	return c
}

// NewMetrics makes the metrics and registers them. The error names what is registered
// already.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &maker{reg: reg}
	disrupted := []string{"reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode"}
	out := &Metrics{
		NodeClaimsCreated:            m.counters("karpenter_nodeclaims_created_total", "NodeClaims created.", "reason", "nodepool", "min_values_relaxed"),
		NodeClaimsTerminated:         m.counters("karpenter_nodeclaims_terminated_total", "NodeClaims whose machine is gone.", "nodepool", "capacity_type", "zone"),
		NodeClaimsDisrupted:          m.counters("karpenter_nodeclaims_disrupted_total", "NodeClaims deleted by the controller.", disrupted...),
		PodsDisruptionInitiated:      m.counters("karpenter_pods_disruption_initiated_total", "Pods on NodeClaims deleted by the controller.", disrupted...),
		NodeClaimsUnhealthyDisrupted: m.counters("karpenter_nodeclaims_unhealthy_disrupted_total", "NodeClaims deleted because their node was broken.", "condition", "nodepool", "capacity_type", "image_id", "termination_mode"),
		InstanceTermination:          m.histograms("karpenter_nodeclaims_instance_termination_duration_seconds", "From the first request to terminate a machine until it is gone.", prometheus.ExponentialBuckets(1, 2, 11), "nodepool"),
		NodeClaimTermination:         m.histograms("karpenter_nodeclaims_termination_duration_seconds", "From the deletion of a NodeClaim until its finalizer goes.", prometheus.ExponentialBuckets(1, 2, 12), "nodepool"),
		NodesCreated:                 m.counters("karpenter_nodes_created_total", "Nodes registered.", "nodepool", "zone"),
		NodesTerminated:              m.counters("karpenter_nodes_terminated_total", "Nodes whose finalizer went.", "nodepool", "zone"),
		NodesDrained:                 m.counters("karpenter_nodes_drained_total", "Nodes drained.", "nodepool"),
		NodeLifetime:                 m.histograms("karpenter_nodes_lifetime_duration_seconds", "Age of nodes when they go.", []float64{900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600, 604800, 1209600, 2592000, 5184000}, "nodepool"),

		DisruptionDuration:          m.histograms("karpenter_voluntary_disruption_decision_evaluation_duration_seconds", "Time to look for nodes that may go.", durationBuckets, "reason", "consolidation_type"),
		DisruptionDecisions:         m.counters("karpenter_voluntary_disruption_decisions_total", "Commands decided.", "decision", "reason", "consolidation_type"),
		DisruptionDecisionsByPool:   m.counters("karpenter_voluntary_disruption_decisions_by_nodepool_total", "Commands decided, by the NodePools of their nodes.", "decision", "reason", "consolidation_type", "nodepool"),
		TerminateFirst:              m.counters("karpenter_voluntary_disruption_terminate_first_decisions_total", "Nodes deleted before their successor is there.", "nodepool", "reason", "terminate_first_reason"),
		EligibleNodes:               m.gauges("karpenter_voluntary_disruption_eligible_nodes", "Nodes that nothing but budgets keeps from being disrupted.", "reason"),
		AllowedDisruptions:          m.gauges("karpenter_nodepools_allowed_disruptions", "Nodes that budgets let be disrupted now.", "nodepool", "reason"),
		BudgetConsumers:             m.gauges("karpenter_nodepools_nodes_consuming_budgets", "Nodes that count as disrupted.", "nodepool", "reason"),
		ConsolidationTimeouts:       m.counters("karpenter_voluntary_disruption_consolidation_timeouts_total", "Passes that ended before every node had its turn.", "consolidation_type"),
		DisruptionFailedValidations: m.counters("karpenter_voluntary_disruption_failed_validations_total", "Commands that no longer held when they were looked at again.", "consolidation_type"),
		DisruptionQueueFailures:     m.counters("karpenter_voluntary_disruption_queue_failures_total", "Replacements that did not become ready.", "decision", "reason", "consolidation_type"),
		ConsolidationScore:          m.histograms("karpenter_consolidation_score", "Share of savings over share of disruption.", []float64{.1, .25, .33, .5, 1, 2, 5, 10}, "decision", "nodepool", "policy"),
		ConsolidationMoves:          m.counters("karpenter_consolidation_moves_total", "Moves that were scored.", "decision", "nodepool", "policy"),
		DisruptionCommands:          m.gauges("dovetail_disruption_commands", "Commands under way.", "phase"),
		DisruptionRollbacks:         m.counters("dovetail_disruption_rollbacks_total", "Commands taken back.", "reason", "cause"),

		SchedulingDuration:    m.histograms("karpenter_scheduler_scheduling_duration_seconds", "Time to make a plan.", durationBuckets, "controller"),
		QueueDepth:            m.gauges("karpenter_scheduler_queue_depth", "Pods that wait for a plan.", "controller", "scheduling_id"),
		UnfinishedWork:        newWork("karpenter_scheduler_unfinished_work_seconds", "How long the plan has been under way that is not made yet."),
		IgnoredPods:           m.gauge("karpenter_scheduler_ignored_pods_count", "Pending pods that no node can help."),
		UnschedulablePods:     m.gauges("karpenter_scheduler_unschedulable_pods_count", "Pods for which the last plan has no node.", "controller"),
		PendingByZone:         m.gauges("karpenter_scheduler_pending_pods_by_effective_zone_count", "Pods that wait for a plan, by the zone in which they may run: flexible for several, none for no zone.", "controller", "zone"),
		StateNodes:            m.gauge("karpenter_cluster_state_node_count", "Nodes known."),
		StateSynced:           m.gauge("karpenter_cluster_state_synced", "1 if what is known is complete."),
		StateUnsynced:         m.gauge("karpenter_cluster_state_unsynced_time_seconds", "How long what is known has been incomplete."),
		PodsBound:             m.histograms("karpenter_pods_bound_duration_seconds", "From creation of pods until they are bound.", durationBuckets, "dynamic_resources"),
		PodsProvisioningBound: m.histograms("karpenter_pods_provisioning_bound_duration_seconds", "From the first sight of pods until they are bound.", durationBuckets, "dynamic_resources"),
		PodsProvisioningStart: m.histogram("karpenter_pods_provisioning_startup_duration_seconds", "From the first sight of pods until they run."),
		PodsDecision:          m.histogram("karpenter_pods_scheduling_decision_duration_seconds", "From the first sight of pods until the first decision about them."),
		EvictionRequests:      m.counters("karpenter_pods_eviction_requests_total", "Answers to eviction requests.", "code"),
		PodsDrained:           m.counters("karpenter_pods_drained_total", "Pods evicted or deleted from nodes that go.", "reason"),
		CloudDuration:         m.histograms("karpenter_cloudprovider_duration_seconds", "Calls of the cloud.", durationBuckets, "controller", "method", "provider"),
		CloudErrors:           m.counters("karpenter_cloudprovider_errors_total", "Failed calls of the cloud.", "controller", "method", "provider", "error", "nodepool"),
		BuildInfo:             m.gauges("karpenter_build_info", "1, with the build as labels.", "version", "goversion", "goarch", "commit"),

		PlanCost:        m.gauge("dovetail_plan_cost_usd_per_hour", "Cost of the nodes that the last plan buys."),
		PlanBound:       m.gauge("dovetail_plan_bound_usd_per_hour", "Cost below which no set of nodes could hold the same pods."),
		PlanNodes:       m.gauge("dovetail_plan_nodes", "Nodes that the last plan buys."),
		PlansTotal:      m.counters("dovetail_plans_total", "Plans made.", "outcome"),
		PolicyDecisions: m.counters("dovetail_policy_decisions_total", "Answers of policies.", "hook", "policy", "mode", "verdict"),
		PolicyDuration:  m.histograms("dovetail_policy_duration_seconds", "Time policies took.", []float64{.00001, .0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}, "hook", "policy"),
		PolicyErrors:    m.counters("dovetail_policy_errors_total", "Failures of policies.", "hook", "policy", "class"),
		PolicyReady:     m.gauges("dovetail_policy_ready", "1 if a revision of the policy is in force.", "policy", "hook", "runtime"),
		PodsPlaced:      m.counters("dovetail_pods_placed_total", "Pods planned, by what they were planned onto.", "target"),

		CertificateExpiry: m.gauges("dovetail_webhook_certificate_expiry_timestamp_seconds", "When the webhook's certificate ends, in seconds since 1970.", "service"),
	}
	m.add(out.UnfinishedWork)
	out.DisruptionSaved = prometheus.NewCounter(prometheus.CounterOpts{Name: "dovetail_disruption_saved_usd_per_hour_total", Help: "Cost per hour that commands have saved."})
	m.add(out.DisruptionSaved)
	out.NodeTermination = prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: "karpenter_nodes_termination_duration_seconds", Help: "From the deletion of nodes until their finalizer goes.", Objectives: quantiles}, []string{"nodepool"})
	m.add(out.NodeTermination)
	out.PodsStartup = prometheus.NewSummary(prometheus.SummaryOpts{Name: "karpenter_pods_startup_duration_seconds", Help: "From creation of pods until they run.", Objectives: quantiles})
	m.add(out.PodsStartup)
	return out, errors.Join(m.errs...)
}
