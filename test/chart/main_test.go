// Package chart_test holds the chart to what it promises: what it renders, and what comes
// of that on a real control plane, with Helm's and kubectl's own code.
package chart_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	opacmd "github.com/open-policy-agent/opa/cmd"
	helmcmd "helm.sh/helm/v4/pkg/cmd"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
)

// chart is the chart under test.
const chart = "../../charts/dovetail"

// kubeVersion is what Helm is told where it asks no cluster: it takes its default from its
// own program's modules, of which a test knows none.
const kubeVersion = "v1.37.0"

// tools are the programs that this test is by other names, so that what users type runs
// with the code of the version in go.mod, whatever the machine has.
var tools = map[string]func() int{
	"helm": func() int {
		kube.ManagedFieldsManager = "helm"
		cmd, err := helmcmd.NewRootCmd(os.Stdout, os.Args[1:], helmcmd.SetupLogging)
		if err != nil {
			slog.Error("helm", "err", err)
			return 1
		}
		if err := cmd.Execute(); err != nil {
			var coded helmcmd.CommandError
			if errors.As(err, &coded) {
				return coded.ExitCode
			}
			return 1
		}
		return 0
	},
	"kubectl": func() int {
		if err := kubectlcmd.NewDefaultKubectlCommand().Execute(); err != nil {
			return 1
		}
		return 0
	},
	"opa": func() int {
		var coded interface{ ExitCode() int }
		switch err := opacmd.RootCommand.Execute(); {
		case err == nil:
			return 0
		case errors.As(err, &coded):
			return coded.ExitCode()
		default:
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	},
}

// bin is the folder with the tools.
var bin string

func TestMain(m *testing.M) {
	if tool := tools[filepath.Base(os.Args[0])]; tool != nil {
		os.Exit(tool())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctrl.SetLogger(logr.Discard()) // what libraries log is of no interest here
	var err error
	if bin, err = os.MkdirTemp("", "dovetail-chart-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(bin) }()
	self, err := os.Executable()
	for name := range tools {
		err = errors.Join(err, os.Symlink(self, filepath.Join(bin, name)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	args, log, err := audit(bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	auditLog = log
	shared.Options.Args = map[cluster.Component][]string{cluster.APIServer: args}
	defer background.Wait()
	return shared.Main(m)
}

// environment is that of users: the tools first, and nothing of Helm's that the machine has.
func environment(extra ...string) []string {
	home := "HELM_CONFIG_HOME=" + bin + "/helm-config"
	return append(append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), home, "HELM_CACHE_HOME="+bin+"/helm-cache", "HELM_DATA_HOME="+bin+"/helm-data"), extra...)
}

// tool runs helm or kubectl and returns what it printed.
func tool(ctx context.Context, env []string, stdin io.Reader, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environment(env...), stdin, &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), nil
}

// template renders the chart with values in YAML, as release r in namespace ns.
func template(t *testing.T, values string, args ...string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	all := append([]string{"template", "r", chart, "--namespace", "ns", "--values", "-", "--kube-version", kubeVersion}, args...)
	out, err := tool(t.Context(), nil, strings.NewReader(values), "helm", all...)
	if err != nil {
		return nil, err
	}
	objects, err := cluster.Decode([]byte(out))
	if err != nil {
		t.Fatalf("what was rendered is no YAML: %v\n%s", err, out)
	}
	return objects, nil
}

// find returns the object of a kind and name.
func find(objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	for _, o := range objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	return nil
}

// as decodes an object, strictly if its kind is known.
func as[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	out := new(T)
	if o == nil {
		t.Fatalf("no %T", out)
	}
	text, err := yaml.Marshal(o.Object)
	if err == nil {
		err = yaml.UnmarshalStrict(text, out)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return out
}

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, karpv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// variables are those of a container by name; nil stands for values from elsewhere.
func variables(c *corev1.Container) map[string]*string {
	out := map[string]*string{}
	for i := range c.Env {
		if c.Env[i].ValueFrom == nil {
			out[c.Env[i].Name] = &c.Env[i].Value
		} else {
			out[c.Env[i].Name] = nil
		}
	}
	return out
}
