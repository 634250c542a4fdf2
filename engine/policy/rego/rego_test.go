package rego_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/policies"
)

func source(hook policy.Hook, text string) rego.Source {
	return rego.Source{Name: "p", Hook: hook, Files: map[string]string{"p.rego": text}}
}

func load(t testing.TB, src rego.Source) *rego.Module {
	t.Helper()
	m, err := rego.Load(t.Context(), src)
	if err != nil {
		t.Fatalf("Load() error: %v", err)
	}
	return m
}

func ask(ctx context.Context, m *rego.Module, in any) (any, error) {
	if s, ok := in.(*policy.ScoreInput); ok {
		a, _, err := m.Score(ctx, s)
		return a, err
	}
	a, _, err := m.Gate(ctx, in.(policy.GateInput))
	return a, err
}

func input(h policy.Hook) any {
	switch h {
	case policy.Score:
		return sample.Score(60)
	case policy.Disrupt:
		return sample.Disrupt()
	case policy.Launch:
		return sample.Launch()
	}
	return sample.Admit()
}

// shipped calls f for each policy in the tree.
func shipped(t testing.TB, f func(hook policy.Hook, name string, src rego.Source)) {
	t.Helper()
	for _, h := range policy.Hooks() {
		files, err := fs.Glob(policies.Files, string(h)+"/*.rego")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.rego") {
				continue
			}
			b, err := policies.Files.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f(h, file, rego.Source{Name: file, Hook: h, Files: map[string]string{file: string(b)}})
		}
	}
}

func TestShippedPolicies(t *testing.T) {
	n := 0
	shipped(t, func(hook policy.Hook, name string, src rego.Source) {
		n++
		t.Run(name, func(t *testing.T) {
			m := load(t, src)
			if m.Metadata().Title == "" || m.Metadata().Description == "" {
				t.Error("the policy has no title or description in its METADATA")
			}
			a, err := ask(t.Context(), m, input(hook))
			if err != nil {
				t.Fatalf("evaluation error: %v", err)
			}
			b, err := ask(t.Context(), m, input(hook))
			if err != nil {
				t.Fatalf("second evaluation error: %v", err)
			}
			if d := cmp.Diff(a, b); d != "" {
				t.Errorf("second evaluation differs (-first +second):\n%s", d)
			}
			src.Parameters = map[string]any{"noSuchParameter": 1}
			if _, err := rego.Load(t.Context(), src); policy.ClassOf(err) != policy.ClassLoad || !strings.Contains(err.Error(), "noSuchParameter") {
				t.Errorf("Load() with an unknown parameter: error %v, want one of class Load that names it", err)
			}
		})
	})
	if n < 24 {
		t.Errorf("%d policies are shipped, want at least 24", n)
	}
}

func TestModule_Score(t *testing.T) {
	m := load(t, source(policy.Score, `
package dovetail.score.all

deny contains {"i": i, "code": "metal", "msg": "no bare metal"} if {
	some i, c in input.candidates
	c.instanceType.bareMetal
}

adjust contains {"i": 0, "permille": 950}

adjust contains {"i": 0, "addMicroUSD": 5}

cost contains {"i": 2, "microUSD": 7}

bias contains {"i": 1, "microUSD": -9}

cover contains {"i": 3, "commitment": "c", "microUSD": 0}

commitments contains {"id": "c", "units": 4}
`))
	got, st, err := m.Score(t.Context(), sample.Score(60))
	if err != nil {
		t.Fatal(err)
	}
	want := policy.ScoreAnswer{
		Adjust:      []policy.RowAdjust{{Row: 0, AddMicroUSD: 5}, {Row: 0, Permille: 950, Factor: true}},
		Cost:        []policy.RowAmount{{Row: 2, MicroUSD: 7}},
		Bias:        []policy.RowAmount{{Row: 1, MicroUSD: -9}},
		Cover:       []policy.RowCover{{Row: 3, Commitment: "c", Units: 1}},
		Commitments: []policy.Units{{ID: "c", Units: 4}},
	}
	for i := 54; i < 60; i++ {
		want.Deny = append(want.Deny, policy.RowDeny{Row: i, Code: "metal", Msg: "no bare metal"})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Score() answer (-want +got):\n%s", d)
	}
	if st.Steps == 0 || st.Rows != 60 || st.ResultBytes == 0 {
		t.Errorf("Score() stats %+v, want steps, 60 rows and result bytes", st)
	}
}

