package policy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
)

// fake is an evaluator made of functions.
type fake struct {
	score func(*policy.ScoreInput) (policy.ScoreAnswer, error)
	gate  func(policy.GateInput) (policy.GateAnswer, error)
	reads policy.Reads
	calls atomic.Int64
}

func (f *fake) Score(_ context.Context, in *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	f.calls.Add(1)
	a, err := f.score(in)
	if err == nil {
		err = a.Check(in.Candidates.Len())
	}
	if err != nil {
		return policy.ScoreAnswer{}, policy.Stats{}, err
	}
	return a, policy.Stats{}, nil
}

func (f *fake) Gate(_ context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	f.calls.Add(1)
	a, err := f.gate(in)
	if err == nil {
		err = a.Check(in)
	}
	return a, policy.Stats{}, err
}

func (f *fake) Reads() policy.Reads { return f.reads }

// says is a score policy that always gives the same answer.
func says(a policy.ScoreAnswer) *fake {
	return &fake{reads: policy.Reads{}, score: func(*policy.ScoreInput) (policy.ScoreAnswer, error) { return a, nil }}
}

// answers is a gate policy that always gives the same answer.
func answers(a policy.GateAnswer) *fake {
	return &fake{gate: func(policy.GateInput) (policy.GateAnswer, error) {
		b, _ := json.Marshal(a)
		var out policy.GateAnswer
		return out, json.Unmarshal(b, &out)
	}}
}

func fails(class policy.Class) *fake {
	err := &policy.Error{Class: class, Msg: "broken"}
	return &fake{
		reads: policy.Reads{},
		score: func(*policy.ScoreInput) (policy.ScoreAnswer, error) { return policy.ScoreAnswer{}, err },
		gate:  func(policy.GateInput) (policy.GateAnswer, error) { return policy.GateAnswer{}, err },
	}
}

func engine(t testing.TB, ps ...policy.Policy) *policy.Engine {
	t.Helper()
	e := policy.NewEngine(policy.Options{})
	for i := range ps {
		if ps[i].Revision == "" {
			ps[i].Revision = "1"
		}
		if ps[i].Hook == "" {
			ps[i].Hook = policy.Score
		}
	}
	if err := e.Swap(ps); err != nil {
		t.Fatal(err)
	}
	return e
}

