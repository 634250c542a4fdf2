package e2e_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// kept makes a NodePool whose nodes nobody may disrupt, so that conditions stay to be seen.
func kept(p *karpv1.NodePool) {
	p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}}
}

// onlyClaim is the case's claim.
func (s *scene) onlyClaim() *karpv1.NodeClaim {
	s.Helper()
	claims := s.claimsOf()
	if len(claims) != 1 {
		s.Fatalf("there are %d claims, want one", len(claims))
	}
	return &claims[0]
}

// claimSays waits for a condition of the case's claim.
func (s *scene) claimSays(kind, text string) *metav1.Condition {
	s.Helper()
	c := s.onlyClaim()
	s.condition(c, func() []metav1.Condition { return c.Status.Conditions }, kind, metav1.ConditionTrue, text)
	return c.Conditions().Get(kind)
}

// without is an error if the case's claim has a condition.
func (s *scene) without(kind string) func() error {
	return func() error {
		claims := s.claimsOf()
		if len(claims) != 1 {
			return fmt.Errorf("there are %d claims", len(claims))
		}
		if cond := claims[0].Conditions().Get(kind); cond != nil {
			return fmt.Errorf("the claim is %s=%s: %s %s", kind, cond.Status, cond.Reason, cond.Message)
		}
		return nil
	}
}

func TestDrifted(t *testing.T) {
	tests := map[string]struct {
		bought func(*karpv1.NodePool)
		change func(s *scene, p *karpv1.NodePool, c *v1alpha1.SimNodeClass)
		want   string
	}{
		"a label": {
			bought: func(p *karpv1.NodePool) { p.Spec.Template.Labels["team"] = "a" },
			change: func(s *scene, p *karpv1.NodePool, _ *v1alpha1.SimNodeClass) {
				update(s, p, func(p *karpv1.NodePool) { p.Spec.Template.Labels["team"] = "b" })
			},
			want: `NodePoolDrifted spec.template.metadata.labels[team]: "a" -> "b"`,
		},
		"a requirement": {
			change: func(s *scene, p *karpv1.NodePool, _ *v1alpha1.SimNodeClass) {
				update(s, p, with(require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot")))
			},
			want: `RequirementsDrifted spec.template.spec.requirements: label "karpenter.sh/capacity-type": want In [spot], have In [on-demand]`,
		},
		"the NodeClass": {
			change: func(s *scene, _ *karpv1.NodePool, c *v1alpha1.SimNodeClass) {
				update(s, c, func(c *v1alpha1.SimNodeClass) { c.Spec.Labels = map[string]string{"example.com/image": "2"} })
			},
			want: "NodeClassDrift the machine is not what SimNodeClass",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			class := s.class()
			p := s.pool(kept, func(p *karpv1.NodePool) {
				if tt.bought != nil {
					tt.bought(p)
				}
			})
			s.pods(1)
			s.run(1)
			s.stays("nothing has changed yet", 2*time.Second, s.without(karpv1.ConditionDrifted))
			tt.change(s, p, class)
			s.claimSays(karpv1.ConditionDrifted, tt.want)
		})
	}
}

func TestDrifted_back(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	p := s.pool(kept, func(p *karpv1.NodePool) { p.Spec.Template.Labels["team"] = "a" })
	s.pods(1)
	s.run(1)
	update(s, p, func(p *karpv1.NodePool) { p.Spec.Template.Labels["team"] = "b" })
	s.claimSays(karpv1.ConditionDrifted, "NodePoolDrifted")
	update(s, p, func(p *karpv1.NodePool) { p.Spec.Template.Labels["team"] = "a" })
	s.eventually("the claim is what the pool asks for again", s.without(karpv1.ConditionDrifted))
}

func TestConsolidatable(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	const window = 12 * time.Second
	p := s.pool(kept, func(p *karpv1.NodePool) { p.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(window) })
	s.pod("first", cpu("1500m"))
	s.run(1)
	begun := s.claimSays(karpv1.ConditionConsolidatable, "").LastTransitionTime
	c := s.onlyClaim()
	if quiet := begun.Sub(c.Status.LastPodEventTime.Time); quiet < window || quiet > window+30*time.Second {
		t.Errorf("consolidatable %s after the last pod event, want %s", quiet, window)
	}
	if initialized := c.Conditions().Since(karpv1.ConditionInitialized); begun.Sub(initialized) < window {
		t.Errorf("consolidatable %s after initialization, want %s", begun.Sub(initialized), window)
	}

	s.pod("second", cpu("50m"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("50Mi")
	})
	s.run(2)
	s.eventually("a pod that comes ends it", func() error {
		if err := s.without(karpv1.ConditionConsolidatable)(); err == nil {
			return nil
		}
		if now := s.onlyClaim().Conditions().Get(karpv1.ConditionConsolidatable); now != nil && now.LastTransitionTime.After(begun.Time) {
			return nil // it has come back already
		}
		return errors.New("still consolidatable")
	})
	s.eventually("it comes back", func() error {
		cond := s.onlyClaim().Conditions().Get(karpv1.ConditionConsolidatable)
		if cond == nil {
			return errors.New("it is not")
		}
		if last := s.onlyClaim().Status.LastPodEventTime; cond.LastTransitionTime.Sub(last.Time) < window {
			return fmt.Errorf("consolidatable since %s, the last pod event was at %s", cond.LastTransitionTime, last)
		}
		return nil
	})

	update(s, p, func(p *karpv1.NodePool) {
		p.Spec.Disruption.ConsolidateAfter = karpv1.NillableDuration{Text: karpv1.Never}
	})
	s.eventually("Never takes it away", s.without(karpv1.ConditionConsolidatable))
}

func TestNeverConsolidatable(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool() // consolidateAfter: Never
	s.pods(1)
	s.run(1)
	s.stays("a pool that never consolidates", 5*time.Second, s.without(karpv1.ConditionConsolidatable))
	if c := s.onlyClaim(); !strings.HasPrefix(c.Labels[karpv1.NodePoolLabelKey], s.name) || !c.Conditions().IsTrue(karpv1.ConditionInitialized) {
		t.Errorf("claim %s of pool %s is not initialized", c.Name, c.Labels[karpv1.NodePoolLabelKey])
	}
}
