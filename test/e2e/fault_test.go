package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

func failing(kind v1alpha1.FailureKind, change ...func(*v1alpha1.SimFailure)) func(*v1alpha1.SimNodeClassSpec) {
	return func(c *v1alpha1.SimNodeClassSpec) {
		f := v1alpha1.SimFailure{Kind: kind}
		for _, g := range change {
			g(&f)
		}
		c.Failures = append(c.Failures, f)
	}
}

func mend(s *scene, class *v1alpha1.SimNodeClass) {
	s.Helper()
	update(s, class, func(c *v1alpha1.SimNodeClass) { c.Spec.Failures, c.Spec.Capacity = nil, nil })
}

func TestCapacityFallsOver(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class(func(c *v1alpha1.SimNodeClassSpec) {
		// Launches of what is cheapest find out that there is none.
		c.Capacity = []v1alpha1.SimCapacity{{SimSelector: v1alpha1.SimSelector{InstanceTypes: []string{"t3.*"}}}}
	})
	s.pool()
	s.pods(1)
	s.run(1)
	if got := s.bought(); len(got) != 1 || strings.HasPrefix(got[0], "t3.") {
		t.Errorf("bought %v, want the next best to t3", got)
	}
}

func TestNoCapacity(t *testing.T) {
	t.Parallel()
	s := begin(t)
	class := s.class(func(c *v1alpha1.SimNodeClassSpec) {
		c.Capacity = []v1alpha1.SimCapacity{{}}
		c.UnavailableFor = &metav1.Duration{Duration: 2 * time.Second}
	})
	s.pool()
	s.pods(1)
	s.told("InsufficientCapacityError", "insufficient capacity")
	mend(s, class)
	s.run(1)
}

func TestLaunchError(t *testing.T) {
	t.Parallel()
	s := begin(t)
	class := s.class(failing(v1alpha1.FailureLaunch, func(f *v1alpha1.SimFailure) {
		f.Reason, f.Message = "RoleMissing", "the role of the machines does not exist"
	}))
	s.pool()
	s.pods(1)
	s.eventually("the claim says why it has not launched", func() error {
		for _, c := range s.claimsOf() {
			if l := c.Conditions().Get(karpv1.ConditionLaunched); l != nil && l.Status == metav1.ConditionUnknown && l.Reason == "RoleMissing" && strings.Contains(l.Message, "does not exist") {
				return nil
			}
		}
		return fmt.Errorf("%d claims", len(s.claimsOf()))
	})
	mend(s, class)
	s.run(1)
}

// Another case's pool whose launches fail must not keep this one's pods waiting.
func TestOneFaultStopsNobodyElse(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class(failing(v1alpha1.FailureLaunch, func(f *v1alpha1.SimFailure) { f.InstanceTypes = []string{"r6a.*"} }))
	s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "c6a.large", "r6a.large")))
	s.pod("stuck", selector(corev1.LabelInstanceTypeStable, "r6a.large"))
	s.eventually("a claim cannot launch", func() error {
		if n := len(s.claimsOf()); n != 1 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	s.pod("well", selector(corev1.LabelInstanceTypeStable, "c6a.large"))
	s.run(1)
}

func TestNodeThatNeverComes(t *testing.T) {
	for _, kind := range []v1alpha1.FailureKind{v1alpha1.FailureNeverRegisters, v1alpha1.FailureWrongProviderID} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			class := s.class(failing(kind))
			pool := s.pool()
			s.pods(1)
			s.eventually("a claim waits for its node", func() error {
				for _, c := range s.claimsOf() {
					if c.Conditions().IsTrue(karpv1.ConditionLaunched) {
						return nil
					}
				}
				return fmt.Errorf("%d claims", len(s.claimsOf()))
			})
			first := s.claimsOf()[0].Name
			mend(s, class)
			s.run(1)
			for _, c := range s.claimsOf() {
				if c.Name == first && c.DeletionTimestamp == nil {
					t.Errorf("claim %s was not given up", first)
				}
			}
			s.told("RegistrationTimeout", "")
			_ = pool
		})
	}
}

func TestLateNotFound(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class(failing(v1alpha1.FailureLateNotFound, func(f *v1alpha1.SimFailure) { f.For = &metav1.Duration{Duration: 5 * time.Second} }))
	s.pool()
	p := s.pods(1)
	s.run(1)
	claim := s.claimsOf()[0]
	s.delete(p[0])
	s.delete(&claim)
	s.gone()
}

func TestNodeClass(t *testing.T) {
	t.Parallel()
	s := begin(t)
	pool := s.pool()
	conditions := func() []metav1.Condition { return pool.Status.Conditions }
	s.condition(pool, conditions, karpv1.ConditionNodeClassReady, metav1.ConditionFalse, "NodeClassNotFound")
	s.pods(1)
	s.told("FailedScheduling", "NodeClass")
	s.class()
	s.condition(pool, conditions, karpv1.ConditionReady, metav1.ConditionTrue, "")
	s.run(1)
}