func score(t testing.TB, e *policy.Engine, in *policy.ScoreInput) *policy.Scores {
	t.Helper()
	s, err := e.Score(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rows(prices ...int64) *policy.ScoreInput {
	in := sample.Score(len(prices))
	out := in.Candidates.Rows
	for i, p := range prices {
		out[i].Offering.ListPrice = p
	}
	in.Candidates = policy.NewOfferings(fmt.Sprint(prices), out)
	return in
}

func TestEngine_Score(t *testing.T) {
	type P = policy.Policy
	factor := func(row int, p int64) policy.ScoreAnswer {
		return policy.ScoreAnswer{Adjust: []policy.RowAdjust{{Row: row, Permille: p, Factor: true}}}
	}
	add := func(row int, n int64) policy.ScoreAnswer {
		return policy.ScoreAnswer{Adjust: []policy.RowAdjust{{Row: row, AddMicroUSD: n}}}
	}
	tests := map[string]struct {
		policies   []P
		cost, bias []int64
		deny       []string
		unscored   bool
	}{
		"no policy leaves list prices": {cost: []int64{1000, 2000}},
		"factors before amounts, whatever their order in the answer": {
			policies: []P{{Name: "a", Evaluator: says(policy.ScoreAnswer{Adjust: []policy.RowAdjust{{AddMicroUSD: 7}, {Permille: 500, Factor: true}, {AddMicroUSD: -2}, {Permille: 100, Factor: true}}})}},
			cost:     []int64{55, 2000},
		},
		"a replacement is the base of the factors": {
			policies: []P{{Name: "a", Evaluator: says(policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 1, MicroUSD: 10}}, Adjust: []policy.RowAdjust{{Row: 1, Permille: 1500, Factor: true}}})}},
			cost:     []int64{1000, 15},
		},
		"by order, then by name": {
			policies: []P{
				{Name: "a", Order: 2, Evaluator: says(factor(0, 500))},
				{Name: "c", Order: 1, Evaluator: says(add(0, 100))},
				{Name: "b", Order: 1, Evaluator: says(factor(0, 2000))},
			},
			cost: []int64{1050, 2000},
		},
		"the product is rounded once": {
			policies: []P{{Name: "a", Evaluator: says(policy.ScoreAnswer{Adjust: []policy.RowAdjust{{Permille: 333, Factor: true}, {Permille: 3003, Factor: true}}})}},
			cost:     []int64{1000, 2000},
		},
		"biases add up and are not cost": {
			policies: []P{
				{Name: "a", Evaluator: says(policy.ScoreAnswer{Bias: []policy.RowAmount{{Row: 0, MicroUSD: 5}, {Row: 0, MicroUSD: 6}}})},
				{Name: "b", Evaluator: says(policy.ScoreAnswer{Bias: []policy.RowAmount{{Row: 0, MicroUSD: -20}}})},
			},
			cost: []int64{1000, 2000}, bias: []int64{-9, 0},
		},
		"denials are a union, the first reason is told": {
			policies: []P{
				{Name: "a", Evaluator: says(policy.ScoreAnswer{Deny: []policy.RowDeny{{Row: 0, Msg: "x"}}})},
				{Name: "b", Evaluator: says(policy.ScoreAnswer{Deny: []policy.RowDeny{{Row: 0, Msg: "y"}, {Row: 1, Msg: "z"}}})},
			},
			cost: []int64{1000, 2000}, deny: []string{"a: x", "b: z"},
		},
		"shadow and disabled policies have no effect": {
			policies: []P{
				{Name: "a", Mode: policy.Shadow, Evaluator: says(factor(0, 1))},
				{Name: "b", Mode: policy.Disabled},
				{Name: "c", Mode: policy.Shadow, Failure: policy.Deny, Evaluator: fails(policy.ClassFuel)},
			},
			cost: []int64{1000, 2000},
		},
		"a failing policy is ignored, and the rest of the chain goes on": {
			policies: []P{{Name: "a", Evaluator: fails(policy.ClassFuel)}, {Name: "b", Evaluator: says(add(0, 1))}},
			cost:     []int64{1001, 2000}, unscored: true,
		},
		"or denies all, if it must": {
			policies: []P{{Name: "a", Failure: policy.Deny, Evaluator: fails(policy.ClassFuel)}},
			cost:     []int64{1000, 2000},
			deny:     []string{`a: the policy failed: policy "a": broken`, `a: the policy failed: policy "a": broken`},
		},
		"a cost below 0 is a failure": {
			policies: []P{{Name: "a", Evaluator: says(add(0, -1001))}, {Name: "b", Evaluator: says(add(0, -1000))}},
			cost:     []int64{0, 2000}, unscored: true,
		},
		"pools that a policy is not for": {
			policies: []P{{Name: "a", Applies: func(p *policy.NodePool) bool { return p.Name == "other" }, Evaluator: says(factor(0, 1))}},
			cost:     []int64{1000, 2000},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := score(t, engine(t, tc.policies...), rows(1000, 2000))
			if tc.bias == nil {
				tc.bias = []int64{0, 0}
			}
			if tc.deny == nil {
				tc.deny = []string{"", ""}
			}
			if d := cmp.Diff(tc.cost, got.Cost); d != "" {
				t.Errorf("Score() costs (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.bias, got.Bias); d != "" {
				t.Errorf("Score() biases (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.deny, got.Deny); d != "" {
				t.Errorf("Score() denials (-want +got):\n%s", d)
			}
			if got.Unscored != tc.unscored {
				t.Errorf("Score() unscored is %t, want %t", got.Unscored, tc.unscored)
			}
		})
	}
}

