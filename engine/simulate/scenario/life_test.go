package scenario

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

// quiet is a life in which nothing is wrong: a full node, and one with room for one pod.
func quiet(t *testing.T) *life {
	t.Helper()
	p := problem(t, `
nodes:
- {name: n1, type: small, pool: default, pods: [{name: a, cpu: 2, memory: 1Gi}]}
- {name: n2, type: small, pool: default, pods: [{name: b, cpu: 1500m, memory: 1Gi, app: b, apart: [hostname]}]}
loops: 2
quiet: 1
`)
	l, err := live(t.Context(), p, p.Objects, true)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := append(l.wrong, l.judge(&p.Expect)...); len(wrong) > 0 {
		t.Fatalf("a quiet life: %q", wrong)
	}
	return l
}

// TestInvariants breaks each invariant in a life where all hold, and sees that it is noticed.
func TestInvariants(t *testing.T) {
	key := snapshot.PodKey{Namespace: "default", Name: "new"}
	pod := func(node string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main"}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	with := func(l *life, p *corev1.Pod) *snapshot.Objects {
		objs := l.w.Objects()
		objs.Pods = append(slices.Clone(objs.Pods), p)
		return &objs
	}
	say := func(l *life, e world.Entry) {
		r := l.w.Record()
		r.Entries = append(r.Entries, e)
		l.entries()
	}
	underutilized := string(karpv1.DisruptionReasonUnderutilized)
	tests := map[string]struct {
		do   func(t *testing.T, l *life)
		want string
	}{
		"a pod waits that a node would take": {
			func(_ *testing.T, l *life) {
				l.waiting(with(l, pod("", nil)), map[snapshot.PodKey]string{key: ""}, start)
			},
			"I1: at +0s pod default/new waits, and node n1 would take it",
		},
		"a move costs more than it saves": {
			func(_ *testing.T, l *life) {
				say(l, world.Entry{Kind: world.Decided, Reason: underutilized, Delta: 0.01, At: start})
			},
			"I2:",
		},
		"a node is bought for pods that a move had evicted": {
			func(_ *testing.T, l *life) {
				say(l, world.Entry{Kind: world.Bought, Moved: 1, Object: "n3", At: start})
			},
			"I3: at +0s n3 is bought for 1 pods",
		},
		"it never comes to rest": {
			func(_ *testing.T, l *life) {
				say(l, world.Entry{Kind: world.Decided, Reason: underutilized, Delta: -0.01, At: l.rest.Add(time.Second)})
				l.wrong = append(l.wrong, l.judge(&Expect{})...)
			},
			"I4: it has not come to rest",
		},
		"a state comes back": {
			func(_ *testing.T, l *life) {
				now := l.w.Objects()
				fewer := now
				fewer.Nodes = now.Nodes[:1]
				l.remember(&fewer)
				l.remember(&now)
			},
			"I4: a state comes back",
		},
		"another order of objects ends another way": {
			func(t *testing.T, l *life) {
				wrong, err := otherOrders(t.Context(), l.p, "$1.000000/h, 0 evictions, 9 nodes", 1)
				if err != nil {
					t.Fatal(err)
				}
				l.wrong = append(l.wrong, wrong...)
			},
			"I5: with the objects in another order (seed 0) it ends with $0.200000/h, 0 evictions, 2 nodes",
		},
		"a pod is on a node that has no room": {
			func(_ *testing.T, l *life) {
				l.hardRules(with(l, pod("n1", func(p *corev1.Pod) {
					p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: l.w.Objects().Nodes[0].Status.Allocatable[corev1.ResourceCPU]}
				})))
			},
			"I6: at +30s pod default/new is on node n1 against its rules: cpu",
		},
		"a pod is beside one that wants to be alone": {
			func(_ *testing.T, l *life) {
				l.hardRules(with(l, pod("n2", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "b"} })))
			},
			"I6: at +30s pod default/new is on node n2 against its rules: anti-affinity",
		},
		"a pod is on no node": {
			func(_ *testing.T, l *life) { l.hardRules(with(l, pod("n9", nil))) },
			"I6: pod default/new is on node n9, which is not there",
		},
		"an eviction takes more than a PodDisruptionBudget allows": {
			func(_ *testing.T, l *life) {
				for _, healthy := range []int32{2, 1} {
					objs := l.w.Objects()
					objs.PodDisruptionBudgets = []*policyv1.PodDisruptionBudget{{
						ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
						Status:     policyv1.PodDisruptionBudgetStatus{CurrentHealthy: healthy, DesiredHealthy: 2, ExpectedPods: 2},
					}}
					l.budgets(&objs)
				}
			},
			"I6: PodDisruptionBudget default/web wants 2 pods and has 1 of the 2 before",
		},
		"pods in another order of arrival end another way": {
			func(t *testing.T, l *life) {
				p := *l.p
				p.Objects.Pods = append(slices.Clone(p.Objects.Pods), pod("", nil), pod("", func(q *corev1.Pod) { q.Labels = map[string]string{"app": "b"} }))
				wrong, err := otherArrivals(t.Context(), &p, "$1.000000/h, 0 evictions, 9 nodes")
				if err != nil {
					t.Fatal(err)
				}
				if len(wrong) != 2 {
					t.Errorf("two pods have two orders: %q", wrong)
				}
				l.wrong = append(l.wrong, wrong...)
			},
			"I5: if pods arrive as [ b] it ends with",
		},
		"a node has no turn": {
			func(_ *testing.T, l *life) {
				delete(l.examined, "n1")
				l.wrong = append(l.wrong, l.judge(&Expect{Life: Life{Examined: "20s"}})...)
			},
			"node n1 had not had its turn by +20s",
		},
		"a node is left without a reason": {
			func(_ *testing.T, l *life) { l.reasons(map[string][]candidate.Reason{"n1": nil}, nil) },
			"I7: node n1 is left alone without a reason",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := quiet(t)
			test.do(t, l)
			if !slices.ContainsFunc(l.wrong, func(s string) bool { return strings.HasPrefix(s, test.want) }) {
				t.Errorf("%q is not noticed: %q", test.want, l.wrong)
			}
		})
	}
}

