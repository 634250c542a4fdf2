package v1

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConditions(t *testing.T) {
	birth := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	later := birth.Add(time.Hour)
	tests := map[string]struct {
		before func(c *NodeClaim)
		do     func(c *NodeClaim) bool
		want   string
		same   bool
	}{
		"the first write adds what is missing, as old as the object": {
			do:   func(c *NodeClaim) bool { return c.Conditions().At(later).SetTrue(ConditionLaunched) },
			want: "Ready=Unknown/ReconcilingDependents@1 00:00 Registered=Unknown, Initialized=Unknown; Launched=True/Launched@1 01:00 ; Registered=Unknown/AwaitingReconciliation@1 00:00 -; Initialized=Unknown/AwaitingReconciliation@1 00:00 -",
		},
		"the root is true when all dependents are": {
			before: func(c *NodeClaim) {
				w := c.Conditions().At(birth)
				w.SetTrue(ConditionLaunched)
				w.SetTrue(ConditionRegistered)
			},
			do:   func(c *NodeClaim) bool { return c.Conditions().At(later).SetTrue(ConditionInitialized) },
			want: "Ready=True/Ready@1 01:00 ; Launched=True/Launched@1 00:00 ; Registered=True/Registered@1 00:00 ; Initialized=True/Initialized@1 01:00 ",
		},
		"the root is false when one dependent is": {
			before: func(c *NodeClaim) { c.Conditions().At(birth).SetTrue(ConditionLaunched) },
			do: func(c *NodeClaim) bool {
				return c.Conditions().At(later).SetFalse(ConditionRegistered, "MultipleNodesFound", "two")
			},
			want: "Ready=False/UnhealthyDependents@1 01:00 Registered=False, Initialized=Unknown; Launched=True/Launched@1 00:00 ; Registered=False/MultipleNodesFound@1 01:00 two; Initialized=Unknown/AwaitingReconciliation@1 00:00 -",
		},
		"a dependent of an older generation does not count": {
			before: func(c *NodeClaim) {
				w := c.Conditions().At(birth)
				w.SetTrue(ConditionLaunched)
				w.SetFalse(ConditionRegistered, "Odd", "")
				c.Generation = 2
			},
			do:   func(c *NodeClaim) bool { return c.Conditions().At(later).SetTrue(ConditionInitialized) },
			want: "Ready=Unknown/ReconcilingDependents@2 01:00 Launched=Unknown, Registered=Unknown; Launched=True/Launched@1 00:00 ; Registered=False/Odd@1 00:00 ; Initialized=True/Initialized@2 01:00 ",
		},
		"the time stays while the status does": {
			before: func(c *NodeClaim) { c.Conditions().At(birth).SetUnknown(ConditionLaunched, "LaunchFailed", "no quota") },
			do: func(c *NodeClaim) bool {
				return c.Conditions().At(later).SetUnknown(ConditionLaunched, "LaunchFailed", "no addresses")
			},
			want: "Ready=Unknown/ReconcilingDependents@1 00:00 Launched=Unknown, Registered=Unknown, Initialized=Unknown; Launched=Unknown/LaunchFailed@1 00:00 no addresses; Registered=Unknown/AwaitingReconciliation@1 00:00 -; Initialized=Unknown/AwaitingReconciliation@1 00:00 -",
		},
		"writing the same again changes nothing": {
			before: func(c *NodeClaim) { c.Conditions().At(birth).SetTrue(ConditionLaunched) },
			do:     func(c *NodeClaim) bool { return c.Conditions().At(later).SetTrue(ConditionLaunched) },
			want:   "Ready=Unknown/ReconcilingDependents@1 00:00 Registered=Unknown, Initialized=Unknown; Launched=True/Launched@1 00:00 ; Registered=Unknown/AwaitingReconciliation@1 00:00 -; Initialized=Unknown/AwaitingReconciliation@1 00:00 -",
			same:   true,
		},
		"a condition that is no dependent can be removed": {
			before: func(c *NodeClaim) {
				w := c.Conditions().At(birth)
				w.SetTrueBecause(ConditionDrifted, "NodePoolDrifted", "")
			},
			do:   func(c *NodeClaim) bool { return c.Conditions().At(later).Clear(ConditionDrifted) },
			want: "Ready=Unknown/ReconcilingDependents@1 00:00 Launched=Unknown, Registered=Unknown, Initialized=Unknown; Launched=Unknown/AwaitingReconciliation@1 00:00 -; Registered=Unknown/AwaitingReconciliation@1 00:00 -; Initialized=Unknown/AwaitingReconciliation@1 00:00 -",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Generation: 1, CreationTimestamp: metav1.NewTime(birth)}}
			if tt.before != nil {
				tt.before(c)
			}
			if changed := tt.do(c); changed == tt.same {
				t.Errorf("changed = %v, want %v", changed, !tt.same)
			}
			var parts []string
			for _, o := range c.Status.Conditions {
				msg := strings.ReplaceAll(o.Message, "object is awaiting reconciliation", "-")
				parts = append(parts, o.Type+"="+string(o.Status)+"/"+o.Reason+"@"+string(rune('0'+o.ObservedGeneration))+" "+o.LastTransitionTime.UTC().Format("15:04")+" "+msg)
			}
			if diff := cmp.Diff(tt.want, strings.Join(parts, "; ")); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConditions_read(t *testing.T) {
	p := &NodePool{}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := p.Conditions().At(now)
	w.SetTrue(ConditionValidationSucceeded)
	w.SetFalse(ConditionNodeClassReady, "NodeClassNotFound", strings.Repeat("é", maxMessage))
	c := p.Conditions()
	if !c.IsTrue(ConditionValidationSucceeded) || c.IsTrue(ConditionValidationSucceeded, ConditionNodeClassReady) || !c.IsFalse(ConditionReady) {
		t.Errorf("conditions = %+v, want valid, without a class, not ready", p.Status.Conditions)
	}
	if got := c.Get(ConditionNodeClassReady); got == nil || len(got.Message) > maxMessage || !strings.HasSuffix(got.Message, "é...") {
		t.Errorf("a long message has %d bytes, want at most %d, cut between characters", len(got.Message), maxMessage)
	}
	if c.Get("Other") != nil || !c.Since("Other").IsZero() || !c.Since(ConditionReady).Equal(now) {
		t.Error("conditions that are not there have a time, or those that are have none")
	}
}
