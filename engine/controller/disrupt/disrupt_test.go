package disrupt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// ways are worlds with one thing to do, and what must come of it.
func ways() map[string]struct {
	sold  []int64
	build func(w *world)
	want  []string
	moved int
} {
	return map[string]struct {
		sold  []int64
		build func(w *world)
		want  []string
		moved int
	}{
		"an empty node goes": {sold: []int64{4}, build: func(w *world) {
			w.machine("a", "c.4")
			w.machine("b", "c.4")
			w.pod("x", "b", 3)
		}, want: []string{"b c.4: x"}},
		"pods go where there is room": {sold: []int64{4}, build: func(w *world) {
			w.machine("a", "c.4")
			w.machine("b", "c.4")
			w.pod("x", "a", 1)
			w.pod("y", "b", 1.5)
			w.pod("z", "b", 0.5)
		}, want: []string{"b c.4: x y z"}, moved: 1},
		"a node is replaced by a smaller one": {sold: []int64{4, 16}, build: func(w *world) {
			w.machine("a", "c.16")
			w.pod("x", "a", 2)
		}, want: []string{"new c.4: x"}, moved: 1},
		"two nodes become one": {sold: []int64{4, 6}, build: func(w *world) {
			w.machine("a", "c.4")
			w.machine("b", "c.4")
			w.pod("x", "a", 2.5)
			w.pod("y", "b", 2.5)
		}, want: []string{"new c.6: x y"}, moved: 2},
		"a drifted node is replaced": {sold: []int64{4}, build: func(w *world) {
			w.machine("a", "c.4", drifted)
			w.pod("x", "a", 3)
		}, want: []string{"new c.4: x"}, moved: 1},
		"a drifted node of a static pool is replaced": {sold: []int64{4}, build: func(w *world) {
			w.static(1)
			w.machine("a", "c.4", drifted)
			w.pod("x", "a", 3)
		}, want: []string{"new c.4: x"}, moved: 1},
		"a broken node is replaced": {sold: []int64{4}, build: func(w *world) {
			w.repairs(new(5 * time.Minute))
			w.machine("a", "c.4")
			w.pod("x", "a", 3)
			w.breaks("a")
		}, want: []string{"new c.4: x"}, moved: 1},
		"a broken node of a static pool is replaced": {sold: []int64{4}, build: func(w *world) {
			w.repairs(nil)
			w.static(1)
			w.machine("a", "c.4")
			w.pod("x", "a", 3)
			w.breaks("a")
		}, want: []string{"new c.4: x"}, moved: 1},
	}
}

// static makes the NodePool static.
func (w *world) static(replicas int64, change ...func(*karpv1.NodePool)) {
	w.repool(append(change, func(p *karpv1.NodePool) { p.Spec.Replicas = &replicas })...)
}

func (w *world) repool(change ...func(*karpv1.NodePool)) {
	w.t.Helper()
	p := &karpv1.NodePool{}
	if err := w.Truth.Get(w.t.Context(), metaName("default"), p); err != nil {
		w.t.Fatal(err)
	}
	for _, f := range change {
		f(p)
	}
	if err := w.Truth.Update(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
	w.watch()
}

func TestCommands(t *testing.T) {
	for name, tt := range ways() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sizes(t, tt.sold...), pool("default"))
			tt.build(w)
			homes := w.homes()
			w.run(5 * time.Minute)
			if diff := cmp.Diff(tt.want, w.nodes()); diff != "" {
				t.Errorf("nodes (-want +got):\n%s\nevents %v", diff, w.Told())
			}
			if got := w.moved(homes); got != tt.moved {
				t.Errorf("%d pods were moved, want %d", got, tt.moved)
			}
			if traces := w.traces(); len(traces) > 0 || len(w.c.commands) > 0 {
				t.Errorf("left behind: %v %v", traces, w.phases())
			}
		})
	}
}

func (w *world) homes() map[string]string {
	out := map[string]string{}
	for _, p := range w.pods() {
		out[p.Name] = p.Spec.NodeName
	}
	return out
}

