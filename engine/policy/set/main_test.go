package set_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
)

// compileRego is what a command puts between this package and package rego.
func compileRego(ctx context.Context, p set.Program) (policy.Evaluator, error) {
	files := map[string]string{}
	for name, b := range p.Files {
		files[name] = string(b)
	}
	// A nil *Module in an interface is not nil.
	m, err := rego.Load(ctx, rego.Source{Name: p.Name, Hook: p.Hook, Files: files, Data: p.Data, Parameters: p.Parameters, Limits: p.Limits})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// compileWasm is the same for package wasm.
func compileWasm(h *wasm.Host) set.Compiler {
	return func(ctx context.Context, p set.Program) (policy.Evaluator, error) {
		for _, b := range p.Files {
			m, err := h.LoadPolicy(ctx, wasm.Source{Name: p.Name, Hook: p.Hook, Wasm: b, Parameters: p.Parameters, Limits: p.Limits})
			if err != nil {
				return nil, err
			}
			return m, nil
		}
		return nil, errors.New("no module")
	}
}

func loader(t testing.TB) *set.Loader {
	t.Helper()
	h, err := wasm.NewHost(wasm.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{v1alpha1.RuntimeRego: compileRego, v1alpha1.RuntimeWasm: compileWasm(h)}}
}

// patient is a time limit for tests that are not about time, on machines that are busy.
const patient = 10 * time.Second

// inline is an admit policy in Rego.
func inline(name, text string) *v1alpha1.NodePolicy {
	np := &v1alpha1.NodePolicy{}
	np.Name = name
	np.Spec = v1alpha1.NodePolicySpec{Hook: "admit", Runtime: "rego", Source: v1alpha1.PolicySource{Inline: &text}, Timeout: &metav1.Duration{Duration: patient}}
	return np
}

func raw(format string, args ...any) *runtime.RawExtension {
	return &runtime.RawExtension{Raw: fmt.Appendf(nil, format, args...)}
}

// warns is an admit policy that warns with a code.
func warns(code string) string {
	return fmt.Sprintf("package dovetail.admit.p\n\nwarn contains {\"code\": %q, \"msg\": \"m\"}\n", code)
}

// codes are the codes of the warnings of an admission, by policy.
func codes(t testing.TB, e *policy.Engine) string {
	t.Helper()
	v, err := e.Admit(t.Context(), sample.Admit())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, w := range v.Warn {
		out = append(out, w.Policy+":"+w.Code)
	}
	return strings.Join(out, " ")
}

// condition is a condition as status/reason.
func condition(st v1alpha1.NodePolicyStatus, kind string) string {
	c := meta.FindStatusCondition(st.Conditions, kind)
	if c == nil {
		return "missing"
	}
	return string(c.Status) + "/" + c.Reason
}

func write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	// Whole or not at all, as editors and kubelets write.
	if err := os.WriteFile(name+"~", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+"~", name); err != nil {
		t.Fatal(err)
	}
}

// cluster has ConfigMaps by namespace/name.
type cluster struct {
	mu   sync.Mutex
	maps map[string]map[string]string
}

func (c *cluster) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if data := c.maps[namespace+"/"+name]; data != nil {
		return &corev1.ConfigMap{Data: data}, nil
	}
	return nil, errors.New("not found")
}

// Secret has one with the key that signed uses.
func (c *cluster) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return &corev1.Secret{Data: map[string][]byte{"hmac": []byte("shared")}}, nil
}

// signed is an OPA bundle of one policy with a signature, or without one if the text is no
// policy.
func signed(t testing.TB, text string) []byte {
	t.Helper()
	b := bundle.Bundle{Data: map[string]any{}}
	b.Manifest.Init()
	if parsed, err := ast.ParseModule("p.rego", text); err == nil {
		b.Modules = []bundle.ModuleFile{{URL: "p.rego", Path: "/p.rego", RelativePath: "p.rego", Raw: []byte(text), Parsed: parsed}}
		if err := b.GenerateSignature(bundle.NewSigningConfig("shared", "HS256", ""), "default", false); err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	if err := bundle.NewWriter(&buf).DisableFormat(true).Write(b); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (c *cluster) put(name string, data map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maps[name] = data
}

// start runs s until the test ends.
func start(t testing.TB, s *set.Set) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Run() = %v, want %v", err, context.Canceled)
			}
		case <-time.After(patient):
			t.Error("Run() did not return")
		}
	})
}

// eventually waits until f is true, and returns how long that took.
func eventually(t testing.TB, what string, f func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !f() {
		if time.Since(begin) > patient {
			t.Fatalf("after %s still not: %s", patient, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(begin)
}

var _ source.Objects = (*cluster)(nil)

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
