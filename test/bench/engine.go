package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
	"github.com/dovetail-sh/dovetail/test/cluster"
)

// karpenterGo is the Go that Karpenter asks for.
const karpenterGo = "go1.27.3"

// tools are what runs need.
type tools struct {
	dir, dovetail, karpenter string
	karpenterCRDs            []string
	// types is the file of instance types for Karpenter, prices their prices.
	types  string
	data   []byte
	prices map[offering]float64
}

// offering identifies something that has a price.
type offering struct{ kind, zone, capacity string }

func (t *tools) close() { _ = os.RemoveAll(t.dir) }

// prepare builds both engines and reads the instance types that Karpenter ships as an
// example: those of EC2 for Linux on amd64, up to a number of CPUs.
func prepare(ctx context.Context, cpus int) (t *tools, err error) {
	t = &tools{}
	if t.dir, err = os.MkdirTemp("", "dovetail-bench-"); err != nil {
		return nil, err
	}
	t.dovetail = filepath.Join(t.dir, "dovetail")
	fmt.Fprintln(os.Stderr, "building dovetail")
	if err := command(ctx, "", nil, "go", "build", "-o", t.dovetail, "github.com/dovetail-sh/dovetail/cmd/dovetail"); err != nil {
		return nil, err
	}
	if t.karpenter, err = buildKarpenter(ctx); err != nil {
		return nil, err
	}
	module, err := output(ctx, karpenterModule(), toolchain(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter")
	if err != nil {
		return nil, err
	}
	module = strings.TrimSpace(module)
	for _, pattern := range []string{"pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml"} {
		names, err := filepath.Glob(filepath.Join(module, pattern))
		if err != nil || len(names) == 0 {
			return nil, fmt.Errorf("CustomResourceDefinitions of Karpenter: %s: %d files: %w", pattern, len(names), err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			t.karpenterCRDs = append(t.karpenterCRDs, string(text))
		}
	}
	return t, t.readTypes(filepath.Join(module, "kwok", "examples", "aws_instance_types.json"), cpus)
}

func karpenterModule() string { return filepath.Join("test", "tools", "karpenter") }

func toolchain() []string { return []string{"GOTOOLCHAIN=" + karpenterGo} }

// buildKarpenter builds Karpenter's KWOK provider, unless the cache has it.
func buildKarpenter(ctx context.Context) (string, error) {
	sum, err := os.ReadFile(filepath.Join(karpenterModule(), "go.sum"))
	if err != nil {
		return "", fmt.Errorf("%w: run this in the root of the repository", err)
	}
	mod, err := os.ReadFile(filepath.Join(karpenterModule(), "go.mod"))
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256(slices.Concat(sum, mod, []byte(karpenterGo)))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "dovetail", "karpenter-"+hex.EncodeToString(digest[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	fmt.Fprintln(os.Stderr, "building Karpenter; this takes some minutes, once")
	part := path + "." + strconv.Itoa(os.Getpid())
	if err := command(ctx, karpenterModule(), toolchain(), "go", "build", "-o", part, "sigs.k8s.io/karpenter/kwok"); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

func command(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}

// instanceType is one of Karpenter's file.
type instanceType struct {
	Name             string            `json:"name"`
	Offerings        []json.RawMessage `json:"offerings"`
	Architecture     string            `json:"architecture"`
	OperatingSystems []string          `json:"operatingSystems"`
	Resources        map[string]string `json:"resources"`
}

func (t *tools) readTypes(file string, cpus int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var list, kept []instanceType
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	seen := map[string]bool{}
	t.prices = map[offering]float64{}
	for _, it := range list {
		n, err := strconv.Atoi(it.Resources["cpu"])
		if err != nil || n > cpus || it.Architecture != "x86_64" || !slices.Contains(it.OperatingSystems, "linux") || seen[it.Name] {
			continue
		}
		seen[it.Name] = true
		it.Architecture = "amd64" // as nodes say it; nothing matches x86_64
		kept = append(kept, it)
		for _, raw := range it.Offerings {
			var o struct {
				Price        float64
				Requirements []struct {
					Key    string   `json:"key"`
					Values []string `json:"values"`
				}
			}
			if err := json.Unmarshal(raw, &o); err != nil {
				return fmt.Errorf("%s: %s: %w", file, it.Name, err)
			}
			id := offering{kind: it.Name}
			for _, r := range o.Requirements {
				switch r.Key {
				case "karpenter.sh/capacity-type":
					id.capacity = r.Values[0]
				case corev1.LabelTopologyZone:
					id.zone = r.Values[0]
				}
			}
			t.prices[id] = o.Price
		}
	}
	if len(kept) == 0 {
		return fmt.Errorf("%s: no instance type for Linux on amd64 with at most %d CPUs", file, cpus)
	}
	if t.data, err = json.Marshal(kept); err != nil {
		return err
	}
	t.types = filepath.Join(t.dir, "types.json")
	fmt.Fprintf(os.Stderr, "%d instance types, %d offerings\n", len(kept), len(t.prices))
	return os.WriteFile(t.types, t.data, 0o600)
}

// engine is one of the two.
type engine struct {
	// manifests are the kinds, the NodeClass and the NodePool.
	manifests func(*tools) ([]string, error)
	command   func(t *tools, c *cluster.Cluster, port int) *exec.Cmd
}

var engines = map[string]engine{
	"dovetail": {
		manifests: func(t *tools) ([]string, error) {
			out, err := ownKinds()
			if err != nil {
				return nil, err
			}
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			if _, err := w.Write(t.data); err != nil {
				return nil, err
			}
			if err := w.Close(); err != nil {
				return nil, err
			}
			file := corev1.ConfigMap{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "types"},
				BinaryData: map[string][]byte{"types.json.gz": packed.Bytes()},
			}
			text, err := yaml.Marshal(file)
			if err != nil {
				return nil, err
			}
			return append(out, string(text),
				"apiVersion: dovetail.sh/v1alpha1\nkind: SimNodeClass\nmetadata: {name: default}\nspec: {catalog: {configMapRef: {namespace: kube-system, name: types}}}\n",
				pool("dovetail.sh", "SimNodeClass")), nil
		},
		command: func(t *tools, c *cluster.Cluster, port int) *exec.Cmd {
			return exec.Command(t.dovetail, "controller", "--kubeconfig", c.Kubeconfig(), "--cloud", "sim", "--disable-leader-election",
				"--metrics-port", strconv.Itoa(port), "--health-probe-port", "0", "--enable-profiling")
		},
	},
	"karpenter": {
		manifests: func(t *tools) ([]string, error) {
			return append(slices.Clone(t.karpenterCRDs),
				"apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: default}\nspec: {}\n",
				pool("karpenter.kwok.sh", "KWOKNodeClass")), nil
		},
		command: func(t *tools, c *cluster.Cluster, port int) *exec.Cmd {
			cmd := exec.Command(t.karpenter)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "DISABLE_LEADER_ELECTION=true", "SYSTEM_NAMESPACE=kube-system",
				"METRICS_PORT="+strconv.Itoa(port), "HEALTH_PROBE_PORT="+strconv.Itoa(freePort()), "KARPENTER_SERVICE=karpenter", "CPU_REQUESTS=2000",
				"INSTANCE_TYPES_FILE_PATH="+t.types)
			return cmd
		},
	},
}

func ownKinds() ([]string, error) {
	var out []string
	for _, name := range [][2]string{
		{"karpenter.sh", "nodepools"}, {"karpenter.sh", "nodeclaims"}, {"karpenter.sh", "nodeoverlays"},
		{"dovetail.sh", "nodepolicies"}, {"dovetail.sh", "simnodeclasses"}, {"dovetail.sh", "siminstances"},
	} {
		text, err := crds.Read(name[0], name[1])
		if err != nil {
			return nil, err
		}
		out = append(out, string(text))
	}
	return out, nil
}

func pool(group, kind string) string {
	return fmt.Sprintf(`apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      expireAfter: Never
      requirements:
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: kubernetes.io/os, operator: In, values: [linux]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
      nodeClassRef: {group: %s, kind: %s, name: default}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
`, group, kind)
}

func freePort() int {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
