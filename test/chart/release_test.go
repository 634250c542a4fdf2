package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
)

// firstNode are the objects of NOTES.txt, and a pod that waits for a node.
const firstNode = `
apiVersion: dovetail.sh/v1alpha1
kind: SimNodeClass
metadata: {name: default}
spec: {}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      nodeClassRef: {group: dovetail.sh, kind: SimNodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  limits: {cpu: 1000}
---
apiVersion: v1
kind: Pod
metadata: {name: first, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: example.com/pause, resources: {requests: {cpu: "1", memory: 1Gi}}}]
`

// TestRelease takes a release with default values from its installation to its end.
func TestRelease(t *testing.T) {
	c := shared.Get(t)
	restricted(t, c)
	notes := helmNotes(t)
	for _, object := range strings.Split(strings.SplitN(firstNode, "\n---\napiVersion: v1", 2)[0], "\n---\n") {
		if !strings.Contains(notes, strings.TrimSpace(object)) {
			t.Errorf("NOTES.txt does not have what is tested:\n%s", object)
		}
	}

	begin := time.Now()
	install(t, c, "{}")
	kubectl(t, c, firstNode, "apply", "-f", "-")
	eventually(t, "the pod has a node", func() error {
		var p corev1.Pod
		if err := world.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "first"}, &p); err != nil {
			return err
		}
		if p.Spec.NodeName == "" || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("phase %s on node %q", p.Status.Phase, p.Spec.NodeName)
		}
		return nil
	})
	// What is promised is a minute on a machine that does nothing else.
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("from helm install to the first node took %s", took)
	} else {
		t.Logf("from helm install to the first node took %s", took.Round(100*time.Millisecond))
	}

	t.Run("rights are those of README.md", func(t *testing.T) { checkDocumented(t, listed(t, c, namespace, account)) })
	t.Run("policies are ready, in the modes promised", func(t *testing.T) {
		for _, p := range list(t, &v1alpha1.NodePolicyList{}).Items {
			if p.Status.Revision == "" {
				t.Errorf("policy %s has no revision in force: %s", p.Name, p.Status.LastError)
			}
			enforced := p.Spec.Hook == "score" || p.Spec.Hook == "admit"
			if enforced != (p.Spec.Mode == v1alpha1.ModeEnforce) {
				t.Errorf("policy %s of hook %s has mode %s", p.Name, p.Spec.Hook, p.Spec.Mode)
			}
		}
	})
	t.Run("admission is asked", func(t *testing.T) { admission(t, c) })
	t.Run("metrics are those of dashboards and alerts", func(t *testing.T) { scrape(t) })
	t.Run("admission is quick", func(t *testing.T) { quick(t, c) })
	t.Run("a second release is refused", func(t *testing.T) {
		out, err := helm(t, c, "", "install", "other", chart, "--namespace", "default", "--dry-run=server")
		if err == nil || !strings.Contains(err.Error(), "release dovetail in namespace dovetail runs Dovetail in this cluster") {
			t.Errorf("helm install: %v %s", err, out)
		}
	})
	t.Run("other replicas take over", func(t *testing.T) { takeOver(t, c) })
	t.Run("without a replica NodePools are stored, and judged later", func(t *testing.T) { unanswered(t, c) })
	t.Run("upgrade and rollback", func(t *testing.T) { upgrade(t, c) })

	t.Run("uninstall leaves definitions and nodes only", func(t *testing.T) {
		claims := len(list(t, &karpv1.NodeClaimList{}).Items)
		if out, err := helm(t, c, "", "uninstall", "dovetail", "--namespace", namespace, "--wait", "--timeout", "1m"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		left := kubectl(t, c, "", "get", "clusterroles,clusterrolebindings,validatingwebhookconfigurations,nodepolicies", "-l", "app.kubernetes.io/instance=dovetail", "-o", "name") +
			kubectl(t, c, "", "get", "all,serviceaccounts,secrets,configmaps,roles,rolebindings,poddisruptionbudgets,networkpolicies", "-n", namespace, "-l", "app.kubernetes.io/instance=dovetail", "-o", "name")
		if left != "" {
			t.Errorf("what is left:\n%s", left)
		}
		if got := len(list(t, &karpv1.NodeClaimList{}).Items); got != claims || claims == 0 {
			t.Errorf("%d NodeClaims are left of %d", got, claims)
		}
		if out := kubectl(t, c, "", "get", "crd", "nodepools.karpenter.sh", "nodepolicies.dovetail.sh", "-o", "name"); len(strings.Fields(out)) != 2 {
			t.Errorf("definitions: %s", out)
		}
	})
	t.Run("definitions of another version are refused", func(t *testing.T) { otherDefinitions(t, c) })
	t.Run("rights are those that are used", func(t *testing.T) {
		useEverything(t, c)
		if n := len(list(t, &corev1.NodeList{}, client.MatchingLabels{karpv1.NodePoolLabelKey: "default"}).Items); n > 0 {
			t.Errorf("%d nodes are still there of those that were left", n)
		}
	})
}

