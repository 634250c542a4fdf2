package set_test

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
)

// idle is an evaluator without an opinion.
type idle struct{ policy.Evaluator }

func (idle) Score(context.Context, *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	return policy.ScoreAnswer{}, policy.Stats{}, nil
}

func (idle) Gate(context.Context, policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	return policy.GateAnswer{}, policy.Stats{}, nil
}

func artifact(t testing.TB, files ...string) source.Artifact {
	t.Helper()
	m := map[string][]byte{}
	for i := 0; i < len(files); i += 2 {
		m[files[i]] = []byte(files[i+1])
	}
	a, err := source.New(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestLoader_Load checks what a policy and its program are made of.
func TestLoader_Load(t *testing.T) {
	memory := resource.MustParse("8Mi")
	np := &v1alpha1.NodePolicy{}
	np.Name = "calm"
	np.Spec = v1alpha1.NodePolicySpec{
		Hook: "disrupt", Runtime: "rego", Source: v1alpha1.PolicySource{File: &v1alpha1.FileSource{Path: "x"}},
		Parameters: raw(`{"x": 1.50}`), Data: &v1alpha1.PolicyData{Inline: raw(`{"fee": 2}`)},
		NodePoolSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}},
		Reasons:          []v1alpha1.Reason{"Drifted"}, Mode: "Shadow", FailurePolicy: "Ignore",
		Timeout: &metav1.Duration{Duration: time.Second}, MemoryLimit: &memory, Order: -4,
	}
	a := artifact(t, "a.rego", "package a", "a_test.rego", "package b", "data.json", `{"fee": 1, "rates": {"m7i": 3}}`, "rates/eu/data.yaml", "m7i: 4\n", "notes.json", "[")
	a.Documents = map[string][]byte{"holidays": []byte("[2030-01-01]"), "fee": []byte("9")}
	var program set.Program
	l := &set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{
		"rego": func(_ context.Context, p set.Program) (policy.Evaluator, error) { program = p; return idle{}, nil },
		"wasm": func(_ context.Context, p set.Program) (policy.Evaluator, error) { program = p; return idle{}, nil },
	}}
	p, err := l.Load(t.Context(), np, a)
	if err != nil {
		t.Fatal(err)
	}
	asText := cmp.Transformer("text", func(b []byte) string { return string(b) })
	want := set.Program{
		Name: "calm", Hook: policy.Disrupt, Files: map[string][]byte{"a.rego": []byte("package a")},
		Limits: policy.Limits{Deadline: time.Second, AllocBytes: 8 << 20},
	}
	if diff := cmp.Diff(want, program, asText, cmpopts.IgnoreFields(set.Program{}, "Data", "Parameters")); diff != "" {
		t.Errorf("program (-want +got):\n%s", diff)
	}
	if got, want := jsonOf(t, program.Data), `{"fee":2,"holidays":["2030-01-01"],"rates":{"eu":{"m7i":4},"m7i":3}}`; got != want {
		t.Errorf("data %s, want %s", got, want)
	}
	if got, want := jsonOf(t, program.Parameters), `{"x":1.50}`; got != want {
		t.Errorf("parameters %s, want %s", got, want)
	}
	if diff := cmp.Diff(policy.Policy{
		Name: "calm", Hook: policy.Disrupt, Order: -4, Mode: policy.Shadow, Failure: policy.Ignore, Reasons: []string{"Drifted"}, Limits: want.Limits,
	}, p, cmpopts.IgnoreFields(policy.Policy{}, "Revision", "Evaluator", "Parameters", "Documents", "Applies")); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	if len(p.Documents) != 3 || !strings.HasPrefix(p.Documents["rates"].Revision, "sha256:") {
		t.Errorf("documents %v, want three with digests", p.Documents)
	}
	if !p.Applies(&policy.NodePool{Labels: map[string]string{"team": "web"}}) || p.Applies(&policy.NodePool{}) {
		t.Error("the selector does not choose the NodePools of team web")
	}

	revisions := map[string]string{p.Revision: "at first"}
	for what, change := range map[string]func(*v1alpha1.NodePolicy, *source.Artifact){
		"a file":       func(_ *v1alpha1.NodePolicy, a *source.Artifact) { *a = artifact(t, "a.rego", "package b") },
		"a document":   func(np *v1alpha1.NodePolicy, _ *source.Artifact) { np.Spec.Data.Inline = raw(`{"fee": 3}`) },
		"a parameter":  func(np *v1alpha1.NodePolicy, _ *source.Artifact) { np.Spec.Parameters = raw(`{"x": 2}`) },
		"the hook":     func(np *v1alpha1.NodePolicy, _ *source.Artifact) { np.Spec.Hook, np.Spec.Reasons = "launch", nil },
		"another name": func(_ *v1alpha1.NodePolicy, a *source.Artifact) { *a = artifact(t, "b.rego", "package a") },
	} {
		other, files := np.DeepCopy(), a
		change(other, &files)
		p, err := l.Load(t.Context(), other, files)
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := revisions[p.Revision]; ok {
			t.Errorf("with %s changed, the revision is that of %s", what, was)
		}
		revisions[p.Revision] = what
	}
	again := np.DeepCopy()
	again.Spec.Order, again.Spec.Mode = 9, "Enforce"
	if p, err := l.Load(t.Context(), again, a); err != nil || revisions[p.Revision] != "at first" {
		t.Errorf("revision %s (%v) after a change that answers do not depend on", p.Revision, err)
	}
	np.Spec.Runtime, np.Spec.Data = "wasm", nil
	if p, err = l.Load(t.Context(), np, artifact(t, "m.wasm", "x", "README.rego", "y")); err != nil {
		t.Fatal(err)
	}
	if p.Limits != (policy.Limits{Deadline: time.Second, MemoryBytes: 8 << 20}) || len(program.Files) != 1 {
		t.Errorf("limits %+v, files %d of a Wasm policy", p.Limits, len(program.Files))
	}
}

