package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/test/cluster/internal/spawn"
)

// Component is one program of the control plane.
type Component string

// The components, by the names of their programs.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
)

// components are all of them, in the order in which they are started.
var components = []Component{Etcd, APIServer, ControllerManager, Scheduler}

const (
	// defaultServiceCIDR makes every ClusterIP an address of this machine.
	defaultServiceCIDR = "127.96.0.0/16"
	// defaultGOGC costs memory and saves a quarter of the processor time.
	defaultGOGC = 400
	// startTimeout is generous: on a machine that is busy, starting takes several times as long.
	startTimeout = 2 * time.Minute
	// stopTimeout is how long a component may take to stop before it is killed. The API
	// server waits for watches, and nothing that it could still save matters.
	stopTimeout = 3 * time.Second
	// proxyName is the name in the certificate with which the API server proxies requests.
	proxyName = "front-proxy-client"
)

// Options says how a cluster runs. The zero value is ready to use.
type Options struct {
	// Dir is the folder of the cluster's certificates, data, logs and kubeconfigs. It is
	// made if missing and never removed. Defaults to a new temporary folder, which Stop
	// removes unless KeepDir is set.
	Dir string
	// KeepDir keeps a temporary folder.
	KeepDir bool
	// KeepData starts with the objects that an earlier cluster left in Dir. Defaults to an
	// empty cluster.
	KeepData bool
	// Binary is the control plane's program. Defaults to what Binary builds.
	Binary string
	// Port is the API server's. Defaults to a free one.
	Port int
	// ServiceCIDR is the range of ClusterIPs. Defaults to 127.96.0.0/16, whose addresses
	// are all on this machine.
	ServiceCIDR string
	// GOGC is the garbage collector's target for every component, in per cent. Defaults to 400.
	GOGC int
	// Args are further arguments of a component. They come last, so they win.
	Args map[Component][]string
	// FastNodeLifecycle notices nodes without leases after 10 s instead of 50, and evicts
	// their pods 5 s later instead of 300.
	FastNodeLifecycle bool
	// FeatureGates are those of every Kubernetes component, by name.
	FeatureGates map[string]bool
	// SchedulerFeatureGates are those of the scheduler alone, and win over FeatureGates.
	SchedulerFeatureGates map[string]bool
	// SchedulerConfig is YAML with further fields of a KubeSchedulerConfiguration, such as
	// profiles.
	SchedulerConfig string
	// WithoutScheduler starts no scheduler, and WithoutControllers no controller manager.
	// default ServiceAccounts are then missing, and with them every pod refused that names none.
	WithoutScheduler, WithoutControllers bool
	// Progress is told about the build of the program. Defaults to nowhere.
	Progress io.Writer
}

func (o Options) withDefaults() Options {
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = defaultServiceCIDR
	}
	if o.GOGC == 0 {
		o.GOGC = defaultGOGC
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// Validate reports every option that makes no sense.
func (o Options) Validate() error {
	var errs []error
	if o.KeepData && o.Dir == "" {
		errs = append(errs, errors.New("KeepData: needs Dir"))
	}
	if o.Port < 0 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("port %d: must be 0 to 65535", o.Port))
	}
	if o.GOGC < 0 {
		errs = append(errs, fmt.Errorf("GOGC %d: must not be negative", o.GOGC))
	}
	if _, _, err := net.ParseCIDR(o.withDefaults().ServiceCIDR); err != nil {
		errs = append(errs, fmt.Errorf("ServiceCIDR: %w", err))
	}
	for component := range o.Args {
		if !slices.Contains(components, component) {
			errs = append(errs, fmt.Errorf("arguments of %q: no such component", component))
		}
	}
	return errors.Join(errs...)
}

// Cluster is a control plane that runs. It is safe for concurrent use.
type Cluster struct {
	opts Options
	dir  string
	temp bool
	ca   *authority
	// serviceIP is the ClusterIP of Service default/kubernetes.
	serviceIP net.IP
	admin     *rest.Config
	ports     map[string]int
	spawner   *spawn.Spawner

	mu        sync.Mutex
	processes map[Component]*process
}

