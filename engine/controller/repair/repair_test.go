package repair

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
)

const gpu = corev1.NodeConditionType("AcceleratedHardwareReady")

func policies() []cloud.RepairPolicy {
	return []cloud.RepairPolicy{
		{Condition: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: ".*", Toleration: 30 * time.Minute},
		{Condition: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: ".*", Toleration: 10 * time.Minute, Drain: new(time.Duration)},
		{Condition: gpu, Status: corev1.ConditionFalse, Reason: "XID(64|79)", Toleration: 10 * time.Minute, Drain: new(5 * time.Minute)},
		{Condition: gpu, Status: corev1.ConditionFalse, Reason: "XID48", Toleration: 5 * time.Minute, Drain: new(5 * time.Minute), Reboot: true},
		{Condition: gpu, Status: corev1.ConditionFalse, Toleration: time.Hour, Drain: new(20 * time.Minute)},
	}
}

func setUp(t *testing.T, nodes int, change ...func(c *karpv1.NodeClaim)) (*stage.Stage, *Controller) {
	t.Helper()
	s := stage.New(t, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	s.Cloud.Policies = policies()
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		claim := stage.Claim(name, append([]func(*karpv1.NodeClaim){stage.Launched(s.Now())}, change...)...)
		s.Create(claim)
		s.Create(stage.Node(name, stage.Of(claim)))
	}
	c, err := New(Options{Client: s.Client, Provider: s.Cloud, Events: s.Events, Now: s.Now})
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

// breaks sets a condition of a Node.
func breaks(s *stage.Stage, node string, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	s.Node(node, func(n *corev1.Node) {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(s.Now())})
	})
}

func look(t *testing.T, c *Controller, node string) time.Duration {
	t.Helper()
	r, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
	if err != nil {
		t.Fatal(err)
	}
	return r.RequeueAfter
}

