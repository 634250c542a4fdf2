package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/observe"
)

// query is an expression of a dashboard or an alert, and where it is.
type query struct{ where, text string }

// queries are all of them, with variables of Grafana filled in.
func queries(t *testing.T) []query {
	t.Helper()
	var out []query
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	read(t, filepath.Join(chart, "rules", "alerts.yaml"), &rules)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out = append(out, query{"alert " + r.Alert, r.Expr})
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] == "" {
				t.Errorf("alert %s lacks a summary, a description or a severity", r.Alert)
			}
		}
	}
	alerts := len(out)
	files, err := filepath.Glob(filepath.Join(chart, "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("dashboards %v: %v", files, err)
	}
	fill := strings.NewReplacer("$__rate_interval", "5m", "$nodepool", "x", "$policy", "x", "$hook", "x")
	for _, file := range files {
		var d struct {
			UID, Title string
			Panels     []struct {
				Title, Description string
				Type               string
				Targets            []struct{ Expr string }
			}
			Templating struct {
				List []struct{ Name, Definition string }
			}
		}
		read(t, file, &d)
		for _, p := range d.Panels {
			if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
				t.Errorf("%s: panel %q has no description or shows nothing", file, p.Title)
			}
			for _, target := range p.Targets {
				out = append(out, query{filepath.Base(file) + " " + p.Title, fill.Replace(target.Expr)})
			}
		}
		for _, v := range d.Templating.List {
			if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
				out = append(out, query{filepath.Base(file) + " variable " + v.Name, "count by (" + m[2] + ") (" + m[1] + ")"})
			}
		}
	}
	if alerts < 10 || len(out) < alerts+20 {
		t.Fatalf("%d alerts and %d queries were found", alerts, len(out))
	}
	return out
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".json") {
		err = json.Unmarshal(text, into)
	} else {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// described are the labels of all metrics that the controller registers, by name.
func described(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	if _, err := observe.NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := observe.NewObjects(registry, observe.ObjectOptions{NodePool: "karpenter.sh/nodepool", Initialized: "karpenter.sh/initialized"}); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	// A description has no other way to be read.
	text := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	for _, r := range []prometheus.Collector{registry, metrics.Registry.(prometheus.Collector)} {
		ch := make(chan *prometheus.Desc)
		go func() {
			r.Describe(ch)
			close(ch)
		}()
		for d := range ch {
			if m := text.FindStringSubmatch(d.String()); m != nil {
				out[m[1]] = strings.Split(m[2], ",")
			}
		}
	}
	return out
}

// added are labels that Prometheus or the kind of a metric adds.
var added = []string{"le", "quantile", "instance", "pod", "job", "namespace"}

// used returns the metrics of an expression, and fails for what is not there.
func used(t *testing.T, q query, have map[string][]string) []string {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(q.text)
	if err != nil {
		t.Errorf("%s: %v: %s", q.where, err, q.text)
		return nil
	}
	var names []string
	labelsOf := func(node parser.Node) (out []string) {
		parser.Inspect(node, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok {
				out = append(out, have[family(v.Name, have)]...)
			}
			return nil
		})
		return append(out, added...)
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			name := family(n.Name, have)
			if _, ok := have[name]; !ok {
				t.Errorf("%s: there is no metric %s", q.where, n.Name)
				return nil
			}
			names = append(names, name)
			for _, m := range n.LabelMatchers {
				if m.Name != labels.MetricName && !slices.Contains(have[name], m.Name) {
					t.Errorf("%s: metric %s has no label %s", q.where, n.Name, m.Name)
				}
			}
		case *parser.AggregateExpr:
			for _, label := range n.Grouping {
				if !slices.Contains(labelsOf(n.Expr), label) {
					t.Errorf("%s: nothing has label %s: %s", q.where, label, n)
				}
			}
		}
		return nil
	})
	return names
}

// family is the metric that a series belongs to.
func family(series string, have map[string][]string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && have[series] == nil {
			return base
		}
	}
	return series
}

func TestMetrics(t *testing.T) {
	have := described(t)
	for _, q := range queries(t) {
		used(t, q, have)
	}
}

// later are metrics that have no series before something went wrong or away.
var later = []string{
	"karpenter_cloudprovider_errors_total", "dovetail_policy_errors_total", "karpenter_pods_eviction_requests_total",
	"karpenter_nodes_terminated_total", "karpenter_nodeclaims_disrupted_total", "karpenter_voluntary_disruption_decisions_total",
	"karpenter_nodepools_allowed_disruptions", "dovetail_disruption_saved_usd_per_hour_total",
}

// checkExported holds what a controller exports that has bought a node to what dashboards
// and alerts show.
func checkExported(t *testing.T, scraped string) {
	t.Helper()
	have := described(t)
	missing := map[string]bool{}
	for _, q := range queries(t) {
		for _, name := range used(t, q, have) {
			if !strings.Contains(scraped, "\n# TYPE "+name+" ") && !slices.Contains(later, name) {
				missing[name] = true
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("the controller does not export %v", slices.Sorted(maps.Keys(missing)))
	}
	if !regexp.MustCompile(`(?m)^dovetail_policy_decisions_total\{.*mode="Shadow".*\}`).MatchString(scraped) {
		t.Error("no decision of a policy in shadow mode is counted")
	}
}
