package repair

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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
		// after is when the claim goes, with a drain that is at its end; zero is never.
		after time.Duration
		// end is when the drain ended before that.
		end    time.Duration
		events []string
	}{
		"a node that is not ready for long": {kind: corev1.NodeReady, status: "False", after: 30 * time.Minute},
		"a silent node":                     {kind: corev1.NodeReady, status: "Unknown", after: 10 * time.Minute},
		"a reason that has a policy":        {kind: gpu, status: "False", reason: "XID79", after: 10 * time.Minute},
		"a reason that has none":            {kind: gpu, status: "False", reason: "Hot", after: time.Hour},
		"a restart is a replacement":        {kind: gpu, status: "False", reason: "XID48", after: 5 * time.Minute},
		"two policies: the first to be due": {kind: gpu, status: "False", reason: "XID48 XID64", after: 5 * time.Minute},
		"an earlier end stays": {
			kind: gpu, status: "False", reason: "XID79", after: 10 * time.Minute, end: -time.Hour,
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
			// Neither a pod nor a budget is asked.
			s.Create(stage.Pod("web", "n0", func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} }))
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
			if went > 0 {
				end, err := time.Parse(time.RFC3339, got.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
				if d := end.Sub(s.Now()) - tt.end; err != nil || d < -time.Second || d > time.Second {
					t.Errorf("the drain ends in %s (%v), want %s", end.Sub(s.Now()), err, tt.end)
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