// TestInvariantsAllow holds lives to no more than is asked for.
func TestInvariantsAllow(t *testing.T) {
	tests := map[string]func(l *life){
		"a machine that ends takes from a PodDisruptionBudget": func(l *life) {
			for _, healthy := range []int32{2, 1} {
				objs := l.w.Objects()
				objs.PodDisruptionBudgets = []*policyv1.PodDisruptionBudget{{Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: healthy, DesiredHealthy: 2, ExpectedPods: 2}}}
				l.budgets(&objs)
				l.w.Record().Lost++
			}
		},
		"so does a workload that is scaled": func(l *life) {
			for _, healthy := range []int32{2, 1} {
				objs := l.w.Objects()
				objs.PodDisruptionBudgets = []*policyv1.PodDisruptionBudget{{Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: healthy, DesiredHealthy: 2, ExpectedPods: healthy}}}
				l.budgets(&objs)
			}
		},
		"what an interruption took has to be bought": func(l *life) {
			r := l.w.Record()
			r.Entries = append(r.Entries, world.Entry{Kind: world.Interrupted, At: start.Add(time.Minute)}, world.Entry{Kind: world.Bought, Moved: 1, At: start.Add(time.Minute)})
			l.entries()
		},
		"drift may cost more": func(l *life) {
			r := l.w.Record()
			r.Entries = append(r.Entries, world.Entry{Kind: world.Decided, Reason: string(karpv1.DisruptionReasonDrifted), Delta: 1})
			l.entries()
		},
	}
	for name, do := range tests {
		t.Run(name, func(t *testing.T) {
			l := quiet(t)
			if do(l); len(l.wrong) > 0 {
				t.Errorf("%q", l.wrong)
			}
		})
	}
}