func (w *world) moved(before map[string]string) int {
	n := 0
	for _, p := range w.pods() {
		if p.Spec.NodeName != before[p.Name] {
			n++
		}
	}
	return n
}

// TestRestart ends the process after every write, whether its answer arrived or not, and lets
// another one go on.
func TestRestart(t *testing.T) {
	for name, tt := range ways() {
		t.Run(name, func(t *testing.T) {
			at := 0
			for ; ; at++ {
				died := false
				for _, stored := range []bool{true, false} {
					w := newWorld(t, sizes(t, tt.sold...), pool("default"))
					tt.build(w)
					died = w.dieAt(at, stored)
					w.restart()
					w.settle(10 * time.Minute)
					if diff := cmp.Diff(tt.want, w.nodes()); diff != "" {
						t.Errorf("gone after write %d (stored: %t): nodes (-want +got):\n%s\nevents %v", at, stored, diff, w.Told())
					}
					if traces := w.traces(); len(traces) > 0 || len(w.c.commands) > 0 {
						t.Errorf("gone after write %d (stored: %t): left behind: %v %v", at, stored, traces, w.phases())
					}
				}
				if !died {
					break
				}
			}
			if at < 3 {
				t.Errorf("only %d writes were seen", at)
			}
		})
	}
}

// dieAt runs until the process dies at a write, which arrives if stored is true. It reports
// whether there was such a write.
func (w *world) dieAt(at int, stored bool) (died bool) {
	var n atomic.Int32
	fail := func(stage.Write) error {
		if int(n.Add(1)) > at {
			return errors.New("the process is gone")
		}
		return nil
	}
	if stored {
		w.After = fail
	} else {
		w.Before = fail
	}
	w.try(5*time.Minute, func() bool { return int(n.Load()) > at })
	w.After, w.Before = nil, nil
	return int(n.Load()) > at
}

// try runs whatever fails, until something holds.
func (w *world) try(d time.Duration, until func() bool) {
	for end := w.Now().Add(d); w.Now().Before(end) && !until(); {
		w.Pass(w.tick())
		w.others()
		w.watch()
		if _ = w.c.Step(w.t.Context()); !until() && !w.Now().Before(w.next) {
			_, _ = w.c.Decide(w.t.Context())
			w.next = w.Now().Add(10 * time.Second)
		}
	}
}

// settle runs until nothing has been under way for a while.
func (w *world) settle(d time.Duration) {
	w.t.Helper()
	quiet := 0
	w.until("nothing to be under way", d, func() bool {
		if quiet++; len(w.c.commands) > 0 || len(w.leaving()) > 0 || w.unbound() {
			quiet = 0
		}
		return quiet > 8
	})
}

func (w *world) unbound() bool {
	return slices.ContainsFunc(w.pods(), func(p *corev1.Pod) bool { return p.Spec.NodeName == "" })
}

// TestFailedWrites lets every write fail once, and nothing else: it is repeated.
func TestFailedWrites(t *testing.T) {
	for name, tt := range ways() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sizes(t, tt.sold...), pool("default"))
			tt.build(w)
			var seen sync.Map
			w.Before = func(x stage.Write) error {
				if _, again := seen.LoadOrStore(fmt.Sprintf("%s %T %s", x.Verb, x.Object, x.Object.GetName()), true); again {
					return nil
				}
				return errors.New("not now")
			}
			w.try(6*time.Minute, func() bool { return false })
			if diff := cmp.Diff(tt.want, w.nodes()); diff != "" {
				t.Errorf("nodes (-want +got):\n%s\nevents %v", diff, w.Told())
			}
			if traces := w.traces(); len(traces) > 0 || len(w.c.commands) > 0 {
				t.Errorf("left behind: %v %v", traces, w.phases())
			}
		})
	}
}