// TestEngine_Score_arithmetic holds the 128-bit arithmetic against a slow obvious one.
func TestEngine_Score_arithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	limit := new(big.Int).Lsh(big.NewInt(1), 53)
	failed := 0
	for range 3000 {
		price := r.Int64N(1 << uint(r.IntN(53)+1))
		var list []policy.RowAdjust
		num, den := big.NewInt(price), big.NewInt(1)
		for range r.IntN(6) {
			p := r.Int64N(1 << uint(r.IntN(19)+1))
			list = append(list, policy.RowAdjust{Permille: p, Factor: true})
			num.Mul(num, big.NewInt(p))
			den.Mul(den, big.NewInt(1000))
		}
		add := r.Int64N(1<<20) - 1<<19
		list = append(list, policy.RowAdjust{AddMicroUSD: add})
		// Half up: floor((2 num + den) / (2 den)).
		num.Mul(num, big.NewInt(2)).Add(num, den).Div(num, den.Mul(den, big.NewInt(2)))
		product := new(big.Int).Set(num)
		num.Add(num, big.NewInt(add))
		got := score(t, engine(t, policy.Policy{Name: "a", Evaluator: says(policy.ScoreAnswer{Adjust: list})}), rows(price))
		if num.Sign() < 0 || num.Cmp(limit) > 0 || product.Cmp(limit) > 0 {
			failed++
			if !got.Unscored || got.Cost[0] != price {
				t.Fatalf("price %d with %v: cost %d, want a failure", price, list, got.Cost[0])
			}
			continue
		}
		if got.Unscored || got.Cost[0] != num.Int64() {
			t.Fatalf("price %d with %v: cost %d, want %s", price, list, got.Cost[0], num)
		}
	}
	if failed == 0 || failed > 2500 {
		t.Errorf("%d of 3000 cases are out of range; the cases are one-sided", failed)
	}
}

func TestEngine_Score_commitments(t *testing.T) {
	e := engine(t,
		policy.Policy{Name: "a", Evaluator: says(policy.ScoreAnswer{
			Cover:       []policy.RowCover{{Row: 0, Commitment: "ri", Units: 1}, {Row: 1, Commitment: "ri", Units: 2, MicroUSD: 3}},
			Commitments: []policy.Units{{ID: "ri", Units: 7}},
		})},
		policy.Policy{Name: "b", Evaluator: says(policy.ScoreAnswer{Commitments: []policy.Units{{ID: "ri", Units: 5}}})},
	)
	got := score(t, e, rows(1000, 2000))
	if d := cmp.Diff(map[int]policy.RowCover{0: {Row: 0, Commitment: "ri", Units: 1}, 1: {Row: 1, Commitment: "ri", Units: 2, MicroUSD: 3}}, got.Cover); d != "" {
		t.Errorf("Score() covers (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]int64{"ri": 5}, got.Commitments); d != "" {
		t.Errorf("Score() commitments (-want +got):\n%s", d)
	}
}

func TestEngine_Score_cache(t *testing.T) {
	static := &fake{reads: policy.Reads{"candidates.*.instanceType.cpu", "candidates.*.offering.listPrice"}, score: func(in *policy.ScoreInput) (policy.ScoreAnswer, error) {
		return policy.ScoreAnswer{Adjust: []policy.RowAdjust{{AddMicroUSD: 1}}}, nil
	}}
	hourly := &fake{reads: policy.Reads{"now.hour"}, score: static.score}
	dynamic := &fake{reads: policy.Reads{"candidates.*.offering.iceHistory"}, score: static.score}
	chained := &fake{reads: policy.Reads{"candidates.*.cost"}, score: static.score}
	e := engine(t,
		policy.Policy{Name: "a", Evaluator: static}, policy.Policy{Name: "b", Evaluator: hourly},
		policy.Policy{Name: "c", Evaluator: dynamic}, policy.Policy{Name: "d", Evaluator: chained},
	)
	calls := func() []int64 {
		return []int64{static.calls.Load(), hourly.calls.Load(), dynamic.calls.Load(), chained.calls.Load()}
	}
	step := func(name string, in *policy.ScoreInput, want ...int64) {
		t.Helper()
		if got := score(t, e, in).Cost[0]; got != in.Candidates.Rows[0].Offering.ListPrice+4 {
			t.Errorf("%s: cost %d, want 4 more than the list price", name, got)
		}
		if d := cmp.Diff(want, calls()); d != "" {
			t.Errorf("%s: evaluations (-want +got):\n%s", name, d)
		}
	}
	in := rows(1000, 2000)
	step("first", in, 1, 1, 1, 1)
	step("again", in, 1, 1, 1, 1)
	minute := *in
	minute.Now.Minute, minute.Now.Unix, minute.PlanID, minute.SnapshotRevision = 5, in.Now.Unix+300, "p2", "2"
	step("what nobody reads has changed", &minute, 1, 1, 1, 1)
	hour := minute
	hour.Now.Hour++
	step("another hour", &hour, 1, 2, 1, 1)
	ice := hour
	fresh := append([]policy.OfferingRow(nil), in.Candidates.Rows...)
	fresh[1].Offering.ICEHistory.LastHour = 9
	ice.Candidates = policy.NewOfferings(in.Candidates.StaticRevision, fresh)
	step("a capacity error", &ice, 1, 2, 2, 1)
	dear := rows(1001, 2000)
	dear.Now = hour.Now
	step("another price", dear, 2, 2, 2, 2)
	unknown := *dear
	fresh = append([]policy.OfferingRow(nil), dear.Candidates.Rows...)
	fresh[0].Offering.ListPrice++
	unknown.Candidates = policy.NewOfferings("", fresh)
	step("a table without revision is told by its values", &unknown, 3, 2, 2, 3)
	step("once", &unknown, 3, 2, 2, 3)
}

func TestEngine_Score_lastGood(t *testing.T) {
	broken := false
	p := &fake{score: func(*policy.ScoreInput) (policy.ScoreAnswer, error) {
		if broken {
			return policy.ScoreAnswer{}, &policy.Error{Class: policy.ClassDeadline, Msg: "slow"}
		}
		return policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 0, MicroUSD: 5}}}, nil
	}}
	e := engine(t, policy.Policy{Name: "a", Evaluator: p})
	in := rows(1000, 2000)
	score(t, e, in)
	broken = true
	at := func(seconds int64, in *policy.ScoreInput) *policy.Scores {
		q := *in
		q.Now.Unix += seconds
		return score(t, e, &q)
	}
	if got := at(600, in); got.Cost[0] != 5 || got.Unscored || !got.Policies[0].LastGood || got.Policies[0].ErrorClass != policy.ClassDeadline {
		t.Errorf("after 10 minutes: cost %d, result %+v; want the last good answer", got.Cost[0], got.Policies[0])
	}
	if got := at(601, in); got.Cost[0] != 1000 || !got.Unscored {
		t.Errorf("after more: cost %d, unscored %t; want the list price", got.Cost[0], got.Unscored)
	}
	other := sample.Score(3)
	if got := at(1, other); !got.Unscored {
		t.Error("the answer for other rows was used")
	}
}