func TestRepair(t *testing.T) {
	tests := map[string]struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		reason string
		claim  func(c *karpv1.NodeClaim)
		node   func(n *corev1.Node)
		pod    func(p *corev1.Pod)
		budget *int32 // disruptions that a budget of the pod allows
		// after is when the claim goes; zero is never.
		after time.Duration
		// drain is how long the pods have from then on; nil is no bound.
		drain  *time.Duration
		events []string
	}{
		"a node that is not ready for long":             {kind: corev1.NodeReady, status: "False", after: 30 * time.Minute},
		"a silent node goes by force":                   {kind: corev1.NodeReady, status: "Unknown", after: 10 * time.Minute, drain: new(time.Duration)},
		"a reason that has a policy":                    {kind: gpu, status: "False", reason: "XID79", after: 10 * time.Minute, drain: new(5 * time.Minute)},
		"a reason that has none":                        {kind: gpu, status: "False", reason: "Hot", after: time.Hour, drain: new(20 * time.Minute)},
		"a restart is a replacement":                    {kind: gpu, status: "False", reason: "XID48", after: 5 * time.Minute, drain: new(5 * time.Minute)},
		"two policies: the first to be due, the faster": {kind: gpu, status: "False", reason: "XID48 XID64", after: 5 * time.Minute, drain: new(5 * time.Minute)},
		"the claim bounds the drain too": {
			kind: gpu, status: "False", reason: "XID79", after: 10 * time.Minute, drain: new(time.Minute),
			claim: func(c *karpv1.NodeClaim) { c.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Minute} },
		},
		"an earlier end stays": {
			kind: gpu, status: "False", reason: "XID79", after: 10 * time.Minute, drain: new(-time.Hour),
			claim: func(c *karpv1.NodeClaim) {
				c.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = time.Now().Add(-50 * time.Minute).UTC().Format(time.RFC3339)
			},
		},
		"a status without policy":    {kind: gpu, status: "Unknown"},
		"a condition without policy": {kind: corev1.NodeDiskPressure, status: "True"},
		"a node that must not be repaired": {
			kind: corev1.NodeReady, status: "Unknown", events: []string{"Node n0 Normal DisruptionBlocked", "NodeClaim n0 Normal DisruptionBlocked"},
			node: func(n *corev1.Node) { n.Annotations = map[string]string{karpv1.DoNotRepairAnnotationKey: "true"} },
		},
		"a pod blocks a drain that nothing bounds": {
			kind: corev1.NodeReady, status: "False", events: []string{"Node n0 Normal DisruptionBlocked", "NodeClaim n0 Normal DisruptionBlocked"},
			pod: func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} },
		},
		"a budget blocks it":            {kind: corev1.NodeReady, status: "False", budget: new(int32(0)), events: []string{"Node n0 Normal DisruptionBlocked", "NodeClaim n0 Normal DisruptionBlocked"}},
		"a budget that allows does not": {kind: corev1.NodeReady, status: "False", budget: new(int32(1)), after: 30 * time.Minute},
		"a pod blocks no drain that is bounded": {
			kind: corev1.NodeReady, status: "Unknown", after: 10 * time.Minute, drain: new(time.Duration),
			pod: func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := func(*karpv1.NodeClaim) {}
			if tt.claim != nil {
				claim = tt.claim
			}
			s, c := setUp(t, 10, claim)
			breaks(s, "n0", tt.kind, tt.status, tt.reason)
			if tt.node != nil {
				s.Node("n0", tt.node)
			}
			pod := stage.Pod("web", "n0")
			if tt.pod != nil {
				tt.pod(pod)
			}
			s.Create(pod)
			if tt.budget != nil {
				s.Create(&policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
					Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: *tt.budget},
				})
			}
			begin := s.Now()
			var went time.Duration
			for s.Now().Sub(begin) <= 2*time.Hour {
				look(t, c, "n0")
				if !s.Claim("n0").DeletionTimestamp.IsZero() {
					went = s.Now().Sub(begin)
					break
				}
				s.Pass(time.Minute)
			}
			if went != tt.after {
				t.Fatalf("the claim went after %s, want %s", went, tt.after)
			}
			got := s.Claim("n0")
			end, err := time.Parse(time.RFC3339, got.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
			switch {
			case tt.drain == nil && err == nil:
				t.Errorf("the drain ends at %s", end)
			case tt.drain != nil:
				if d := end.Sub(s.Now()) - *tt.drain; d < -time.Second || d > time.Second {
					t.Errorf("the drain ends in %s, want %s", end.Sub(s.Now()), *tt.drain)
				}
			}
			want := tt.events
			if went > 0 {
				want = []string{"Node n0 Normal DisruptionTerminating", "NodeClaim n0 Normal DisruptionTerminating"}
				if cond := got.Conditions().Get(karpv1.ConditionDisruptionReason); cond == nil || cond.Reason != "Unhealthy" {
					t.Errorf("the reason is %+v", cond)
				}
			}
			if diff := cmp.Diff(want, s.Told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRepair_breaker(t *testing.T) {
	for broken, want := range map[int]bool{1: true, 3: true, 4: false} { // of 11: a fifth, rounded up, is 3
		t.Run(fmt.Sprintf("%d of 11 broken", broken), func(t *testing.T) {
			s, c := setUp(t, 11)
			for i := range broken {
				breaks(s, fmt.Sprintf("n%d", i), corev1.NodeReady, "Unknown", "")
			}
			s.Pass(time.Hour)
			after := look(t, c, "n0")
			if got := !s.Claim("n0").DeletionTimestamp.IsZero(); got != want {
				t.Errorf("replaced: %t", got)
			}
			blocked := []string{"Node n0 Warning NodeRepairBlocked", "NodeClaim n0 Warning NodeRepairBlocked", "NodePool default Warning NodeRepairBlocked"}
			if !want && (!cmp.Equal(s.Told(), blocked) || after != 5*time.Minute) {
				t.Errorf("events %v, next look after %s", s.Told(), after)
			}
		})
	}
}

// TestRepair_recovered has a node that recovers between the two writes of a replacement.
func TestRepair_recovered(t *testing.T) {
	s, c := setUp(t, 10)
	breaks(s, "n0", corev1.NodeReady, "Unknown", "")
	s.Pass(time.Hour)
	s.Before = func(w stage.Write) error {
		if w.Verb == "delete" {
			return errors.New("connection reset")
		}
		return nil
	}
	if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "n0"}}); err == nil {
		t.Fatal("the failure is hidden")
	}
	if s.Claim("n0").Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] == "" {
		t.Fatal("the end of the drain was not stamped first")
	}
	breaks(s, "n0", corev1.NodeReady, "True", "")
	look(t, c, "n0")
	claim := s.Claim("n0")
	if _, ok := claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]; ok || claim.Conditions().Get(karpv1.ConditionDisruptionReason) != nil || !claim.DeletionTimestamp.IsZero() {
		t.Errorf("left of the replacement: %v, %+v", claim.Annotations, claim.Status.Conditions)
	}
}