// Start runs a control plane and returns when it takes pods: all components are ready
// and the default ServiceAccount exists. ctx bounds the start only; the cluster runs
// until Stop, or until this process ends, however it ends.
//
// The error tells which component did not become ready, with the end of its log.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	opts = opts.withDefaults()
	if opts.Binary == "" {
		binary, err := Binary(ctx, opts.Progress)
		if err != nil {
			return nil, fmt.Errorf("start cluster: %w", err)
		}
		opts.Binary = binary
	}
	// A port that was free may be taken by the time its component listens.
	const attempts = 3
	for attempt := 1; ; attempt++ {
		c, err := start(ctx, opts)
		if err == nil {
			return c, nil
		}
		if attempt == attempts || ctx.Err() != nil || !strings.Contains(err.Error(), "address already in use") || opts.Port != 0 {
			return nil, fmt.Errorf("start cluster: %w", err)
		}
	}
}

func start(ctx context.Context, opts Options) (c *Cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	c = &Cluster{opts: opts, dir: opts.Dir, processes: map[Component]*process{}, spawner: spawn.New()}
	defer func() {
		if err != nil {
			// The error holds what matters of the logs.
			c.Stop()
			c = nil
		}
	}()
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "dovetail-cluster-"); err != nil {
			return c, err
		}
		c.temp = true
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return c, err
	}
	stale := []string{"logs"}
	if !opts.KeepData {
		stale = append(stale, "etcd", "pki")
	}
	for _, name := range stale {
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			return c, err
		}
	}
	for _, name := range []string{"logs", "etcd"} {
		if err := os.MkdirAll(filepath.Join(c.dir, name), 0o700); err != nil {
			return c, err
		}
	}
	if c.serviceIP, err = firstIP(opts.ServiceCIDR); err != nil {
		return c, err
	}
	if c.ca, err = writePKI(filepath.Join(c.dir, "pki"), c.serviceIP); err != nil {
		return c, fmt.Errorf("write certificates: %w", err)
	}
	if c.ports, err = freePorts("etcd", "etcd-peer", string(APIServer), string(ControllerManager), string(Scheduler)); err != nil {
		return c, err
	}
	if opts.Port != 0 {
		c.ports[string(APIServer)] = opts.Port
	}
	if err := c.writeConfigs(); err != nil {
		return c, err
	}
	for _, component := range c.enabled() {
		// Controllers and scheduler would exit while there is no API server.
		if component == ControllerManager || component == Scheduler {
			continue
		}
		if err := c.launch(component); err != nil {
			return c, err
		}
	}
	if err := c.waitHealthy(ctx, APIServer, "/livez"); err != nil {
		return c, err
	}
	for _, component := range c.enabled() {
		if component == ControllerManager || component == Scheduler {
			if err := c.launch(component); err != nil {
				return c, err
			}
		}
	}
	return c, c.WaitReady(ctx)
}

// WaitReady returns when every component is ready and pods can be made. Call it after a
// component was restarted.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, component := range c.enabled() {
		if component == Etcd {
			continue // the API server is not ready without it
		}
		if err := c.waitHealthy(ctx, component, readyPath(component)); err != nil {
			return err
		}
	}
	if c.opts.WithoutControllers {
		return nil
	}
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return err
	}
	return c.poll(ctx, ControllerManager, "ServiceAccount default/default", func() error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// enabled are the components that this cluster has, in the order of their start.
func (c *Cluster) enabled() []Component {
	return slices.DeleteFunc(slices.Clone(components), func(component Component) bool {
		return component == Scheduler && c.opts.WithoutScheduler || component == ControllerManager && c.opts.WithoutControllers
	})
}

// Stop ends all components, the API server's clients first, and takes a few seconds at
// most. It removes a temporary folder unless Options.KeepDir was set. Stopping again
// does nothing.
func (c *Cluster) Stop() {
	for _, component := range slices.Backward(components) {
		c.stop(component, syscall.SIGTERM)
	}
	c.spawner.Stop()
	if c.temp && !c.opts.KeepDir {
		// What is left in the temporary folder does no harm.
		_ = os.RemoveAll(c.dir)
	}
}

// Keep makes Stop leave the cluster's folder, with its logs, where it is.
func (c *Cluster) Keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opts.KeepDir = true
}

