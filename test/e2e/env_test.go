// Package e2e_test runs the controller, as a process, against a real control plane with a
// simulated cloud and kubelets.
package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
)

var shared = cluster.Shared{Started: prepare}

// world is what all cases share.
var world struct {
	client client.Client
	binary string
	// main is the controller that most cases talk to; nil while a case runs its own.
	main *controller
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run ends the controller before the control plane.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "dovetail-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	world.binary = filepath.Join(dir, "dovetail")
	build := exec.Command("go", "build", "-o", world.binary, "github.com/dovetail-sh/dovetail/cmd/dovetail")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the controller:", err)
		return 1
	}
	return shared.Main(m)
}

// prepare installs what all cases need, and starts the kubelets.
func prepare(ctx context.Context, c *cluster.Cluster) error {
	var kinds []string
	files := crds.FS()
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return err
	}
	for _, n := range names {
		text, err := fs.ReadFile(files, n)
		if err != nil {
			return err
		}
		kinds = append(kinds, string(text))
	}
	if err := c.ApplyText(ctx, kinds...); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config := c.RESTConfig()
	config.QPS = -1
	if world.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	fleet, err := kubelet.New(config, kubelet.Options{})
	if err != nil {
		return err
	}
	go func() { _ = fleet.Run(ctx) }()
	return nil
}

// controller is a process.
type controller struct {
	cmd     *exec.Cmd
	log     string
	metrics int
	done    chan struct{}
}

// quick are flags that make cases short.
var quick = []string{
	"--batch-idle-duration", "100ms", "--batch-max-duration", "1s", "--registration-timeout", "12s", "--launch-timeout", "20s",
	"--garbage-collection-interval", "3s", "--log-level", "debug", "--disable-leader-election", "--health-probe-port", "0",
	"--feature-gates", "StaticCapacity=true,NodeRepair=true",
}

// start runs a controller with flags, until the test ends or somebody stops it.
func start(t testing.TB, c *cluster.Cluster, flags ...string) *controller {
	t.Helper()
	f, err := os.CreateTemp(c.Dir(), "dovetail-*.log")
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	args := append([]string{"controller", "--kubeconfig", c.Kubeconfig(), "--cloud", "sim", "--metrics-port", fmt.Sprint(port)}, flags...)
	ctl := &controller{cmd: exec.Command(world.binary, args...), log: f.Name(), metrics: port, done: make(chan struct{})}
	ctl.cmd.Stdout, ctl.cmd.Stderr = f, f
	ctl.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The parent-death signal is the thread's: it must outlive the process.
		goruntime.LockOSThread()
		err := ctl.cmd.Start()
		started <- err
		if err == nil {
			_ = ctl.cmd.Wait()
		}
		_ = f.Close()
		close(ctl.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctl.stop()
		if t.Failed() {
			t.Logf("the controller's log is %s", ctl.log)
		}
	})
	return ctl
}

// stop ends the process in order, and waits for it.
func (c *controller) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		c.kill()
	}
}

// kill ends the process as a crash does.
func (c *controller) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// world of one case: a namespace, and NodePools that only its pods use.
type scene struct {
	testing.TB
	name    string
	cluster *cluster.Cluster
	client  client.Client
	ctx     context.Context
}

var starting sync.Mutex

// begin makes a scene, under the controller that cases share.
func begin(t *testing.T) *scene {
	t.Helper()
	starting.Lock()
	c := shared.Get(t)
	if world.main == nil {
		world.main = start(forever{t}, c, quick...)
	}
	starting.Unlock()
	return newScene(t, c)
}

