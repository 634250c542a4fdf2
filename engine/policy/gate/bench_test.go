package gate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/policies"
)

// shipped loads policies of the tree.
func shipped(t testing.TB, files ...string) []policy.Policy {
	t.Helper()
	var out []policy.Policy
	for _, file := range files {
		b, err := policies.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		hook, _, _ := strings.Cut(file, "/")
		m, err := rego.Load(t.Context(), rego.Source{Name: file, Hook: policy.Hook(hook), Files: map[string]string{file: string(b)}})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, policy.Policy{Name: file, Hook: policy.Hook(hook), Revision: m.Revision(), Evaluator: m, Limits: policy.Limits{Deadline: time.Minute}})
	}
	return out
}

// many are n pods of 100 workloads.
func many(n int) snapshot.Objects {
	objs := snapshot.Objects{NodePools: []*karpv1.NodePool{pool("main", 0)}}
	for i := range 100 {
		cpu, memory := fmt.Sprintf("%dm", 100+i*37%1900), fmt.Sprintf("%dMi", 128+i*91%4000)
		var change []func(*corev1.Pod)
		if i%4 == 0 {
			change = append(change, spread)
		}
		objs.Pods = append(objs.Pods, pods(fmt.Sprintf("w%d", i), n/100, cpu, memory, change...)...)
	}
	return objs
}

// BenchmarkPlan plans 5000 pods with and without policies.
func BenchmarkPlan(b *testing.B) {
	objs := many(5000)
	cat := sim.Builtin()
	snap := build(b, cat, objs)
	score := shipped(b, "score/burstable_baseline.rego", "score/host_fee.rego", "score/newer_generation.rego", "score/contract_price.rego", "score/zone_balance.rego")
	launch := shipped(b, "launch/no_giants.rego", "launch/diverse_spot.rego", "launch/wait_then_pay.rego", "launch/team_budget.rego", "launch/off_hours.rego")
	for name, list := range map[string][]policy.Policy{"none": nil, "score": score, "launch": launch, "both": slices.Concat(score, launch)} {
		b.Run("policies="+name, func(b *testing.B) {
			e := policy.NewEngine(policy.Options{})
			if err := e.Swap(list); err != nil {
				b.Fatal(err)
			}
			in := &policy.Inputs{}
			var r *gate.Result
			var err error
			for b.Loop() {
				if r, err = gate.Plan(b.Context(), e, in, snap, objs.NodePools, policy.Facts{Round: policy.NewRound(-1)}, schedule.Options{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(r.Plan.NewNodes)), "nodes")
			b.ReportMetric(float64(r.Launch.Rounds), "rounds")
			b.ReportMetric(float64(len(r.Plan.Unscheduled)), "unscheduled")
		})
	}
}
