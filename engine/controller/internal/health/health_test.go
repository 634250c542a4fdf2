package health

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
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
			_, err := New(s.Cloud)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New() = %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("a cloud that knows of nothing broken", func(t *testing.T) {
		if _, err := New(struct{ cloud.Provider }{stage.New(t).Cloud}); err == nil {
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
			for _, f := range rules.Faults(node) {
				got = append(got, f.Toleration)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("Faults() = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestRules_Due has a node with several faults: the most urgent one is told, with the shortest
// drain of all.
func TestRules_Due(t *testing.T) {
	rules, err := compile([]cloud.RepairPolicy{
		{Condition: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: ".*", Toleration: 30 * time.Minute, Priority: 10},
		{Condition: gpu, Status: corev1.ConditionFalse, Toleration: 10 * time.Minute, Priority: 90, Drain: new(5 * time.Minute)},
		{Condition: "Worn", Status: corev1.ConditionTrue, Reason: ".*", Toleration: 5 * time.Hour, Priority: 50, Drain: new(time.Duration)},
	})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	seen := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(begin)}
	}
	node := stage.Node("a", func(n *corev1.Node) {
		n.CreationTimestamp = metav1.NewTime(begin)
		n.Status.Conditions = []corev1.NodeCondition{seen(corev1.NodeReady, "False"), seen(gpu, "False"), seen("Worn", "True")}
	})
	claim := &karpv1.NodeClaim{}
	if due, next := rules.Due(node, claim, begin.Add(time.Minute)); len(due) > 0 || !next.Equal(begin.Add(10*time.Minute)) {
		t.Errorf("after a minute %v are due, the next at %s", due, next)
	}
	now := begin.Add(40 * time.Minute)
	due, next := rules.Due(node, claim, now)
	if len(due) != 2 || !next.Equal(begin.Add(5*time.Hour)) {
		t.Fatalf("after 40 min %v are due, the next at %s", due, next)
	}
	want := candidate.Fault{Condition: string(gpu), Message: string(gpu) + " is False", Urgency: 3, Drain: new(5 * time.Minute)} // rank 2, due for half an hour
	if diff := cmp.Diff(want, rules.Fault(due, node, claim, now)); diff != "" {
		t.Errorf("Fault() (-want +got):\n%s", diff)
	}
}

func TestTripped(t *testing.T) {
	for broken, open := range map[int]bool{0: false, 3: false, 4: true} { // of 11: a fifth, rounded up, is 3
		if got := Tripped(broken, 11, "NodePool a") != ""; got != open {
			t.Errorf("%d of 11 broken: open is %t", broken, got)
		}
	}
}

func TestBound(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		have, own *time.Duration
		want      time.Duration
	}{
		"nothing else":      {want: 5 * time.Minute},
		"the claim's own":   {own: new(time.Minute), want: time.Minute},
		"a longer own":      {own: new(time.Hour), want: 5 * time.Minute},
		"an end that is on": {have: new(time.Minute), want: time.Minute},
		"a later end":       {have: new(time.Hour), want: 5 * time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := &karpv1.NodeClaim{}
			if tt.own != nil {
				claim.Spec.TerminationGracePeriod = &metav1.Duration{Duration: *tt.own}
			}
			if tt.have != nil {
				claim.Annotations = map[string]string{karpv1.NodeClaimTerminationTimestampAnnotationKey: now.Add(*tt.have).Format(time.RFC3339)}
			}
			Bound(claim, now, 5*time.Minute)
			if got := claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]; got != now.Add(tt.want).Format(time.RFC3339) {
				t.Errorf("the drain ends at %s, want in %s", got, tt.want)
			}
		})
	}
}