// Kill ends a component at once, as a crash would, and returns when it is gone.
func (c *Cluster) Kill(component Component) { c.stop(component, syscall.SIGKILL) }

// Restart starts a component that was killed, or stops and starts one that runs, and
// returns when it is ready. It listens where it did before.
func (c *Cluster) Restart(ctx context.Context, component Component) error {
	if !slices.Contains(c.enabled(), component) {
		return fmt.Errorf("restart %s: the cluster has none", component)
	}
	c.stop(component, syscall.SIGTERM)
	if err := c.launch(component); err != nil {
		return fmt.Errorf("restart %s: %w", component, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// Nothing tells about etcd but the API server that uses it.
	if component == Etcd {
		component = APIServer
	}
	if !c.running(component) {
		return nil
	}
	return c.waitHealthy(ctx, component, readyPath(component))
}

// readyPath is where a component tells that it is ready.
func readyPath(component Component) string {
	if component == ControllerManager {
		return "/healthz" // it has no /readyz
	}
	return "/readyz"
}

// Pause stops a component's clock without ending it, as a machine that hangs would, and
// Resume lets it go on. It returns once all threads stand still.
func (c *Cluster) Pause(component Component) error {
	if err := c.signal(component, syscall.SIGSTOP); err != nil {
		return err
	}
	pid := c.Pid(component)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if pid == 0 || stopped(pid) {
			return nil
		}
	}
	return fmt.Errorf("pause %s: process %d still runs after 5 s", component, pid)
}

// stopped reports whether all threads of a process are stopped. Where the system does not say,
// they are taken to be.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The state follows the name, which is in parentheses and may hold any character.
		if _, rest, ok := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " "); ok && !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return true
}

// Resume lets a paused component go on.
func (c *Cluster) Resume(component Component) error { return c.signal(component, syscall.SIGCONT) }

func (c *Cluster) signal(component Component, signal syscall.Signal) error {
	c.mu.Lock()
	p := c.processes[component]
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("signal %s: it does not run", component)
	}
	return p.signal(signal)
}

// Pid returns the process id of a component, or 0 if it does not run.
func (c *Cluster) Pid(component Component) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[component]; p != nil && !p.exited() {
		return p.cmd.Process.Pid
	}
	return 0
}

func (c *Cluster) running(component Component) bool { return c.Pid(component) != 0 }

func (c *Cluster) launch(component Component) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := startProcess(c.spawner, c.opts.Binary, append([]string{string(component)}, c.args(component)...),
		[]string{"GOGC=" + strconv.Itoa(c.opts.GOGC)}, c.LogFile(component))
	if err != nil {
		return fmt.Errorf("start %s: %w", component, err)
	}
	c.processes[component] = p
	return nil
}

// stop sends a signal to a component and kills it if that does not end it in time.
func (c *Cluster) stop(component Component, signal syscall.Signal) {
	c.mu.Lock()
	p := c.processes[component]
	delete(c.processes, component)
	c.mu.Unlock()
	if p != nil {
		p.stop(signal, stopTimeout)
	}
}

// Dir is the folder of the cluster's files.
func (c *Cluster) Dir() string { return c.dir }

// LogFile is where a component writes its log.
func (c *Cluster) LogFile(component Component) string {
	return filepath.Join(c.dir, "logs", string(component)+".log")
}

// ServiceIP is the ClusterIP of Service default/kubernetes.
func (c *Cluster) ServiceIP() string { return c.serviceIP.String() }

// Address is the host and port of the API server.
func (c *Cluster) Address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.ports[string(APIServer)]))
}