// TestConfirm (S-19): a pod comes to an empty node at each moment between the decision and the
// deletion.
func TestConfirm(t *testing.T) {
	for _, after := range []phase{confirming, closed} {
		t.Run(after.String(), func(t *testing.T) {
			w := newWorld(t, sizes(t, 4), pool("default"))
			w.machine("a", "c.4")
			w.until(after.String(), time.Minute, func() bool { return len(w.c.commands) == 1 && w.c.commands[0].phase == after })
			w.pod("w", "a", 1)
			w.run(2 * time.Minute)
			if diff := cmp.Diff([]string{"a c.4: w"}, w.nodes()); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if traces := w.traces(); len(traces) > 0 {
				t.Errorf("left behind: %v", traces)
			}
			event := "Node a Normal ConsolidationRejected"
			if after == closed {
				event = "Node a Normal DisruptionRolledBack"
			}
			if !w.WasTold(event) {
				t.Errorf("events %v, want %q", w.Told(), event)
			}
		})
	}
}

// TestReplacementFirst (S-51): the node takes pods until what replaces it is ready, and a
// launch that fails is tried again with patience.
func TestReplacementFirst(t *testing.T) {
	w := newWorld(t, sizes(t, 2, 8), pool("default"))
	w.machine("a", "c.8")
	w.pod("x", "a", 1.5)
	start := w.Now()
	asked := map[string]bool{}
	w.refuse = func(c *karpv1.NodeClaim) bool {
		asked[c.Name] = true
		return w.Now().Sub(start) < 5*time.Minute
	}
	w.run(5 * time.Second)
	w.pod("y", "a", 0.4)
	w.watched = func() {
		if w.Now().Sub(start) < 5*time.Minute && tainted(w.NodeNamed("a")) {
			t.Fatal("a is tainted before its replacement is there")
		}
	}
	w.run(5*time.Minute - 5*time.Second)
	if n := len(asked); n < 1 || n > 3 {
		t.Errorf("%d launches in 5 minutes, want 1 to 3", n)
	}
	w.watched = nil
	w.run(5 * time.Minute)
	if diff := cmp.Diff([]string{"new c.2: x y"}, w.nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s\nevents %v", diff, w.Told())
	}
	if traces := w.traces(); len(traces) > 0 {
		t.Errorf("left behind: %v", traces)
	}
}

// TestBackoff: what one NodePool cannot buy does not keep another from its moves, nor the same
// from others.
func TestBackoff(t *testing.T) {
	w := newWorld(t, sizes(t, 2, 4, 8, 16), pool("default"), pool("other"))
	w.machine("a", "c.8")
	w.pod("x", "a", 1.5)
	w.machine("b", "c.8", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = "other" })
	w.pod("y", "b", 1.5)
	w.refuse = func(c *karpv1.NodeClaim) bool {
		return c.Labels[karpv1.NodePoolLabelKey] == "default" && w.kindOf(c) == "c.2"
	}
	w.run(12 * time.Minute)
	for _, name := range w.nodes() {
		if strings.Contains(name, "c.8") {
			t.Errorf("nodes %v: what can be had was not bought", w.nodes())
		}
	}
}

