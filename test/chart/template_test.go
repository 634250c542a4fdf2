package chart_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/policies"
)

func TestLint(t *testing.T) {
	if out, err := tool(t.Context(), nil, nil, "helm", "lint", "--strict", "--kube-version", kubeVersion, chart); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// check is what is wanted of rendered objects.
type check func(t *testing.T, objects []*unstructured.Unstructured)

// container is the controller's.
func container(t *testing.T, objects []*unstructured.Unstructured) *corev1.Container {
	t.Helper()
	return &as[appsv1.Deployment](t, find(objects, "Deployment", "r-dovetail")).Spec.Template.Spec.Containers[0]
}

// env wants a variable to have a value.
func env(name, want string) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		if got := variables(container(t, objects))[name]; got == nil || *got != want {
			t.Errorf("variable %s is %v, want %q", name, got, want)
		}
	}
}

// there wants objects of a kind, and absent wants none.
func there(kind, name string) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		if find(objects, kind, name) == nil {
			t.Errorf("no %s %s", kind, name)
		}
	}
}

func absent(kind string) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		if i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind }); i >= 0 {
			t.Errorf("%s %s is there", kind, objects[i].GetName())
		}
	}
}

// policy wants a NodePolicy to be as f says.
func policy(name string, f func(*v1alpha1.NodePolicySpec) bool) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		p := as[v1alpha1.NodePolicy](t, find(objects, "NodePolicy", name))
		if errs := p.Validate(); len(errs) > 0 {
			t.Errorf("NodePolicy %s: %v", name, errs)
		}
		if !f(&p.Spec) {
			t.Errorf("NodePolicy %s is %+v", name, p.Spec)
		}
	}
}

func pod(f func(*corev1.PodTemplateSpec) bool) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		if template := as[appsv1.Deployment](t, find(objects, "Deployment", "r-dovetail")).Spec.Template; !f(&template) {
			t.Errorf("the pods are %+v", template)
		}
	}
}

