package simulate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/google/go-cmp/cmp"
)

// says is a policy of a hook that is not score.
type says func(policy.GateInput) (policy.GateAnswer, error)

func (s says) Score(context.Context, *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	return policy.ScoreAnswer{}, policy.Stats{}, fmt.Errorf("not asked for")
}

func (s says) Gate(_ context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	a, err := s(in)
	return a, policy.Stats{}, err
}

func (s says) Reads() policy.Reads { return nil }

func ask(name string, hook policy.Hook, f says) policy.Policy {
	return policy.Policy{Name: name, Hook: hook, Revision: "r1", Evaluator: f}
}

// claims answers about the claims that match.
func claims(match func(*policy.Claim) bool, answer func(names []string) policy.GateAnswer) says {
	return func(in policy.GateInput) (policy.GateAnswer, error) {
		var names []string
		q := in.(*policy.LaunchInput)
		for i := range q.Claims {
			if match(&q.Claims[i]) {
				names = append(names, q.Claims[i].Name)
			}
		}
		if len(names) == 0 {
			return policy.GateAnswer{}, nil
		}
		return answer(names), nil
	}
}

func deny(names []string) policy.GateAnswer {
	return policy.GateAnswer{Deny: []policy.Reason{{Msg: "no", Claims: names}}}
}

func TestRun_launchPolicies(t *testing.T) {
	ofType := func(name string) func(*policy.Claim) bool {
		return func(c *policy.Claim) bool { return c.InstanceType.Name == name }
	}
	all := func(*policy.Claim) bool { return true }
	tests := map[string]struct {
		policies        []policy.Policy
		wantNodes       string
		wantUnscheduled int
		wantRounds      int
		wantCode        string
	}{
		"nothing is said": {wantNodes: "large", wantRounds: 1, policies: []policy.Policy{ask("mute", policy.Launch, claims(ofType("none"), deny))}},
		"a denied node is planned anew": {
			policies:  []policy.Policy{ask("no-large", policy.Launch, claims(ofType("large"), deny))},
			wantNodes: "small small", wantRounds: 2,
		},
		"what is denied whatever it is is not bought": {
			policies:        []policy.Policy{ask("never", policy.Launch, claims(all, deny))},
			wantUnscheduled: 2, wantRounds: 2, wantCode: "PolicyDenied",
		},
		"a deferred node is not bought now, and not planned anew": {
			policies: []policy.Policy{ask("later", policy.Launch, claims(all, func(names []string) policy.GateAnswer {
				return policy.GateAnswer{Defer: []policy.Reason{{Msg: "later", Claims: names, Seconds: 60}}}
			}))},
			wantUnscheduled: 2, wantRounds: 1, wantCode: "PolicyDeferred",
		},
		"a highest cost": {
			policies: []policy.Policy{ask("cheap", policy.Launch, claims(all, func(names []string) policy.GateAnswer {
				var a policy.GateAnswer
				for _, n := range names {
					a.Restrict = append(a.Restrict, policy.Restriction{Claim: n, MaxMicroUSD: 150_000, HasMax: true})
				}
				return a
			}))},
			wantNodes: "small small", wantRounds: 2,
		},
		"a dropped type": {
			policies: []policy.Policy{ask("drop", policy.Launch, claims(all, func(names []string) policy.GateAnswer {
				return policy.GateAnswer{Restrict: []policy.Restriction{{Claim: names[0], DropTypes: []string{"large"}}}}
			}))},
			wantNodes: "small small", wantRounds: 2,
		},
		"a failing policy lets all be bought": {
			policies:  []policy.Policy{ask("broken", policy.Launch, func(policy.GateInput) (policy.GateAnswer, error) { return policy.GateAnswer{}, fmt.Errorf("broken") })},
			wantNodes: "large", wantRounds: 1,
		},
		"a failing policy that must not be ignored": {
			policies: []policy.Policy{{Name: "broken", Hook: policy.Launch, Revision: "r1", Failure: policy.Deny,
				Evaluator: says(func(policy.GateInput) (policy.GateAnswer, error) { return policy.GateAnswer{}, fmt.Errorf("broken") })}},
			wantUnscheduled: 2, wantRounds: 2, wantCode: "PolicyDenied",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := Run(t.Context(), twoPods(t), Options{Catalog: twoTypes(t), Now: time.Unix(1_767_225_600, 0), Policies: Policies{Enforced: test.policies}})
			if err != nil {
				t.Fatal(err)
			}
			var nodes []string
			total := 0.0
			for _, n := range out.Report.Nodes {
				nodes = append(nodes, n.InstanceType)
				total += n.Price
			}
			p := out.Report.Policies
			got := fmt.Sprintf("%s, %d unscheduled, %d rounds", strings.Join(nodes, " "), len(out.Report.Unscheduled), p.Launch.Rounds)
			want := fmt.Sprintf("%s, %d unscheduled, %d rounds", test.wantNodes, test.wantUnscheduled, test.wantRounds)
			if got != want {
				t.Errorf("got %s; want %s", got, want)
			}
			if round6(total) != round6(out.Report.Cost.Hourly) {
				t.Errorf("the nodes cost %v, the report says %v", total, out.Report.Cost.Hourly)
			}
			for _, u := range out.Report.Unscheduled {
				if string(u.Reasons[0].Code) != test.wantCode || !strings.Contains(u.Reasons[0].Text, test.policies[0].Name) {
					t.Errorf("%s: reason %+v, want code %s and the policy's name", u.Pod, u.Reasons[0], test.wantCode)
				}
			}
			if c := p.Plans[0]; c.Name != "without policies" || c.Nodes != 1 || c.Unscheduled != 0 {
				t.Errorf("plan without policies %+v", c)
			}
		})
	}
}

