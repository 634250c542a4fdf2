package disrupt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// repairs makes a node that is silent for ten minutes a broken one, whose pods have so long to
// go; nil is any time.
func (w *world) repairs(drain *time.Duration) {
	w.Cloud.Policies = []cloud.RepairPolicy{{Condition: corev1.NodeReady, Status: corev1.ConditionUnknown, Toleration: 10 * time.Minute, Drain: drain}}
	w.opts.Repair = true
	w.restart()
}

// breaks makes a node silent since so long ago; by default since an hour ago.
func (w *world) breaks(name string, since ...time.Duration) {
	w.ready(name, corev1.ConditionUnknown, append(since, time.Hour)[0])
}

func (w *world) ready(name string, status corev1.ConditionStatus, since time.Duration) {
	w.Node(name, func(n *corev1.Node) {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(w.Now().Add(-since))})
	})
	w.watch()
}

// fleet adds nodes n0, n1 and so on, each with a pod that fills it.
func (w *world) fleet(n int) {
	for i := range n {
		w.machine(fmt.Sprintf("n%d", i), "c.4")
		w.pod(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", i), 3)
	}
}

// TestRepair: a broken node is replaced first, once its condition has lasted long enough, and
// the reason, the metrics and the bound of the drain say so.
func TestRepair(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default"))
	w.repairs(new(5 * time.Minute))
	w.fleet(5)
	w.breaks("n0", 5*time.Minute)
	w.stuck = true // so that what is written on the claim can be read
	least := 5
	w.watched = func() {
		ready := 0
		for _, n := range w.state.Nodes() {
			if n.DeletionTimestamp == nil && !tainted(n) {
				ready++
			}
		}
		least = min(least, ready)
	}
	w.run(4 * time.Minute)
	if len(w.c.commands) > 0 {
		t.Fatalf("within its toleration: %v", w.phases())
	}
	w.until("n0 to go", 10*time.Minute, func() bool { return w.Claim("n0").DeletionTimestamp != nil })
	claim := w.Claim("n0")
	if cond := claim.Conditions().Get(karpv1.ConditionDisruptionReason); cond == nil || cond.Reason != "Unhealthy" || !strings.Contains(cond.Message, "Ready is Unknown") {
		t.Errorf("the reason is %+v", cond)
	}
	end, err := time.Parse(time.RFC3339, claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	if d := end.Sub(w.Now()); err != nil || d < 4*time.Minute || d > 5*time.Minute+time.Second {
		t.Errorf("the drain ends in %s (%v), want 5m", d, err)
	}
	if least < 5 {
		t.Errorf("%d nodes took pods at a time, want 5: the successor comes first", least)
	}
	if got := w.counter("karpenter_nodeclaims_unhealthy_disrupted_total", "condition", "ready"); got != 1 {
		t.Errorf("%v claims are counted as broken, want 1", got)
	}
	if got := w.counter("karpenter_nodeclaims_disrupted_total", "reason", "unhealthy"); got != 1 {
		t.Errorf("%v claims are counted as disrupted, want 1", got)
	}
}

// TestRepair_blocked has what keeps a broken node, and what says so.
func TestRepair_blocked(t *testing.T) {
	protected := func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} }
	tests := map[string]struct {
		drain *time.Duration
		build func(w *world)
		goes  bool
		event string
	}{
		"nothing": {goes: true},
		"too many are broken": {event: "NodePool default Warning NodeRepairBlocked", build: func(w *world) {
			w.breaks("n1")
			w.breaks("n2")
		}},
		"one that is within its toleration counts for the breaker": {event: "Node n0 Warning NodeRepairBlocked", build: func(w *world) { w.breaks("n1", 0) }},
		"the annotation": {event: "Node n0 Normal DisruptionBlocked", build: func(w *world) {
			w.Node("n0", func(n *corev1.Node) { n.Annotations = map[string]string{karpv1.DoNotRepairAnnotationKey: "true"} })
		}},
		"another one does not": {goes: true, build: func(w *world) {
			w.Node("n0", func(n *corev1.Node) { n.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} })
		}},
		"a pod, where nothing bounds the drain": {event: "Node n0 Normal DisruptionBlocked", build: func(w *world) { w.pod("held", "n0", 0.1, protected) }},
		"no pod where the fault does":           {goes: true, drain: new(time.Duration), build: func(w *world) { w.pod("held", "n0", 0.1, protected) }},
		"a budget for the reason": {event: "NodePool default Normal DisruptionBlocked", build: func(w *world) {
			w.repool(func(p *karpv1.NodePool) {
				p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0", Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonUnhealthy}}}
			})
		}},
		"no budget for others": {goes: true, build: func(w *world) {
			w.repool(func(p *karpv1.NodePool) {
				p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0", Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonDrifted}}}
			})
		}},
		"no budget where the node has not come up": {goes: true, build: func(w *world) {
			w.repool(func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}} })
			w.Node("n0", func(n *corev1.Node) { delete(n.Labels, karpv1.NodeInitializedLabelKey) })
		}},
		"no policy: it is told": {goes: true, build: func(w *world) {
			w.opts.Policies = engine(w.t, func(in *policy.DisruptInput) policy.GateAnswer {
				if in.Command.Reason != policy.Repair {
					w.t.Errorf("policies see reason %q", in.Command.Reason)
				}
				return policy.GateAnswer{Deny: []policy.Reason{{Msg: "never"}}}
			})
			w.restart()
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sizes(t, 4), pool("default"))
			w.repairs(tt.drain)
			w.fleet(5)
			w.breaks("n0")
			if tt.build != nil {
				tt.build(w)
				w.watch()
			}
			w.run(8 * time.Minute)
			if gone := w.NodeNamed("n0") == nil; gone != tt.goes {
				t.Errorf("replaced: %t; events %v", gone, w.Told())
			}
			if tt.event != "" && !w.WasTold(tt.event) {
				t.Errorf("events %v, want %q", w.Told(), tt.event)
			}
		})
	}
}

