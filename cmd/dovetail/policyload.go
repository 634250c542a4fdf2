package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
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
	return wasm.NewHost(wasm.HostOptions{CacheDir: filepath.Join(cache, "wasm"), CompileCommand: []string{self, compileChild}})
}

// settings are how a policy of a folder is used: the file name.yaml beside name.rego or
// name.wasm.
type settings struct {
	// Name defaults to the last part of the package, or to the name of the file.
	Name string `json:"name"`
	// Hook is needed for a Wasm module of several hooks.
	Hook       policy.Hook          `json:"hook"`
	Parameters map[string]any       `json:"parameters"`
	Data       map[string]any       `json:"data"`
	Order      int                  `json:"order"`
	Mode       policy.Mode          `json:"mode"`
	Failure    policy.FailurePolicy `json:"failurePolicy"`
	// NodePools for which the policy is asked; none means all.
	NodePools []string `json:"nodePools"`
	Reasons   []string `json:"reasons"`
}

// policyFile is a policy of a folder before it is loaded.
type policyFile struct {
	path string // of the Rego file or Wasm module
	hook policy.Hook
	settings
	rego map[string]string // library included
	wasm []byte
}

// loadedPolicy is a policy that can be asked.
type loadedPolicy struct {
	policy.Policy
	file   policyFile
	rego   *rego.Module
	module *wasm.Policy
}

// policyLoader loads policies, and makes a Wasm host when the first module needs it.
type policyLoader struct {
	host *wasm.Host
}

// folder loads every policy in and below dir, or the one that dir is. Policies that cannot
// be used are errors of their own; the others are returned.
func (l *policyLoader) folder(ctx context.Context, dir string) ([]loadedPolicy, []error) {
	files, errs := policyFiles(dir)
	var out []loadedPolicy
	seen := map[string]string{}
	for _, f := range files {
		if other, ok := seen[f.Name]; ok {
			errs = append(errs, &policy.Error{Class: policy.ClassLoad, Policy: f.Name, Msg: fmt.Sprintf("%s and %s have one name", other, f.path)})
			continue
		}
		seen[f.Name] = f.path
		p, err := l.load(ctx, f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, p)
	}
	if len(files)+len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s: no policy: neither a Rego file of package dovetail.<hook>.<name> nor a Wasm module", dir))
	}
	return out, errs
}

// enginePolicies are the policies to hand to an engine.
func enginePolicies(list []loadedPolicy) []policy.Policy {
	out := make([]policy.Policy, len(list))
	for i := range list {
		out[i] = list[i].Policy
	}
	return out
}

func (l *policyLoader) load(ctx context.Context, f policyFile) (loadedPolicy, error) {
	out := loadedPolicy{file: f, Policy: policy.Policy{
		Name: f.Name, Hook: f.hook, Order: f.Order, Mode: f.Mode, Failure: f.Failure, Parameters: f.Parameters, Reasons: f.Reasons,
	}}
	if len(f.NodePools) > 0 {
		out.Applies = func(p *policy.NodePool) bool { return slices.Contains(f.NodePools, p.Name) }
	}
	if f.wasm == nil {
		m, err := rego.Load(ctx, rego.Source{Name: f.Name, Hook: f.hook, Files: f.rego, Data: f.Data, Parameters: f.Parameters})
		if err != nil {
			return out, err
		}
		out.rego, out.Evaluator, out.Revision = m, m, m.Revision()
		return out, nil
	}
	if l.host == nil {
		host, err := newWasmHost()
		if err != nil {
			return out, err
		}
		l.host = host
	}
	m, err := l.host.LoadPolicy(ctx, wasm.Source{Name: f.Name, Hook: f.hook, Wasm: f.wasm, Parameters: f.Parameters})
	if err != nil {
		return out, err
	}
	params, err := json.Marshal(f.Parameters)
	if err != nil {
		return out, fmt.Errorf("policy %q: parameters: %w", f.Name, err)
	}
	sum := sha256.Sum256(append([]byte(m.Digest()+"\x00"), params...))
	out.module, out.Evaluator, out.Revision = m, m, "sha256:"+hex.EncodeToString(sum[:])
	return out, nil
}

var packageLine = regexp.MustCompile(`(?m)^package[ \t]+([A-Za-z0-9_.]+)`)

