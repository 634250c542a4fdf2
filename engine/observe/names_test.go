package observe

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// names are Karpenter's metrics with their labels; "…" stands for those of nodes and pods,
// which are many. What is missing belongs to what Dovetail does not do: it reboots no node
// itself, and ReplicaSets are not told which pods to delete.
var names = map[string]string{
	"nodeclaims_created_total":                                  "reason,nodepool,min_values_relaxed",
	"nodeclaims_terminated_total":                               "nodepool,capacity_type,zone",
	"nodeclaims_disrupted_total":                                "reason,nodepool,capacity_type,consolidation_policy,termination_mode",
	"pods_disruption_initiated_total":                           "reason,nodepool,capacity_type,consolidation_policy,termination_mode",
	"nodeclaims_unhealthy_disrupted_total":                      "condition,nodepool,capacity_type,image_id,termination_mode",
	"nodeclaims_instance_termination_duration_seconds":          "nodepool",
	"nodeclaims_termination_duration_seconds":                   "nodepool",
	"nodes_created_total":                                       "nodepool,zone",
	"nodes_terminated_total":                                    "nodepool,zone",
	"nodes_termination_duration_seconds":                        "nodepool",
	"nodes_drained_total":                                       "nodepool",
	"nodes_lifetime_duration_seconds":                           "nodepool",
	"nodes_allocatable":                                         "…",
	"nodes_total_pod_requests":                                  "…",
	"nodes_total_pod_limits":                                    "…",
	"nodes_total_daemon_requests":                               "…",
	"nodes_total_daemon_limits":                                 "…",
	"nodes_system_overhead":                                     "…",
	"nodes_current_lifetime_seconds":                            "…",
	"cluster_utilization_percent":                               "resource_type",
	"nodepools_limit":                                           "resource_type,nodepool",
	"nodepools_usage":                                           "resource_type,nodepool",
	"nodepools_cost_total":                                      "nodepool",
	"nodepools_cost_tracker_errors_total":                       "nodepool",
	"nodepools_allowed_disruptions":                             "nodepool,reason",
	"nodepools_nodes_consuming_budgets":                         "nodepool,reason",
	"voluntary_disruption_decision_evaluation_duration_seconds": "reason,consolidation_type",
	"voluntary_disruption_decisions_total":                      "decision,reason,consolidation_type",
	"voluntary_disruption_decisions_by_nodepool_total":          "decision,reason,consolidation_type,nodepool",
	"voluntary_disruption_terminate_first_decisions_total":      "nodepool,reason,terminate_first_reason",
	"voluntary_disruption_eligible_nodes":                       "reason",
	"voluntary_disruption_consolidation_timeouts_total":         "consolidation_type",
	"voluntary_disruption_failed_validations_total":             "consolidation_type",
	"voluntary_disruption_queue_failures_total":                 "decision,reason,consolidation_type",
	"consolidation_score":                                       "decision,nodepool,policy",
	"consolidation_moves_total":                                 "decision,nodepool,policy",
	"scheduler_scheduling_duration_seconds":                     "controller",
	"scheduler_queue_depth":                                     "controller,scheduling_id",
	"scheduler_unfinished_work_seconds":                         "controller,scheduling_id",
	"scheduler_ignored_pods_count":                              "",
	"scheduler_unschedulable_pods_count":                        "controller",
	"scheduler_pending_pods_by_effective_zone_count":            "controller,zone",
	"cluster_state_node_count":                                  "",
	"cluster_state_synced":                                      "",
	"cluster_state_unsynced_time_seconds":                       "",
	"pods_state":                                                "…",
	"pods_startup_duration_seconds":                             "",
	"pods_unstarted_time_seconds":                               "name,namespace",
	"pods_bound_duration_seconds":                               "dynamic_resources",
	"pods_unbound_time_seconds":                                 "name,namespace,dynamic_resources",
	"pods_provisioning_bound_duration_seconds":                  "dynamic_resources",
	"pods_provisioning_unbound_time_seconds":                    "name,namespace,dynamic_resources",
	"pods_provisioning_startup_duration_seconds":                "",
	"pods_provisioning_unstarted_time_seconds":                  "name,namespace",
	"pods_provisioning_scheduling_undecided_time_seconds":       "name,namespace",
	"pods_scheduling_decision_duration_seconds":                 "",
	"pods_eviction_requests_total":                              "code",
	"pods_drained_total":                                        "reason",
	"cloudprovider_duration_seconds":                            "controller,method,provider",
	"cloudprovider_errors_total":                                "controller,method,provider,error,nodepool",
	"build_info":                                                "version,goversion,goarch,commit",
}

// TestMetrics_names keeps dashboards of Karpenter working.
func TestMetrics_names(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := NewObjects(registry, ObjectOptions{NodePool: "karpenter.sh/nodepool", Initialized: "karpenter.sh/initialized"}); err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	ch := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(ch)
		close(ch)
	}()
	text := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	for d := range ch {
		if m := text.FindStringSubmatch(d.String()); m != nil {
			have[m[1]] = m[2]
		}
	}
	sorted := func(labels string) string {
		list := strings.Split(labels, ",")
		slices.Sort(list)
		return strings.Join(list, ",")
	}
	for name, want := range names {
		got, ok := have["karpenter_"+name]
		switch {
		case !ok:
			t.Errorf("there is no metric karpenter_%s", name)
		case want == "…":
			if got == "" {
				t.Errorf("karpenter_%s has no labels", name)
			}
		case sorted(got) != sorted(want):
			t.Errorf("karpenter_%s has labels %s, want %s", name, got, want)
		}
	}
}
