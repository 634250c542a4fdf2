//go:build unix

package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/webhook"
	"github.com/dovetail-sh/dovetail/policies"
)

// shipped are the admit policies that come with Dovetail, and six small ones.
func shipped(t testing.TB) []policy.Policy {
	t.Helper()
	var list []policy.Policy
	load := func(name string, files map[string][]byte) {
		np := nodePolicy(name, "")
		np.Spec.Source = v1alpha1.PolicySource{File: &v1alpha1.FileSource{Path: name}}
		a, err := source.New(files, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := loader.Load(t.Context(), np, a)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	for _, name := range []string{"budget_sanity", "nodepool_hygiene", "price_ceiling", "safe_edits"} {
		texts, err := policies.Source("admit/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{}
		for file, text := range texts {
			files[file] = []byte(text)
		}
		load(name, files)
	}
	for i := range 6 {
		name := fmt.Sprintf("small_%d", i)
		load(name, map[string][]byte{"policy.rego": fmt.Appendf(nil, "package dovetail.admit.%s\n\ndeny contains {\"code\": \"weight\", \"msg\": \"too heavy\"} if input.object.spec.weight > %d\n", name, 90+i)})
	}
	return list
}

// BenchmarkNodePool admits a change that drifts all nodes of a NodePool, with ten policies
// and the built-in catalogue. It reports how long the slowest requests take, and what one
// costs, which says more on a machine that has other work.
func BenchmarkNodePool(b *testing.B) {
	builtin := sim.Builtin()
	for _, nodes := range []int{0, 50, 500} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := newWorld(b, 0, func(w *world) {
				w.sold, w.machine = builtin, "m6a.2xlarge"
				it, ok := builtin.ByName(w.machine)
				if !ok {
					b.Fatalf("no %s", w.machine)
				}
				w.zone = it.Offerings[0].Zone
				w.add(nodes)
				w.opts.MomentTime, w.opts.ImpactTime = 0, 0 // the defaults
				// The state is made ahead, as by its memory of what has not changed.
				m, err := w.moment(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				w.opts.Moment = func(context.Context) (webhook.Moment, error) { return m, nil }
			})
			if err := w.opts.Policies.Swap(shipped(b)); err != nil {
				b.Fatal(err)
			}
			change := request{operation: update, old: pool(), object: pool(labelled, func(p *karpv1.NodePool) { p.Spec.Weight = new(int32(10)) })}
			var took []time.Duration
			known := 0
			used := cpu(b)
			for b.Loop() {
				begin := time.Now()
				got := w.ask(change)
				took = append(took, time.Since(begin))
				if got.Result == nil {
					b.Fatal("no answer")
				}
				if !slices.ContainsFunc(got.Warnings, func(s string) bool { return strings.HasPrefix(s, "policies were not told") }) {
					known++
				}
			}
			slices.Sort(took)
			at := func(permille int) float64 { return took[(len(took)-1)*permille/1000].Seconds() * 1e3 }
			b.ReportMetric((cpu(b)-used).Seconds()*1e3/float64(len(took)), "cpu-ms/op")
			b.ReportMetric(at(500), "p50-ms")
			b.ReportMetric(at(990), "p99-ms")
			b.ReportMetric(float64(known)*100/float64(len(took)), "%known")
		})
	}
}

// cpu is the time that this process has used.
func cpu(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
