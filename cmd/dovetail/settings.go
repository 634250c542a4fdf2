package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
)

// settings are the controller's flags. Those that Karpenter has too have its names,
// environment variables, defaults and meaning; a flag wins over its variable.
type settings struct {
	service                string
	metricsPort, probePort int
	qps                    float64
	burst                  int
	profiling              bool
	disableWarmup          bool
	disableElection        bool
	disableStateMetrics    bool
	electionName           string
	electionNamespace      string
	memoryLimit            int64
	cpuRequests            int
	logLevel               string
	logOutput, logErrors   string
	batchMax, batchIdle    time.Duration
	preferences            string
	minValues              string
	ignoreDRA              bool
	legacyRepair           bool
	minSaving              int
	featureGates           string
	schedulerConfig        string
	kubeconfig, cluster    string
	cloud                  string
	shadow                 bool
	policyDir, policyCache string
	decisionLog            string
	namespace              string
	nominate               bool
	webhookPort            int
	webhookService         string
	webhookSecret          string
	webhookConfiguration   string
	gates                  gates

	simStandIns  []string
	standInKinds []schema.GroupVersionKind

	launchTimeout, registrationTimeout, collectEvery time.Duration
}

// gates are the feature gates.
type gates struct {
	NodeRepair, ReservedCapacity, SpotToSpotConsolidation, NodeOverlay, StaticCapacity,
	CapacityBuffer, TerminateFirstDrift, TerminateFirstRepair, PodDeletionCostManagement bool
}

// known are the gates by name. Those that are built are true.
func (g *gates) known() map[string]*bool {
	return map[string]*bool{
		"NodeRepair": &g.NodeRepair, "ReservedCapacity": &g.ReservedCapacity,
		"SpotToSpotConsolidation": &g.SpotToSpotConsolidation, "NodeOverlay": &g.NodeOverlay,
		"StaticCapacity": &g.StaticCapacity, "CapacityBuffer": &g.CapacityBuffer,
		"TerminateFirstDrift": &g.TerminateFirstDrift, "TerminateFirstRepair": &g.TerminateFirstRepair,
		"PodDeletionCostManagement": &g.PodDeletionCostManagement,
	}
}

// parse sets gates from "Name=bool,Name=bool". Unknown names are returned: they are no
// error for Karpenter, but often a typing mistake.
func (g *gates) parse(text string) (unknown []string, err error) {
	known := g.known()
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if !ok || err != nil {
			return nil, fmt.Errorf("--feature-gates: %q: must be Name=true or Name=false", part)
		}
		p, ok := known[strings.TrimSpace(name)]
		if !ok {
			unknown = append(unknown, strings.TrimSpace(name))
			continue
		}
		*p = on
	}
	return unknown, nil
}