// TestRepair_recovered has a node that recovers while its successor starts.
func TestRepair_recovered(t *testing.T) {
	w := newWorld(t, sizes(t, 4), pool("default"))
	w.repairs(nil)
	w.fleet(5)
	w.breaks("n0")
	w.until("a successor", time.Minute, func() bool { return len(w.nodes()) == 5 && len(w.launches) == 1 })
	w.ready("n0", corev1.ConditionTrue, 0)
	w.run(5 * time.Minute)
	if got := len(w.nodes()); got != 5 || w.NodeNamed("n0") == nil || len(w.traces()) > 0 {
		t.Errorf("nodes %v, traces %v", w.nodes(), w.traces())
	}
}

// TestRepair_staticWithoutRoom: the node stays and says why, or goes first where that is
// allowed.
func TestRepair_staticWithoutRoom(t *testing.T) {
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminate first %t", first), func(t *testing.T) {
			w := newWorld(t, sizes(t, 4), pool("default"))
			w.opts.RepairFirst = first
			w.repairs(nil)
			w.static(3, func(p *karpv1.NodePool) { p.Spec.Limits = corev1.ResourceList{"nodes": resource.MustParse("3")} })
			w.fleet(3)
			w.breaks("n0")
			w.run(2 * time.Minute)
			if gone := w.NodeNamed("n0") == nil; gone != first {
				t.Errorf("gone: %t, events %v", gone, w.Told())
			}
			if event := "Node n0 Normal DisruptionBlocked"; w.WasTold(event) == first {
				t.Errorf("events %v", w.Told())
			}
			if got := w.counter("karpenter_voluntary_disruption_terminate_first_decisions_total", "reason", "unhealthy"); (got == 1) != first {
				t.Errorf("%v decisions are counted", got)
			}
		})
	}
}