func TestEngine_breaker(t *testing.T) {
	p := fails(policy.ClassTrap)
	e := engine(t, policy.Policy{Name: "a", Hook: policy.Admit, Evaluator: p})
	ask := func(at int64) {
		in := sample.Admit()
		in.Now.Unix = at
		v, err := e.Admit(t.Context(), in)
		if err != nil || !v.Allowed || len(v.Warn) != 1 || v.Warn[0].Code != policy.CodePolicyError {
			t.Fatalf("Admit() = %+v, %v; want an allowing verdict with a warning", v, err)
		}
	}
	steps := []struct{ at, calls int64 }{{0, 1}, {1, 2}, {2, 3}, {3, 3}, {11, 3}, {12, 4}, {13, 4}, {31, 4}, {32, 5}}
	for _, s := range steps {
		ask(s.at)
		if got := p.calls.Load(); got != s.calls {
			t.Errorf("at %d s: %d evaluations, want %d", s.at, got, s.calls)
		}
	}
}

func TestEngine_Disrupt(t *testing.T) {
	zero, soon := int64(0), int64(60)
	deny := answers(policy.GateAnswer{Deny: []policy.Reason{{Msg: "no"}}})
	tests := map[string]struct {
		policies []policy.Policy
		change   func(*policy.DisruptInput)
		want     policy.Verdict
	}{
		"no policies": {want: policy.Verdict{Allowed: true}},
		"any denial denies": {
			policies: []policy.Policy{{Name: "a", Evaluator: answers(policy.GateAnswer{})}, {Name: "b", Evaluator: deny}},
			want:     policy.Verdict{Deny: []policy.Reason{{Policy: "b", Msg: "no"}}},
		},
		"the longest deferral wins": {
			policies: []policy.Policy{
				{Name: "a", Evaluator: answers(policy.GateAnswer{Defer: []policy.Reason{{Msg: "x", Seconds: 60}}})},
				{Name: "b", Evaluator: answers(policy.GateAnswer{Defer: []policy.Reason{{Msg: "y", Seconds: 90}}})},
			},
			want: policy.Verdict{Defer: []policy.Reason{{Policy: "a", Msg: "x", Seconds: 60}, {Policy: "b", Msg: "y", Seconds: 90}}, RetryAfterSeconds: 90},
		},
		"keeps and warnings are united": {
			policies: []policy.Policy{
				{Name: "a", Evaluator: answers(policy.GateAnswer{Keep: []policy.Reason{{Msg: "x", Nodes: []string{"n1"}}}})},
				{Name: "b", Evaluator: answers(policy.GateAnswer{Keep: []policy.Reason{{Msg: "y", Nodes: []string{"n1"}}}, Warn: []policy.Reason{{Msg: "w"}}})},
			},
			want: policy.Verdict{
				Allowed: true, Keep: []policy.Reason{{Policy: "a", Msg: "x", Nodes: []string{"n1"}}, {Policy: "b", Msg: "y", Nodes: []string{"n1"}}},
				Warn: []policy.Reason{{Policy: "b", Msg: "w"}},
			},
		},
		"all nodes kept is nothing left": {
			policies: []policy.Policy{
				{Name: "a", Evaluator: answers(policy.GateAnswer{Keep: []policy.Reason{{Msg: "x", Nodes: []string{"n1"}}}})},
				{Name: "b", Evaluator: answers(policy.GateAnswer{Keep: []policy.Reason{{Msg: "y", Nodes: []string{"n1", "n2"}}}})},
			},
			want: policy.Verdict{Keep: []policy.Reason{{Policy: "a", Msg: "x", Nodes: []string{"n1"}}, {Policy: "b", Msg: "y", Nodes: []string{"n1", "n2"}}}},
		},
		"shadow has no effect":    {policies: []policy.Policy{{Name: "a", Mode: policy.Shadow, Evaluator: deny}}, want: policy.Verdict{Allowed: true}},
		"other reasons":           {policies: []policy.Policy{{Name: "a", Reasons: []string{policy.Empty}, Evaluator: deny}}, want: policy.Verdict{Allowed: true}},
		"other pools":             {policies: []policy.Policy{{Name: "a", Applies: func(p *policy.NodePool) bool { return p.Labels["team"] != "shop" }, Evaluator: deny}}, want: policy.Verdict{Allowed: true}},
		"a failure denies":        {policies: []policy.Policy{{Name: "a", Evaluator: fails(policy.ClassFuel)}}, want: policy.Verdict{Deny: []policy.Reason{{Policy: "a", Code: policy.CodePolicyError, Msg: `policy "a": broken`}}}},
		"or not, if it says so":   {policies: []policy.Policy{{Name: "a", Failure: policy.Ignore, Evaluator: fails(policy.ClassFuel)}}, want: policy.Verdict{Allowed: true, Warn: []policy.Reason{{Policy: "a", Code: policy.CodePolicyError, Msg: `policy "a": broken`}}}},
		"but not for empty nodes": {policies: []policy.Policy{{Name: "a", Evaluator: fails(policy.ClassFuel)}}, change: func(in *policy.DisruptInput) { in.Command.Reason = policy.Empty }, want: policy.Verdict{Allowed: true, Warn: []policy.Reason{{Policy: "a", Code: policy.CodePolicyError, Msg: `policy "a": broken`}}}},
		"an interruption cannot be vetoed": {
			policies: []policy.Policy{{Name: "a", Evaluator: deny}}, change: func(in *policy.DisruptInput) { in.Command.Reason = policy.Interruption },
			want: policy.Verdict{Allowed: true, Advisory: true, Deny: []policy.Reason{{Policy: "a", Msg: "no"}}},
		},
		"expiry can, until its deadline": {
			policies: []policy.Policy{{Name: "a", Evaluator: deny}},
			change: func(in *policy.DisruptInput) {
				in.Command.Reason, in.Command.SecondsToDeadline = policy.Expired, &soon
			},
			want: policy.Verdict{Deny: []policy.Reason{{Policy: "a", Msg: "no"}}},
		},
		"and not after it": {
			policies: []policy.Policy{{Name: "a", Evaluator: deny}},
			change: func(in *policy.DisruptInput) {
				in.Command.Reason, in.Command.SecondsToDeadline = policy.Expired, &zero
			},
			want: policy.Verdict{Allowed: true, Advisory: true, Deny: []policy.Reason{{Policy: "a", Msg: "no"}}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for i := range tc.policies {
				tc.policies[i].Hook = policy.Disrupt
			}
			in := sample.Disrupt()
			if tc.change != nil {
				tc.change(in)
			}
			got, err := engine(t, tc.policies...).Disrupt(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			got.Policies = nil
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("Disrupt() verdict (-want +got):\n%s", d)
			}
		})
	}
}