func TestLoader_Load_errors(t *testing.T) {
	good := artifact(t, "a.rego", "package dovetail.admit.a\n\nwarn contains \"x\"\n")
	panics := set.Compiler(func(context.Context, set.Program) (policy.Evaluator, error) { panic("boo") })
	nothing := set.Compiler(func(context.Context, set.Program) (policy.Evaluator, error) { return nil, nil })
	plain := errors.New("plain")
	tests := map[string]struct {
		change   func(*v1alpha1.NodePolicy)
		artifact source.Artifact
		compiler set.Compiler
		want     string
		is       error
	}{
		"no name":                   {change: func(np *v1alpha1.NodePolicy) { np.Name = "" }, want: "needs a name"},
		"an invalid spec":           {change: func(np *v1alpha1.NodePolicy) { np.Spec.Hook = "veto" }, want: "spec.hook: Unsupported"},
		"a runtime not to be had":   {change: func(np *v1alpha1.NodePolicy) { np.Spec.Runtime = "wasm" }, want: `runtime "wasm" is not to be had here`},
		"no Rego file":              {artifact: artifact(t, "a_test.rego", "x", "data.json", "{}"), want: "there is no Rego file; there is a_test.rego, data.json"},
		"nothing":                   {artifact: artifact(t), want: "there is no Rego file; there is no file"},
		"a malformed document":      {artifact: artifact(t, "a.rego", "x", "data.json", "{"), want: "data.json:1: document:"},
		"a list of documents":       {artifact: artifact(t, "a.rego", "x", "data.json", "[]"), want: "data.json:1: must be an object"},
		"a compiler that panics":    {compiler: panics, want: "the compiler panicked: boo"},
		"a compiler without result": {compiler: nothing, want: "the compiler gave nothing"},
		"an error of no class":      {compiler: func(context.Context, set.Program) (policy.Evaluator, error) { return nil, plain }, want: "plain", is: plain},
		"another hook":              {change: func(np *v1alpha1.NodePolicy) { np.Spec.Hook = "launch" }, want: "no package dovetail.launch.<name>"},
		"parameters against the policy's own schema": {
			artifact: artifact(t, "a.rego", "# METADATA\n# title: a\n# custom:\n#   parameters:\n#     cap: {type: integer}\npackage dovetail.admit.a\n\nwarn contains \"x\"\n"),
			change:   func(np *v1alpha1.NodePolicy) { np.Spec.Parameters = raw(`{"cap": "x"}`) }, want: "rule parameters: cap",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			np := inline("a", "x")
			if tt.change != nil {
				tt.change(np)
			}
			if tt.artifact.Revision == "" {
				tt.artifact = good
			}
			compile := set.Compiler(compileRego)
			if tt.compiler != nil {
				compile = tt.compiler
			}
			l := &set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{"rego": compile}}
			_, err := l.Load(t.Context(), np, tt.artifact)
			var pe *policy.Error
			if !errors.As(err, &pe) || pe.Class != policy.ClassLoad || pe.Policy != np.Name || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %#v, want class Load and part %q", err, tt.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := loader(t).Load(ctx, inline("a", "x"), good); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a load that was called off", err)
	}
	for name, a := range map[string]source.Artifact{"no module": good, "two modules": artifact(t, "a.wasm", "x", "b.wasm", "y")} {
		np := inline("a", "x")
		np.Spec.Runtime = "wasm"
		if _, err := loader(t).Load(t.Context(), np, a); err == nil || !strings.Contains(err.Error(), "there must be one Wasm module; there is a.") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestSet_Apply_wasm puts real modules in force, and a broken one not.
func TestSet_Apply_wasm(t *testing.T) {
	e := policy.NewEngine(policy.Options{})
	s := set.New(set.Options{Engine: e, Loader: loader(t)})
	apply := func(b string) error {
		np := inline("w", base64.StdEncoding.EncodeToString([]byte(b)))
		np.Spec.Runtime = "wasm"
		return s.Apply(t.Context(), np)
	}
	revision := func() string {
		t.Helper()
		if got := codes(t, e); got != "" {
			t.Errorf("warnings %q of a policy without opinion", got)
		}
		records := e.Records()
		p := records[len(records)-1].Policies
		if len(p) != 1 || p[0].Error != "" {
			t.Fatalf("policies asked: %+v", p)
		}
		return p[0].Revision
	}
	m := module(t, frame.Admit)
	if err := apply(m); err != nil {
		t.Fatal(err)
	}
	first := revision()
	if err := apply(m[:len(m)-4]); err == nil {
		t.Error("a module that is cut off took force")
	}
	if err := apply(module(t, frame.Launch)); err == nil || !strings.Contains(err.Error(), "no hook admit") {
		t.Errorf("error %v of a module for another hook", err)
	}
	if got := revision(); got != first {
		t.Errorf("revision %s, want %s still", got, first)
	}
	if err := apply(m + "\x00\x02\x01x"); err != nil { // with a custom section
		t.Fatal(err)
	}
	if got := revision(); got == first {
		t.Error("the new module is not in force")
	}
}

// moody is an evaluator with another answer each time.
type moody struct{ n int64 }

func (m *moody) Score(context.Context, *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	m.n++
	return policy.ScoreAnswer{Bias: []policy.RowAmount{{Row: 0, MicroUSD: m.n}}}, policy.Stats{}, nil
}

func (m *moody) Gate(context.Context, policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	panic("no mood at all")
}

func (m *moody) Reads() policy.Reads { return nil }

// TestLoader_selfTest holds that what is broken whatever it is asked never takes force, and
// that what the fixture does not suit does.
func TestLoader_selfTest(t *testing.T) {
	l := loader(t)
	l.Compilers["moody"] = func(context.Context, set.Program) (policy.Evaluator, error) { return &moody{}, nil }
	tests := map[string]struct {
		hook, text string
		runtime    v1alpha1.Runtime
		want       string // of the error; "" is none
	}{
		"a good one":                {hook: "admit", text: "package dovetail.admit.p\n\nwarn contains \"m\""},
		"a string as a cost":        {hook: "score", text: "package dovetail.score.p\n\ncost contains {\"i\": 0, \"microUSD\": \"cheap\"}", want: "rule cost: self-test: microUSD is string"},
		"a row that does not exist": {hook: "score", text: "package dovetail.score.p\n\nbias contains {\"i\": 9999, \"microUSD\": 1}", want: "rule bias: self-test: row 9999 does not exist"},
		"more steps than allowed": {
			hook: "admit", text: "package dovetail.admit.p\n\nwarn contains \"m\" if {\n\tsome i in numbers.range(1, 2000)\n\tsome j in numbers.range(1, 2000)\n\ti * j == 0\n}", want: "self-test: ",
		},
		"a document that the fixture lacks": {hook: "score", text: "package dovetail.score.p\n\ncost contains {\"i\": 0, \"microUSD\": to_number(input.nodePool.labels.team)}"},
		"two answers to one question":       {hook: "score", text: "x", runtime: "moody", want: "self-test: two answers to one question"},
		"a panic":                           {hook: "launch", text: "x", runtime: "moody", want: "self-test: evaluation panicked: no mood at all"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			np := inline("p", test.text)
			np.Spec.Hook = v1alpha1.Hook(test.hook)
			a, err := source.New(map[string][]byte{"p.rego": []byte(test.text), "p.wasm": nil}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.runtime != "" {
				l := *l
				l.Compilers = map[v1alpha1.Runtime]set.Compiler{"rego": l.Compilers[test.runtime]}
				_, err = l.Load(t.Context(), np, a)
			} else {
				_, err = l.Load(t.Context(), np, a)
			}
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Load() error = %v, want %q", err, test.want)
			}
		})
	}
}