func TestRun_shadowPolicies(t *testing.T) {
	no := func(code string) says {
		return func(policy.GateInput) (policy.GateAnswer, error) {
			return policy.GateAnswer{Deny: []policy.Reason{{Code: code, Msg: "closed"}}}, nil
		}
	}
	for name, enforced := range map[string][]policy.Policy{
		"in place of one in force": {ask("pools", policy.Admit, func(policy.GateInput) (policy.GateAnswer, error) { return policy.GateAnswer{}, nil })},
		"alone":                    nil,
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Run(t.Context(), twoPods(t), Options{Catalog: twoTypes(t), Now: time.Unix(1_767_225_600, 0), Policies: Policies{
				Enforced: enforced,
				Shadow:   []policy.Policy{ask("pools", policy.Admit, no("shut"))},
			}})
			if err != nil {
				t.Fatal(err)
			}
			p := out.Report.Policies
			if len(out.Report.Nodes) != 1 || len(p.Pools) > 0 && p.Pools[0].Denied {
				t.Errorf("a shadow policy has an effect: nodes %v, pools %+v", out.Report.Nodes, p.Pools)
			}
			if want := (map[string]int{"large/z/on-demand": -1}); cmp.Diff(want, p.Shadow.Nodes) != "" || !p.Shadow.Pools[0].Denied {
				t.Errorf("shadow report %+v, want the pool denied and %v", p.Shadow, want)
			}
			if len(p.Shadow.Policies) != 1 || p.Shadow.Policies[0].Verdict != policy.VerdictDeny {
				t.Errorf("shadow policies %+v", p.Shadow.Policies)
			}
		})
	}
}

func twoPods(t *testing.T) *load.Result {
	t.Helper()
	var b strings.Builder
	b.WriteString("apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: main}\nspec: {template: {spec: {nodeClassRef: {group: a.b, kind: C, name: d}}}}\n")
	for _, name := range []string{"a", "b"} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: a, resources: {requests: {cpu: 1500m, memory: 1Gi}}}]}\n", name)
	}
	return load.Read([]load.Input{{Name: "in.yaml", Data: []byte(b.String())}})
}

func twoTypes(t *testing.T) *catalog.Catalog {
	t.Helper()
	cat, errs := sim.ReadFile(strings.NewReader(`
instanceTypes:
- name: small
  capacity: {cpu: 2, memory: 4Gi, pods: 20}
  offerings: [{zone: z, price: 0.1}]
- name: large
  capacity: {cpu: 4, memory: 8Gi, pods: 20}
  offerings: [{zone: z, price: 0.19}]
`), "catalog.yaml")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return cat
}
