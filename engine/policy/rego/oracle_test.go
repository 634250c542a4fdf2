package rego_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oparego "github.com/open-policy-agent/opa/v1/rego"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/policies"
)

// plain evaluates the package of a policy with plain OPA, on the input as JSON.
func plain(t *testing.T, file, pkg string, in any) map[string][]map[string]any {
	t.Helper()
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	opts := []func(*oparego.Rego){oparego.Query("x = data." + pkg), oparego.Input(doc)}
	files, err := fs.Glob(policies.Files, "lib/*.rego")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, file) {
		if strings.HasSuffix(f, "_test.rego") {
			continue
		}
		b, err := policies.Files.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		opts = append(opts, oparego.Module(f, string(b)))
	}
	rs, err := oparego.New(opts...).Eval(t.Context())
	if err != nil || len(rs) != 1 {
		t.Fatalf("plain OPA: %v, %d results", err, len(rs))
	}
	out := map[string][]map[string]any{}
	for rule, v := range rs[0].Bindings["x"].(map[string]any) {
		list, ok := v.([]any)
		if !ok {
			continue
		}
		for _, x := range list {
			if o, ok := x.(map[string]any); ok {
				out[rule] = append(out[rule], o)
			}
		}
	}
	return out
}

// lines is a list as sorted JSON, with only the named fields.
func lines(t *testing.T, list any, fields ...string) []string {
	t.Helper()
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	var objs []map[string]any
	if err := json.Unmarshal(b, &objs); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range objs {
		keep := map[string]any{}
		for _, f := range fields {
			if v, ok := o[f]; ok {
				keep[f] = v
			}
		}
		b, err := json.Marshal(keep)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b))
	}
	slices.Sort(out)
	return out
}

// TestShippedPolicies_asOPA holds the host, which shows a policy only what it reads,
// against plain OPA with the whole input.
func TestShippedPolicies_asOPA(t *testing.T) {
	score := sample.Score(120)
	for i := range score.Candidates.Rows {
		few, quota := int64(i%90), int64(i%50)
		o := &score.Candidates.Rows[i].Offering
		o.ZoneFreeIPs, o.QuotaRemaining, o.ICEHistory.LastHour = &few, &quota, int64(i%4)
	}
	score.Candidates = policy.NewOfferings("x", score.Candidates.Rows)
	score.Signals.Carbon = map[string]policy.Signal{"eu-central-1a": {Value: 380}, "eu-central-1b": {Value: 20, Stale: true}}

	disrupt := sample.Disrupt()
	disrupt.Command.Savings = policy.Savings{Hourly: 100, Permille: 1}
	disrupt.Command.Candidates[0].Fallback = true
	disrupt.Command.Candidates[0].AgeSeconds = 20
	disrupt.Pods[0].Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	disrupt.Pods[0].EvictionsLast24h = 3
	disrupt.Pods[1].NamespaceLabels = map[string]string{"disruption-window": "Sat_0000-2400"}
	disrupt.Owners[0].OnThisNode = 4
	disrupt.History.LaunchFailures30m = 5
	disrupt.History.SecondsSinceLastDisruption["web"] = 3

	launch := sample.Launch()
	launch.Claims[0].TypesCount = 2
	launch.Claims[1].HourlyCost = 9_000_000
	launch.Claims[1].FallbackFrom = &policy.Fallback{CapacityType: "spot"}
	launch.Now.Unix += 11 * 3600

	admit := sample.Admit()
	admit.NodePool.Labels = map[string]string{"env": "production"}
	admit.NodePool.Limits = policy.Amounts{}
	admit.Siblings = append(admit.Siblings, policy.Sibling{Name: "twin", Weight: 10, Overlap: true})
	admit.Impact.NodesDrifted = new(int64(19))
	admit.Now.Unix += 11 * 3600
	admit.BudgetWeek = policy.BudgetWeek{Errors: []string{"bad"}, OpenMinutes: map[string]int64{"Drifted": 0}, UnlimitedMinutes: map[string]int64{"Empty": 9}}
	admit.Resolved.PriceMax = 99_000_000

	spoken := 0
	shipped(t, func(hook policy.Hook, name string, src rego.Source) {
		t.Run(name, func(t *testing.T) {
			m := load(t, src)
			compare := func(rule string, ours any, theirs []map[string]any, fields ...string) {
				t.Helper()
				want, got := lines(t, theirs, fields...), lines(t, ours, fields...)
				spoken += len(got)
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("rule %s (-plain OPA +host):\n%s", rule, d)
				}
			}
			if hook == policy.Score {
				want := plain(t, name, m.Package(), score)
				got, _, err := m.Score(t.Context(), score)
				if err != nil {
					t.Fatal(err)
				}
				compare("deny", got.Deny, want["deny"], "i", "code", "msg")
				compare("adjust", got.Adjust, want["adjust"], "i", "permille", "addMicroUSD")
				compare("cost", got.Cost, want["cost"], "i", "microUSD")
				compare("bias", got.Bias, want["bias"], "i", "microUSD")
				compare("cover", got.Cover, want["cover"], "i", "commitment", "units", "microUSD")
				compare("commitments", got.Commitments, want["commitments"], "id", "units")
				return
			}
			in := map[policy.Hook]policy.GateInput{policy.Disrupt: disrupt, policy.Launch: launch, policy.Admit: admit}[hook]
			want := plain(t, name, m.Package(), in)
			got, _, err := m.Gate(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			compare("deny", got.Deny, want["deny"], "code", "msg", "nodes", "claims")
			compare("defer", got.Defer, want["defer"], "code", "msg", "nodes", "claims", "seconds")
			compare("keep", got.Keep, want["keep"], "code", "msg", "nodes")
			compare("warn", got.Warn, want["warn"], "code", "msg", "nodes", "claims")
			compare("restrict", got.Restrict, want["restrict"], "claim", "dropTypes", "maxMicroUSD")
		})
	})
	if spoken < 500 {
		t.Errorf("the policies gave %d answers; the inputs are too tame", spoken)
	}
}