// path is a file of the cluster's folder.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// args are the arguments of a component.
func (c *Cluster) args(component Component) []string {
	flag := func(name string, value any) string { return fmt.Sprintf("--%s=%v", name, value) }
	pki := func(name string) string { return c.path("pki", name) }
	etcd := fmt.Sprintf("http://127.0.0.1:%d", c.ports["etcd"])
	gates := c.opts.FeatureGates
	var args []string
	switch component {
	case Etcd:
		peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports["etcd-peer"])
		args = []string{
			flag("name", "default"),
			flag("data-dir", c.path("etcd")),
			flag("listen-client-urls", etcd),
			flag("advertise-client-urls", etcd),
			flag("listen-peer-urls", peer),
			flag("initial-advertise-peer-urls", peer),
			flag("initial-cluster", "default="+peer),
			"--unsafe-no-fsync",
			flag("quota-backend-bytes", 4<<30),
			flag("auto-compaction-mode", "periodic"),
			flag("auto-compaction-retention", "5m"),
			flag("log-level", "warn"),
		}
	case APIServer:
		args = []string{
			flag("etcd-servers", etcd),
			flag("bind-address", "127.0.0.1"),
			flag("advertise-address", "127.0.0.1"),
			// Endpoints may not be loopback addresses: without this, it would try for ever.
			flag("endpoint-reconciler-type", "none"),
			flag("secure-port", c.ports[string(APIServer)]),
			flag("tls-cert-file", pki(servingCert)),
			flag("tls-private-key-file", pki(servingKey)),
			flag("client-ca-file", pki(caCert)),
			flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
			flag("service-account-key-file", pki(tokenKeyCheck)),
			flag("service-account-signing-key-file", pki(tokenKey)),
			flag("authorization-mode", "Node,RBAC"),
			flag("service-cluster-ip-range", c.opts.ServiceCIDR),
			flag("allow-privileged", true),
			flag("requestheader-client-ca-file", pki(proxyCACert)),
			flag("requestheader-allowed-names", proxyName),
			flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
			flag("requestheader-group-headers", "X-Remote-Group"),
			flag("requestheader-username-headers", "X-Remote-User"),
			flag("proxy-client-cert-file", pki(proxyCert)),
			flag("proxy-client-key-file", pki(proxyKey)),
			flag("max-requests-inflight", 3000),
			flag("max-mutating-requests-inflight", 1000),
			flag("enable-priority-and-fairness", false),
			flag("event-ttl", "15m"),
		}
		if c.opts.FastNodeLifecycle {
			args = append(args, flag("default-not-ready-toleration-seconds", 5), flag("default-unreachable-toleration-seconds", 5))
		}
	case ControllerManager:
		config := c.kubeconfigOf(component)
		args = []string{
			flag("kubeconfig", config),
			flag("authentication-kubeconfig", config),
			flag("authorization-kubeconfig", config),
			flag("bind-address", "127.0.0.1"),
			flag("secure-port", c.ports[string(ControllerManager)]),
			flag("controllers", "*"),
			flag("leader-elect", false),
			flag("use-service-account-credentials", true),
			flag("service-account-private-key-file", pki(tokenKey)),
			flag("root-ca-file", pki(caCert)),
			flag("cluster-signing-cert-file", pki(caCert)),
			flag("cluster-signing-key-file", pki(caKey)),
			flag("allocate-node-cidrs", false),
			// The default of 20 a second makes Deployments of a thousand pods crawl.
			flag("kube-api-qps", 1000),
			flag("kube-api-burst", 2000),
			// It makes this folder, by default outside of the cluster's own.
			flag("flex-volume-plugin-dir", c.path("flexvolumes")),
		}
		if c.opts.FastNodeLifecycle {
			args = append(args, flag("node-monitor-grace-period", "10s"), flag("node-monitor-period", "2s"))
		}
	case Scheduler:
		config := c.kubeconfigOf(component)
		args = []string{
			flag("config", c.path("scheduler.yaml")),
			flag("authentication-kubeconfig", config),
			flag("authorization-kubeconfig", config),
			flag("bind-address", "127.0.0.1"),
			flag("secure-port", c.ports[string(Scheduler)]),
		}
		gates = maps.Clone(gates)
		if gates == nil {
			gates = map[string]bool{}
		}
		maps.Copy(gates, c.opts.SchedulerFeatureGates)
	}
	if component != Etcd && len(gates) > 0 {
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(gates)) {
			pairs = append(pairs, fmt.Sprintf("%s=%t", name, gates[name]))
		}
		args = append(args, flag("feature-gates", strings.Join(pairs, ",")))
	}
	return append(args, c.opts.Args[component]...)
}