func TestTemplate(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		values string
		checks []check
	}{
		"defaults": {checks: []check{
			there("Deployment", "r-dovetail"), there("ServiceAccount", "r-dovetail"), there("Service", "r-dovetail"), there("PodDisruptionBudget", "r-dovetail"),
			there("ClusterRole", "r-dovetail"), there("ClusterRole", "r-dovetail-sim"), there("Role", "r-dovetail"), there("ValidatingWebhookConfiguration", "r-dovetail"),
			absent("ServiceMonitor"), absent("PrometheusRule"), absent("NetworkPolicy"), absent("ConfigMap"),
			env("FEATURE_GATES", "CapacityBuffer=false,NodeOverlay=false,NodeRepair=false,PodDeletionCostManagement=false,ReservedCapacity=true,SpotToSpotConsolidation=false,StaticCapacity=false,TerminateFirstDrift=false,TerminateFirstRepair=false"),
			env("LEADER_ELECTION_NAME", "karpenter-leader-election"), env("LEADER_ELECTION_NAMESPACE", "ns"), env("WEBHOOK_PORT", "8443"), env("MIN_SAVING", "60"),
			defaultPolicies, there("CustomResourceDefinition", "nodepools.karpenter.sh"), keeps,
			func(t *testing.T, objects []*unstructured.Unstructured) {
				if got := as[appsv1.Deployment](t, find(objects, "Deployment", "r-dovetail")).Spec.Replicas; *got != 2 {
					t.Errorf("%d replicas, want 2", *got)
				}
			},
		}},
		"names":       {values: "{fullnameOverride: r-dovetail, nameOverride: other, podDisruptionBudget: {name: budget}, serviceAccount: {name: someone}}", checks: []check{there("PodDisruptionBudget", "budget"), there("ServiceAccount", "someone"), subjects("someone")}},
		"no account":  {values: "{serviceAccount: {create: false, name: theirs}}", checks: []check{absent("ServiceAccount"), subjects("theirs")}},
		"no webhook":  {values: "{webhook: {enabled: false}}", checks: []check{absent("ValidatingWebhookConfiguration"), absent("Secret"), env("WEBHOOK_PORT", "0")}},
		"ports":       {values: "{controller: {metrics: {port: 9090}, healthProbe: {port: 9091}}, webhook: {port: 9443}}", checks: []check{env("METRICS_PORT", "9090"), env("HEALTH_PROBE_PORT", "9091"), env("WEBHOOK_PORT", "9443")}},
		"gates":       {values: "{settings: {featureGates: {nodeOverlay: true, reservedCapacity: false}}}", checks: []check{env("FEATURE_GATES", "CapacityBuffer=false,NodeOverlay=true,NodeRepair=false,PodDeletionCostManagement=false,ReservedCapacity=false,SpotToSpotConsolidation=false,StaticCapacity=false,TerminateFirstDrift=false,TerminateFirstRepair=false"), may("r-dovetail", "karpenter.sh", "nodeoverlays", "list", true)}},
		"settings":    {values: "{settings: {batchMaxDuration: 3s, clusterName: prod, nominate: false, minSaving: 100, legacyNodeRepair: true}, decisionLog: '-', logLevel: debug}", checks: []check{env("MIN_SAVING", "100"), env("LEGACY_NODE_REPAIR", "true"), env("BATCH_MAX_DURATION", "3s"), env("CLUSTER_NAME", "prod"), env("DECISION_LOG", "-"), env("LOG_LEVEL", "debug"), env("NOMINATE", "false"), may("r-dovetail", "", "pods/status", "patch", false)}},
		"other Lease": {values: "{leaderElection: {name: lock, namespace: kube-system}}", checks: []check{env("LEADER_ELECTION_NAME", "lock"), env("LEADER_ELECTION_NAMESPACE", "kube-system"), role("kube-system", "leases", "lock"), role("ns", "configmaps", "")}},
		"scheduler":   {values: "{settings: {schedulerConfig: {podTopologySpread: {defaultConstraints: []}}}}", checks: []check{there("ConfigMap", "r-dovetail-scheduler"), env("SCHEDULER_CONFIG", "/etc/dovetail/scheduler.yaml")}},
		"memory":      {values: "{controller: {resources: {limits: null}}}", checks: []check{func(t *testing.T, objects []*unstructured.Unstructured) { absentVariable(t, objects, "MEMORY_LIMIT") }}},
		"image":       {values: "{controller: {image: {repository: example.com/d, tag: v2}}}", checks: []check{pod(func(p *corev1.PodTemplateSpec) bool { return p.Spec.Containers[0].Image == "example.com/d:v2" })}},
		"digest": {values: "{controller: {image: {repository: example.com/d, digest: 'sha256:" + strings.Repeat("0f", 32) + "'}}}", checks: []check{pod(func(p *corev1.PodTemplateSpec) bool {
			return strings.HasPrefix(p.Spec.Containers[0].Image, "example.com/d@sha256:0f")
		})}},
		"monitoring": {values: "{serviceMonitor: {enabled: true, endpointConfig: {interval: 15s}}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}", checks: []check{there("ServiceMonitor", "r-dovetail"), there("PrometheusRule", "r-dovetail"), there("ConfigMap", "r-dovetail-dashboards")}},
		"network": {values: "{networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}}", checks: []check{func(t *testing.T, objects []*unstructured.Unstructured) {
			as[networkingv1.NetworkPolicy](t, find(objects, "NetworkPolicy", "r-dovetail"))
		}}},
		"stand-ins":     {values: "{sim: {standIns: [{group: karpenter.k8s.aws, version: v1, kind: EC2NodeClass, plural: ec2nodeclasses}]}}", checks: []check{env("SIM_STAND_IN", "EC2NodeClass.v1.karpenter.k8s.aws"), may("r-dovetail-sim", "karpenter.k8s.aws", "ec2nodeclasses", "watch", true)}},
		"policy access": {values: "{policyAccess: {configMapNamespaces: [rules], secrets: [{name: pull, namespace: rules}, {name: key}]}}", checks: []check{role("rules", "configmaps", ""), role("rules", "secrets", "pull"), role("ns", "secrets", "key")}},
		"shadow":        {values: "{shadow: true}", checks: []check{env("SHADOW", "true"), env("WEBHOOK_PORT", "0"), absent("ValidatingWebhookConfiguration"), readsOnly}},
		"pods": {values: "{podLabels: {a: b}, podAnnotations: {c: d}, hostNetwork: true, dnsPolicy: Default, priorityClassName: null, topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}], extraVolumes: [{name: x, emptyDir: {}}], controller: {extraVolumeMounts: [{name: x, mountPath: /x}], sidecarContainer: [{name: side, image: example.com/side}], sidecarVolumeMounts: [{name: x, mountPath: /y}], args: [--nominate=false], env: [{name: A, value: B}]}}", checks: []check{
			env("A", "B"),
			pod(func(p *corev1.PodTemplateSpec) bool {
				spread := p.Spec.TopologySpreadConstraints
				return p.Labels["a"] == "b" && p.Annotations["c"] == "d" && p.Spec.HostNetwork && p.Spec.PriorityClassName == "" &&
					len(spread) == 1 && spread[0].LabelSelector.MatchLabels["app.kubernetes.io/instance"] == "r" &&
					len(p.Spec.Containers) == 2 && p.Spec.Containers[1].VolumeMounts[0].MountPath == "/y" &&
					slices.Equal(p.Spec.Containers[0].Args, []string{"controller", "--nominate=false"})
			}),
		}},
		"every policy": {values: everyPolicy(t), checks: []check{func(t *testing.T, objects []*unstructured.Unstructured) {
			for _, name := range shipped(t) {
				hook, base, _ := strings.Cut(name, "/")
				policy(strings.ReplaceAll(base, "_", "-"), func(s *v1alpha1.NodePolicySpec) bool {
					text, err := policies.Files.ReadFile(name + ".rego")
					return err == nil && string(s.Hook) == hook && s.Mode == v1alpha1.ModeEnforce && strings.TrimSpace(*s.Source.Inline) == strings.TrimSpace(string(text))
				})(t, objects)
			}
		}}},
		"a policy with everything": {values: "{policies: {disrupt: {working_hours: {enabled: true, mode: Enforce, order: 0, timeout: 20ms, memoryLimit: 8Mi, failurePolicy: Ignore, reasons: [Drifted], nodePoolSelector: {matchLabels: {a: b}}, data: {inline: {calendar: {holidays: ['2026-12-25']}}}, parameters: {zone: Europe/Berlin}}}}}", checks: []check{
			policy("working-hours", func(s *v1alpha1.NodePolicySpec) bool {
				return s.Timeout.Milliseconds() == 20 && s.FailurePolicy == "Ignore" && s.Reasons[0] == "Drifted" && s.NodePoolSelector.MatchLabels["a"] == "b" && s.Data.Inline != nil && string(s.Parameters.Raw) == `{"zone":"Europe/Berlin"}`
			}),
		}},
		"user policies": {values: `{userPolicies: {mine: {hook: score, rego: "package dovetail.score.mine\n"}, theirs: {hook: launch, runtime: wasm, mode: Shadow, source: {configMapRef: {namespace: a, name: b, key: c.wasm}}}}}`, checks: []check{
			policy("mine", func(s *v1alpha1.NodePolicySpec) bool {
				return s.Runtime == "rego" && strings.HasPrefix(*s.Source.Inline, "package")
			}),
			policy("theirs", func(s *v1alpha1.NodePolicySpec) bool {
				return s.Runtime == "wasm" && s.Mode == "Shadow" && s.Source.ConfigMapRef.Key == "c.wasm"
			}),
		}},
		"no policies":                 {values: noPolicies(t), checks: []check{absent("NodePolicy")}},
		"values of Karpenter's chart": {values: karpenterValues, checks: []check{env("CLUSTER_NAME", "prod"), env("INTERRUPTION_QUEUE", "prod-queue")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := template(t, tt.values)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(tt.checks, always) {
				f(t, objects)
			}
		})
	}
}

