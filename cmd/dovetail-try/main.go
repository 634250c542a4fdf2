// Command dovetail-try starts a Kubernetes control plane, a simulated cloud and Dovetail on
// this machine, applies manifests, and shows the nodes that appear for them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
)

// controllerName is the source of the controller's events.
const controllerName = "dovetail"

// options are the flags.
type options struct {
	prepare   bool
	once      bool
	timeout   time.Duration
	plain     bool
	policies  bool
	dir       string
	manifests []string
	args      []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dovetail-try:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("dovetail-try", flag.ContinueOnError)
	f.SetOutput(usage)
	f.Usage = func() {
		fmt.Fprintf(usage, "usage: dovetail-try [flags] [file or folder of manifests ...] [-- flags of the controller]\n\nWithout manifests, %s is applied.\n\n", quickstart)
		f.PrintDefaults()
	}
	f.BoolVar(&o.prepare, "prepare", false, "only build the control plane, unless it is built already")
	f.BoolVar(&o.once, "once", false, "end when every pod has its place")
	f.DurationVar(&o.timeout, "timeout", 0, "give up after this time; 0 waits for ever")
	f.BoolVar(&o.plain, "plain", false, "print lines also to a terminal")
	f.BoolVar(&o.policies, "policies", true, "put the default policies in force")
	f.StringVar(&o.dir, "dir", "", "folder for the cluster's data and logs; defaults to a temporary one")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.manifests = f.Args()
	for i, a := range o.manifests {
		if a == "--" {
			o.manifests, o.args = o.manifests[:i], o.manifests[i+1:]
			break
		}
	}
	if len(o.manifests) == 0 {
		o.manifests = []string{quickstart}
	}
	for _, m := range o.manifests {
		if _, err := os.Stat(m); err != nil {
			return o, fmt.Errorf("manifests: %w", err)
		}
	}
	return o, nil
}

// quickstart is what is applied if nothing else is named.
const quickstart = "examples/quickstart"

func run(ctx context.Context, o options, out, progress io.Writer) error {
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	ctrl.SetLogger(logr.Discard()) // what libraries log is of no interest here
	if o.prepare {
		_, err := cluster.Binary(ctx, progress)
		return err
	}
	step := func(format string, args ...any) { fmt.Fprintf(progress, format+"\n", args...) }
	begin := time.Now()

	step("building dovetail")
	binary, err := build(ctx, progress)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(filepath.Dir(binary)) }()
	step("starting a Kubernetes control plane")
	c, err := cluster.Start(ctx, cluster.Options{Dir: o.dir, Progress: progress})
	if err != nil {
		return err
	}
	defer c.Stop()
	step("the control plane is ready after %.1f s; its logs are in %s", time.Since(begin).Seconds(), c.Dir())

	kinds, err := definitions()
	if err != nil {
		return err
	}
	if err := c.ApplyText(ctx, kinds...); err != nil {
		return fmt.Errorf("CustomResourceDefinitions: %w", err)
	}
	if o.policies {
		policies, err := defaultPolicies()
		if err != nil {
			return err
		}
		if err := c.ApplyText(ctx, policies...); err != nil {
			return fmt.Errorf("policies: %w", err)
		}
		step("%d default policies are in force", len(policies)/2)
	}
	kubelets, err := kubelet.New(c.RESTConfig(), kubelet.Options{})
	if err != nil {
		return err
	}
	ended := make(chan error, 3)
	go func() { ended <- kubelets.Run(ctx) }()
	logFile := filepath.Join(c.Dir(), "dovetail.log")
	controller, err := start(binary, c.Kubeconfig(), logFile, o.args)
	if err != nil {
		return err
	}
	defer stopProcess(controller)
	go func() {
		err := controller.Wait()
		if ctx.Err() == nil {
			ended <- fmt.Errorf("the controller has ended: %w; its log is %s", err, logFile)
		}
	}()
	step("the controller runs; its log is %s", logFile)

	view, err := newView(ctx, c.RESTConfig(), out)
	if err != nil {
		return err
	}
	view.live = !o.plain && !o.once && isTerminal(out)
	view.footer = []string{
		"look around:  export KUBECONFIG=" + c.Kubeconfig() + "; kubectl get nodeclaims,nodes,pods -A",
		"scale up:     kubectl scale deployment web --replicas 40",
		"stop:         Ctrl-C (everything goes, nothing is left behind)",
	}
	if !view.live {
		for _, l := range view.footer {
			step("%s", l)
		}
	}
	if err := c.ApplyFiles(ctx, o.manifests...); err != nil {
		return fmt.Errorf("manifests: %w", err)
	}
	step("applied %s", strings.Join(o.manifests, ", "))
	go func() { ended <- view.run(ctx, o.once) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && o.once {
			return fmt.Errorf("not every pod had a place after %s", o.timeout)
		}
		return nil
	}
}

// build builds the controller into a folder of its own.
func build(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := os.MkdirTemp("", "dovetail-try-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "dovetail")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/dovetail")
	cmd.Stdout, cmd.Stderr = progress, progress
	if err := cmd.Run(); err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("go build ./cmd/dovetail, which must run in the root of the repository: %w", err)
	}
	return binary, nil
}

func start(binary, kubeconfig, logFile string, args []string) (*exec.Cmd, error) {
	f, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.CommandContext(context.Background(), binary, append([]string{
		"controller", "--kubeconfig", kubeconfig, "--cloud", "sim", "--sim-stand-in", "EC2NodeClass.v1.karpenter.k8s.aws",
		"--metrics-port", "0", "--health-probe-port", "0", "--cluster-name", "try",
	}, args...)...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, cmd.Start()
}

func stopProcess(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			if cmd.Process.Signal(syscall.Signal(0)) != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	<-done
	_ = cmd.Process.Kill()
}

func newView(ctx context.Context, config *rest.Config, out io.Writer) (*view, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	go func() { _ = c.Start(ctx) }()
	v := &view{out: out, cache: c, begin: time.Now(), failed: map[types.NamespacedName]string{}, said: map[string]string{}}
	if _, err := c.GetInformer(ctx, &corev1.Pod{}); err != nil {
		return nil, err
	}
	return v, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