func TestEngine_Launch(t *testing.T) {
	two := []policy.Policy{
		{Name: "a", Evaluator: answers(policy.GateAnswer{Restrict: []policy.Restriction{
			{Claim: "web/0", DropTypes: []string{"z", "x"}, MaxMicroUSD: 9, HasMax: true},
		}})},
		{Name: "b", Evaluator: answers(policy.GateAnswer{Restrict: []policy.Restriction{
			{Claim: "web/0", DropTypes: []string{"y", "x"}, MaxMicroUSD: 5, HasMax: true}, {Claim: "web/1", DropTypes: []string{"q"}},
		}})},
	}
	tests := map[string]struct {
		policies []policy.Policy
		allowed  bool
		retry    int64
		want     map[string]policy.ClaimVerdict
	}{
		"restrictions intersect": {
			policies: two, allowed: true,
			want: map[string]policy.ClaimVerdict{"web/0": {DropTypes: []string{"x", "y", "z"}, MaxMicroUSD: 5, HasMax: true, Restricting: []string{"a", "b"}}, "web/1": {DropTypes: []string{"q"}, Restricting: []string{"b"}}},
		},
		"one claim denied, the other allowed": {
			policies: []policy.Policy{{Name: "a", Evaluator: answers(policy.GateAnswer{Deny: []policy.Reason{{Msg: "no", Claims: []string{"web/1"}}}})}},
			allowed:  true, want: map[string]policy.ClaimVerdict{"web/1": {Denied: true}},
		},
		"a denial without claims denies all": {
			policies: []policy.Policy{{Name: "a", Evaluator: answers(policy.GateAnswer{Deny: []policy.Reason{{Msg: "no"}}})}},
			want:     map[string]policy.ClaimVerdict{"web/0": {Denied: true}, "web/1": {Denied: true}},
		},
		"deferred until the first may go": {
			policies: []policy.Policy{{Name: "a", Evaluator: answers(policy.GateAnswer{Defer: []policy.Reason{
				{Msg: "x", Claims: []string{"web/0"}, Seconds: 60}, {Msg: "y", Claims: []string{"web/0", "web/1"}, Seconds: 90}, {Msg: "z", Claims: []string{"web/1"}, Seconds: 120},
			}})}},
			retry: 90, want: map[string]policy.ClaimVerdict{"web/0": {DeferSeconds: 90}, "web/1": {DeferSeconds: 120}},
		},
		"a failure allows": {
			policies: []policy.Policy{{Name: "a", Evaluator: fails(policy.ClassMemory)}}, allowed: true, want: map[string]policy.ClaimVerdict{},
		},
		"a failure denies, if it must": {
			policies: []policy.Policy{{Name: "a", Failure: policy.Deny, Evaluator: fails(policy.ClassMemory)}},
			want:     map[string]policy.ClaimVerdict{"web/0": {Denied: true}, "web/1": {Denied: true}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for i := range tc.policies {
				tc.policies[i].Hook = policy.Launch
			}
			got, err := engine(t, tc.policies...).Launch(t.Context(), sample.Launch())
			if err != nil {
				t.Fatal(err)
			}
			if got.Allowed != tc.allowed || got.RetryAfterSeconds != tc.retry {
				t.Errorf("Launch() allowed %t, retry %d; want %t, %d", got.Allowed, got.RetryAfterSeconds, tc.allowed, tc.retry)
			}
			if d := cmp.Diff(tc.want, got.Claims); d != "" {
				t.Errorf("Launch() claims (-want +got):\n%s", d)
			}
		})
	}
}