func TestNew(t *testing.T) {
	broken := func(change func(p *cloud.RepairPolicy)) []cloud.RepairPolicy {
		p := policies()
		change(&p[0])
		return p
	}
	tests := map[string]struct {
		policies []cloud.RepairPolicy
		want     string
	}{
		"policies":              {policies: policies()},
		"none":                  {want: "there are none"},
		"a bad expression":      {policies: broken(func(p *cloud.RepairPolicy) { p.Reason = "(" }), want: "reason: error parsing regexp"},
		"a fallback to restart": {policies: broken(func(p *cloud.RepairPolicy) { p.Reason, p.Reboot = "", true }), want: "must be replaced"},
		"a bad priority":        {policies: broken(func(p *cloud.RepairPolicy) { p.Priority = 101 }), want: "priority 101"},
		"a negative time":       {policies: broken(func(p *cloud.RepairPolicy) { p.Toleration = -1 }), want: "must not be negative"},
		"no condition":          {policies: broken(func(p *cloud.RepairPolicy) { p.Condition = "" }), want: "must be set"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t)
			s.Cloud.Policies = tt.policies
			_, err := New(Options{Client: s.Client, Provider: s.Cloud})
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New() = %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("a cloud that knows of nothing broken", func(t *testing.T) {
		if _, err := New(Options{Provider: struct{ cloud.Provider }{stage.New(t).Cloud}}); err == nil {
			t.Error("New() gives no error")
		}
	})
}

func TestFaults(t *testing.T) {
	node := stage.Node("a", func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"},
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue},
		}
	})
	ready := func(reason string, toleration time.Duration) cloud.RepairPolicy {
		return cloud.RepairPolicy{Condition: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: reason, Toleration: toleration}
	}
	other := cloud.RepairPolicy{Condition: gpu, Status: corev1.ConditionFalse, Toleration: 9}
	unknown := cloud.RepairPolicy{Condition: corev1.NodeReady, Status: corev1.ConditionUnknown, Toleration: 8}
	tests := map[string]struct {
		policies []cloud.RepairPolicy
		want     []time.Duration // the tolerations of what matches
	}{
		"a reason that matches":                         {policies: []cloud.RepairPolicy{ready("Kubelet", 1), ready("", 2)}, want: []time.Duration{1}},
		"two that match":                                {policies: []cloud.RepairPolicy{ready("Kubelet", 1), ready("NotReady$", 2)}, want: []time.Duration{1, 2}},
		"the fallback of the condition":                 {policies: []cloud.RepairPolicy{ready("Disk", 1), ready("", 2), unknown}, want: []time.Duration{2}},
		"the only fallback is for all conditions":       {policies: []cloud.RepairPolicy{ready("Disk", 1), other}, want: []time.Duration{9}},
		"of two fallbacks none is for other conditions": {policies: []cloud.RepairPolicy{ready("Disk", 1), other, unknown}},
		"a fallback is for conditions with policies":    {policies: []cloud.RepairPolicy{other}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			rules, err := compile(tt.policies)
			if err != nil {
				t.Fatal(err)
			}
			var got []time.Duration
			for _, f := range (&Controller{rules: rules}).faults(node) {
				got = append(got, f.Toleration)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("faults() = %v, want %v", got, tt.want)
			}
		})
	}
}