func TestRollback(t *testing.T) {
	tests := map[string]struct {
		// at is the phase in which something happens.
		at   phase
		what func(w *world)
		// want are the nodes after it, before anything is tried again.
		want  []string
		cause string
	}{
		"replacements that take too long": {
			at: launching, what: func(w *world) { w.slow = true; w.run(11 * time.Minute) }, want: []string{"a c.16: x"}, cause: "timeout",
		},
		"a replacement that somebody deletes": {
			at: launching, what: func(w *world) { w.Delete(w.successor()) }, want: []string{"a c.16: x"}, cause: "launch",
		},
		"a node that is protected meanwhile": {
			at: launching, what: func(w *world) {
				w.Node("a", func(n *corev1.Node) { n.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} })
			}, want: []string{"a c.16: x"}, cause: "churn",
		},
		"a pod that is protected once the node is tainted": {
			at: closed, what: func(w *world) {
				p := w.Pod("x")
				p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
				w.store(p)
			}, want: []string{"a c.16: x"}, cause: "churn",
		},
		"a budget that closes": {
			at: launching, what: func(w *world) {
				w.repool(func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}} })
			}, want: []string{"a c.16: x"}, cause: "budget",
		},
		"pods that would have no place any more": {
			at: launching, what: func(w *world) { w.pod("y", "a", 3); w.pod("z", "a", 3) }, want: []string{"a c.16: x y z"}, cause: "scheduling",
		},
		"a replacement that has pods stays": {
			at: closed, what: func(w *world) {
				w.pod("y", w.successor().Name, 1, func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} })
				w.pod("z", "a", 3)
			}, want: []string{"a c.16: x z", "new c.4: y"}, cause: "scheduling",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sizes(t, 4, 16), pool("default"))
			w.machine("a", "c.16")
			w.pod("x", "a", 2)
			w.until(tt.at.String(), 5*time.Minute, func() bool {
				return len(w.c.commands) == 1 && w.c.commands[0].phase == tt.at && (tt.at != launching || len(w.c.commands[0].replacements) > 0)
			})
			tt.what(w)
			w.until("the command to be taken back", 4*time.Minute, func() bool { return w.WasTold("Node a Normal DisruptionRolledBack") && len(w.c.commands) == 0 })
			w.slow = false
			w.run(5 * time.Second)
			if diff := cmp.Diff(tt.want, w.nodes()); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if traces := w.traces(); len(traces) > 0 {
				t.Errorf("left behind: %v", traces)
			}
			if got := w.counter("dovetail_disruption_rollbacks_total", "cause", tt.cause); got != 1 {
				t.Errorf("%v commands were taken back because of %s", got, tt.cause)
			}
			if got := w.counter("karpenter_nodeclaims_disrupted_total", "nodepool", "default"); got > 1 {
				t.Errorf("%v claims count as disrupted", got)
			}
		})
	}
}

// successor is the claim that was bought.
func (w *world) successor() *karpv1.NodeClaim {
	w.t.Helper()
	var list karpv1.NodeClaimList
	if err := w.Truth.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, "default-") {
			return &list.Items[i]
		}
	}
	w.t.Fatal("nothing was bought")
	return nil
}

// TestSuccessIsNoFailure: replacements that are ready after the time limit, but before anybody
// has looked, are a success (§13.2 item 16).
func TestSuccessIsNoFailure(t *testing.T) {
	w := newWorld(t, sizes(t, 4, 16), pool("default"))
	w.machine("a", "c.16")
	w.pod("x", "a", 2)
	w.until("launching", time.Minute, func() bool { return len(w.c.commands) == 1 && len(w.c.commands[0].replacements) == 1 })
	w.others()
	w.Pass(30 * time.Minute)
	w.others()
	w.run(time.Minute)
	if diff := cmp.Diff([]string{"new c.4: x"}, w.nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if got := w.counter("karpenter_voluntary_disruption_queue_failures_total", "", ""); got != 0 {
		t.Errorf("%v failures are counted", got)
	}
}

// TestCounted: a deletion that is repeated counts once (§13.2 item 18).
func TestCounted(t *testing.T) {
	w := newWorld(t, sizes(t, 4, 6), pool("default"))
	w.machine("a", "c.4")
	w.machine("b", "c.4")
	w.pod("x", "a", 2.5)
	w.pod("y", "b", 2.5)
	failed := 0
	w.Before = func(x stage.Write) error {
		if x.Verb == "delete" && x.Object.GetName() == "b" && failed < 3 {
			failed++
			return errors.New("not now")
		}
		return nil
	}
	w.try(5*time.Minute, func() bool { return false })
	if diff := cmp.Diff([]string{"new c.6: x y"}, w.nodes()); diff != "" || failed != 3 {
		t.Errorf("%d failures, nodes (-want +got):\n%s", failed, diff)
	}
	for name, want := range map[string]float64{
		"karpenter_nodeclaims_disrupted_total":                2,
		"karpenter_pods_disruption_initiated_total":           2,
		"karpenter_voluntary_disruption_decisions_total":      1,
		"karpenter_nodeclaims_created_total":                  1,
		"karpenter_voluntary_disruption_queue_failures_total": 0,
	} {
		if got := w.counter(name, "", ""); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

// TestBudgets: commands that are under way count, and a NodePool without budget says so.
func TestBudgets(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default", func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "2"}} }))
	for i := range 6 {
		w.machine(fmt.Sprintf("n%d", i), "c.4")
	}
	w.stuck = true
	w.run(2 * time.Minute)
	if got := len(w.leaving()); got != 2 {
		t.Errorf("%d nodes are leaving, want 2: %v", got, w.phases())
	}
	w.repool(func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}} })
	w.stuck = false
	w.run(2 * time.Minute)
	if got := len(w.nodes()); got != 4 {
		t.Errorf("%d nodes are left, want 4", got)
	}
	if event := "NodePool default Normal DisruptionBlocked"; !w.WasTold(event) {
		t.Errorf("events %v, want %q", w.Told(), event)
	}
}

