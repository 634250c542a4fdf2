package policy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
)

func TestScores_Steps(t *testing.T) {
	answers := func(name string, order int, a policy.ScoreAnswer) policy.Policy {
		return policy.Policy{Name: name, Hook: policy.Score, Order: order, Revision: "1", Evaluator: &fake{score: func(*policy.ScoreInput) (policy.ScoreAnswer, error) { return a, nil }}}
	}
	shadow := answers("shadow", 4, policy.ScoreAnswer{Adjust: []policy.RowAdjust{{Row: 0, AddMicroUSD: 1}}})
	shadow.Mode = policy.Shadow
	e := engine(t,
		answers("contract", 1, policy.ScoreAnswer{Cost: []policy.RowAmount{{Row: 0, MicroUSD: 100_001}}}),
		answers("rates", 2, policy.ScoreAnswer{Adjust: []policy.RowAdjust{
			{Row: 0, AddMicroUSD: -100_000}, {Row: 0, Permille: 900, Factor: true}, {Row: 0, AddMicroUSD: 120_000}, {Row: 0, Permille: 500, Factor: true}, {Row: 1, AddMicroUSD: 7},
		}}),
		answers("rest", 3, policy.ScoreAnswer{
			Bias: []policy.RowAmount{{Row: 0, MicroUSD: -5000}}, Cover: []policy.RowCover{{Row: 0, Commitment: "ri-1", Units: 1, MicroUSD: 10}}, Commitments: []policy.Units{{ID: "ri-1", Units: 1}},
			Deny: []policy.RowDeny{{Row: 0, Msg: "too old"}},
		}),
		shadow,
	)
	in := sample.Score(6)
	in.Candidates.Rows[0].Offering.ListPrice = 96_000
	s, err := e.Score(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var cost int64
	for _, p := range s.Policies {
		if p.Error != "" {
			t.Fatal(p.Error)
		}
	}
	for _, st := range s.Steps(0) {
		got = append(got, st.String())
		cost = st.Cost
	}
	want := []string{
		"list price", "set to $0.100001 by contract", "x 0.900 by rates", "x 0.500 by rates", "- $0.10 by rates", "+ $0.12 by rates",
		"bias -0.005 by rest", "$0.00001 while ri-1 has units by rest", "excluded by rest: too old",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Steps() (-want +got):\n%s", d)
	}
	if cost != s.Cost[0] || cost != 65_000 { // 100001 x 0.45 + 20000, rounded once
		t.Errorf("the steps end at %d, the cost is %d, want 65000", cost, s.Cost[0])
	}
	if n := len(s.Steps(1)); n != 2 {
		t.Errorf("%d steps of the second row, want 2", n)
	}
	if s.Steps(6) != nil || (*policy.Scores)(nil).Steps(0) != nil {
		t.Error("steps of a row that does not exist")
	}
}