func helmNotes(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "templates", "NOTES.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^     `).ReplaceAllString(string(text), "")
}

// admission writes objects that the webhook refuses or warns of, through its Service.
func admission(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	eventually(t, "the configuration has the authority", func() error {
		var config admissionregv1.ValidatingWebhookConfiguration
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: "dovetail"}, &config); err != nil {
			return err
		}
		for _, w := range config.Webhooks {
			if len(w.ClientConfig.CABundle) == 0 {
				return fmt.Errorf("webhook %s has none", w.Name)
			}
		}
		return nil
	})
	const broken = `{apiVersion: dovetail.sh/v1alpha1, kind: NodePolicy, metadata: {name: broken}, spec: {hook: score, runtime: rego, source: {inline: "package dovetail.score.broken\n\nbias contains {\"i\": x} if y\n"}}}`
	eventually(t, "a policy that does not compile is refused", func() error {
		out, err := tool(context.Background(), []string{"KUBECONFIG=" + c.Kubeconfig()}, strings.NewReader(broken), "kubectl", "apply", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "nodepolicies.dovetail.sh") {
			return fmt.Errorf("kubectl apply: %v %s", err, out)
		}
		return nil
	})
	// The policy nodepool_hygiene warns of a NodePool without an owner.
	pool := strings.Split(firstNode, "\n---\n")[1]
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), "apply", "--dry-run=server", "-f", "-")
	cmd.Env = environment("KUBECONFIG=" + c.Kubeconfig())
	cmd.Stdin = strings.NewReader(strings.Replace(pool, "name: default}\nspec", "name: another}\nspec", 1))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Warning:") {
		t.Errorf("kubectl apply of a NodePool without owner: %v %s, want a warning", err, out)
	}
}

// deployment is the controller's.
func deployment(t testing.TB) *appsv1.Deployment {
	t.Helper()
	var d appsv1.Deployment
	if err := world.client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: "dovetail"}, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// scrape reads the metrics of the controller, through its Service.
func scrape(t *testing.T) {
	t.Helper()
	var service corev1.Service
	if err := world.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "dovetail"}, &service); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "http-metrics" })
	url := fmt.Sprintf("http://%s:%d/metrics", service.Spec.ClusterIP, service.Spec.Ports[i].Port)
	var text string
	eventually(t, url+" answers", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		text = string(body)
		return err
	})
	checkExported(t, text)
}

// takeOver starts a second replica as the Deployment would, on ports of its own, and ends
// the first one's process.
func takeOver(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	pods := list(t, &corev1.PodList{}, client.InNamespace(namespace)).Items
	if len(pods) != 1 {
		t.Fatalf("%d pods", len(pods))
	}
	second := replica(t, c)
	defer second()
	holder := func() string {
		var lease coordinationv1.Lease
		if err := world.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "karpenter-leader-election"}, &lease); err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	first := holder()
	if first == "" {
		t.Fatal("nobody leads")
	}
	if err := syscall.Kill(world.node.Pid(namespace, pods[0].Name, "controller"), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another leads", func() error {
		if h := holder(); h == "" || h == first {
			return fmt.Errorf("it is %q", h)
		}
		return nil
	})
}