// leaving are the nodes whose claims are being deleted.
func (w *world) leaving() []string {
	w.t.Helper()
	var list karpv1.NodeClaimList
	if err := w.Truth.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp != nil {
			out = append(out, list.Items[i].Name)
		}
	}
	return out
}

// TestBrokenBudget (S-54): a NodePool whose budget cannot be read loses no node, says so in the
// first pass, and keeps no other from anything.
func TestBrokenBudget(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("x", func(p *karpv1.NodePool) {
		p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}, {Nodes: "0", Schedule: new("0 0 * * sat-sun"), Duration: &metav1.Duration{Duration: day}}}
	}), pool("y"))
	w.machine("a", "c.4", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = "x" })
	w.machine("b", "c.4", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = "y" })
	w.second()
	if event := "NodePool x Warning DisruptionBlocked"; !w.WasTold(event) {
		t.Errorf("events %v, want %q", w.Told(), event)
	}
	if got := w.gaugeOf("karpenter_nodepools_allowed_disruptions", map[string]string{"nodepool": "x", "reason": "empty"}); got != 0 {
		t.Errorf("allowed disruptions of x: %v", got)
	}
	w.run(time.Minute)
	if diff := cmp.Diff([]string{"a c.4:"}, w.nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// TestBusyDestination (S-12): a node with recent pod events takes pods all the same, unless its
// NodePool protects it, and is not disrupted itself.
func TestBusyDestination(t *testing.T) {
	for _, protect := range []bool{false, true} {
		t.Run(fmt.Sprintf("protect %t", protect), func(t *testing.T) {
			w := newWorld(t, sizes(t, 4, 8), pool("default", func(p *karpv1.NodePool) {
				p.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(10 * time.Minute)
				if protect {
					p.Annotations = map[string]string{v1alpha1.ProtectDestinationsAnnotation: "true"}
				}
			}))
			w.machine("a", "c.4")
			w.pod("x", "a", 0.5)
			w.machine("b", "c.8", func(c *karpv1.NodeClaim) { c.Status.LastPodEventTime = metav1.NewTime(w.Now().Add(-time.Minute)) })
			for i := range 4 {
				w.pod(fmt.Sprintf("y%d", i), "b", 1)
			}
			want := []string{"b c.8: x y0 y1 y2 y3"}
			if protect {
				want = []string{"a c.4: x", "b c.8: y0 y1 y2 y3"}
			}
			w.run(2 * time.Minute)
			if diff := cmp.Diff(want, w.nodes()); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStaticWithoutRoom (S-52).
func TestStaticWithoutRoom(t *testing.T) {
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("delete first %t", first), func(t *testing.T) {
			w := newWorld(t, sizes(t, 4), pool("default"))
			w.static(3, func(p *karpv1.NodePool) {
				p.Spec.Limits = corev1.ResourceList{"nodes": resource.MustParse("3")}
				if first {
					p.Annotations = map[string]string{v1alpha1.DriftStrategyAnnotation: v1alpha1.DriftDeleteFirst}
				}
			})
			for _, name := range []string{"a", "b", "c"} {
				w.machine(name, "c.4", drifted)
			}
			least := 3
			w.watched = func() { least = min(least, len(w.nodes())) }
			w.run(2 * time.Minute)
			if got, want := least, map[bool]int{false: 3, true: 2}[first]; got != want {
				t.Errorf("%d nodes were left, want %d", got, want)
			}
			if event := "Node a Normal DisruptionBlocked"; w.WasTold(event) == first {
				t.Errorf("events %v", w.Told())
			}
		})
	}
}

// TestGracefulExpiry (S-53): nodes that expire together go a few at a time, in their window.
func TestGracefulExpiry(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default", func(p *karpv1.NodePool) {
		p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
		p.Annotations = map[string]string{v1alpha1.ExpirationAnnotation: v1alpha1.ExpirationGraceful}
	}))
	open := w.Now().Truncate(time.Minute).Add(5 * time.Minute)
	w.repool(func(p *karpv1.NodePool) {
		p.Annotations[v1alpha1.ExpirationWindowAnnotation] = fmt.Sprintf("%d %d * * */2h", open.UTC().Minute(), open.UTC().Hour())
	})
	for i := range 20 {
		w.machine(fmt.Sprintf("n%02d", i), "c.4", func(c *karpv1.NodeClaim) { c.Spec.ExpireAfter = karpv1.DurationOf(30 * time.Minute) })
		w.pod(fmt.Sprintf("p%02d", i), fmt.Sprintf("n%02d", i), 3)
	}
	most := 0
	w.watched = func() {
		gone := map[string]bool{}
		for _, name := range w.leaving() {
			gone[name] = true
		}
		for _, c := range w.c.commands {
			for _, name := range c.nodes() {
				gone[name] = true
			}
		}
		n := len(gone)
		if n > 0 && w.Now().Before(open) {
			t.Fatalf("%v before the window is open", w.phases())
		}
		most = max(most, n)
	}
	w.run(14 * time.Minute)
	if most != 2 {
		t.Errorf("%d nodes in disruption at a time, want 2", most)
	}
	if got := w.counter("karpenter_nodeclaims_disrupted_total", "reason", "expired"); got < 6 {
		t.Errorf("%v nodes were replaced, want some: %v", got, w.phases())
	}
}

