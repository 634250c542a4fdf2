package rego_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
)

// TestEngine_badAnswers holds that an answer against the contract is an error that names
// policy, rule and value, that the failure policy applies, and that the chain goes on.
func TestEngine_badAnswers(t *testing.T) {
	tests := map[string]struct {
		hook policy.Hook
		rule string
		want []string // of the error
	}{
		"a string as a cost":                {policy.Score, `cost contains {"i": 0, "microUSD": "cheap"}`, []string{"rule cost", `"cheap"`, "an integer is required"}},
		"a fraction as a cost":              {policy.Score, `cost contains {"i": 0, "microUSD": 1.5}`, []string{"rule cost", "1.5"}},
		"a cost beyond any number":          {policy.Score, `cost contains {"i": 0, "microUSD": 1e999}`, []string{"rule cost", "microUSD"}},
		"a negative cost":                   {policy.Score, `cost contains {"i": 0, "microUSD": -7}`, []string{"rule cost", "row 0", "-7"}},
		"a cost that amounts make negative": {policy.Score, `adjust contains {"i": 0, "addMicroUSD": -999999999}`, []string{"rule adjust", "row 0", "at least 0"}},
		"two costs of one offering":         {policy.Score, "cost contains {\"i\": 3, \"microUSD\": 1}\n\ncost contains {\"i\": 3, \"microUSD\": 2}", []string{"rule cost", "3"}},
		"an unknown offering":               {policy.Score, `deny contains {"i": 4711, "msg": "m"}`, []string{"rule deny", "4711"}},
		"an offering by name":               {policy.Score, `deny contains {"i": "m5.large", "msg": "m"}`, []string{"rule deny", `"m5.large"`}},
		"a denial without a message":        {policy.Score, `deny contains {"i": 2, "code": "c"}`, []string{"rule deny", "msg"}},
		"a denial with an empty message":    {policy.Score, `deny contains {"i": 2, "msg": " "}`, []string{"rule deny", "row 2", "without a message"}},
		"a commitment that is not told of":  {policy.Score, `cover contains {"i": 1, "commitment": "ri-9", "units": 1, "microUSD": 0}`, []string{"rule cover", `"ri-9"`}},
		"a misspelt field":                  {policy.Score, `bias contains {"i": 1, "microUsd": 1}`, []string{"rule bias", "microUSD is missing"}},
		"ten megabytes": {policy.Admit, `deny contains {"msg": concat("", [x | some i in numbers.range(1, 200); x := sprintf("%d%s", [i, concat("", [y | some j in numbers.range(1, 1000); y := "0123456789012345678901234567890123456789012345678901234567890"])])])}`,
			[]string{"bytes"}},
		"an unknown claim":             {policy.Launch, `deny contains {"msg": "m", "claims": ["web/77"]}`, []string{"rule deny", `"web/77"`}},
		"an unknown node":              {policy.Disrupt, `keep contains {"msg": "m", "nodes": ["gone"]}`, []string{"rule keep", `"gone"`}},
		"a deferral without an end":    {policy.Disrupt, `defer contains {"msg": "m"}`, []string{"rule defer", "seconds"}},
		"a number in place of reasons": {policy.Admit, `deny contains 5`, []string{"rule deny", "5"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := "package dovetail." + string(test.hook) + ".bad\n\n" + test.rule + "\n"
			limits := policy.Limits{Deadline: 10 * time.Second}
			bad := load(t, rego.Source{Name: "bad", Hook: test.hook, Files: map[string]string{"bad.rego": text}, Limits: limits})
			rest := map[policy.Hook]string{policy.Score: `bias contains {"i": 0, "microUSD": 9}`}[test.hook]
			if rest == "" {
				rest = `warn contains "rest"`
			}
			good := load(t, rego.Source{Name: "good", Hook: test.hook, Files: map[string]string{"good.rego": "package dovetail." + string(test.hook) + ".good\n\n" + rest + "\n"}, Limits: limits})
			for _, failure := range []policy.FailurePolicy{policy.Ignore, policy.Deny} {
				e := policy.NewEngine(policy.Options{})
				if err := e.Swap([]policy.Policy{
					{Name: "a-bad", Hook: test.hook, Revision: "1", Evaluator: bad, Failure: failure, Limits: limits},
					{Name: "b-good", Hook: test.hook, Revision: "1", Evaluator: good, Limits: limits},
				}); err != nil {
					t.Fatal(err)
				}
				var results []policy.PolicyResult
				var applied, goesOn bool
				if test.hook == policy.Score {
					s, err := e.Score(t.Context(), sample.Score(12))
					if err != nil {
						t.Fatal(err)
					}
					results = s.Policies
					applied = s.Unscored && s.Deny[5] == "" || !s.Unscored && strings.Contains(s.Deny[5], "a-bad")
					goesOn = s.Bias[0] == 9
					if s.Unscored != (failure == policy.Ignore) {
						t.Errorf("%s: unscored %t", failure, s.Unscored)
					}
				} else {
					var v policy.Verdict
					var err error
					switch test.hook {
					case policy.Launch:
						v, err = e.Launch(t.Context(), sample.Launch())
					case policy.Disrupt:
						v, err = e.Disrupt(t.Context(), sample.Disrupt())
					default:
						v, err = e.Admit(t.Context(), sample.Admit())
					}
					if err != nil {
						t.Fatal(err)
					}
					results = v.Policies
					applied = v.Allowed == (failure == policy.Ignore)
					goesOn = len(v.Warn) > 0 && v.Warn[len(v.Warn)-1].Msg == "rest"
				}
				if !applied || !goesOn {
					t.Errorf("failure policy %s applied: %t, the chain goes on: %t", failure, applied, goesOn)
				}
				got := results[0]
				class := policy.ClassBadResult
				switch name {
				case "two costs of one offering":
					class = policy.ClassConflict
				case "ten megabytes": // the guard on memory may be the first to see it
					if got.ErrorClass == policy.ClassMemory {
						class = policy.ClassMemory
					}
				}
				if got.ErrorClass != class {
					t.Errorf("class %q, want %s; error %s", got.ErrorClass, class, got.Error)
				}
				for _, want := range append([]string{`"a-bad"`}, test.want...) {
					if !strings.Contains(got.Error, want) {
						t.Errorf("error %q has no %q", got.Error, want)
					}
				}
			}
		})
	}
}