// add registers the flags.
func (s *settings) add(f *pflag.FlagSet) {
	f.StringVar(&s.service, "karpenter-service", "", "name of the Service in front of the controller; accepted and not used")
	f.IntVar(&s.metricsPort, "metrics-port", 8080, "port of /metrics; 0 serves none")
	f.IntVar(&s.probePort, "health-probe-port", 8081, "port of /healthz and /readyz; 0 serves none")
	f.Float64Var(&s.qps, "kube-client-qps", 200, "requests a second to the API server")
	f.IntVar(&s.burst, "kube-client-burst", 300, "requests in a burst to the API server")
	f.BoolVar(&s.profiling, "enable-profiling", false, "serve pprof on the metrics port")
	f.BoolVar(&s.disableWarmup, "disable-controller-warmup", true, "do not fill caches before this process leads")
	f.BoolVar(&s.disableElection, "disable-leader-election", false, "act without being elected")
	f.BoolVar(&s.disableStateMetrics, "disable-cluster-state-observability", false, "export no metrics of the state of nodes, pods and NodePools")
	f.StringVar(&s.electionName, "leader-election-name", "karpenter-leader-election", "name of the Lease; the same as Karpenter's, so that only one of the two acts")
	f.StringVar(&s.electionNamespace, "leader-election-namespace", "", "namespace of the Lease; defaults to the controller's")
	f.Int64Var(&s.memoryLimit, "memory-limit", -1, "bytes; 90 % of it becomes Go's soft memory limit; -1 is without limit")
	f.IntVar(&s.cpuRequests, "cpu-requests", 1000, "millicores the controller requests; drives concurrency")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info or error")
	f.StringVar(&s.logOutput, "log-output-paths", "stdout", "where logs go, separated by commas")
	f.StringVar(&s.logErrors, "log-error-output-paths", "stderr", "where errors of logging go, separated by commas")
	f.DurationVar(&s.batchMax, "batch-max-duration", 10*time.Second, "longest time to gather pending pods before a plan")
	f.DurationVar(&s.batchIdle, "batch-idle-duration", time.Second, "time without another pending pod after which a plan is made")
	f.StringVar(&s.preferences, "preference-policy", string(schedule.Respect), "Respect or Ignore preferred terms")
	f.StringVar(&s.minValues, "min-values-policy", string(schedule.Strict), "Strict or BestEffort")
	f.BoolVar(&s.ignoreDRA, "ignore-dra-requests", true, "plan pods without their ResourceClaims")
	f.BoolVar(&s.legacyRepair, "legacy-node-repair", false, "with the NodeRepair gate, delete broken nodes by force, whatever budgets say, instead of replacing them first")
	f.IntVar(&s.minSaving, "min-saving", consolidate.DefaultMinSaving, minSavingUsage)
	f.StringVar(&s.featureGates, "feature-gates", "", "Name=bool, separated by commas")
	f.StringVar(&s.schedulerConfig, "scheduler-config", "", "file with podTopologySpread.defaultConstraints, YAML or JSON")

	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig file; defaults to the variable KUBECONFIG, then to the pod's service account")
	f.StringVar(&s.cluster, "cluster-name", "", "the cluster's name, as policies see it and machines are tagged")
	f.StringVar(&s.cloud, "cloud", "sim", "where nodes come from: sim")
	f.StringSliceVar(&s.simStandIns, "sim-stand-in", nil, "kinds of NodeClass, as Kind.version.group, that the simulated cloud takes for a SimNodeClass of the same name, such as EC2NodeClass.v1.karpenter.k8s.aws")
	f.BoolVar(&s.shadow, "shadow", false, "decide everything, write nothing but decision records; needs no lease")
	f.StringVar(&s.policyDir, "policy-dir", "", "folder with policies in force besides NodePolicies")
	f.StringVar(&s.policyCache, "policy-cache-dir", "", "folder that keeps fetched policies for a restart while their source is down")
	f.StringVar(&s.decisionLog, "decision-log", "", "file to which decisions of policies are appended with their inputs, one JSON object a line; - is standard output")
	f.StringVar(&s.namespace, "system-namespace", "", "the controller's namespace; defaults to the pod's, then to kube-system")
	f.DurationVar(&s.launchTimeout, "launch-timeout", 5*time.Minute, "time after which a NodeClaim that has no machine is given up")
	f.DurationVar(&s.registrationTimeout, "registration-timeout", 15*time.Minute, "time after which a NodeClaim that has no Node is given up")
	f.DurationVar(&s.collectEvery, "garbage-collection-interval", 2*time.Minute, "time between searches for NodeClaims without machine and machines without NodeClaim")
	f.IntVar(&s.webhookPort, "webhook-port", 8443, "port at which the API server asks about NodePools and NodePolicies, if --webhook-service-name is given; 0 serves none")
	f.StringVar(&s.webhookService, "webhook-service-name", "", "name of the Service in front of --webhook-port, in the controller's namespace; empty serves none")
	f.StringVar(&s.webhookSecret, "webhook-secret-name", "", "name of the Secret that keeps the webhook's certificates, in the controller's namespace; defaults to --webhook-service-name with -webhook-cert")
	f.StringVar(&s.webhookConfiguration, "webhook-configuration-name", "", "name of the ValidatingWebhookConfiguration that is told the webhook's certificate authority; defaults to --webhook-service-name")
	f.BoolVar(&s.nominate, "nominate", true, "tell kube-scheduler through status.nominatedNodeName where pods were planned")
}