func TestModule_Gate(t *testing.T) {
	tests := map[string]struct {
		hook policy.Hook
		text string
		want policy.GateAnswer
	}{
		"a plain string is a message": {
			policy.Admit, "package dovetail.admit.x\ndeny contains \"no\"",
			policy.GateAnswer{Deny: []policy.Reason{{Msg: "no"}}},
		},
		"an array does as well as a set": {
			policy.Admit, "package dovetail.admit.x\nwarn := [{\"msg\": \"a\", \"code\": \"c\"}]",
			policy.GateAnswer{Warn: []policy.Reason{{Msg: "a", Code: "c"}}},
		},
		"a rule without a value is no opinion and hides no other": {
			policy.Admit, "package dovetail.admit.x\nwarn := {\"a\"} if input.dryRun\ndeny contains \"b\"",
			policy.GateAnswer{Deny: []policy.Reason{{Msg: "b"}}},
		},
		"nodes as a set, list or single name": {
			policy.Disrupt, "package dovetail.disrupt.x\nkeep contains {\"msg\": \"k\", \"nodes\": {\"n2\", \"n1\"}}\ndefer contains {\"msg\": \"d\", \"nodes\": \"n1\", \"seconds\": 60}",
			policy.GateAnswer{Keep: []policy.Reason{{Msg: "k", Nodes: []string{"n1", "n2"}}}, Defer: []policy.Reason{{Msg: "d", Nodes: []string{"n1"}, Seconds: 60}}},
		},
		"restrictions": {
			policy.Launch, "package dovetail.launch.x\nrestrict contains {\"claim\": \"web/0\", \"dropTypes\": [\"m5.large\"], \"maxMicroUSD\": 0}",
			policy.GateAnswer{Restrict: []policy.Restriction{{Claim: "web/0", DropTypes: []string{"m5.large"}, HasMax: true}}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := load(t, source(tc.hook, tc.text))
			got, err := ask(t.Context(), m, input(tc.hook))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("Gate() answer (-want +got):\n%s", d)
			}
		})
	}
}

func TestModule_Reads(t *testing.T) {
	head := "package dovetail.score.x\n"
	tests := map[string]struct {
		text string
		want policy.Reads
	}{
		"fields of rows": {
			"deny contains {\"i\": i, \"msg\": c.offering.zone} if {\n\tsome i, c in input.candidates\n\tc.instanceType.cpu > 4\n}",
			policy.Reads{"candidates.*.instanceType.cpu", "candidates.*.offering.zone"},
		},
		"rows by index": {
			"deny contains {\"i\": 0, \"msg\": \"m\"} if input.candidates[0].cost > 4",
			policy.Reads{"candidates.*.cost"},
		},
		"a row handed on whole": {
			"deny contains {\"i\": i, \"msg\": json.marshal(c)} if some i, c in input.candidates",
			policy.Reads{"candidates.*"},
		},
		"through a function": {
			"big(c) if c.instanceType.memory > 4\n\ndeny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome i, c in input.candidates\n\tbig(c)\n}",
			policy.Reads{"candidates.*.instanceType.memory"},
		},
		"through two functions and a variable": {
			"f(x) if g(x.instanceType)\n\ng(it) if it.pods > 4\n\ndeny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome i, c in input.candidates\n\ty := c\n\tf(y)\n}",
			policy.Reads{"candidates.*"},
		},
		"in a comprehension": {
			"n := count([c | some c in input.candidates; c.instanceType.burstable])\n\ndeny contains {\"i\": 0, \"msg\": \"m\"} if n > 3",
			policy.Reads{"candidates.*"},
		},
		"in every": {
			"deny contains {\"i\": 0, \"msg\": \"m\"} if {\n\tevery c in input.candidates {\n\t\tc.instanceType.arch == \"arm64\"\n\t}\n}",
			policy.Reads{"candidates.*.instanceType.arch"},
		},
		"a comparison is not an alias": {
			"deny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome z in data.zones\n\tsome i, c in input.candidates\n\tz = c.offering.zone\n}",
			policy.Reads{"candidates.*.offering.zone"},
		},
		"being there is read": {
			"deny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome i, c in input.candidates\n\tc.instanceType.gpu\n}",
			policy.Reads{"candidates.*.instanceType.gpu"},
		},
		"an assigned value that is never used": {
			"deny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome i, c in input.candidates\n\t_ = c.instanceType.gpu\n}",
			policy.Reads{"candidates.*.instanceType.gpu"},
		},
		"time and parameters": {
			"deny contains {\"i\": 0, \"msg\": \"m\"} if input.now.hour > object.get(input.parameters, \"hour\", 9)",
			policy.Reads{"now.hour", "parameters"},
		},
		"labels by a computed key": {
			"deny contains {\"i\": 0, \"msg\": \"m\"} if {\n\tsome k in data.keys\n\tinput.nodePool.labels[k]\n}",
			policy.Reads{"nodePool.labels.*"},
		},
		"everything": {
			"deny contains {\"i\": 0, \"msg\": \"m\"} if {\n\tx := input\n\tcount(x) > 99\n}",
			nil,
		},
		"everything through with": {
			"q if input.now.hour > 3\n\ndeny contains {\"i\": 0, \"msg\": \"m\"} if q with input as input.candidates[0]",
			policy.Reads{"candidates.*", "now.hour"},
		},
		"nothing": {"deny contains {\"i\": 0, \"msg\": \"m\"}", policy.Reads{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := load(t, source(policy.Score, head+tc.text)).Reads()
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("Reads() (-want +got):\n%s", d)
			}
		})
	}
}