func newScene(t *testing.T, c *cluster.Cluster) *scene {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", " ", "-").Replace(strings.TrimPrefix(t.Name(), "Test")))
	name = strings.Trim(name[:min(len(name), 40)], "-")
	s := &scene{TB: t, name: name, cluster: c, client: world.client, ctx: context.Background()}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	s.eventually("the namespace has its ServiceAccount", func() error {
		return s.client.Get(s.ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	})
	t.Cleanup(s.clean)
	return s
}

// forever is a test whose cleanups run when the package's tests end: never, as the
// process's end ends what they would.
type forever struct{ testing.TB }

func (forever) Cleanup(func()) {}

// clean removes what would be in the way of other cases.
func (s *scene) clean() {
	if s.Failed() {
		s.dump()
	}
	_ = s.client.DeleteAllOf(s.ctx, &appsv1.Deployment{}, client.InNamespace(s.name))
	_ = s.client.DeleteAllOf(s.ctx, &corev1.Pod{}, client.InNamespace(s.name), client.GracePeriodSeconds(0))
	_ = client.IgnoreNotFound(s.client.DeleteAllOf(s.ctx, &v1alpha1.NodePolicy{}, client.MatchingLabels{"case": s.name}))
	_ = client.IgnoreNotFound(s.client.DeleteAllOf(s.ctx, &karpv1.NodePool{}, client.MatchingLabels{"case": s.name}))
	_ = s.client.Delete(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
}

// dump logs what there is of the scene.
func (s *scene) dump() {
	ctx := context.Background()
	var b bytes.Buffer
	var pods corev1.PodList
	_ = s.client.List(ctx, &pods, client.InNamespace(s.name))
	for _, p := range pods.Items {
		fmt.Fprintf(&b, "pod %s: phase %s node %q nominated %q", p.Name, p.Status.Phase, p.Spec.NodeName, p.Status.NominatedNodeName)
		for _, c := range p.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				fmt.Fprintf(&b, "; %s %s: %s", c.Type, c.Reason, c.Message)
			}
		}
		b.WriteByte('\n')
	}
	for _, c := range s.claimsOf() {
		fmt.Fprintf(&b, "claim %s: node %q machine %q deleting %t", c.Name, c.Status.NodeName, c.Status.ProviderID, c.DeletionTimestamp != nil)
		for _, cond := range c.Status.Conditions {
			fmt.Fprintf(&b, "; %s=%s %s %s", cond.Type, cond.Status, cond.Reason, cond.Message)
		}
		b.WriteByte('\n')
	}
	var pools karpv1.NodePoolList
	_ = s.client.List(ctx, &pools, client.MatchingLabels{"case": s.name})
	for _, p := range pools.Items {
		fmt.Fprintf(&b, "pool %s:", p.Name)
		for _, cond := range p.Status.Conditions {
			fmt.Fprintf(&b, " %s=%s %s %s;", cond.Type, cond.Status, cond.Reason, cond.Message)
		}
		b.WriteByte('\n')
	}
	for _, e := range s.events() {
		fmt.Fprintf(&b, "event %s %s: %s: %s\n", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	s.Logf("%s", b.String())
}

// patience is how long something may take. Machines are slow at times; nothing here is a
// measurement.
const patience = 90 * time.Second

// eventually waits until f has no error.
func (s *scene) eventually(what string, f func() error) {
	s.Helper()
	deadline := time.Now().Add(patience)
	var err error
	for time.Now().Before(deadline) {
		if err = f(); err == nil {
			return
		}
		time.Sleep(150 * time.Millisecond)
	}
	s.Fatalf("not so within %s: %s: %v", patience, what, err)
}

// stays checks that f has no error for a while.
func (s *scene) stays(what string, d time.Duration, f func() error) {
	s.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if err := f(); err != nil {
			s.Fatalf("%s: %v", what, err)
		}
	}
}

func (s *scene) create(o client.Object) {
	s.Helper()
	// A namespace of an earlier run of the case may be on its way out.
	s.eventually(fmt.Sprintf("creating %T %s", o, o.GetName()), func() error {
		err := s.client.Create(s.ctx, o)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "serviceaccount") {
			s.Fatalf("creating %T %s: %v", o, o.GetName(), err)
		}
		return err
	})
}

func (s *scene) delete(o client.Object) {
	s.Helper()
	if err := client.IgnoreNotFound(s.client.Delete(s.ctx, o)); err != nil {
		s.Fatal(err)
	}
}

// update changes an object, again if somebody else has changed it.
func update[T client.Object](s *scene, o T, change func(T)) {
	s.Helper()
	s.eventually(fmt.Sprintf("changing %T %s", o, o.GetName()), func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return s.client.Update(s.ctx, o)
	})
}

// class makes a SimNodeClass with the case's name.
func (s *scene) class(change ...func(*v1alpha1.SimNodeClassSpec)) *v1alpha1.SimNodeClass {
	s.Helper()
	c := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{"case": s.name}}}
	c.Spec.InstanceTypes = []string{"c6a.*", "m6a.*", "r6a.*", "m6g.*", "t3.*", "g4dn.*"}
	for _, f := range change {
		f(&c.Spec)
	}
	s.create(c)
	return c
}

// pool makes a NodePool whose nodes only this case's pods select.
func (s *scene) pool(change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	s.Helper()
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{"case": s.name}}}
	p.Spec.Template.Labels = map[string]string{"case": s.name}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: s.name}
	p.Spec.Template.Spec.Requirements = []karpv1.Requirement{
		require(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
		require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand"),
	}
	p.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	never := karpv1.NillableDuration{}
	p.Spec.Disruption.ConsolidateAfter = never
	for _, f := range change {
		f(p)
	}
	s.create(p)
	return p
}

func require(key string, op corev1.NodeSelectorOperator, values ...string) karpv1.Requirement {
	return karpv1.Requirement{Key: key, Operator: op, Values: values}
}

// with replaces or adds requirements of a NodePool.
func with(reqs ...karpv1.Requirement) func(*karpv1.NodePool) {
	return func(p *karpv1.NodePool) {
		list := &p.Spec.Template.Spec.Requirements
		for _, r := range reqs {
			kept := (*list)[:0]
			for _, old := range *list {
				if old.Key != r.Key {
					kept = append(kept, old)
				}
			}
			*list = append(kept, r)
		}
	}
}

// pod is a pod of the case that asks for a CPU.
func (s *scene) pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	s.Helper()
	p := s.podTemplate(name, change...)
	s.create(p)
	return p
}