func TestEngine_Launch_selector(t *testing.T) {
	in := sample.Launch()
	in.Claims[1].Pool = "other"
	in.NodePools["other"] = policy.NodePool{Name: "other"}
	var seen []string
	p := &fake{gate: func(in policy.GateInput) (policy.GateAnswer, error) {
		for _, c := range in.(*policy.LaunchInput).Claims {
			seen = append(seen, c.Name)
		}
		return policy.GateAnswer{Deny: []policy.Reason{{Msg: "no"}}}, nil
	}}
	e := engine(t, policy.Policy{Name: "a", Hook: policy.Launch, Evaluator: p, Applies: func(p *policy.NodePool) bool { return p.Name == "other" }})
	v, err := e.Launch(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"web/1"}, seen); d != "" {
		t.Errorf("claims shown to the policy (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]policy.ClaimVerdict{"web/1": {Denied: true}}, v.Claims); d != "" {
		t.Errorf("Launch() claims (-want +got):\n%s", d)
	}
}

func TestEngine_panics(t *testing.T) {
	p := &fake{gate: func(policy.GateInput) (policy.GateAnswer, error) { panic("oh") }}
	v, err := engine(t, policy.Policy{Name: "a", Hook: policy.Disrupt, Evaluator: p}).Disrupt(t.Context(), sample.Disrupt())
	if err != nil || v.Allowed || v.Policies[0].ErrorClass != policy.ClassTrap {
		t.Errorf("Disrupt() = %+v, %v; want a denial of class Trap", v, err)
	}
}

