// Package local runs the pods of one node of a cluster as processes of this machine, on
// its loopback. It stands in for a kubelet and a container runtime where what matters is
// that a program runs as its chart says: its arguments and environment, its ServiceAccount
// token and what RBAC grants that, its Secrets, its probes, and how it is stopped.
//
// Images are names for programs of this machine, see [Options.Programs].
//
// # Volumes
//
// As root on Linux, a process gets a mount namespace in which its volumes are where the
// pod wants them. Elsewhere, paths of volumes in arguments and variables are replaced by
// where the files are, and KUBECONFIG names a file with the token of the ServiceAccount.
//
// # What it does not do
//
// All pods share this machine's network: two that listen on the same port cannot run at
// once. Resources and security contexts are not enforced, probes that execute a command
// or speak gRPC count as passed, and of volumes it knows those of configMaps, secrets,
// projections, the downward API, emptyDir and hostPath.
package local

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dovetail-sh/dovetail/test/cluster/internal/spawn"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
)

const (
	defaultName = "local"
	// refreshInterval is how often files of Secrets, ConfigMaps and tokens are brought up to
	// date. A kubelet takes about a minute; tests need not.
	refreshInterval = time.Second
	// retryInterval is how long a pod waits that lacks something, such as a Secret.
	retryInterval = 500 * time.Millisecond
	// restartDelay is how long a program waits that exited, before it is started again.
	restartDelay = time.Second
)

// Options says what the node is. Only Programs is needed.
type Options struct {
	// Programs are the programs that images stand for: by the image without its tag or
	// digest, the path of an executable file of this machine. A pod with another image waits.
	Programs map[string]string
	// Name of the node. Defaults to "local".
	Name string
	// Taints keep other pods off the node. Defaults to CriticalAddonsOnly=true:NoSchedule,
	// which charts of controllers tolerate. An empty list is no taints.
	Taints []corev1.Taint
	// Dir is where volumes and logs are. Defaults to a temporary folder, which is removed.
	Dir string
	// APIServer is the host and port that pods are told. Defaults to that of the client's
	// configuration.
	APIServer string
	// WithoutMounts replaces paths even where volumes could be mounted.
	WithoutMounts bool
	// Log is told what happens to pods. Defaults to nothing.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, defaultName)
	if o.Taints == nil {
		o.Taints = []corev1.Taint{{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Node is a node whose pods are processes.
type Node struct {
	opts    Options
	client  kubernetes.Interface
	api     string
	ca      []byte
	fleet   *kubelet.Fleet
	pods    cache.SharedIndexInformer
	mounter mounter
	spawner *spawn.Spawner
	temp    bool

	mu   sync.Mutex
	runs map[types.UID]*run
	// group are the pods that run.
	group sync.WaitGroup
}

// New returns a node of the cluster that config names, for an administrator. It does
// nothing before Run.
func New(config *rest.Config, opts Options) (*Node, error) {
	opts = opts.withDefaults()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", opts.Name, err)
	}
	ca := config.CAData
	if len(ca) == 0 && config.CAFile != "" {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("node %s: %w", opts.Name, err)
		}
	}
	n := &Node{opts: opts, client: client, ca: ca, runs: map[types.UID]*run{}, mounter: newMounter(opts.WithoutMounts)}
	n.api = opts.APIServer
	if n.api == "" {
		base, _, err := rest.DefaultServerUrlFor(config)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", opts.Name, err)
		}
		n.api = base.Host
	}
	n.fleet, err = kubelet.New(config, kubelet.Options{
		Manages:     func(node *corev1.Node) bool { return node.Name == opts.Name },
		WithoutPods: true,
		Workers:     1,
		Log:         opts.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", opts.Name, err)
	}
	n.pods = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", opts.Name).String()
	})).Core().V1().Pods().Informer()
	if n.opts.Dir == "" {
		if n.opts.Dir, err = os.MkdirTemp("", "dovetail-local-"); err != nil {
			return nil, fmt.Errorf("node %s: %w", opts.Name, err)
		}
		n.temp = true
	}
	return n, nil
}

// Run makes the Node and runs its pods until ctx ends. Then it ends their processes, as
// a machine that is switched off, and leaves the objects as they are. It may be called
// once.
func (n *Node) Run(ctx context.Context) error {
	n.spawner = spawn.New()
	defer n.spawner.Stop()
	for _, name := range []string{"pods", "logs"} {
		if err := os.MkdirAll(filepath.Join(n.opts.Dir, name), 0o755); err != nil {
			return fmt.Errorf("node %s: %w", n.opts.Name, err)
		}
	}
	if err := n.register(ctx); err != nil {
		return fmt.Errorf("node %s: %w", n.opts.Name, err)
	}
	var group sync.WaitGroup
	defer n.mounter.close()
	defer n.cleanUp()
	defer n.group.Wait()
	defer group.Wait()
	_, err := n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.changed(ctx, object.(*corev1.Pod)) },
		UpdateFunc: func(_, object any) { n.changed(ctx, object.(*corev1.Pod)) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				n.deleted(pod)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", n.opts.Name, err)
	}
	group.Go(func() { n.pods.RunWithContext(ctx) })
	return n.fleet.Run(ctx)
}

// register makes the Node, or keeps the one that there is.
func (n *Node) register(ctx context.Context) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   n.opts.Name,
			Labels: map[string]string{corev1.LabelHostname: n.opts.Name, kubelet.UnmanagedLabel: "local"},
		},
		Spec: corev1.NodeSpec{Taints: n.opts.Taints},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
				corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("110"),
			},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.opts.Name}},
			// Without this condition, it would take pods before anybody runs them.
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}},
		},
	}
	_, err := n.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Log returns the file that a container's output is in.
func (n *Node) Log(namespace, pod, container string) string {
	return filepath.Join(n.opts.Dir, "logs", strings.Join([]string{namespace, pod, container}, "_")+".log")
}

// Pid returns the process id of a container's program, or 0 if it does not run.
func (n *Node) Pid(namespace, pod, container string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.runs {
		if r.pod.Namespace == namespace && r.pod.Name == pod {
			return r.pid(container)
		}
	}
	return 0
}

// changed starts the pod, or stops it.
func (n *Node) changed(ctx context.Context, pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.runs[pod.UID]
	if r == nil {
		if ctx.Err() != nil {
			return
		}
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			// It ended before this node was started.
			if pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds > 0 {
				n.group.Go(func() {
					if err := n.remove(ctx, pod); err != nil {
						n.opts.Log.Error("remove", "pod", pod.Namespace+"/"+pod.Name, "err", err)
					}
				})
			}
			return
		}
		r = newRun(n, pod)
		n.runs[pod.UID] = r
		n.group.Go(func() { r.loop(ctx) })
	}
	if pod.DeletionTimestamp != nil {
		r.terminate(pod)
	}
}

// deleted kills what still runs of a pod that is gone.
func (n *Node) deleted(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.runs[pod.UID]; r != nil {
		r.kill()
		delete(n.runs, pod.UID)
	}
}

// remove lets a pod go that was deleted and has ended.
func (n *Node) remove(ctx context.Context, pod *corev1.Pod) error {
	return n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
}

func (n *Node) cleanUp() {
	if n.temp {
		// What is left in the temporary folder does no harm.
		_ = os.RemoveAll(n.opts.Dir)
	}
}

// program is the file that an image stands for.
func (n *Node) program(image string) (string, error) {
	name, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	path, ok := n.opts.Programs[name]
	if !ok {
		return "", fmt.Errorf("no program is known for image %q", image)
	}
	return path, nil
}