// replica runs the controller with the arguments, variables and ServiceAccount of the
// Deployment, but with ports of its own, until what it returns is called.
func replica(t *testing.T, c *cluster.Cluster) (stop func()) {
	t.Helper()
	token := strings.TrimSpace(kubectl(t, c, "", "create", "token", "dovetail", "-n", namespace))
	config := c.RESTConfig()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": config.Host, "certificate-authority-data": config.CAData}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	if err == nil {
		err = os.WriteFile(kubeconfig, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err := dovetail()
	if err != nil {
		t.Fatal(err)
	}
	container := deployment(t).Spec.Template.Spec.Containers[0]
	cmd := exec.Command(program, container.Args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "SYSTEM_NAMESPACE=" + namespace, "CPU_REQUESTS=500", "XDG_CACHE_HOME=" + t.TempDir()}
	for name, value := range variables(&container) {
		if value == nil || name == "XDG_CACHE_HOME" || name == "POLICY_CACHE_DIR" {
			continue
		}
		if strings.HasSuffix(name, "_PORT") {
			*value = fmt.Sprint(freePort(t))
		}
		cmd.Env = append(cmd.Env, name+"="+*value)
	}
	log, err := os.Create(filepath.Join(c.Dir(), "replica.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
	}
}

// upgrade changes a value, and goes back.
func upgrade(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	mode := func() string {
		return kubectl(t, c, "", "get", "nodepolicy", "no-giants", "-o", "jsonpath={.spec.mode} {.spec.parameters}")
	}
	bundle := func() string {
		return kubectl(t, c, "", "get", "validatingwebhookconfiguration", "dovetail", "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}")
	}
	before, authority := mode(), bundle()
	claims := kubectl(t, c, "", "get", "nodeclaims", "-o", "name")
	if authority == "" {
		t.Error("the configuration has no authority")
	}
	if out, err := helm(t, c, "", "upgrade", "dovetail", chart, "--namespace", namespace, "--reuse-values", "--wait", "--timeout", "2m",
		"--set", "policies.launch.no_giants.mode=Enforce,policies.launch.no_giants.parameters.maxMicroUSD=5000000,policies.score.carbon.enabled=true,logLevel=debug"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if got, want := mode(), `Enforce {"maxMicroUSD":5000000}`; got != want {
		t.Errorf("after the upgrade no-giants is %s, want %s", got, want)
	}
	kubectl(t, c, "", "wait", "--for=condition=Ready", "nodepolicy/carbon", "--timeout=30s")
	if got := *variables(&deployment(t).Spec.Template.Spec.Containers[0])["LOG_LEVEL"]; got != "debug" {
		t.Errorf("after the upgrade the log level is %s", got)
	}
	if bundle() != authority {
		t.Error("the upgrade took the authority away")
	}
	if out, err := helm(t, c, "", "rollback", "dovetail", "1", "--namespace", namespace, "--wait", "--timeout", "2m"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if got := mode(); got != before {
		t.Errorf("after the rollback no-giants is %s, want %s", got, before)
	}
	if out := kubectl(t, c, "", "get", "nodepolicy", "carbon", "--ignore-not-found", "-o", "name"); out != "" {
		t.Errorf("after the rollback there is %s", out)
	}
	if bundle() != authority {
		t.Error("the rollback took the authority away")
	}
	if got := kubectl(t, c, "", "get", "nodeclaims", "-o", "name"); got != claims {
		t.Errorf("NodeClaims before and after:\n%s%s", claims, got)
	}
}

// otherDefinitions installs beside definitions that are not the chart's.
func otherDefinitions(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	dry := func() error {
		_, err := helm(t, c, "", "install", "dovetail", chart, "--namespace", namespace, "--dry-run=server")
		return err
	}
	if err := dry(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "", "annotate", "crd", "nodepolicies.dovetail.sh", "dovetail.sh/revision=0", "--overwrite")
	if err := dry(); err == nil || !strings.Contains(err.Error(), "nodepolicies.dovetail.sh is of another version") {
		t.Errorf("helm install: %v", err)
	}
	// The command that the refusal names repairs it.
	kinds, err := helm(t, c, "", "show", "crds", chart)
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, kinds, "apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-")
	if err := dry(); err != nil {
		t.Error(err)
	}
	// A running Karpenter elsewhere would not share our Lease.
	const karpenter = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: karpenter, namespace: kube-system, labels: {app.kubernetes.io/name: karpenter}}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {nodeSelector: {never: ""}, containers: [{name: main, image: example.com/karpenter}]}}}}`
	kubectl(t, c, karpenter, "apply", "-f", "-")
	defer kubectl(t, c, "", "delete", "deployment", "karpenter", "-n", "kube-system")
	if err := dry(); err == nil || !strings.Contains(err.Error(), "leaderElection.namespace=kube-system") {
		t.Errorf("helm install beside Karpenter: %v", err)
	}
	kubectl(t, c, "", "scale", "deployment", "karpenter", "-n", "kube-system", "--replicas=0")
	if err := dry(); err != nil {
		t.Error(err)
	}
}
