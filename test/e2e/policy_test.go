package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// policy puts a Rego policy in force for the case's NodePools, and waits until it is.
func (s *scene) policy(hook v1alpha1.Hook, rules string) *v1alpha1.NodePolicy {
	s.Helper()
	p := s.submit(hook, rules)
	s.condition(p, func() []metav1.Condition { return p.Status.Conditions }, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	return p
}

func (s *scene) submit(hook v1alpha1.Hook, rules string) *v1alpha1.NodePolicy {
	s.Helper()
	text := fmt.Sprintf("package dovetail.%s.%s\n\n%s\n", hook, strings.ReplaceAll(s.name, "-", "_"), rules)
	p := &v1alpha1.NodePolicy{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{"case": s.name}}}
	p.Spec = v1alpha1.NodePolicySpec{
		Hook: hook, Runtime: v1alpha1.RuntimeRego, Source: v1alpha1.PolicySource{Inline: &text},
		NodePoolSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"case": s.name}},
	}
	s.create(p)
	return p
}

// bought are the instance types of the case's claims.
func (s *scene) bought() (types []string) {
	for _, c := range s.claimsOf() {
		types = append(types, c.Labels[corev1.LabelInstanceTypeStable])
	}
	return types
}

func TestPolicyScore(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.policy("score", `# what is not of AMD's third generation for memory costs ten dollars more
adjust contains {"i": i, "addMicroUSD": 10000000} if {
	some i, c in input.candidates
	not startswith(c.instanceType.name, "r6a.")
}`)
	s.pool()
	s.pods(1)
	s.run(1)
	if got := s.bought(); len(got) != 1 || !strings.HasPrefix(got[0], "r6a.") {
		t.Errorf("bought %v, want an r6a, which the policy makes the cheapest", got)
	}
}

func TestPolicyLaunch(t *testing.T) {
	tests := map[string]struct {
		rules string
		check func(*scene)
	}{
		"denied": {
			rules: `deny contains {"code": "freeze", "msg": "nothing is bought during the freeze"}`,
			check: func(s *scene) {
				s.told("PolicyDenied", "nothing is bought during the freeze")
				s.stays("nothing is bought", 2*time.Second, func() error {
					if got := s.bought(); len(got) > 0 {
						return fmt.Errorf("bought %v", got)
					}
					return nil
				})
			},
		},
		"deferred": {
			rules: `defer contains {"code": "later", "msg": "capacity comes at noon", "seconds": 600}`,
			check: func(s *scene) {
				s.told("PolicyDeferred", "capacity comes at noon")
				if got := s.bought(); len(got) > 0 {
					s.Errorf("bought %v, want nothing yet", got)
				}
			},
		},
		"a class of machines denied": {
			rules: `deny contains {"code": "small", "msg": "no burstable machines", "claims": [c.name]} if {
	some c in input.claims
	startswith(c.instanceType.name, "t3.")
}`,
			check: func(s *scene) {
				s.run(1)
				for _, name := range s.bought() {
					if strings.HasPrefix(name, "t3.") {
						s.Errorf("bought a %s, which the policy denies", name)
					}
				}
			},
		},
		"restricted": {
			rules: `restrict contains {"claim": c.name, "dropTypes": ["t3.small", "t3.medium", "t3.large"]} if some c in input.claims`,
			check: func(s *scene) {
				s.run(1)
				for _, c := range s.claimsOf() {
					for _, r := range c.Spec.Requirements {
						for _, v := range r.Values {
							if v == "t3.small" || v == "t3.medium" || v == "t3.large" {
								s.Errorf("claim %s allows %s, which the policy rules out", c.Name, v)
							}
						}
					}
				}
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			s.class()
			s.policy("launch", tt.rules)
			s.pool()
			s.pods(1)
			tt.check(s)
		})
	}
}

func TestPolicyAdmit(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	policy := s.policy("admit", `deny contains {"code": "owner", "msg": "label owner is missing"} if not input.object.metadata.labels.owner`)
	pool := s.pool()
	s.condition(pool, func() []metav1.Condition { return pool.Status.Conditions }, "PolicyAdmitted", metav1.ConditionFalse, "label owner is missing")
	s.pods(1)
	s.told("FailedScheduling", "label owner is missing")
	if n := len(s.claimsOf()); n != 0 {
		t.Errorf("%d claims of a pool that is denied", n)
	}
	update(s, pool, func(p *karpv1.NodePool) { p.Labels["owner"] = "shop" })
	s.run(1)
	s.condition(pool, func() []metav1.Condition { return pool.Status.Conditions }, "PolicyAdmitted", metav1.ConditionTrue, "")
	s.delete(policy)
}

func TestBrokenPolicy(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	p := s.submit("launch", "deny contains {")
	s.condition(p, func() []metav1.Condition { return p.Status.Conditions }, v1alpha1.ConditionReady, metav1.ConditionFalse, "")
	if !strings.Contains(p.Status.LastError, ".rego:") {
		t.Errorf("the error %q names no file and line", p.Status.LastError)
	}
	s.pool()
	s.pods(1)
	s.run(1) // it stops nobody
}
