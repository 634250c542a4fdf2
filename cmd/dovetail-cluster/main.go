// Command dovetail-cluster runs a real Kubernetes control plane on this machine, with
// nodes that only seem to run their pods: for trying Dovetail, or anything else that
// needs an API server and a scheduler, without a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
	"github.com/dovetail-sh/dovetail/test/cluster/local"
	"github.com/dovetail-sh/dovetail/test/cluster/proxy"
)

// stopTimeout is how long down waits for up to stop.
const stopTimeout = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "dovetail-cluster:", err)
		return 1
	}
	return 0
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "dovetail-cluster",
		Short:         "Run a Kubernetes control plane on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "dir", "", "folder of the cluster (default dovetail/cluster in the user's cache)")
	cmd.AddCommand(upCommand(&dir), downCommand(&dir), kubeconfigCommand(&dir), buildCommand())
	return cmd
}

// up is what the command of that name was told.
type up struct {
	dir      string
	port     int
	keep     bool
	fast     bool
	kubelets bool
	nodes    int
	apply    []string
	programs map[string]string
}

func upCommand(dir *string) *cobra.Command {
	var u up
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the control plane, and run it until interrupted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if u.dir, err = folder(*dir); err != nil {
				return err
			}
			return u.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&u.port, "port", 0, "port of the API server (default a free one)")
	flags.BoolVar(&u.keep, "keep-data", false, "start with the objects of the last time")
	flags.BoolVar(&u.fast, "fast-node-lifecycle", false, "notice dead nodes after 10 s instead of 50, and evict their pods after 5 s instead of 300")
	flags.BoolVar(&u.kubelets, "kubelets", true, "play the kubelet of every Node object")
	flags.IntVar(&u.nodes, "nodes", 0, "make so many nodes of 4 CPUs and 16 GiB")
	flags.StringArrayVar(&u.apply, "apply", nil, "apply the manifests of a file or folder; may be repeated")
	flags.StringToStringVar(&u.programs, "program", nil, "run pods with an image as processes, on a node called local: IMAGE=PATH; may be repeated")
	return cmd
}

func (u up) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := os.MkdirAll(u.dir, 0o755); err != nil {
		return err
	}
	release, err := claim(u.dir)
	if err != nil {
		return err
	}
	defer release()
	begun := time.Now()
	c, err := cluster.Start(ctx, cluster.Options{
		Dir: u.dir, KeepData: u.keep, Port: u.port, FastNodeLifecycle: u.fast, Progress: stderr,
	})
	if err != nil {
		return err
	}
	defer c.Stop()
	// What uses the API server ends before it does.
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 3)
	background := func(f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if u.kubelets {
		fleet, err := kubelet.New(c.RESTConfig(), kubelet.Options{Log: log})
		if err != nil {
			return err
		}
		background(fleet.Run)
	}
	if len(u.programs) > 0 {
		node, err := local.New(c.RESTConfig(), local.Options{Programs: u.programs, Dir: filepath.Join(u.dir, "local"), Log: log})
		if err != nil {
			return err
		}
		background(node.Run)
		services, err := proxy.New(c.RESTConfig(), proxy.Options{Log: log})
		if err != nil {
			return err
		}
		background(func(ctx context.Context) error { services.Run(ctx); return nil })
	}
	if err := makeNodes(ctx, c.RESTConfig(), u.nodes); err != nil {
		return err
	}
	if len(u.apply) > 0 {
		if err := c.ApplyFiles(ctx, u.apply...); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "export KUBECONFIG=%s\n", c.Kubeconfig())
	fmt.Fprintf(stderr, "the control plane is ready after %.1f s; its logs are in %s\nstop it with ^C, or with dovetail-cluster down\n",
		time.Since(begun).Seconds(), filepath.Join(u.dir, "logs"))
	select {
	case <-ctx.Done():
		fmt.Fprintln(stderr, "stopping")
		return nil
	case err := <-failed:
		return err
	}
}

// makeNodes makes the nodes that are missing.
func makeNodes(ctx context.Context, config *rest.Config, count int) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	for i := range count {
		name := fmt.Sprintf("node-%d", i+1)
		_, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{
				Capacity: capacity, Allocatable: capacity,
				// Without this condition, it would take pods before it is Ready.
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}},
			},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make node %q: %w", name, err)
		}
	}
	return nil
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the control plane that runs in the folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := folder(*dir)
			if err != nil {
				return err
			}
			return down(cmd.Context(), path)
		},
	}
}

// down asks the process that runs the cluster to stop, and waits until it has.
func down(ctx context.Context, dir string) error {
	pid, err := holder(dir)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		if _, err := holder(dir); errors.Is(err, errNotRunning) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not stop: %w", pid, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func kubeconfigCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the kubeconfig of the control plane that runs in the folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := folder(*dir)
			if err != nil {
				return err
			}
			if _, err := holder(path); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(path, "kubeconfig"))
			return err
		},
	}
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the control plane, unless it is built already, and print its path",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := cluster.Binary(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), binary)
			return err
		},
	}
}

// folder is the absolute path of the cluster's folder.
func folder(dir string) (string, error) {
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the user's cache: %w", err)
		}
		dir = filepath.Join(cache, "dovetail", "cluster")
	}
	return filepath.Abs(dir)
}

// errNotRunning is a folder in which no control plane runs.
var errNotRunning = errors.New("no control plane runs")

// The file with the id of the process that runs the cluster is locked by it, and so it
// never names another process that got the same id.
const pidFile = "up.pid"

// claim takes the folder for this process.
func claim(dir string) (release func(), err error) {
	path := filepath.Join(dir, pidFile)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644) //nolint:gosec // down may be somebody else's
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("a control plane runs in %s already: stop it with dovetail-cluster down, or choose another --dir", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(file, os.Getpid())
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}

// holder is the id of the process that runs the cluster of a folder.
func holder(dir string) (int, error) {
	path := filepath.Join(dir, pidFile)
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("%w in %s", errNotRunning, dir)
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return 0, fmt.Errorf("%w in %s", errNotRunning, dir)
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, fmt.Errorf("lock %s: %w", path, err)
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s holds no process id: %q", path, content)
	}
	return pid, nil
}
