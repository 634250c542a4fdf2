package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
)

// result is one run.
type result struct {
	pods        int
	first, last time.Duration // NodeClaims, since the engine's start
	bound       time.Duration // the last pod
	nodes       int
	extra       int // NodeClaims after those of the first plan
	cost        float64
	cpu         float64 // seconds until everything had settled
	rss         float64 // MiB, at its peak
	load        string
	// steadyCPU is the share of a core while nothing happens, steadyRSS the memory then.
	steadyCPU, steadyRSS float64
}

func (r result) line(engine string) string {
	s := fmt.Sprintf("engine=%s pods=%d nodeclaims_seconds=%.1f bound_seconds=%.1f nodes=%d cost=%.2f rss_mib=%.0f cpu_seconds=%.1f first_nodeclaim_seconds=%.1f extra_nodes=%d load=%s",
		engine, r.pods, r.last.Seconds(), r.bound.Seconds(), r.nodes, r.cost, r.rss, r.cpu, r.first.Seconds(), r.extra, r.load)
	if r.steadyRSS > 0 {
		s += fmt.Sprintf(" steady_cpu=%.4f steady_rss_mib=%.0f", r.steadyCPU, r.steadyRSS)
	}
	return s
}

// middle is the run with the median time to the last NodeClaim.
func middle(list []result) result {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b result) int { return cmp.Compare(a.last, b.last) })
	return list[len(list)/2]
}

// kinds of pods: CPU and memory.
var mix = [][2]string{
	{"100m", "128Mi"}, {"250m", "512Mi"}, {"500m", "1Gi"}, {"1", "2Gi"}, {"2", "4Gi"},
	{"500m", "4Gi"}, {"1", "8Gi"}, {"4", "8Gi"}, {"2", "16Gi"}, {"250m", "256Mi"},
}

// measure runs an engine on a control plane of its own.
func measure(ctx context.Context, o options, t *tools, e engine) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	manifests, err := e.manifests(t)
	if err != nil {
		return nil, err
	}
	if err := c.ApplyText(ctx, manifests...); err != nil {
		return nil, err
	}
	fleet, err := kubelet.New(c.RESTConfig(), kubelet.Options{})
	if err != nil {
		return nil, err
	}
	go func() { _ = fleet.Run(ctx) }()
	w, err := newWatch(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := w.stage(ctx, o.pods); err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d pods are unschedulable\n", o.pods)

	port := freePort()
	cmd := e.command(t, c, port)
	logFile, err := os.Create(filepath.Join(os.TempDir(), "dovetail-bench-"+filepath.Base(cmd.Path)+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }()
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	begin := time.Now()
	w.from(begin)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if o.profile != "" {
		go profile(o.profile, port)
	}
	r, err := w.settle(ctx, o, t)
	if err != nil {
		return nil, fmt.Errorf("%w; its log is %s", err, logFile.Name())
	}
	r.cpu, r.rss = usage(cmd)
	if o.steady > 0 {
		before, _ := usage(cmd)
		select {
		case <-time.After(o.steady):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		after, _ := usage(cmd)
		r.steadyCPU, r.steadyRSS = (after-before)/o.steady.Seconds(), resident(cmd)
	}
	return r, nil
}

// profile writes a CPU profile of the first minute.
func profile(file string, port int) {
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=60", port), nil)
		if err != nil {
			return
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			continue
		}
		defer func() { _ = answer.Body.Close() }()
		f, err := os.Create(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
			return
		}
		_, _ = io.Copy(f, answer.Body)
		_ = f.Close()
		return
	}
}

// usage is the CPU seconds of a process so far, and its largest memory in MiB.
func usage(cmd *exec.Cmd) (cpu, peak float64) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const ticks = 100 // USER_HZ, on all platforms that Go supports
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks, status(cmd, "VmHWM:")
}

func resident(cmd *exec.Cmd) float64 { return status(cmd, "VmRSS:") }

func status(cmd *exec.Cmd, key string) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