// fromEnvironment sets flags that were not given from the environment.
func fromEnvironment(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	f.VisitAll(func(fl *pflag.Flag) {
		name := strings.ToUpper(strings.ReplaceAll(fl.Name, "-", "_"))
		v, ok := lookup(name)
		if !ok || fl.Changed || v == "" && fl.DefValue != "" {
			return
		}
		if err := f.Set(fl.Name, v); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// complete checks the settings and fills in what follows from others. It returns warnings.
func (s *settings) complete() ([]string, error) {
	var errs []error
	oneOf := func(flag, have string, allowed ...string) {
		if !slices.Contains(allowed, have) {
			errs = append(errs, fmt.Errorf("--%s: %q: must be one of %s", flag, have, strings.Join(allowed, ", ")))
		}
	}
	oneOf("log-level", s.logLevel, "debug", "info", "error")
	oneOf("preference-policy", s.preferences, string(schedule.Respect), string(schedule.Ignore))
	oneOf("min-values-policy", s.minValues, string(schedule.Strict), string(schedule.BestEffort))
	oneOf("cloud", s.cloud, "sim")
	if s.batchIdle <= 0 || s.batchMax < s.batchIdle {
		errs = append(errs, fmt.Errorf("--batch-idle-duration %s, --batch-max-duration %s: idle must be above 0 and not above max", s.batchIdle, s.batchMax))
	}
	if !s.ignoreDRA {
		errs = append(errs, errors.New("--ignore-dra-requests: false: ResourceClaims are not planned for; must be true"))
	}
	for _, text := range s.simStandIns {
		kind, _ := schema.ParseKindArg(text)
		if kind == nil {
			errs = append(errs, fmt.Errorf("--sim-stand-in: %q: must be Kind.version.group", text))
			continue
		}
		s.standInKinds = append(s.standInKinds, *kind)
	}
	if s.cpuRequests <= 0 {
		s.cpuRequests = 1000
	}
	s.gates = gates{ReservedCapacity: true}
	unknown, err := s.gates.parse(s.featureGates)
	if err != nil {
		errs = append(errs, err)
	}
	if s.webhookPort < 0 || s.webhookPort > 65535 {
		errs = append(errs, fmt.Errorf("--webhook-port: %d: must be from 0 to 65535", s.webhookPort))
	}
	if s.webhookService == "" && (s.webhookSecret != "" || s.webhookConfiguration != "") && s.webhookPort != 0 {
		errs = append(errs, errors.New("--webhook-service-name: must be given with --webhook-secret-name and --webhook-configuration-name: the certificate is made for it"))
	}
	if err := checkMinSaving(s.minSaving); err != nil {
		errs = append(errs, fmt.Errorf("--min-saving: %w", err))
	}
	s.webhookSecret = cmp.Or(s.webhookSecret, s.webhookService+"-webhook-cert")
	s.webhookConfiguration = cmp.Or(s.webhookConfiguration, s.webhookService)
	var warnings []string
	if s.shadow && s.webhook() {
		warnings = append(warnings, "--webhook-service-name: the webhook is not served in shadow mode, which writes no certificate")
		s.webhookService = ""
	}
	for _, name := range unknown {
		warnings = append(warnings, fmt.Sprintf("--feature-gates: %s is not known and has no effect", name))
	}
	if s.namespace == "" {
		s.namespace = ownNamespace()
	}
	if s.electionNamespace == "" {
		s.electionNamespace = s.namespace
	}
	return warnings, errors.Join(errs...)
}

// solve are the options of plans.
func (s *settings) solve() schedule.Options {
	return schedule.Options{Preferences: schedule.PreferencePolicy(s.preferences), MinValues: schedule.MinValuesPolicy(s.minValues)}
}

// minSavingUsage is that of the flags for it.
const minSavingUsage = "what replacing nodes must save, in permille of what they cost: 0 is any saving; below the default, prices that tremble may move nodes"

// checkMinSaving says what is wrong with a value of such a flag.
func checkMinSaving(permille int) error {
	if permille < 0 || permille >= 1000 {
		return fmt.Errorf("%d: must be from 0 to 999 permille", permille)
	}
	return nil
}

// leastSaving is the saving as [consolidate.Options] have it, for which 0 is the default.
func leastSaving(permille int) int {
	if permille == 0 {
		return -1
	}
	return permille
}

// webhook reports whether the webhook is served.
func (s *settings) webhook() bool { return s.webhookPort != 0 && s.webhookService != "" }

// ownNamespace is that of the pod this process runs in.
func ownNamespace() string {
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil || len(b) == 0 {
		return "kube-system"
	}
	return strings.TrimSpace(string(b))
}