// packageOf is the package that a Rego file declares.
func packageOf(text string) string {
	m := packageLine.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

// hookOf splits dovetail.<hook>.<name>; ok is false for other packages.
func hookOf(pkg string) (hook policy.Hook, name string, ok bool) {
	parts := strings.SplitN(pkg, ".", 3)
	if len(parts) < 3 || parts[0] != "dovetail" || !slices.Contains(policy.Hooks(), policy.Hook(parts[1])) {
		return "", "", false
	}
	return policy.Hook(parts[1]), parts[2], true
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

// policyFiles finds the policies in and below dir. Rego files of package dovetail.lib are
// there for all of them; further files of a policy's own package belong to it.
func policyFiles(dir string) ([]policyFile, []error) {
	texts, err := readPolicyTree(dir, ".rego", ".wasm", ".yaml")
	if err != nil {
		return nil, []error{err}
	}
	var out []policyFile
	var errs []error
	lib := map[string]string{}
	at := map[string]int{}
	for _, path := range sortedKeys(texts) {
		if filepath.Ext(path) != ".rego" || isTest(path) {
			continue
		}
		pkg := packageOf(texts[path])
		if pkg == "dovetail.lib" || strings.HasPrefix(pkg, "dovetail.lib.") {
			lib[path] = texts[path]
			continue
		}
		hook, name, ok := hookOf(pkg)
		if !ok {
			what := "declares no package"
			if pkg != "" {
				what = "is of package " + pkg
			}
			errs = append(errs, &policy.Error{Class: policy.ClassLoad, File: path, Line: 1,
				Msg: what + "; a policy is of package dovetail.<hook>.<name>, where hook is score, disrupt, launch or admit"})
			continue
		}
		if i, ok := at[pkg]; ok {
			out[i].rego[path] = texts[path]
			continue
		}
		at[pkg] = len(out)
		f := policyFile{path: path, hook: hook, rego: map[string]string{path: texts[path]}}
		f.Name = strings.ReplaceAll(name, "_", "-")
		out = append(out, f)
	}
	for _, path := range sortedKeys(texts) {
		if filepath.Ext(path) == ".wasm" {
			f := policyFile{path: path, wasm: []byte(texts[path])}
			f.Name = strings.TrimSuffix(filepath.Base(path), ".wasm")
			out = append(out, f)
		}
	}
	var usable []policyFile
	for _, f := range out {
		if f.rego != nil {
			for path, text := range lib {
				f.rego[path] = text
			}
		}
		if err := f.configure(texts); err != nil {
			errs = append(errs, err)
			continue
		}
		usable = append(usable, f)
	}
	return usable, errs
}

// configure reads the settings beside the policy, if there are any, and finds the hook of
// a module.
func (f *policyFile) configure(texts map[string]string) error {
	fault := func(format string, args ...any) error {
		return &policy.Error{Class: policy.ClassLoad, Policy: f.Name, Msg: fmt.Sprintf(format, args...)}
	}
	side := strings.TrimSuffix(f.path, filepath.Ext(f.path)) + ".yaml"
	text, ok := texts[side]
	if !ok {
		b, err := os.ReadFile(side)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text = string(b)
	}
	s := settings{Name: f.Name}
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		return fault("%s: %v", side, err)
	}
	if f.rego != nil && s.Hook != "" && s.Hook != f.hook {
		return fault("%s: hook %s, but the package is of hook %s", side, s.Hook, f.hook)
	}
	if s.Mode != "" && !slices.Contains([]policy.Mode{policy.Enforce, policy.Shadow, policy.Disabled}, s.Mode) {
		return fault("%s: mode %s; Enforce, Shadow or Disabled is required", side, s.Mode)
	}
	if s.Failure != "" && s.Failure != policy.Ignore && s.Failure != policy.Deny {
		return fault("%s: failurePolicy %s; Ignore or Deny is required", side, s.Failure)
	}
	f.settings = s
	if f.rego != nil {
		return nil
	}
	f.hook = s.Hook
	if f.hook == "" {
		hooks, err := moduleHooks(f.wasm)
		if err != nil {
			return fault("%v", err)
		}
		if len(hooks) != 1 {
			return fault("the module has hooks %v; %s must name one of them (hook)", hooks, side)
		}
		f.hook = hooks[0]
	}
	return nil
}

// moduleHooks are the hooks that a module exports a function for.
func moduleHooks(b []byte) ([]policy.Hook, error) {
	m, err := module.Decode(b)
	if err != nil {
		return nil, err
	}
	var out []policy.Hook
	for _, h := range frame.Hooks() {
		if _, ok := m.Export(h.Export()); ok {
			out = append(out, policy.Hook(h.String()))
		}
	}
	return out, nil
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
	return policy.Facts{Cluster: f.Cluster, Commitments: f.Commitments, Signals: f.Signals, History: f.History, InFlight: f.InFlight, TeamLabel: f.TeamLabel}, nil
}