// karpenterValues are what people have who installed Karpenter for AWS by its README.
const karpenterValues = `
settings: {clusterName: prod, interruptionQueue: prod-queue, eksControlPlane: true, reservedENIs: "1", vmMemoryOverheadPercent: 0.05, featureGates: {spotToSpotConsolidation: true}}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/karpenter"}}
controller: {resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}}
serviceMonitor: {enabled: true}
logLevel: info
dnsPolicy: Default
`

// always are checks of anything that is rendered.
func always(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	scheme := newScheme(t)
	seen := map[string]bool{}
	for _, o := range objects {
		id := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
		if seen[id] {
			t.Errorf("%s is there twice", id)
		}
		seen[id] = true
		if o.GetLabels()["app.kubernetes.io/managed-by"] != "Helm" {
			t.Errorf("%s has no labels of the chart", id)
		}
		strict(t, scheme, o)
		if o.GetKind() == "ClusterRole" || o.GetKind() == "Role" {
			for _, rule := range as[rbacv1.ClusterRole](t, o).Rules {
				if slices.Contains(rule.Resources, "*") || slices.Contains(rule.Verbs, "*") || slices.Contains(rule.APIGroups, "*") {
					t.Errorf("%s has a rule for everything: %+v", id, rule)
				}
				if slices.Contains(rule.Resources, "secrets") && (o.GetKind() == "ClusterRole" || len(rule.ResourceNames) == 0) {
					t.Errorf("%s reads Secrets that it does not name: %+v", id, rule)
				}
			}
		}
	}
	c := container(t, objects)
	s := c.SecurityContext
	if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the security context is %+v", s)
	}
}