// TestHerd: without it, there is a warning.
func TestHerd(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default", func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}} }))
	for i := range 20 {
		w.machine(fmt.Sprintf("n%02d", i), "c.4", func(c *karpv1.NodeClaim) { c.Spec.ExpireAfter = karpv1.DurationOf(65 * time.Minute) })
	}
	w.second()
	if event := "NodePool default Warning ExpirationHerd"; !w.WasTold(event) {
		t.Errorf("events %v, want %q", w.Told(), event)
	}
}

// TestPolicies: what is denied is not made, and the next best is in the same pass; what is
// deferred is not asked about before its time.
func TestPolicies(t *testing.T) {
	w := newWorld(t, sizes(t, 4, 16), pool("default"))
	asked := map[string]int{}
	w.opts.Policies = engine(t, func(in *policy.DisruptInput) policy.GateAnswer {
		var a policy.GateAnswer
		for _, c := range in.Command.Candidates {
			asked[c.Node]++
			switch c.Node {
			case "a":
				a.Deny = append(a.Deny, policy.Reason{Msg: "it stays"})
			case "b":
				a.Defer = append(a.Defer, policy.Reason{Msg: "later", Seconds: 90})
			}
		}
		return a
	})
	w.restart()
	w.machine("a", "c.16")
	w.pod("x", "a", 3)
	w.machine("b", "c.16")
	w.pod("y", "b", 3)
	w.machine("c", "c.16")
	w.pod("z", "c", 3)
	w.second()
	if got := w.phases(); !slices.Equal(got, []string{"Underutilized [c] confirming"}) {
		t.Errorf("commands %v, want the one that nobody denies", got)
	}
	before := asked["b"]
	w.run(80 * time.Second)
	if asked["b"] != before {
		t.Errorf("asked %d times more about a node that was deferred", asked["b"]-before)
	}
	w.run(20 * time.Second)
	if asked["b"] == before {
		t.Error("not asked again about a node that was deferred")
	}
	for _, event := range []string{"Node a Normal PolicyDenied", "Node b Normal PolicyDeferred"} {
		if !w.WasTold(event) {
			t.Errorf("events %v, want %q", w.Told(), event)
		}
	}
}

