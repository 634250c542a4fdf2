package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

func controllerCommand() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the nodes of a cluster",
		Long: `Run the nodes of a cluster: buy nodes for pods that have none, and end nodes that are
deleted, under the NodePools of Karpenter's API and the NodePolicies of users.

Every flag can be given as an environment variable with the flag's name in upper case and
underscores, such as BATCH_IDLE_DURATION; flags win.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return exit{2, err}
			}
			warnings, err := s.complete()
			if err != nil {
				return exit{2, err}
			}
			return runController(cmd.Context(), &s, warnings)
		},
	}
	s.add(cmd.Flags())
	return cmd
}

// newLogger logs JSON.
func newLogger(s *settings) (logr.Logger, error) {
	config := zap.NewProductionConfig()
	config.OutputPaths, config.ErrorOutputPaths = strings.Split(s.logOutput, ","), strings.Split(s.logErrors, ",")
	config.Sampling = nil
	config.EncoderConfig.TimeKey = "time"
	config.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	config.DisableStacktrace = true
	switch s.logLevel {
	case "debug":
		config.Level.SetLevel(zapcore.DebugLevel)
	case "error":
		config.Level.SetLevel(zapcore.ErrorLevel)
	}
	l, err := config.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("--log-output-paths: %w", err)
	}
	return zapr.NewLogger(l), nil
}

// restConfig is how to reach the API server.
func restConfig(s *settings) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if s.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w", err)
	}
	config.QPS, config.Burst = float32(s.qps), s.burst
	config.UserAgent = "dovetail/" + version()
	return config, nil
}

// newScheme knows all kinds that are read or written.
func newScheme() (*kruntime.Scheme, error) {
	scheme := kruntime.NewScheme()
	var errs []error
	for _, add := range []func(*kruntime.Scheme) error{clientgoscheme.AddToScheme, karpv1.AddToScheme, karpv1alpha1.AddToScheme, v1alpha1.AddToScheme} {
		errs = append(errs, add(scheme))
	}
	return scheme, errors.Join(errs...)
}

// defaultSpread reads the file of --scheduler-config.
func defaultSpread(s *settings) ([]corev1.TopologySpreadConstraint, error) {
	if s.schedulerConfig == "" {
		return nil, nil
	}
	content, err := os.ReadFile(s.schedulerConfig)
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w", err)
	}
	spread, err := load.SchedulerConfig(load.Input{Name: s.schedulerConfig, Data: content})
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w", err)
	}
	return spread, nil
}

// limits makes the runtime keep within the memory and cores that the process was given.
func limits(s *settings) {
	if s.memoryLimit > 0 {
		debug.SetMemoryLimit(s.memoryLimit / 10 * 9)
	}
}

// metricsServer is where metrics are, with pprof if that is asked for.
func metricsServer(s *settings) server.Options {
	o := server.Options{BindAddress: address(s.metricsPort)}
	if s.profiling {
		o.ExtraHandlers = map[string]http.Handler{
			"/debug/pprof/":        http.HandlerFunc(pprof.Index),
			"/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
			"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
			"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
			"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
		}
	}
	return o
}

// address of a port on all interfaces; 0 is none.
func address(port int) string {
	if port == 0 {
		return "0"
	}
	return ":" + strconv.Itoa(port)
}

func runController(ctx context.Context, s *settings, warnings []string) error {
	logger, err := newLogger(s)
	if err != nil {
		return exit{2, err}
	}
	ctrl.SetLogger(logger)
	klog.SetLogger(logger.WithName("client"))
	for _, w := range warnings {
		logger.Info("warning: " + w)
	}
	limits(s)
	config, err := restConfig(s)
	if err != nil {
		return exit{2, err}
	}
	logger.Info("starting", "version", version(), "go", runtime.Version(), "cloud", s.cloud, "shadow", s.shadow, "apiServer", config.Host)
	mgr, err := assemble(s, config)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := mgr.Start(ctx); err != nil {
		return err
	}
	logger.Info("stopped", "after", time.Since(begin).Round(time.Second).String())
	return nil
}