func TestEngine_Canceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &fake{gate: func(policy.GateInput) (policy.GateAnswer, error) {
		cancel()
		return policy.GateAnswer{}, &policy.Error{Class: policy.ClassCanceled, Msg: "canceled"}
	}}
	e := engine(t, policy.Policy{Name: "a", Hook: policy.Disrupt, Evaluator: p})
	if _, err := e.Disrupt(ctx, sample.Disrupt()); !errors.Is(err, context.Canceled) {
		t.Errorf("Disrupt() error %v, want context.Canceled", err)
	}
}

func TestEngine_Swap(t *testing.T) {
	e := engine(t, policy.Policy{Name: "a", Evaluator: says(policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 0, MicroUSD: 1}}})})
	err := e.Swap([]policy.Policy{{Name: "x", Hook: "scor"}, {Name: "x", Hook: policy.Score}})
	for _, want := range []string{`hook "scor" is unknown`, "no evaluator", "used twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Swap() error %v, want it to contain %q", err, want)
		}
	}
	if got := score(t, e, rows(9)).Cost[0]; got != 1 {
		t.Errorf("cost %d after a refused Swap, want the policies from before", got)
	}
}

// TestEngine_Swap_underLoad checks that no decision sees two revisions.
func TestEngine_Swap_underLoad(t *testing.T) {
	set := func(n int64) []policy.Policy {
		a := policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 0, MicroUSD: n}}}
		b := policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 1, MicroUSD: n}}}
		rev := fmt.Sprint(n)
		return []policy.Policy{
			{Name: "a", Hook: policy.Score, Revision: rev, Evaluator: says(a)},
			{Name: "b", Hook: policy.Score, Revision: rev, Evaluator: says(b)},
		}
	}
	e := policy.NewEngine(policy.Options{Concurrent: 8})
	if err := e.Swap(set(0)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var decisions atomic.Int64
	for range 2 {
		wg.Go(func() {
			last := int64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				in := rows(5, 5)
				s, err := e.Score(context.Background(), in)
				if err != nil || s.Unscored || s.Cost[0] != s.Cost[1] {
					t.Errorf("Score() = %v, %v: two revisions in one decision, or none", s, err)
					return
				}
				if s.Cost[0] < last {
					t.Errorf("revision %d after %d", s.Cost[0], last)
					return
				}
				last = s.Cost[0]
				decisions.Add(1)
			}
		})
	}
	for i := range int64(1000) {
		if err := e.Swap(set(i + 1)); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Microsecond)
	}
	close(stop)
	wg.Wait()
	if decisions.Load() < 100 {
		t.Errorf("%d decisions during 1000 swaps: the test shows nothing", decisions.Load())
	}
}