// strict decodes an object, so that a misspelt field fails.
func strict(t *testing.T, scheme interface {
	Recognizes(schema.GroupVersionKind) bool
}, o *unstructured.Unstructured) {
	t.Helper()
	if !scheme.Recognizes(o.GroupVersionKind()) {
		if o.GroupVersionKind().Group != "monitoring.coreos.com" {
			t.Errorf("unknown kind %s", o.GroupVersionKind())
		}
		return
	}
	into, err := newScheme(t).New(o.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(o.Object)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
}

// defaultPolicies wants the safe policies, and the modes that README.md promises.
func defaultPolicies(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	want, got := map[string]string{}, map[string]string{}
	for _, name := range policies.Defaults() {
		hook, base, _ := strings.Cut(name, "/")
		mode := "Enforce"
		if hook == "disrupt" || hook == "launch" {
			mode = "Shadow"
		}
		want[strings.ReplaceAll(base, "_", "-")] = hook + " " + mode
	}
	for _, o := range objects {
		if o.GetKind() == "NodePolicy" {
			p := as[v1alpha1.NodePolicy](t, o)
			got[p.Name] = fmt.Sprintf("%s %s", p.Spec.Hook, p.Spec.Mode)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

// keeps wants definitions to outlive the release: their objects would go with them.
func keeps(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == "CustomResourceDefinition" && (o.GetAnnotations()["helm.sh/resource-policy"] != "keep" || o.GetAnnotations()["dovetail.sh/revision"] == "") {
			t.Errorf("%s has annotations %v", o.GetName(), o.GetAnnotations())
		}
	}
}

// subjects wants all bindings to be for one ServiceAccount.
func subjects(name string) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		for _, o := range objects {
			if !strings.HasSuffix(o.GetKind(), "Binding") {
				continue
			}
			b := as[rbacv1.ClusterRoleBinding](t, o)
			if len(b.Subjects) != 1 || b.Subjects[0].Name != name || b.Subjects[0].Namespace != "ns" {
				t.Errorf("%s %s is for %+v, want ns/%s", o.GetKind(), o.GetName(), b.Subjects, name)
			}
		}
	}
}

// may wants a ClusterRole to allow something, or not.
func may(role, group, resource, verb string, want bool) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		got := slices.ContainsFunc(as[rbacv1.ClusterRole](t, find(objects, "ClusterRole", role)).Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
		})
		if got != want {
			t.Errorf("ClusterRole %s: %s %s is allowed: %t, want %t", role, verb, resource, got, want)
		}
	}
}