// writeConfigs writes the kubeconfigs of the administrator and of the components, and
// the scheduler's configuration.
func (c *Cluster) writeConfigs() error {
	admin, err := c.UserConfig("kubernetes-admin", "system:masters")
	if err != nil {
		return err
	}
	c.admin = admin
	if err := writeKubeconfig(c.Kubeconfig(), admin); err != nil {
		return err
	}
	for _, component := range []Component{ControllerManager, Scheduler} {
		config, err := c.UserConfig("system:" + string(component))
		if err != nil {
			return err
		}
		if err := writeKubeconfig(c.kubeconfigOf(component), config); err != nil {
			return err
		}
	}
	scheduler := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(c.opts.SchedulerConfig), &scheduler); err != nil {
		return fmt.Errorf("SchedulerConfig: %w", err)
	}
	scheduler["apiVersion"] = "kubescheduler.config.k8s.io/v1"
	scheduler["kind"] = "KubeSchedulerConfiguration"
	scheduler["leaderElection"] = map[string]any{"leaderElect": false}
	scheduler["clientConnection"] = map[string]any{"kubeconfig": c.kubeconfigOf(Scheduler), "qps": 1000, "burst": 2000}
	content, err := yaml.Marshal(scheduler)
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("scheduler.yaml"), content, 0o600)
}

func (c *Cluster) kubeconfigOf(component Component) string {
	return c.path(string(component) + ".kubeconfig")
}

// pollInterval is short: a start takes 4 seconds in all.
const pollInterval = 50 * time.Millisecond

func (c *Cluster) waitHealthy(ctx context.Context, component Component, path string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	if component == APIServer {
		transport, err := rest.TransportFor(c.RESTConfig())
		if err != nil {
			return err
		}
		client.Transport = transport
	} else {
		// The others make certificates for themselves. Nothing secret is sent.
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
		defer transport.CloseIdleConnections()
		client.Transport = transport
	}
	url := fmt.Sprintf("https://127.0.0.1:%d%s", c.ports[string(component)], path)
	return c.poll(ctx, component, path, func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
		}
		return nil
	})
}

// poll repeats check until it succeeds. A component that exits ends the wait.
func (c *Cluster) poll(ctx context.Context, component Component, what string, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		// Without etcd, the API server waits in vain.
		for _, needed := range []Component{Etcd, APIServer, component} {
			c.mu.Lock()
			p := c.processes[needed]
			c.mu.Unlock()
			if p == nil {
				return fmt.Errorf("wait for %s of %s: %s does not run", what, component, needed)
			}
			if p.exited() {
				return fmt.Errorf("wait for %s of %s: %s exited: %w\n%s", what, component, needed, p.err, tail(p.log))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s of %s: %w: %w\n%s", what, component, ctx.Err(), err, tail(c.LogFile(component)))
		case <-time.After(pollInterval):
		}
	}
}

// tail is the end of a log.
func tail(name string) string {
	const most = 4096
	content, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	if len(content) > most {
		content = content[len(content)-most:]
	}
	return strings.TrimSpace(string(content))
}

// freePorts finds a port of 127.0.0.1 for each name. Another process may take one before
// it is used.
func freePorts(names ...string) (map[string]int, error) {
	ports := map[string]int{}
	var listeners []net.Listener
	defer func() {
		for _, listener := range listeners {
			listener.Close()
		}
	}()
	for _, name := range names {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		listeners = append(listeners, listener)
		ports[name] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// firstIP is the first address of a range that Services get: that of default/kubernetes.
func firstIP(cidr string) (net.IP, error) {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return nil, err
	}
	ip := slices.Clone(network.IP)
	ip[len(ip)-1]++
	return ip, nil
}
