package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
)

// compileChild is the hidden subcommand that compiles a Wasm module.
const compileChild = "wasm-compile-child"

// newWasmHost returns a host that compiles in child processes of this program and keeps
// compiled modules under the user's cache directory.
func newWasmHost() (*wasm.Host, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("cache for compiled Wasm modules: %w", err)
	}
	cache = filepath.Join(cache, "dovetail")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, fmt.Errorf("cache for compiled Wasm modules: %w", err)
	}
	return wasm.NewHost(wasm.HostOptions{CacheDir: filepath.Join(cache, "wasm"), CompileCommand: []string{self, compileChild}, CheckParameters: rego.CheckParameters})
}

// loadedPolicy is a policy that can be asked.
type loadedPolicy struct {
	policy.Policy
	found set.Found
	// rego and module are what evaluates; one of them is nil.
	rego   *rego.Module
	module *wasm.Policy
}

// policyLoader loads policies, and makes a Wasm host when the first module needs it.
type policyLoader struct {
	host *wasm.Host
}

// folder loads every policy in and below dir, or those of the file dir. Policies that cannot
// be used are errors of their own; the others are returned, in the order of their names.
func (l *policyLoader) folder(ctx context.Context, dir string) ([]loadedPolicy, []error) {
	found, errs := findPolicies(dir)
	var out []loadedPolicy
	for _, f := range found {
		p, err := l.load(ctx, f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, p)
	}
	if len(found)+len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s: no policy: neither a Rego file of package dovetail.<hook>.<name> nor a Wasm module", dir))
	}
	return out, errs
}

// findPolicies finds the policies in and below dir, with errors of single files apart.
func findPolicies(dir string) ([]set.Found, []error) {
	found, err := set.FromFolder(dir)
	if err == nil {
		return found, nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return found, joined.Unwrap()
	}
	return found, []error{err}
}

// enginePolicies are the policies to hand to an engine.
func enginePolicies(list []loadedPolicy) []policy.Policy {
	out := make([]policy.Policy, len(list))
	for i := range list {
		out[i] = list[i].Policy
	}
	return out
}

func (l *policyLoader) load(ctx context.Context, f set.Found) (loadedPolicy, error) {
	out := loadedPolicy{found: f}
	loader := set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{
		v1alpha1.RuntimeRego: func(ctx context.Context, p set.Program) (policy.Evaluator, error) {
			src := rego.Source{Name: p.Name, Hook: p.Hook, Files: map[string]string{}, Data: p.Data, Parameters: p.Parameters, Limits: p.Limits}
			for name, b := range p.Files {
				src.Files[name] = string(b)
			}
			m, err := rego.Load(ctx, src)
			if err != nil {
				return nil, err
			}
			out.rego = m
			return m, nil
		},
		v1alpha1.RuntimeWasm: func(ctx context.Context, p set.Program) (policy.Evaluator, error) {
			if l.host == nil {
				host, err := newWasmHost()
				if err != nil {
					return nil, err
				}
				l.host = host
			}
			src := wasm.Source{Name: p.Name, Hook: p.Hook, Parameters: p.Parameters, Limits: p.Limits}
			for _, b := range p.Files {
				src.Wasm = b
			}
			m, err := l.host.LoadPolicy(ctx, src)
			if err != nil {
				return nil, err
			}
			out.module = m
			return m, nil
		},
	}}
	var err error
	out.Policy, err = loader.Load(ctx, f.Policy, f.Artifact)
	return out, err
}

// with is f with other parameters.
func with(f set.Found, parameters map[string]any) (set.Found, error) {
	raw, err := json.Marshal(parameters)
	if err != nil {
		return f, err
	}
	f.Policy = f.Policy.DeepCopy()
	f.Policy.Spec.Parameters = &runtime.RawExtension{Raw: raw}
	return f, nil
}

// moduleName is the path of the module of f below its folder, and its bytes; "" for Rego.
func moduleName(f set.Found) (string, []byte) {
	for _, name := range sortedKeys(f.Artifact.Files) {
		if filepath.Ext(name) == ".wasm" {
			if filepath.Ext(f.File) == ".wasm" {
				return f.File, f.Artifact.Files[name]
			}
			return filepath.Join(filepath.Dir(f.File), name), f.Artifact.Files[name]
		}
	}
	return "", nil
}

func isTest(path string) bool { return strings.HasSuffix(path, "_test.rego") }

// readPolicyTree reads the files in and below dir, or the file dir, by path.
func readPolicyTree(dir string, extensions ...string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != dir && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(extensions, filepath.Ext(path)) {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out[path] = string(b)
		return nil
	})
	return out, err
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// factsFile is what a file says of the cluster beside its objects.
type factsFile struct {
	Cluster     policy.Cluster      `json:"cluster"`
	Commitments []policy.Commitment `json:"commitments"`
	Signals     policy.Signals      `json:"signals"`
	History     policy.History      `json:"history"`
	InFlight    policy.InFlight     `json:"inFlight"`
	TeamLabel   string              `json:"teamLabel"`
}

// readFacts reads a file of facts; the name "" means none.
func readFacts(name string) (policy.Facts, error) {
	if name == "" {
		return policy.Facts{}, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return policy.Facts{}, err
	}
	var f factsFile
	if err := yaml.UnmarshalStrict(b, &f); err != nil {
		return policy.Facts{}, fmt.Errorf("%s: %w", name, err)
	}
	for i := range f.Commitments {
		// A list that is left out selects all, as an empty one does.
		m := &f.Commitments[i].Matches
		for _, list := range []*[]string{&m.InstanceTypes, &m.Families, &m.Zones, &m.CapacityTypes} {
			if *list == nil {
				*list = []string{}
			}
		}
	}
	return policy.Facts{Cluster: f.Cluster, Commitments: f.Commitments, Signals: f.Signals, History: f.History, InFlight: f.InFlight, TeamLabel: f.TeamLabel}, nil
}

// errOne says that path must be one policy and is not.
func errOne(path string, n int, errs []error) error {
	return errors.Join(append([]error{fmt.Errorf("%s has %d policies; one is wanted", path, n)}, errs...)...)
}