// role wants the Role in a namespace to have a rule for a resource, and a name of it.
func role(namespace, resource, name string) check {
	return func(t *testing.T, objects []*unstructured.Unstructured) {
		t.Helper()
		for _, o := range objects {
			if o.GetKind() != "Role" || o.GetNamespace() != namespace {
				continue
			}
			for _, r := range as[rbacv1.Role](t, o).Rules {
				if slices.Contains(r.Resources, resource) && (name == "" || slices.Contains(r.ResourceNames, name)) {
					return
				}
			}
		}
		t.Errorf("no Role in %s with %s %s", namespace, resource, name)
	}
}

// readsOnly wants the controller to have no right to write.
func readsOnly(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		if k := o.GetKind(); k != "Role" && k != "ClusterRole" || strings.HasSuffix(o.GetName(), "-admin") {
			continue
		}
		for _, rule := range as[rbacv1.ClusterRole](t, o).Rules {
			for _, verb := range rule.Verbs {
				if verb != "get" && verb != "list" && verb != "watch" {
					t.Errorf("%s %s may %s %v", o.GetKind(), o.GetName(), verb, rule.Resources)
				}
			}
		}
	}
}

func absentVariable(t *testing.T, objects []*unstructured.Unstructured, name string) {
	t.Helper()
	if _, ok := variables(container(t, objects))[name]; ok {
		t.Errorf("variable %s is there", name)
	}
}

// shipped are all policies, as hook/name.
func shipped(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, hook := range []string{"score", "disrupt", "launch", "admit"} {
		files, err := filepath.Glob("../../policies/" + hook + "/*.rego")
		if err != nil || len(files) == 0 {
			t.Fatalf("policies of %s: %v", hook, err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.rego") {
				out = append(out, hook+"/"+strings.TrimSuffix(filepath.Base(f), ".rego"))
			}
		}
	}
	return out
}