// TestPolicyChangesItsMind: the policies are asked again before anything is done.
func TestPolicyChangesItsMind(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default"))
	denies := false
	w.opts.Policies = engine(t, func(*policy.DisruptInput) policy.GateAnswer {
		if denies {
			return policy.GateAnswer{Deny: []policy.Reason{{Msg: "frozen"}}}
		}
		return policy.GateAnswer{}
	})
	w.restart()
	w.machine("a", "c.4")
	w.until("confirming", time.Minute, func() bool { return len(w.c.commands) == 1 })
	denies = true
	w.run(time.Minute)
	if diff := cmp.Diff([]string{"a c.4:"}, w.nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if got := w.counter("karpenter_voluntary_disruption_failed_validations_total", "consolidation_type", "empty"); got != 1 {
		t.Errorf("%v validations failed", got)
	}
}

// TestShadow decides, counts and tells, and writes nothing.
func TestShadow(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default"))
	w.opts.Shadow = true
	w.Before = func(x stage.Write) error {
		t.Errorf("%s of %T %s", x.Verb, x.Object, x.Object.GetName())
		return errors.New("no")
	}
	w.restart()
	w.machine("a", "c.4")
	w.run(2 * time.Minute)
	if got := w.counter("karpenter_voluntary_disruption_decisions_total", "decision", "delete"); got != 1 {
		t.Errorf("%v decisions, want 1", got)
	}
	if len(w.c.commands) > 0 {
		t.Errorf("commands %v", w.phases())
	}
}

// TestStays: nodes that must not go are told why, once.
func TestStays(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default"))
	w.machine("a", "c.4")
	w.pod("x", "a", 1, func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} })
	w.machine("b", "c.4")
	w.pod("y", "b", 1)
	w.budget("y", 0)
	w.machine("c", "c.4")
	w.pod("z", "c", 3.5)
	w.run(2 * time.Minute)
	if got := len(w.nodes()); got != 3 {
		t.Errorf("nodes %v", w.nodes())
	}
	for _, event := range []string{"Node a Normal DisruptionBlocked", "Node b Normal DisruptionBlocked", "NodeClaim a Normal DisruptionBlocked", "Node c Normal Unconsolidatable"} {
		if !w.WasTold(event) {
			t.Errorf("events %v, want %q", w.Told(), event)
		}
	}
}

// TestForeignTraces: taints that nobody answers for are taken away; what is being deleted, or
// repaired, keeps them.
func TestForeignTraces(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default", func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}} }))
	w.stuck = true
	for _, name := range []string{"left", "going", "broken"} {
		reason := "Underutilized"
		if name == "broken" {
			reason = "Unhealthy"
		}
		w.machine(name, "c.4", func(c *karpv1.NodeClaim) {
			c.Conditions().At(w.Now()).SetTrueBecause(karpv1.ConditionDisruptionReason, reason, "")
		})
		w.Node(name, func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, karpv1.DisruptedTaint()) })
	}
	w.Delete(w.Claim("going"))
	w.run(3 * time.Second)
	want := []string{"taint of broken", "taint of going", "condition of broken", "condition of going", "mark of going"}
	if diff := cmp.Diff(want, w.traces()); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
}

// TestMany: many commands at once, and one that is stuck holds up no other.
func TestMany(t *testing.T) {
	w := newWorld(t, sizes(t, 4, 16), pool("default"))
	for i := range 12 {
		w.machine(fmt.Sprintf("n%02d", i), "c.16", func(c *karpv1.NodeClaim) { drifted(c) })
		w.pod(fmt.Sprintf("p%02d", i), fmt.Sprintf("n%02d", i), 3)
	}
	stuck := ""
	w.Before = func(x stage.Write) error {
		if n, ok := x.Object.(*corev1.Node); ok && n.Name == "n00" {
			stuck = n.Name
			return errors.New("not this one")
		}
		return nil
	}
	most := 0
	w.try(7*time.Minute, func() bool {
		most = max(most, len(w.c.commands))
		return false
	})
	if most < 6 {
		t.Errorf("%d commands at once, want many", most)
	}
	old := slices.DeleteFunc(w.nodes(), func(s string) bool { return strings.HasPrefix(s, "new") })
	if len(old) != 1 || !strings.HasPrefix(old[0], "n00 ") || stuck == "" {
		t.Errorf("old nodes %v, want n00 alone", old)
	}
}
