package chart_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
	"github.com/dovetail-sh/dovetail/test/cluster/local"
	"github.com/dovetail-sh/dovetail/test/cluster/proxy"
)

// namespace is where releases are installed.
const namespace = "dovetail"

// image is what the chart names; the program that is built here stands for it.
const image = "ghcr.io/dovetail-sh/dovetail"

// shared is the control plane of the tests that install the chart. There is one release
// in a cluster, so they run one after the other.
var shared = cluster.Shared{Started: prepare}

// world is what the tests have besides the control plane.
var world struct {
	client client.Client
	node   *local.Node
}

// auditLog is where the API server of shared writes what it is asked.
var auditLog string

var auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:` + namespace + `"]
- level: None
`

// audit makes the API server write down what ServiceAccounts of the releases ask for.
func audit(dir string) (args []string, log string, err error) {
	log = filepath.Join(dir, "audit.log")
	policy := filepath.Join(dir, "audit.yaml")
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, log, os.WriteFile(policy, []byte(auditPolicy), 0o600)
}

// dovetail is the program, built once.
var dovetail = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "dovetail")
	build := exec.Command("go", "build", "-o", path, "./cmd/dovetail")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build dovetail: %w: %s", err, out)
	}
	return path, nil
})

func helpOf(t *testing.T) (string, error) {
	t.Helper()
	path, err := dovetail()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(t.Context(), path, "controller", "--help").Output()
	return string(out), err
}

// prepare starts what stands in for machines.
func prepare(ctx context.Context, c *cluster.Cluster) error {
	program, err := dovetail()
	if err != nil {
		return err
	}
	config := c.RESTConfig()
	config.QPS = -1
	scheme, err := scheme()
	if err != nil {
		return err
	}
	if world.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if world.node, err = local.New(config, local.Options{Programs: map[string]string{image: program}, Dir: filepath.Join(c.Dir(), "local")}); err != nil {
		return err
	}
	fleet, err := kubelet.New(config, kubelet.Options{})
	if err != nil {
		return err
	}
	services, err := proxy.New(config, proxy.Options{})
	if err != nil {
		return err
	}
	background.Go(func() { _ = world.node.Run(ctx) })
	background.Go(func() { _ = fleet.Run(ctx) })
	go func() { services.Run(ctx) }()
	return nil
}

// background is what must end before files are removed.
var background sync.WaitGroup

// kubectl runs it as the administrator, and fails the test if it fails.
func kubectl(t testing.TB, c *cluster.Cluster, stdin string, args ...string) string {
	t.Helper()
	out, err := tool(context.WithoutCancel(t.Context()), []string{"KUBECONFIG=" + c.Kubeconfig()}, strings.NewReader(stdin), "kubectl", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// helm runs it as the administrator.
func helm(t testing.TB, c *cluster.Cluster, stdin string, args ...string) (string, error) {
	t.Helper()
	return tool(context.WithoutCancel(t.Context()), []string{"KUBECONFIG=" + c.Kubeconfig()}, strings.NewReader(stdin), "helm", args...)
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// machineValues are values that this machine needs: one network for all pods, so one
// replica, on ports that nobody else has.
func machineValues(t testing.TB) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"replicas": 1,
		// The old pod goes first: both would listen on the same ports.
		"strategy":   map[string]any{"type": "Recreate", "rollingUpdate": nil},
		"controller": map[string]any{"metrics": map[string]any{"port": freePort(t)}, "healthProbe": map[string]any{"port": freePort(t)}},
		"webhook":    map[string]any{"port": freePort(t)},
		// Tests need not wait as long as people may.
		"settings": map[string]any{"garbageCollectionInterval": "3s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// install installs the chart and waits until it is ready.
func install(t testing.TB, c *cluster.Cluster, values string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "machine.yaml")
	if err := os.WriteFile(file, []byte(machineValues(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	all := append([]string{"install", "dovetail", chart, "--namespace", namespace, "--create-namespace", "--wait", "--timeout", "2m", "--values", file, "--values", "-"}, args...)
	t.Cleanup(func() { uninstall(t, c) })
	if _, err := helm(t, c, values, all...); err != nil {
		t.Fatalf("%v\n%s", err, logs(c))
	}
}

// uninstall removes the release if there is one, and what tests left, so that the next one
// begins with a cluster in which nothing was ever installed: definitions have an owner, and
// who comes next may be another. Nodes are not ended in order, which takes its time and is
// tested elsewhere.
func uninstall(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	if t.Failed() {
		t.Log(logs(c))
	}
	ctx := context.Background()
	if out, err := helm(t, c, "", "uninstall", "dovetail", "--namespace", namespace, "--ignore-not-found", "--wait", "--timeout", "1m"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	var errs []error
	in, now := client.InNamespace(metav1.NamespaceDefault), client.GracePeriodSeconds(0)
	for _, o := range []client.Object{&appsv1.Deployment{}, &policyv1.PodDisruptionBudget{}, &corev1.Pod{}} {
		errs = append(errs, world.client.DeleteAllOf(ctx, o, in, now))
	}
	// Whoever ends without releasing the Lease is waited for.
	errs = append(errs, world.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(namespace)))
	for _, o := range []client.Object{&karpv1.NodePool{}, &v1alpha1.NodePolicy{}, &v1alpha1.SimNodeClass{}, &v1alpha1.SimInstance{}, &karpv1.NodeClaim{}} {
		if err := world.client.DeleteAllOf(ctx, o); !undefined(err) {
			errs = append(errs, err)
		}
	}
	var left []client.Object
	for _, o := range list(t, &karpv1.NodeClaimList{}).Items {
		left = append(left, &o)
	}
	for _, o := range list(t, &corev1.NodeList{}, client.HasLabels{karpv1.NodePoolLabelKey}).Items {
		errs = append(errs, client.IgnoreNotFound(world.client.Delete(ctx, &o)))
		left = append(left, &o)
	}
	for _, o := range left {
		errs = append(errs, client.IgnoreNotFound(world.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	}
	errs = append(errs, undefine(ctx))
	if err := errors.Join(errs...); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// undefine removes the definitions of our kinds and of Karpenter's, whoever made them.
func undefine(ctx context.Context) error {
	var all apiextensionsv1.CustomResourceDefinitionList
	if err := world.client.List(ctx, &all); err != nil {
		return err
	}
	ours := slices.DeleteFunc(all.Items, func(d apiextensionsv1.CustomResourceDefinition) bool {
		return d.Spec.Group != v1alpha1.Group && d.Spec.Group != karpv1.Group
	})
	for i := range ours {
		if err := client.IgnoreNotFound(world.client.Delete(ctx, &ours[i])); err != nil {
			return err
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left := slices.ContainsFunc(ours, func(d apiextensionsv1.CustomResourceDefinition) bool {
			return !apierrors.IsNotFound(world.client.Get(ctx, client.ObjectKeyFromObject(&d), &d))
		})
		if !left {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("definitions are still there after %s", patience)
		}
	}
}

// undefined reports whether err says that a kind has no definition; a client that has known
// one is told otherwise than one that has not.
func undefined(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// logs are the last errors of the controllers.
func logs(c *cluster.Cluster) string {
	var b bytes.Buffer
	_ = filepath.WalkDir(filepath.Join(c.Dir(), "local", "logs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		lines = slices.DeleteFunc(lines, func(line string) bool {
			return !strings.Contains(line, `"level":"error"`)
		})
		fmt.Fprintf(&b, "== %s\n%s\n", d.Name(), strings.Join(lines[max(0, len(lines)-15):], "\n"))
		return nil
	})
	return b.String()
}

const patience = 90 * time.Second

// eventually waits until f has no error.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	var err error
	for time.Now().Before(deadline) {
		if err = f(); err == nil {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Fatalf("not so within %s: %s: %v", patience, what, err)
}

// list returns all objects of a kind.
func list[T client.ObjectList](t testing.TB, into T, opts ...client.ListOption) T {
	t.Helper()
	if err := world.client.List(context.Background(), into, opts...); err != nil && !undefined(err) {
		t.Fatal(err)
	}
	return into
}