func TestLoad_Errors(t *testing.T) {
	tests := map[string]struct {
		src  rego.Source
		want string
	}{
		"syntax": {source(policy.Score, "package dovetail.score.x\n\ndeny contains {\n"), `policy "p": p.rego:4:`},
		"misspelt field": {
			source(policy.Score, "package dovetail.score.x\n\ndeny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome i, c in input.candidates\n\tc.instanceType.gpus.count > 1\n}"),
			`p.rego:5: undefined ref`,
		},
		"misspelt package": {source(policy.Score, "package dovetail.scores.x\n\ndeny contains {\"i\": 0, \"msg\": \"m\"}"), "no package dovetail.score.<name> with a rule of deny, adjust, cost, bias, cover, commitments; there is dovetail.scores.x"},
		"misspelt rule":    {source(policy.Score, "package dovetail.score.x\n\ndenny contains {\"i\": 0, \"msg\": \"m\"}"), "no package dovetail.score.<name> with a rule of"},
		"denied builtin":   {source(policy.Score, "package dovetail.score.x\n\ndeny contains {\"i\": 0, \"msg\": \"m\"} if time.now_ns() > 0"), "p.rego:3: undefined function time.now_ns (not in the list of allowed builtin functions)"},
		"keyed rule":       {source(policy.Score, "package dovetail.score.x\n\ncost[i] := 5 if some i, _ in input.candidates"), "p.rego:3: rule cost: must be a set of objects"},
		"two packages": {
			rego.Source{Name: "p", Hook: policy.Admit, Files: map[string]string{"a.rego": "package dovetail.admit.a\ndeny contains \"x\"", "b.rego": "package dovetail.admit.b\ndeny contains \"x\""}},
			"packages data.dovetail.admit.a and data.dovetail.admit.b all have rules of hook admit",
		},
		"reserved document": {
			rego.Source{Name: "p", Hook: policy.Admit, Files: map[string]string{"a.rego": "package dovetail.admit.a\ndeny contains \"x\""}, Data: map[string]any{"dovetail": 1}},
			`document "dovetail": the name is reserved`,
		},
		"no file":    {rego.Source{Name: "p", Hook: policy.Admit}, "there is no Rego file"},
		"empty file": {source(policy.Admit, "\n"), "p.rego"},
		"wrong parameter": {
			rego.Source{
				Name: "p", Hook: policy.Admit, Parameters: map[string]any{"n": "many"},
				Files: map[string]string{"a.rego": "# METADATA\n# custom:\n#   parameters:\n#     n: {type: integer}\npackage dovetail.admit.a\n\ndeny contains \"x\" if input.parameters.n > 4"},
			},
			"rule parameters: n: Invalid type. Expected: integer, given: string",
		},
		"misspelt parameter in the source": {
			rego.Source{
				Name: "p", Hook: policy.Admit,
				Files: map[string]string{"a.rego": "# METADATA\n# custom:\n#   parameters:\n#     n: {type: integer}\npackage dovetail.admit.a\n\ndeny contains \"x\" if input.parameters.m > 4"},
			},
			"a.rego:7: undefined ref",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := rego.Load(t.Context(), tc.src)
			if policy.ClassOf(err) != policy.ClassLoad {
				t.Fatalf("Load() error %v of class %q, want class Load", err, policy.ClassOf(err))
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Load() error:\n%v\nwant it to contain:\n%s", err, tc.want)
			}
		})
	}
}

func TestModule_Data(t *testing.T) {
	src := source(policy.Admit, "package dovetail.admit.x\n\ndeny contains sprintf(\"%v\", [data.budgets[t]]) if some t in input.parameters.teams")
	src.Data = map[string]any{"budgets": map[string]any{"shop": 5}}
	src.Parameters = map[string]any{"teams": []any{"shop"}}
	m := load(t, src)
	got, err := ask(t.Context(), m, input(policy.Admit))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(policy.GateAnswer{Deny: []policy.Reason{{Msg: "5"}}}, got); d != "" {
		t.Errorf("Gate() answer (-want +got):\n%s", d)
	}
	src.Data["budgets"].(map[string]any)["shop"] = 6
	if other := load(t, src); other.Revision() == m.Revision() {
		t.Error("Revision() is the same for other data")
	}
}