func (s *scene) podTemplate(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name, Labels: map[string]string{"app": s.name}}}
	p.Spec.NodeSelector = map[string]string{"case": s.name}
	p.Spec.TerminationGracePeriodSeconds = new(int64(1))
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.com/pause", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}}}
	for _, f := range change {
		f(p)
	}
	return p
}

// pods makes n pods.
func (s *scene) pods(n int, change ...func(*corev1.Pod)) []*corev1.Pod {
	s.Helper()
	out := make([]*corev1.Pod, n)
	for i := range out {
		out[i] = s.pod(fmt.Sprintf("p%d", i), change...)
	}
	return out
}

// deployment runs n replicas of the case's pod.
func (s *scene) deployment(n int32, change ...func(*corev1.Pod)) *appsv1.Deployment {
	s.Helper()
	p := s.podTemplate("", change...)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "app"}}
	d.Spec.Replicas = &n
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: p.Labels}
	d.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
	d.Spec.Template.Name, d.Spec.Template.Namespace = "", ""
	s.create(d)
	return d
}

// all lists the case's pods that are not on their way out.
func (s *scene) all() []corev1.Pod {
	var list corev1.PodList
	if err := s.client.List(context.Background(), &list, client.InNamespace(s.name)); err != nil {
		s.Fatal(err)
	}
	var out []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// run waits until n pods run, and returns them with their nodes.
func (s *scene) run(n int) ([]corev1.Pod, map[string]*corev1.Node) {
	s.Helper()
	var pods []corev1.Pod
	nodes := map[string]*corev1.Node{}
	s.eventually(fmt.Sprintf("%d pods run", n), func() error {
		pods, nodes = s.all(), map[string]*corev1.Node{}
		running := 0
		for i := range pods {
			if pods[i].Status.Phase != corev1.PodRunning {
				continue
			}
			running++
			if nodes[pods[i].Spec.NodeName] == nil {
				var node corev1.Node
				if err := s.client.Get(s.ctx, client.ObjectKey{Name: pods[i].Spec.NodeName}, &node); err != nil {
					return err
				}
				nodes[node.Name] = &node
			}
		}
		if running != n {
			return fmt.Errorf("%d of %d", running, len(pods))
		}
		return nil
	})
	return pods, nodes
}

// claimsOf lists the claims of the case's pools.
func (s *scene) claimsOf() []karpv1.NodeClaim {
	var list karpv1.NodeClaimList
	if err := s.client.List(context.Background(), &list); err != nil {
		s.Fatal(err)
	}
	var out []karpv1.NodeClaim
	for _, c := range list.Items {
		if c.Labels["case"] == s.name || strings.HasPrefix(c.Labels[karpv1.NodePoolLabelKey], s.name) {
			out = append(out, c)
		}
	}
	return out
}

// machines lists the machines of the case's pools.
func (s *scene) machines() []v1alpha1.SimInstance {
	var list v1alpha1.SimInstanceList
	if err := s.client.List(context.Background(), &list); err != nil {
		s.Fatal(err)
	}
	var out []v1alpha1.SimInstance
	for _, i := range list.Items {
		if strings.HasPrefix(i.Spec.NodePool, s.name) {
			out = append(out, i)
		}
	}
	return out
}

// gone waits until neither claims nor machines nor nodes of the case are left.
func (s *scene) gone() {
	s.Helper()
	s.eventually("nothing is left", func() error {
		var nodes corev1.NodeList
		if err := s.client.List(s.ctx, &nodes, client.MatchingLabels{"case": s.name}); err != nil {
			return err
		}
		if c, m, n := len(s.claimsOf()), len(s.machines()), len(nodes.Items); c+m+n > 0 {
			return fmt.Errorf("%d claims, %d machines, %d nodes", c, m, n)
		}
		return nil
	})
}

// events are those of the case's objects.
func (s *scene) events() []corev1.Event {
	var list corev1.EventList
	if err := s.client.List(context.Background(), &list); err != nil {
		s.Fatal(err)
	}
	var out []corev1.Event
	for _, e := range list.Items {
		if e.Source.Component == "dovetail" && (e.InvolvedObject.Namespace == s.name || strings.HasPrefix(e.InvolvedObject.Name, s.name)) {
			out = append(out, e)
		}
	}
	return out
}

// told waits for an event with a reason whose message has a text.
func (s *scene) told(reason, text string) {
	s.Helper()
	s.eventually(fmt.Sprintf("an event %s says %q", reason, text), func() error {
		var have []string
		for _, e := range s.events() {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			have = append(have, e.Reason)
		}
		return fmt.Errorf("there are %v", have)
	})
}

// condition waits for a condition of an object.
func (s *scene) condition(o client.Object, list func() []metav1.Condition, kind string, status metav1.ConditionStatus, text string) {
	s.Helper()
	s.eventually(fmt.Sprintf("condition %s is %s and says %q", kind, status, text), func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		for _, c := range list() {
			if c.Type == kind {
				if c.Status == status && strings.Contains(c.Reason+" "+c.Message, text) {
					return nil
				}
				return fmt.Errorf("it is %s: %s %s", c.Status, c.Reason, c.Message)
			}
		}
		return errors.New("there is none")
	})
}