func TestPoolThatBuysNothing(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "q9.mega")))
	s.pods(1)
	s.told("FailedScheduling", s.name)
	if n := len(s.claimsOf()); n != 0 {
		t.Errorf("%d claims of a pool that can buy nothing", n)
	}
}

// running starts a deployment and returns the only claim that its pods need.
func (s *scene) running(n int32, change ...func(*corev1.Pod)) karpv1.NodeClaim {
	s.Helper()
	s.deployment(n, change...)
	_, nodes := s.run(int(n))
	var found karpv1.NodeClaim
	s.eventually("the pods' node has a claim that is ready", func() error {
		for _, c := range s.claimsOf() {
			if nodes[c.Status.NodeName] != nil && c.Conditions().IsTrue(karpv1.ConditionReady) {
				found = c
				return nil
			}
		}
		return fmt.Errorf("%d claims", len(s.claimsOf()))
	})
	return found
}

func (s *scene) replaced(old *karpv1.NodeClaim, pods int) {
	s.Helper()
	s.eventually("claim "+old.Name+" and all of it is gone", func() error {
		for _, c := range s.claimsOf() {
			if c.UID == old.UID {
				return fmt.Errorf("the claim is still there")
			}
		}
		for _, m := range s.machines() {
			if m.Spec.Claim.UID == string(old.UID) {
				return fmt.Errorf("the machine is still there")
			}
		}
		var n corev1.Node
		if err := s.client.Get(s.ctx, client.ObjectKey{Name: old.Status.NodeName}, &n); err == nil {
			return fmt.Errorf("the node is still there")
		}
		return nil
	})
	s.run(pods)
}

func TestClaimDeleted(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	c := s.running(2)
	s.delete(&c)
	s.replaced(&c, 2)
	s.told("Evicted", "")
}

func TestNodeDeleted(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	c := s.running(2)
	s.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Status.NodeName}})
	s.replaced(&c, 2)
}

func TestPoolDeleted(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool()
	s.running(2)
	s.delete(pool)
	s.gone()
}

func TestMachineVanishes(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	c := s.running(1)
	for _, m := range s.machines() {
		s.delete(&m)
	}
	s.replaced(&c, 1)
}

func TestExpiration(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(func(p *karpv1.NodePool) { p.Spec.Template.Spec.ExpireAfter = karpv1.DurationOf(8 * time.Second) })
	c := s.running(1)
	s.eventually("the first claim goes", func() error {
		for _, o := range s.claimsOf() {
			if o.UID == c.UID {
				return fmt.Errorf("it is still there")
			}
		}
		return nil
	})
}

func TestDrainHonoursBudgets(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "none"}}
	budget.Spec.MaxUnavailable = new(intstr.FromInt32(0))
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": s.name}}
	s.create(budget)
	c := s.running(1)
	s.eventually("the budget counts the pod", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(budget), budget); err != nil {
			return err
		}
		if budget.Status.ExpectedPods == 0 {
			return fmt.Errorf("it counts none")
		}
		return nil
	})
	s.delete(&c)
	s.told("FailedDraining", "")
	s.stays("the pod is left alone", 4*time.Second, func() error {
		if p := s.all(); len(p) != 1 || p[0].Spec.NodeName != c.Status.NodeName {
			return fmt.Errorf("pods are %d", len(p))
		}
		return nil
	})
	s.delete(budget)
	s.replaced(&c, 1)
}

func doNotDisrupt(p *corev1.Pod) {
	p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
}

func TestDoNotDisrupt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	c := s.running(1, doNotDisrupt)
	s.delete(&c)
	s.stays("the pod is left alone", 8*time.Second, func() error {
		if p := s.all(); len(p) != 1 || p[0].Spec.NodeName != c.Status.NodeName {
			return fmt.Errorf("pods are %d", len(p))
		}
		return nil
	})
	pods := s.all()
	update(s, &pods[0], func(p *corev1.Pod) { delete(p.Annotations, karpv1.DoNotDisruptAnnotationKey) })
	s.eventually("it then goes", func() error {
		for _, o := range s.claimsOf() {
			if o.UID == c.UID {
				return fmt.Errorf("the claim is still there")
			}
		}
		return nil
	})
}

func TestGracePeriodForces(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: 6 * time.Second}
	})
	c := s.running(1, doNotDisrupt)
	s.delete(&c)
	s.replaced(&c, 1)
	s.told("Disrupted", "")
}

func TestStaticPool(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool(func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(2)) })
	count := func(want int) {
		s.Helper()
		s.eventually(fmt.Sprintf("there are %d nodes", want), func() error {
			ready := 0
			for _, c := range s.claimsOf() {
				if c.Conditions().IsTrue(karpv1.ConditionReady) && c.DeletionTimestamp == nil {
					ready++
				}
			}
			if ready != want || len(s.claimsOf()) != want {
				return fmt.Errorf("%d ready of %d", ready, len(s.claimsOf()))
			}
			return nil
		})
	}
	count(2)
	update(s, pool, func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(3)) })
	count(3)
	update(s, pool, func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) })
	count(1)
}