// TestModule_Score_chained checks that a policy sees the costs of the one before it.
func TestModule_Score_chained(t *testing.T) {
	first := load(t, source(policy.Score, "package dovetail.score.a\ncost contains {\"i\": 0, \"microUSD\": 42}\nbias contains {\"i\": 1, \"microUSD\": 3}"))
	second := load(t, source(policy.Score, "package dovetail.score.b\ndeny contains {\"i\": i, \"msg\": sprintf(\"%d %d\", [c.cost, c.bias])} if {\n\tsome i, c in input.candidates\n\ti < 2\n}"))
	e := policy.NewEngine(policy.Options{})
	if err := e.Swap([]policy.Policy{
		{Name: "a", Hook: policy.Score, Revision: "1", Evaluator: first},
		{Name: "b", Hook: policy.Score, Revision: "1", Evaluator: second},
	}); err != nil {
		t.Fatal(err)
	}
	in := sample.Score(6)
	got, err := e.Score(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	spot := in.Candidates.Rows[1].Offering.ListPrice
	want := []string{"b: 42 0", "b: " + itoa(spot) + " 3", "", "", "", ""}
	if d := cmp.Diff(want, got.Deny); d != "" {
		t.Errorf("Score() denials (-want +got):\n%s", d)
	}
}

func TestLoad_Canceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rego.Load(ctx, source(policy.Score, "package dovetail.score.x\ncost contains {\"i\": 0, \"microUSD\": 42}"))
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Load() error %v, want none or context.Canceled", err)
	}
}

func TestModule_Canceled(t *testing.T) {
	m := load(t, source(policy.Score, "package dovetail.score.x\ncost contains {\"i\": 0, \"microUSD\": n} if {\n\tn := count([1 | some a in numbers.range(1, 3000); some b in numbers.range(1, 3000); a * b == 7])\n}"))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(5*time.Millisecond, cancel)
	_, _, err := m.Score(ctx, sample.Score(6))
	if got := policy.ClassOf(err); got != policy.ClassCanceled {
		t.Errorf("Score() error %v of class %q, want Canceled", err, got)
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// TestLoad_noNetwork checks that no part of a policy makes the host fetch anything.
func TestLoad_noNetwork(t *testing.T) {
	hits := make(chan string, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits <- r.URL.Path
		_, _ = w.Write([]byte(`{"type": "object"}`))
	}))
	defer srv.Close()
	secret := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(secret, []byte(`{"type": "string"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rule := "package dovetail.admit.x\n\ndeny contains \"x\" if input.dryRun\n"
	tests := map[string]struct{ text, want string }{
		"parameters by reference": {"# METADATA\n# custom:\n#   parameters:\n#     n: {\"$ref\": \"" + srv.URL + "/a\"}\n" + rule, "$ref is not allowed"},
		"a reference deep down":   {"# METADATA\n# custom:\n#   parameters:\n#     n: {type: array, items: {anyOf: [{\"$ref\": \"" + srv.URL + "/b\"}]}}\n" + rule, "$ref is not allowed"},
		"a file":                  {"# METADATA\n# custom:\n#   parameters:\n#     n: {\"$ref\": \"file://" + secret + "\"}\n" + rule, "$ref is not allowed"},
		"an inline schema":        {"# METADATA\n# schemas:\n#   - input: {\"$ref\": \"" + srv.URL + "/c\"}\n" + rule, ""},
		"a schema of a rule":      {"package dovetail.admit.x\n\n# METADATA\n# scope: rule\n# schemas:\n#   - input.object: {\"properties\": {\"a\": {\"$ref\": \"" + srv.URL + "/d\"}}}\ndeny contains \"x\" if input.object.a == 1\n", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			src := source(policy.Admit, tc.text)
			if strings.Contains(tc.text, "custom") {
				src.Parameters = map[string]any{"n": []any{1}}
			}
			m, err := rego.Load(t.Context(), src)
			if tc.want != "" && (policy.ClassOf(err) != policy.ClassLoad || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Load() error %v, want one of class Load that contains %q", err, tc.want)
			}
			if err == nil {
				_, _ = ask(t.Context(), m, input(policy.Admit))
			}
			select {
			case p := <-hits:
				t.Errorf("the host fetched %s", p)
			default:
			}
		})
	}
}

func TestLoad_parameterCalledID(t *testing.T) {
	src := source(policy.Admit, "# METADATA\n# custom:\n#   parameters:\n#     id: {type: string}\npackage dovetail.admit.x\n\ndeny contains input.parameters.id\n")
	src.Parameters = map[string]any{"id": "no"}
	load(t, src)
}