// watch follows pods and NodeClaims.
type watch struct {
	client client.Client

	mu            sync.Mutex
	begin         time.Time
	unschedulable map[string]bool
	boundPods     map[string]bool
	lastBound     time.Time
	claims        map[string]time.Time // when they were seen
}

func newWatch(ctx context.Context, c *cluster.Cluster) (*watch, error) {
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{clientgoscheme.AddToScheme, karpv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	config := c.RESTConfig()
	config.QPS = -1
	cl, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	w := &watch{client: cl, unschedulable: map[string]bool{}, boundPods: map[string]bool{}, claims: map[string]time.Time{}}
	informers, err := cache.New(config, cache.Options{Scheme: scheme, ReaderFailOnMissingInformer: true})
	if err != nil {
		return nil, err
	}
	for _, o := range []client.Object{&corev1.Pod{}, &karpv1.NodeClaim{}} {
		i, err := informers.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		if _, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: w.see, UpdateFunc: func(_, o any) { w.see(o) }}); err != nil {
			return nil, err
		}
	}
	go func() { _ = informers.Start(ctx) }()
	return w, nil
}

func (w *watch) see(o any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch o := o.(type) {
	case *karpv1.NodeClaim:
		if _, ok := w.claims[o.Name]; !ok {
			w.claims[o.Name] = now
		}
	case *corev1.Pod:
		key := o.Namespace + "/" + o.Name
		if o.Spec.NodeName != "" && !w.boundPods[key] {
			w.boundPods[key] = true
			w.lastBound = now
		}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				w.unschedulable[key] = true
			}
		}
	}
}

func (w *watch) from(begin time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begin = begin
}

// stage creates the pods and waits until kube-scheduler has found a place for none.
func (w *watch) stage(ctx context.Context, pods int) error {
	for i, size := range mix {
		n := int32(pods / len(mix))
		if i < pods%len(mix) {
			n++
		}
		labels := map[string]string{"app": fmt.Sprint("load-", i)}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: labels["app"]}}
		d.Spec.Replicas, d.Spec.Selector = &n, &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels = labels
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.com/pause", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(size[0]), corev1.ResourceMemory: resource.MustParse(size[1])},
		}}}
		if err := w.client.Create(ctx, d); err != nil {
			return err
		}
	}
	for {
		w.mu.Lock()
		n := len(w.unschedulable)
		w.mu.Unlock()
		if n >= pods {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods are unschedulable: %w", n, pods, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// settle waits until all pods are bound and no NodeClaim has come for a while.
func (w *watch) settle(ctx context.Context, o options, t *tools) (*result, error) {
	for {
		w.mu.Lock()
		bound := len(w.boundPods)
		var last time.Time
		for _, at := range w.claims {
			if at.After(last) {
				last = at
			}
		}
		quiet := time.Since(later(last, w.lastBound))
		w.mu.Unlock()
		if bound >= o.pods && quiet > o.quiet {
			break
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d pods are bound: %w", bound, o.pods, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
	var claims karpv1.NodeClaimList
	if err := w.client.List(ctx, &claims); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var times []time.Duration
	for _, at := range w.claims {
		times = append(times, at.Sub(w.begin))
	}
	slices.Sort(times)
	r := &result{pods: o.pods, first: times[0], last: times[len(times)-1], bound: w.lastBound.Sub(w.begin), nodes: len(claims.Items), load: load()}
	// NodeClaims of one plan are created together; a pause ends the first plan's.
	const pause = 1500 * time.Millisecond
	for i := 1; i < len(times); i++ {
		if times[i]-times[i-1] > pause {
			r.extra = len(times) - i
			break
		}
	}
	for i := range claims.Items {
		l := claims.Items[i].Labels
		id := offering{l[corev1.LabelInstanceTypeStable], l[corev1.LabelTopologyZone], l[karpv1.CapacityTypeLabelKey]}
		price, ok := t.prices[id]
		if !ok {
			return nil, fmt.Errorf("NodeClaim %s: %v has no price", claims.Items[i].Name, id)
		}
		r.cost += price
	}
	return r, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// load is the machine's load average over a minute, and its cores.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return fmt.Sprintf("%s/%d", one, runtime.NumCPU())
}