func TestEngine_Records(t *testing.T) {
	var log bytes.Buffer
	e := policy.NewEngine(policy.Options{Records: 2, OnDecision: policy.NewLog(&log, func(err error) { t.Error(err) })})
	if err := e.Swap([]policy.Policy{
		{Name: "a", Hook: policy.Score, Revision: "1", Evaluator: says(policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 0, MicroUSD: 1}}, Deny: []policy.RowDeny{{Row: 1, Code: "c", Msg: "m"}}})},
		{Name: "s", Hook: policy.Score, Mode: policy.Shadow, Revision: "1", Evaluator: says(policy.ScoreAnswer{Bias: []policy.RowAmount{{Row: 1, MicroUSD: 4}}})},
		{Name: "d", Hook: policy.Disrupt, Revision: "1", Evaluator: answers(policy.GateAnswer{Deny: []policy.Reason{{Msg: "no"}}})},
	}); err != nil {
		t.Fatal(err)
	}
	score(t, e, rows(7, 8))
	score(t, e, rows(7, 9))
	if _, err := e.Disrupt(t.Context(), sample.Disrupt()); err != nil {
		t.Fatal(err)
	}
	got := e.Records()
	if len(got) != 2 || got[0].Hook != policy.Score || got[1].Hook != policy.Disrupt {
		t.Fatalf("Records() = %+v, want the last two", got)
	}
	if want := "1 of 2 offerings excluded, 1 with another cost or bias"; got[0].Effect != want {
		t.Errorf("effect %q, want %q", got[0].Effect, want)
	}
	shadow := got[0].Policies[1]
	if shadow.Mode != policy.Shadow || shadow.Changed != 1 || shadow.Changes[0].BiasAfter != 4 || shadow.Changes[0].CostBefore != 9 {
		t.Errorf("result of the shadow policy %+v, want what it would have changed", shadow)
	}
	if got[1].Effect != "denied by d: no" || got[1].Subject != "n1,n2" || got[1].InputDigest == "" || got[1].Result.Allowed {
		t.Errorf("record %+v", got[1])
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines in the log, want 3", n)
	}
}

func TestReads_Tree(t *testing.T) {
	tests := map[string]struct{ in, want policy.Reads }{
		"nothing":                      {policy.Reads{}, policy.Reads{}},
		"everything":                   {nil, nil},
		"a whole hides its parts":      {policy.Reads{"a.b", "a"}, policy.Reads{"a"}},
		"any key adds to named ones":   {policy.Reads{"a.b.c", "a.*.d"}, policy.Reads{"a.*.d", "a.b.c", "a.b.d"}},
		"any key whole hides the rest": {policy.Reads{"a.b.c", "a.*"}, policy.Reads{"a.*", "a.b"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, tc.in.Tree().Reads()); d != "" {
				t.Errorf("Tree().Reads() (-want +got):\n%s", d)
			}
		})
	}
}

// TestEngine_Score_cacheBound checks that the caches forget what was used least lately.
func TestEngine_Score_cacheBound(t *testing.T) {
	p := &fake{reads: policy.Reads{"now.unix"}, score: func(in *policy.ScoreInput) (policy.ScoreAnswer, error) {
		var a policy.ScoreAnswer
		for i := range in.Candidates.Len() {
			a.Cost = append(a.Cost, policy.RowAmount{Row: i, MicroUSD: in.Now.Unix})
		}
		return a, nil
	}}
	e := policy.NewEngine(policy.Options{CacheBytes: 200_000})
	if err := e.Swap([]policy.Policy{{Name: "a", Hook: policy.Score, Revision: "1", Evaluator: p}}); err != nil {
		t.Fatal(err)
	}
	in := sample.Score(600)
	at := func(unix int64) {
		q := *in
		q.Now.Unix = unix
		score(t, e, &q)
	}
	at(1)
	at(2)
	at(1)
	if got := p.calls.Load(); got != 2 {
		t.Errorf("%d evaluations of two questions, want 2", got)
	}
	for unix := range int64(20) {
		at(100 + unix)
	}
	before := p.calls.Load()
	at(119)
	if got := p.calls.Load(); got != before {
		t.Error("the latest question was forgotten")
	}
	at(1)
	if got := p.calls.Load(); got != before+1 {
		t.Error("the oldest question is still there: the caches are not bounded")
	}
}