// settingsOf makes values that set something of every policy.
func settingsOf(t *testing.T, set map[string]any) string {
	t.Helper()
	hooks := map[string]map[string]any{}
	for _, name := range shipped(t) {
		hook, base, _ := strings.Cut(name, "/")
		if hooks[hook] == nil {
			hooks[hook] = map[string]any{}
		}
		hooks[hook][base] = set
	}
	text, err := yaml.Marshal(map[string]any{"policies": hooks})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func everyPolicy(t *testing.T) string {
	return settingsOf(t, map[string]any{"enabled": true, "mode": "Enforce"})
}

func noPolicies(t *testing.T) string { return settingsOf(t, map[string]any{"enabled": false}) }

func TestTemplate_Refuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ values, want string }{
		"an unknown key":                {"{replica: 2}", "replica"},
		"an unknown key further down":   {"{settings: {batchMaxDurations: 1s}}", "batchMaxDurations"},
		"a number for a name":           {"{nameOverride: 3}", "/nameOverride"},
		"a word that is none of those":  {"{settings: {preferencePolicy: Maybe}}", "/settings/preferencePolicy"},
		"a duration without a unit":     {"{settings: {batchIdleDuration: '1'}}", "/settings/batchIdleDuration"},
		"an unknown gate":               {"{settings: {featureGates: {nodeRepairs: true}}}", "nodeRepairs"},
		"a gate that is text":           {"{settings: {featureGates: {nodeRepair: 'yes'}}}", "/settings/featureGates/nodeRepair"},
		"a saving of all":               {"{settings: {minSaving: 1000}}", "/settings/minSaving"},
		"a cloud that there is not":     {"{cloud: azure}", "/cloud"},
		"an unknown policy":             {"{policies: {score: {carbone: {enabled: true}}}}", "carbone"},
		"an unknown hook":               {"{policies: {veto: {}}}", "veto"},
		"an unknown mode":               {"{policies: {score: {carbon: {mode: Audit}}}}", "/policies/score/carbon/mode"},
		"an unknown parameter":          {"{policies: {launch: {no_giants: {parameters: {maxUSD: 3}}}}}", "maxUSD"},
		"a parameter of a wrong type":   {"{policies: {launch: {no_giants: {parameters: {maxMicroUSD: much}}}}}", "/policies/launch/no_giants/parameters/maxMicroUSD"},
		"a parameter out of range":      {"{policies: {disrupt: {minimum_saving: {parameters: {permille: 1001}}}}}", "/policies/disrupt/minimum_saving/parameters/permille"},
		"a user policy without hook":    {"{userPolicies: {mine: {rego: x}}}", "/userPolicies/mine"},
		"a user policy with a bad name": {"{userPolicies: {My_Policy: {hook: score, rego: x}}}", "My_Policy"},
		"a user policy without source":  {"{userPolicies: {mine: {hook: score, runtime: wasm}}}", "userPolicies.mine: needs rego, or runtime and source"},
		"a user policy with two":        {"{userPolicies: {mine: {hook: score, rego: x, source: {inline: y}}}}", "userPolicies.mine.rego"},
		"a user policy of a taken name": {"{userPolicies: {no-giants: {hook: launch, rego: x}}}", "userPolicies.no-giants: policies.launch.no_giants"},
		"a digest that is none":         {"{controller: {image: {digest: latest}}}", "/controller/image/digest"},
		"a port that is none":           {"{controller: {metrics: {port: 70000}}}", "/controller/metrics/port"},
		"ResourceClaims":                {"{settings: {ignoreDRARequests: false}}", "/settings/ignoreDRARequests"},
		"a failure policy that is none": {"{webhook: {failurePolicy: Deny}}", "/webhook/failurePolicy"},
		"a Secret without name":         {"{policyAccess: {secrets: [{namespace: a}]}}", "/policyAccess/secrets/0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := template(t, tt.values)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("helm template: %v, want an error that names %q", err, tt.want)
			}
		})
	}
}

// TestTemplate_Flags holds variables that the chart sets against the flags that the
// controller has: a name that is misspelt would be ignored.
func TestTemplate_Flags(t *testing.T) {
	objects, err := template(t, "{settings: {schedulerConfig: {a: b}, clusterName: x}, decisionLog: '-', sim: {standIns: [{group: a, version: b, kind: C, plural: c}]}}")
	if err != nil {
		t.Fatal(err)
	}
	help, err := helpOf(t)
	if err != nil {
		t.Fatal(err)
	}
	// Those of the platform.
	others := []string{"XDG_CACHE_HOME"}
	for name := range variables(container(t, objects)) {
		flag := regexp.MustCompile(`--` + strings.ToLower(strings.ReplaceAll(name, "_", "-")) + `[^-a-z]`)
		if !flag.MatchString(help) && !slices.Contains(others, name) {
			t.Errorf("variable %s is none of the controller's", name)
		}
	}
}

// TestFiles holds copies in the chart to what they are copies of.
func TestFiles(t *testing.T) {
	for _, name := range shipped(t) {
		want, err := os.ReadFile("../../policies/" + name + ".rego")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(chart, "policies", name+".rego")); err != nil || string(got) != string(want) {
			t.Errorf("policies/%s.rego of the chart is not that of the project (%v): see make generate", name, err)
		}
	}
	files, err := filepath.Glob("../../engine/api/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var want, got map[string]any
		for path, into := range map[string]*map[string]any{file: &want, filepath.Join(chart, map[bool]string{true: "crds", false: "karpenter-crds"}[strings.HasPrefix(filepath.Base(file), "dovetail.sh_")], filepath.Base(file)): &got} {
			text, err := os.ReadFile(path)
			if err == nil {
				err = yaml.Unmarshal(text, into)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		unstructured.RemoveNestedField(got, "metadata", "annotations", "dovetail.sh/revision")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s of the chart (-want +got):\n%s", filepath.Base(file), diff)
		}
	}
}
