package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// scrape reads the metrics of the controller that cases share.
func (s *scene) scrape() (string, error) {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", world.main.metrics))
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", response.Status, text)
	}
	return string(text), err
}

// shows waits until metrics have lines that match, for each of the expressions.
func (s *scene) shows(expressions ...string) {
	s.Helper()
	for _, e := range expressions {
		line := regexp.MustCompile("(?m)^" + e)
		s.eventually("metrics show "+e, func() error {
			text, err := s.scrape()
			if err == nil && !line.MatchString(text) {
				err = fmt.Errorf("no line of %d does", strings.Count(text, "\n"))
			}
			return err
		})
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	p := s.pool(kept, func(p *karpv1.NodePool) { p.Spec.Limits = corev1.ResourceList{"cpu": resource.MustParse("64")} })
	s.pod("web", cpu("1500m"))
	s.run(1)
	c := s.onlyClaim()
	of := fmt.Sprintf("nodepool=%q", p.Name)
	node := fmt.Sprintf("node_name=%q", c.Name)
	s.shows(
		`karpenter_nodes_allocatable\{.*capacity_type="on-demand".*instance_type=".+".*`+node+`.*`+of+`.*resource_type="cpu".*zone="us-east-1.".*\} [1-9]`,
		`karpenter_nodes_total_pod_requests\{.*`+node+`.*resource_type="cpu".*\} 1\.5`,
		`karpenter_nodes_current_lifetime_seconds\{.*managed="true".*`+node,
		`karpenter_cluster_utilization_percent\{resource_type="cpu"\} [1-9]`,
		`karpenter_nodepools_cost_total\{`+of+`\} 0\.[0-9]*[1-9]`,
		`karpenter_nodepools_limit\{`+of+`,resource_type="cpu"\} 64`,
		`karpenter_nodepools_usage\{`+of+`,resource_type="nodes"\} 1`,
		`karpenter_pods_state\{.*name="web",namespace="`+s.name+`".*phase="Running".*\} 1`,
		`karpenter_pods_startup_duration_seconds_count [1-9]`,
		`karpenter_pods_bound_duration_seconds_count\{dynamic_resources="false"\} [1-9]`,
		`karpenter_pods_provisioning_bound_duration_seconds_count\{dynamic_resources="false"\} [1-9]`,
		`karpenter_pods_provisioning_startup_duration_seconds_count [1-9]`,
		`karpenter_pods_scheduling_decision_duration_seconds_count [1-9]`,
		`operator_nodeclaim_status_condition_count\{.*karpenter_sh_nodepool="`+p.Name+`".*status="True",type="Initialized"\} 1`,
		`operator_nodeclaim_status_condition_transition_seconds_count\{.*karpenter_sh_nodepool="`+p.Name+`".*to_status="True",type="Registered"\} 1`,
		`operator_status_condition_transitions_total\{group="karpenter.sh",kind="NodePool",reason="Ready",status="True",type="Ready"\} [1-9]`,
		`operator_node_status_condition_count\{.*name="`+c.Name+`".*type="Ready"\} 1`,
	)
	s.told("Initialized", "Type: Initialized, Status: Unknown -> True")

	s.delete(p)
	s.gone()
	s.shows(`operator_nodeclaim_termination_duration_seconds_count\{.*karpenter_sh_nodepool="` + p.Name + `".*\} 1`)
	s.eventually("what is gone has no gauges", func() error {
		text, err := s.scrape()
		if err != nil {
			return err
		}
		for _, name := range []string{"karpenter_nodes_[a-z_]*", "karpenter_nodepools_[a-z_]*", "operator_[a-z_]*status_condition_c[a-z_]*", "operator_[a-z_]*termination_current[a-z_]*"} {
			if line := regexp.MustCompile(`(?m)^` + name + `\{.*"` + s.name + `["-].*`).FindString(text); line != "" && !strings.Contains(line, "_total{") {
				return fmt.Errorf("there is %s", line)
			}
		}
		return nil
	})
}
