package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
)

const leaseInterval = time.Second

var (
	fleet  *kubelet.Fleet
	shared = cluster.Shared{
		Options: cluster.Options{FastNodeLifecycle: true},
		Started: func(ctx context.Context, c *cluster.Cluster) (err error) {
			fleet, err = kubelet.New(c.RESTConfig(), kubelet.Options{LeaseInterval: leaseInterval})
			if err != nil {
				return err
			}
			go func() {
				if err := fleet.Run(ctx); err != nil {
					fmt.Fprintln(os.Stderr, "kubelets:", err)
				}
			}()
			return nil
		},
	}
)

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func client(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(shared.Get(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually repeats check until it succeeds, for a minute.
func eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func apply(t *testing.T, manifests ...string) {
	t.Helper()
	if err := shared.Get(t).ApplyText(t.Context(), manifests...); err != nil {
		t.Fatal(err)
	}
}

// makeNode makes a bare Node and removes it when the test ends.
func makeNode(t *testing.T, node *corev1.Node) *corev1.Node {
	t.Helper()
	nodes := client(t).CoreV1().Nodes()
	made, err := nodes.Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return made
}

func waitNode(t *testing.T, name, what string, is func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	eventually(t, "node "+name+" is "+what, func(ctx context.Context) (err error) {
		if node, err = client(t).CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(node) {
			return fmt.Errorf("conditions %v, taints %v, allocatable %v", node.Status.Conditions, node.Spec.Taints, node.Status.Allocatable)
		}
		return nil
	})
	return node
}

func waitPod(t *testing.T, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, "pod "+name+" is "+what, func(ctx context.Context) (err error) {
		if pod, err = client(t).CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(pod) {
			return fmt.Errorf("node %q, status %+v", pod.Spec.NodeName, pod.Status)
		}
		return nil
	})
	return pod
}

func ready(node *corev1.Node) bool { return nodeCondition(node).Status == corev1.ConditionTrue }

func nodeCondition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hasTaint(node *corev1.Node, key string) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == key {
			return true
		}
	}
	return false
}

// bound is a pod on a node, without the scheduler.
func bound(name, node string, annotations string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {%s}}
spec:
  nodeName: %s
  restartPolicy: Never
  terminationGracePeriodSeconds: 60
  containers: [{name: c, image: i, resources: {requests: {cpu: 10m}}}]
