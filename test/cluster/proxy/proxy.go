// Package proxy lets Services of a cluster reach processes of this machine: it listens
// on each Service's ClusterIP, which is a loopback address of the ranges that package
// cluster uses, and connects to the port of a pod that runs as a local process. So a
// webhook is called through its Service as it would be in a real cluster.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Options says what is proxied. The zero value serves Services of the pods of node local.
type Options struct {
	// Node is the node whose pods are local processes. Defaults to "local".
	Node string
	// APIServer is the host and port that the Service default/kubernetes leads to. Its
	// pods are no pods. Defaults to the host of the client's configuration.
	APIServer string
	// Log is told about ports that cannot be listened on, such as those below 1024 without
	// being root. Defaults to nothing.
	Log *slog.Logger
}

// Proxy listens for the Services of a cluster. It is safe for concurrent use.
type Proxy struct {
	opts     Options
	services cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	// changed has room for one: changes that come together are looked at together.
	changed chan struct{}

	mu sync.Mutex
	// open are the listeners, by address.
	open map[string]*listener
	// refused are the addresses that could not be listened on, so that each is told once.
	refused map[string]bool
}

// listener serves one port of a Service.
type listener struct {
	net.Listener
	mu sync.Mutex
	// targets are the addresses behind it, never empty.
	targets []string
	next    int
}

// New returns the proxy of the cluster that config names. It does nothing before Run.
func New(config *rest.Config, opts Options) (*Proxy, error) {
	if opts.Node == "" {
		opts.Node = "local"
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.APIServer == "" {
		base, _, err := rest.DefaultServerUrlFor(config)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		opts.APIServer = base.Host
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{opts: opts, changed: make(chan struct{}, 1), open: map[string]*listener{}, refused: map[string]bool{}}
	p.services = informers.NewSharedInformerFactory(client, 0).Core().V1().Services().Informer()
	p.pods = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", opts.Node).String()
	})).Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{p.services, p.pods} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { p.notify() },
			UpdateFunc: func(any, any) { p.notify() },
			DeleteFunc: func(any) { p.notify() },
		})
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
	}
	return p, nil
}

func (p *Proxy) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Run serves until ctx ends, and then closes what it opened.
func (p *Proxy) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	defer p.update(ctx, &group, nil)
	group.Go(func() { p.services.RunWithContext(ctx) })
	group.Go(func() { p.pods.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), p.services.HasSynced, p.pods.HasSynced) {
		return
	}
	for {
		// An address may be taken for a moment only.
		var retry <-chan time.Time
		if !p.update(ctx, &group, p.wanted()) {
			retry = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		case <-retry:
		}
	}
}

// wanted returns the addresses to listen on, each with what is behind it.
func (p *Proxy) wanted() map[string][]string {
	wanted := map[string][]string{}
	for _, object := range p.services.GetStore().List() {
		service := object.(*corev1.Service)
		for _, port := range service.Spec.Ports {
			if port.Protocol != corev1.ProtocolTCP && port.Protocol != "" {
				continue
			}
			targets := p.targets(service, port)
			if len(targets) == 0 {
				continue
			}
			for _, ip := range service.Spec.ClusterIPs {
				if ip == corev1.ClusterIPNone || ip == "" {
					continue
				}
				wanted[net.JoinHostPort(ip, strconv.Itoa(int(port.Port)))] = targets
			}
		}
	}
	return wanted
}

func (p *Proxy) targets(service *corev1.Service, port corev1.ServicePort) []string {
	if service.Namespace == metav1.NamespaceDefault && service.Name == "kubernetes" {
		return []string{p.opts.APIServer}
	}
	if len(service.Spec.Selector) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	var targets []string
	for _, object := range p.pods.GetStore().List() {
		pod := object.(*corev1.Pod)
		if pod.Namespace != service.Namespace || pod.DeletionTimestamp != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if !isReady(pod) && !service.Spec.PublishNotReadyAddresses {
			continue
		}
		if number := portOf(pod, port); number != 0 {
			targets = append(targets, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(number))))
		}
	}
	slices.Sort(targets)
	return slices.Compact(targets)
}

// portOf is the port of the pod that the Service's leads to; 0 if it has none of that name.
func portOf(pod *corev1.Pod, port corev1.ServicePort) int32 {
	switch {
	case port.TargetPort.Type == intstr.String:
		for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			for _, has := range container.Ports {
				if has.Name == port.TargetPort.StrVal {
					return has.ContainerPort
				}
			}
		}
		return 0
	case port.TargetPort.IntVal != 0:
		return port.TargetPort.IntVal
	default:
		return port.Port
	}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// update closes and opens listeners until those are open that are wanted. It returns
// false if some could not be opened.
func (p *Proxy) update(ctx context.Context, group *sync.WaitGroup, wanted map[string][]string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, l := range p.open {
		if _, ok := wanted[address]; !ok {
			// It only stops to accept: connections go on.
			_ = l.Close()
			delete(p.open, address)
		}
	}
	for address := range p.refused {
		if _, ok := wanted[address]; !ok {
			delete(p.refused, address)
		}
	}
	var config net.ListenConfig
	for address, targets := range wanted {
		if l := p.open[address]; l != nil {
			l.mu.Lock()
			l.targets = targets
			l.mu.Unlock()
			continue
		}
		accept, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			if ctx.Err() == nil && !p.refused[address] {
				p.refused[address] = true
				p.opts.Log.Error("listen for a Service", "address", address, "err", err)
			}
			continue
		}
		l := &listener{Listener: accept, targets: targets}
		p.open[address] = l
		delete(p.refused, address)
		group.Go(func() { l.serve(ctx, group, p.opts.Log) })
	}
	return len(p.refused) == 0
}

// serve accepts connections until the listener is closed.
func (l *listener) serve(ctx context.Context, group *sync.WaitGroup, log *slog.Logger) {
	for {
		from, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Error("accept a connection", "address", l.Addr(), "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond): // out of files, for example
			}
			continue
		}
		group.Go(func() { l.connect(ctx, from, log) })
	}
}

// connect copies between a connection and one to a target, until either ends.
func (l *listener) connect(ctx context.Context, from net.Conn, log *slog.Logger) {
	defer from.Close()
	l.mu.Lock()
	target := l.targets[l.next%len(l.targets)]
	l.next++
	l.mu.Unlock()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	to, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		if ctx.Err() == nil {
			log.Error("connect to a pod", "service", l.Addr(), "target", target, "err", err)
		}
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	go pump(to, from, done)
	go pump(from, to, done)
	// When one side has said all, the other may still answer.
	for range 2 {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// pump copies one direction and passes its end on.
func pump(to, from net.Conn, done chan<- struct{}) {
	// An error is an end as well.
	_, _ = io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	done <- struct{}{}
}