`, name, annotations, node)
}

func node(name string, annotations map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.NodeSpec{Taints: taints}}
}

func TestFleet_Workloads(t *testing.T) {
	makeNode(t, node("work-1", nil))
	makeNode(t, node("work-2", nil))
	apply(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      initContainers: [{name: init, image: i}, {name: sidecar, image: i, restartPolicy: Always}]
      containers: [{name: c, image: i}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: c, image: i}], hostNetwork: true}
---
apiVersion: batch/v1
kind: Job
metadata: {name: batch}
spec:
  completions: 3
  parallelism: 2
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 3, selector: {matchLabels: {app: web}}}
`)
	c := client(t)
	eventually(t, "the Deployment is available", func(ctx context.Context) error {
		got, err := c.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && got.Status.AvailableReplicas != 3 {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	eventually(t, "the DaemonSet is available", func(ctx context.Context) error {
		got, err := c.AppsV1().DaemonSets("default").Get(ctx, "agent", metav1.GetOptions{})
		if err == nil && (got.Status.NumberAvailable != got.Status.DesiredNumberScheduled || got.Status.NumberAvailable < 2) {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	eventually(t, "the Job is complete", func(ctx context.Context) error {
		got, err := c.BatchV1().Jobs("default").Get(ctx, "batch", metav1.GetOptions{})
		if err == nil && (got.Status.Succeeded != 3 || got.Status.CompletionTime == nil) {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	// The budget allows no eviction, and says so to who tries.
	eventually(t, "the budget counts the pods", func(ctx context.Context) error {
		got, err := c.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && got.Status.CurrentHealthy != 3 {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	evict := func(ctx context.Context) error {
		return c.CoreV1().Pods("default").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods.Items[0].Name, Namespace: "default"}})
	}
	if err := evict(t.Context()); !apierrors.IsTooManyRequests(err) {
		t.Errorf("evict against the budget: %v, want too many requests", err)
	}
	if err := c.PolicyV1().PodDisruptionBudgets("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "evict without a budget", evict)
	waitGone(t, pods.Items[0].Name, pods.Items[0].UID)
	// An eviction leaves pods to be replaced.
	eventually(t, "the evicted pod is replaced", func(ctx context.Context) error {
		got, err := c.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && got.Status.AvailableReplicas != 3 {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	for _, remove := range []error{
		c.AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{}),
		c.AppsV1().DaemonSets("default").Delete(t.Context(), "agent", metav1.DeleteOptions{}),
	} {
		if remove != nil {
			t.Error(remove)
		}
	}
}

func waitGone(t *testing.T, name string, uid any) {
	t.Helper()
	eventually(t, "pod "+name+" is gone", func(ctx context.Context) error {
		pod, err := client(t).CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case uid != nil && pod.UID != uid:
			return nil
		}
		return errors.New("it is there")
	})
}

func TestFleet_Nodes(t *testing.T) {
	tests := map[string]struct {
		node *corev1.Node
		// what has to become true of the node.
		what string
		is   func(*corev1.Node) bool
	}{
		"a bare node is Ready, has capacity, labels, and no taint": {
			node: node("bare", nil), what: "Ready",
			is: func(n *corev1.Node) bool {
				return ready(n) && n.Status.Allocatable.Cpu().String() == "4" && n.Status.NodeInfo.KubeletVersion == "v1.37.2" &&
					n.Labels[corev1.LabelHostname] == "bare" && n.Labels[corev1.LabelArchStable] == "amd64" && len(n.Spec.Taints) == 0
			},
		},
		"a node may never become Ready": {
			node: node("never", map[string]string{kubelet.NodeNeverReady: "true"}), what: "not Ready by its own word",
			is: func(n *corev1.Node) bool {
				return nodeCondition(n).Reason == "KubeletNotReady" && hasTaint(n, corev1.TaintNodeNotReady)
			},
		},
		"a node is Ready when it says": {
			node: node("late", map[string]string{kubelet.NodeReadySeconds: "2"}), what: "Ready after 2 s or more",
			is: func(n *corev1.Node) bool {
				return ready(n) && nodeCondition(n).LastTransitionTime.Sub(n.CreationTimestamp.Time) >= 2*time.Second
			},
		},
		"startup taints go away, others stay": {
			node: node("tainted", map[string]string{kubelet.NodeUntaintSeconds: "example.com/agent=1"},
				corev1.Taint{Key: "example.com/agent", Effect: corev1.TaintEffectNoSchedule},
				corev1.Taint{Key: "example.com/team", Effect: corev1.TaintEffectNoSchedule}),
			what: "untainted",
			is: func(n *corev1.Node) bool {
				return ready(n) && !hasTaint(n, "example.com/agent") && hasTaint(n, "example.com/team")
			},
		},
		"devices appear": {
			node: node("gpu", map[string]string{kubelet.NodeDevices: "nvidia.com/gpu=4", kubelet.NodeDevicesSeconds: "1"}), what: "with devices",
			is: func(n *corev1.Node) bool {
				count := n.Status.Allocatable["nvidia.com/gpu"]
				return ready(n) && count.Value() == 4
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			makeNode(t, tt.node)
			waitNode(t, tt.node.Name, tt.what, tt.is)
		})
	}
}

func TestFleet_CSINode(t *testing.T) {
	made := makeNode(t, node("storage", map[string]string{kubelet.NodeCSIDrivers: "ebs.csi.aws.com=26"}))
	waitNode(t, "storage", "Ready", ready)
	check := func(ctx context.Context) error {
		got, err := client(t).StorageV1().CSINodes().Get(ctx, "storage", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(got.Spec.Drivers) != 1 || got.Spec.Drivers[0].Name != "ebs.csi.aws.com" || *got.Spec.Drivers[0].Allocatable.Count != 26 || got.OwnerReferences[0].UID != made.UID {
			return fmt.Errorf("CSINode %+v", got)
		}
		return nil
	}
	eventually(t, "the CSINode is written", check)
	// A new machine under the same name takes what the old one left.
	if err := client(t).CoreV1().Nodes().Delete(t.Context(), "storage", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	made = makeNode(t, node("storage", map[string]string{kubelet.NodeCSIDrivers: "ebs.csi.aws.com=26"}))
	waitNode(t, "storage", "Ready", ready)
	eventually(t, "the CSINode is written for the new node", check)
}

func TestFleet_Pods(t *testing.T) {
	makeNode(t, node("pods", nil))
	tests := map[string]struct {
		annotations string
		what        string
		is          func(*corev1.Pod) bool
	}{
		"runs": {what: "Ready", is: func(p *corev1.Pod) bool {
			return podReady(p) && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" && p.Status.ContainerStatuses[0].State.Running != nil
		}},
		"starts-late": {annotations: kubelet.PodStartSeconds + `: "1"`, what: "Ready after 1 s or more", is: func(p *corev1.Pod) bool {
			return podReady(p) && p.Status.ContainerStatuses[0].State.Running.StartedAt.Sub(p.Status.StartTime.Time) >= time.Second
		}},
		"never-ready": {annotations: kubelet.PodReadySeconds + `: "9999"`, what: "Running and not Ready", is: func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodRunning && !podReady(p)
		}},
		"succeeds": {annotations: kubelet.PodRunSeconds + `: "1"`, what: "Succeeded", is: func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded && p.Status.ContainerStatuses[0].State.Terminated.Reason == "Completed"
		}},
		"fails": {annotations: kubelet.PodRunSeconds + `: "1", ` + kubelet.PodExitCode + `: "3"`, what: "Failed", is: func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Terminated.ExitCode == 3
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			apply(t, bound(name, "pods", tt.annotations))
			waitPod(t, name, tt.what, tt.is)
		})
	}
}

func TestFleet_Crash(t *testing.T) {
	makeNode(t, node("crashes", nil))
	manifest := strings.Replace(bound("crash", "crashes", kubelet.PodRunSeconds+`: "1", `+kubelet.PodExitCode+`: "1"`), "Never", "Always", 1)
	apply(t, manifest)
	waitPod(t, "crash", "waiting to be restarted", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].RestartCount == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CrashLoopBackOff" && !podReady(p)
	})
	waitPod(t, "crash", "restarted twice", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= 2 })
}

func TestFleet_Stop(t *testing.T) {
	makeNode(t, node("stops", nil))
	pods := client(t).CoreV1().Pods("default")
	tests := map[string]struct {
		stop string
		// grace is that of the deletion; it is the least of how long the pod stays.
		grace int64
		least time.Duration
	}{
		"at-once":     {grace: 60},
		"slowly":      {stop: "2", grace: 60, least: 2 * time.Second},
		"not-in-time": {stop: "60", grace: 2, least: 2 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			apply(t, bound(name, "stops", kubelet.PodStopSeconds+`: "`+tt.stop+`"`))
			waitPod(t, name, "Ready", podReady)
			start := time.Now()
			if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &tt.grace}); err != nil {
				t.Fatal(err)
			}
			waitGone(t, name, nil)
			if took := time.Since(start); took < tt.least {
				t.Errorf("gone after %s, want %s at least", took, tt.least)
			}
		})
	}
	t.Run("who waits for its end is told", func(t *testing.T) {
		apply(t, strings.Replace(bound("held", "stops", ""), "{name: held", "{name: held, finalizers: [example.com/hold]", 1))
		waitPod(t, "held", "Ready", podReady)
		if err := pods.Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waitPod(t, "held", "Failed and held", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodFailed && p.DeletionTimestamp != nil && *p.DeletionGracePeriodSeconds == 0
		})
		eventually(t, "let go", func(ctx context.Context) error {
			pod, err := pods.Get(ctx, "held", metav1.GetOptions{})
			if err != nil {
				return err
			}
			pod.Finalizers = nil
			_, err = pods.Update(ctx, pod, metav1.UpdateOptions{})
			return err
		})
		waitGone(t, "held", nil)
	})
}

// A retry must not take the place of the timer that renews a lease.
func TestFleet_Leases(t *testing.T) {
	names := []string{"lease-0", "lease-1", "lease-2", "lease-3"}
	for _, name := range names {
		makeNode(t, node(name, nil))
		waitNode(t, name, "Ready", ready)
	}
	c := client(t)
	deadline := time.Now().Add(10 * leaseInterval)
	for i := 0; time.Now().Before(deadline); i++ {
		for _, name := range names {
			// Conflicts and changes, all the time.
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/count":"%d"}}}`, i)
			if _, err := c.CoreV1().Nodes().Patch(t.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			lease, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(lease.Spec.RenewTime.Time); age > 6*leaseInterval {
				t.Fatalf("the lease of %s is %s old, renewed every %s", name, age, leaseInterval)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	for _, name := range names {
		waitNode(t, name, "still Ready", ready)
	}
}

func TestFleet_Shutdown(t *testing.T) {
	// Where most nodes are unreachable, the controllers suspect themselves and evict nothing.
	for _, name := range []string{"dark", "light-1", "light-2"} {
		makeNode(t, node(name, nil))
		waitNode(t, name, "Ready", ready)
	}
	apply(t, bound("in-the-dark", "dark", ""))
	waitPod(t, "in-the-dark", "Ready", podReady)
	fleet.Shutdown("dark")
	waitNode(t, "dark", "unreachable", func(n *corev1.Node) bool {
		return nodeCondition(n).Status == corev1.ConditionUnknown && hasTaint(n, corev1.TaintNodeUnreachable)
	})
	// The pod is evicted, but nobody is there to stop it.
	waitPod(t, "in-the-dark", "deleted and there", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	fleet.PowerOn("dark")
	waitNode(t, "dark", "Ready again", func(n *corev1.Node) bool { return ready(n) && !hasTaint(n, corev1.TaintNodeUnreachable) })
	waitGone(t, "in-the-dark", nil)
}

func TestFleet_Unmanaged(t *testing.T) {
	other := node("other", nil)
	other.Labels = map[string]string{kubelet.UnmanagedLabel: "local"}
	makeNode(t, other)
	makeNode(t, node("beside", nil))
	waitNode(t, "beside", "Ready", ready)
	got, err := client(t).CoreV1().Nodes().Get(t.Context(), "other", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if nodeCondition(got).Type != "" || got.Status.NodeInfo.KubeletVersion != "" {
		t.Errorf("status %+v of a node that is somebody else's, want none", got.Status)
	}
}

func TestFleet_APIServerRestart(t *testing.T) {
	c := shared.Get(t)
	makeNode(t, node("survivor", nil))
	waitNode(t, "survivor", "Ready", ready)
	c.Kill(cluster.APIServer)
	if err := c.Restart(t.Context(), cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	apply(t, bound("after-restart", "survivor", ""))
	waitPod(t, "after-restart", "Ready", podReady)
	waitNode(t, "survivor", "Ready", ready)
}
