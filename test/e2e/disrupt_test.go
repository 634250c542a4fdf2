package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// consolidated makes a NodePool whose nodes may go at once, all of them.
func consolidated(p *karpv1.NodePool) {
	p.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, ConsolidateAfter: karpv1.DurationOf(0),
		Budgets: []karpv1.Budget{{Nodes: "100%"}},
	}
}

// app runs replicas of a pod under a name of its own.
func (s *scene) app(name string, replicas int32, change ...func(*corev1.Pod)) *appsv1.Deployment {
	s.Helper()
	p := s.podTemplate("", change...)
	labels := map[string]string{"app": s.name, "part": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	d.Spec.Replicas = &replicas
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec}
	s.create(d)
	return d
}

// standing are the case's claims that are initialized and not going.
func (s *scene) standing() []karpv1.NodeClaim {
	return slices.DeleteFunc(s.claimsOf(), func(c karpv1.NodeClaim) bool {
		return c.DeletionTimestamp != nil || !c.Conditions().IsTrue(karpv1.ConditionInitialized)
	})
}

// nodesLeft waits until the case has n claims, all of them standing, and nothing is left of
// commands on them.
func (s *scene) nodesLeft(n int) {
	s.Helper()
	s.eventually(fmt.Sprintf("%d nodes are left", n), func() error {
		if all, standing := len(s.claimsOf()), len(s.standing()); all != n || standing != n {
			return fmt.Errorf("%d claims, %d of them standing", all, standing)
		}
		for _, c := range s.claimsOf() {
			if c.Annotations[v1alpha1.ReplacesAnnotation] != "" || c.Conditions().Get(karpv1.ConditionDisruptionReason) != nil || s.tainted(&c) {
				return fmt.Errorf("claim %s still has traces of a command", c.Name)
			}
		}
		return nil
	})
}

func (s *scene) tainted(c *karpv1.NodeClaim) bool {
	var n corev1.Node
	if err := s.client.Get(s.ctx, client.ObjectKey{Name: c.Status.NodeName}, &n); err != nil {
		return false
	}
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.DisruptedTaintKey })
}

func TestDisrupt_empty(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(consolidated)
	d := s.app("web", 1)
	s.run(1)
	s.delete(d)
	s.told("DisruptionTerminating", "Empty")
	s.gone()
}

// TestDisrupt_merge: of two nodes that are half empty one goes, and its pod runs on the other.
func TestDisrupt_merge(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "c6a.large")))
	var parts []*appsv1.Deployment
	for i := range 4 {
		parts = append(parts, s.app(fmt.Sprintf("part%d", i), 1, cpu("800m")))
	}
	pods, nodes := s.run(4)
	if len(nodes) != 2 {
		t.Fatalf("pods run on %d nodes, want 2", len(nodes))
	}
	seen := map[string]bool{}
	for i := range pods {
		if !seen[pods[i].Spec.NodeName] { // one of each node goes
			seen[pods[i].Spec.NodeName] = true
			i := slices.IndexFunc(parts, func(d *appsv1.Deployment) bool { return d.Name == pods[i].Labels["part"] })
			s.delete(parts[i])
		}
	}
	s.run(2)
	update(s, pool, consolidated)
	s.nodesLeft(1)
	s.run(2)
}

// TestDisrupt_drift: the replacement is there before the old node takes no more pods, and the
// PodDisruptionBudget holds.
func TestDisrupt_drift(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "c6a.xlarge")))
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "one"}}
	budget.Spec.MaxUnavailable = new(intstr.FromInt32(1))
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": s.name}}
	s.create(budget)
	old := s.running(3)
	s.eventually("the budget lets a pod go", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(budget), budget); err != nil {
			return err
		}
		if budget.Status.DisruptionsAllowed != 1 {
			return fmt.Errorf("it lets %d", budget.Status.DisruptionsAllowed)
		}
		return nil
	})
	update(s, pool, func(p *karpv1.NodePool) {
		consolidated(p)
		p.Spec.Template.Labels["generation"] = "two"
	})
	ready := func() int {
		n := 0
		for _, p := range s.all() {
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				n++
			}
		}
		return n
	}
	s.eventually("the drifted claim goes", func() error {
		standing := s.standing()
		if s.tainted(&old) && len(standing) < 2 && slices.ContainsFunc(standing, func(c karpv1.NodeClaim) bool { return c.UID == old.UID }) {
			s.Fatal("the node is tainted before its replacement is ready")
		}
		if n := ready(); n < 2 {
			s.Fatalf("%d of 3 pods are ready, the budget asks for 2", n)
		}
		for _, c := range s.claimsOf() {
			if c.UID == old.UID {
				return errors.New("it is still there")
			}
		}
		return nil
	})
	s.nodesLeft(1)
	if got := s.onlyClaim().Labels["generation"]; got != "two" {
		t.Errorf("label generation is %q, want that of the pool", got)
	}
	s.run(3)
}

// TestDisrupt_denied: what a policy denies stays, and the next best goes in the same pass.
func TestDisrupt_denied(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "c6a.large")))
	a, b := s.app("a", 1, cpu("1500m")), s.app("b", 1, cpu("1500m"))
	pods, nodes := s.run(2)
	if len(nodes) != 2 {
		t.Fatalf("pods run on %d nodes, want 2", len(nodes))
	}
	kept := pods[0].Spec.NodeName
	s.policy("disrupt", fmt.Sprintf(`deny contains {"code": "mine", "msg": "this one stays"} if {
	some c in input.command.candidates
	c.node == %q
}`, kept))
	s.delete(a)
	s.delete(b)
	update(s, pool, consolidated)
	s.eventually("the other node goes", func() error {
		claims := s.claimsOf()
		if len(claims) != 1 {
			return fmt.Errorf("%d claims", len(claims))
		}
		if claims[0].Status.NodeName != kept {
			s.Fatal("the node went that the policy keeps")
		}
		return nil
	})
	s.toldNode(kept, "PolicyDenied", "this one stays")
	s.stays("the node is kept", 12*time.Second, func() error {
		if claims := s.standing(); len(claims) != 1 || s.tainted(&claims[0]) {
			return fmt.Errorf("%d nodes stand", len(claims))
		}
		return nil
	})
}

// toldNode waits for an event about a node.
func (s *scene) toldNode(node, reason, text string) {
	s.Helper()
	s.eventually(fmt.Sprintf("an event %s of node %s says %q", reason, node, text), func() error {
		var list corev1.EventList
		if err := s.client.List(s.ctx, &list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node && e.Reason == reason && strings.Contains(e.Message, text)
		}) {
			return fmt.Errorf("none among %d", len(list.Items))
		}
		return nil
	})
}

func TestDisrupt_budget(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool(consolidated, kept)
	d := s.app("web", 1)
	s.run(1)
	s.delete(d)
	s.told("DisruptionBlocked", "Empty: 0 of 1 nodes")
	s.stays("the node is kept", 20*time.Second, func() error {
		if claims := s.standing(); len(claims) != 1 || s.tainted(&claims[0]) {
			return fmt.Errorf("%d nodes stand", len(claims))
		}
		return nil
	})
	update(s, pool, consolidated)
	s.gone()
}

// TestDisrupt_brokenBudget (S-54) has a NodePool that was stored with a schedule that cannot be
// read: it disrupts nothing and says why, and goes on once that is corrected.
func TestDisrupt_brokenBudget(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool(consolidated, func(p *karpv1.NodePool) {
		p.Spec.Disruption.Budgets = []karpv1.Budget{
			{Nodes: "100%"},
			{Nodes: "0", Schedule: new("0 0 * * sat-sun"), Duration: &metav1.Duration{Duration: 24 * time.Hour}},
		}
	})
	d := s.app("web", 1)
	s.run(1)
	conditions := func() []metav1.Condition { return pool.Status.Conditions }
	s.condition(pool, conditions, karpv1.ConditionBudgetsValid, metav1.ConditionFalse, "spec.disruption.budgets[1].schedule")
	s.condition(pool, conditions, karpv1.ConditionReady, metav1.ConditionTrue, "")
	s.delete(d)
	s.told("DisruptionBlocked", "until a budget is corrected")
	s.stays("the node is kept", 12*time.Second, func() error {
		if claims := s.standing(); len(claims) != 1 || s.tainted(&claims[0]) {
			return fmt.Errorf("%d nodes stand", len(claims))
		}
		return nil
	})
	update(s, pool, consolidated)
	s.gone()
}

// TestDisrupt_restart kills the controller while a replacement boots: another one goes on with
// the command and buys nothing more.
func TestDisrupt_restart(t *testing.T) {
	s := alone(t)
	s.class(func(c *v1alpha1.SimNodeClassSpec) { c.RegistrationLatency.Base.Duration = 6 * time.Second })
	pool := s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "c6a.xlarge")))
	first := start(t, s.cluster, quick...)
	old := s.running(2)
	bought := map[string]bool{}
	replacing := func() bool {
		found := false
		for _, c := range s.claimsOf() {
			if c.UID != old.UID {
				bought[string(c.UID)] = true
			}
			found = found || c.Annotations[v1alpha1.ReplacesAnnotation] != "" && !c.Conditions().IsTrue(karpv1.ConditionInitialized)
		}
		return found
	}
	update(s, pool, func(p *karpv1.NodePool) {
		consolidated(p)
		p.Spec.Template.Labels["generation"] = "two"
	})
	s.eventually("a replacement boots", func() error {
		if !replacing() {
			return fmt.Errorf("%d claims", len(s.claimsOf()))
		}
		return nil
	})
	first.kill()
	if s.tainted(&old) {
		t.Error("the node is tainted before its replacement is ready")
	}
	start(t, s.cluster, quick...)
	s.eventually("the old claim goes", func() error {
		replacing()
		for _, c := range s.claimsOf() {
			if c.UID == old.UID {
				return errors.New("it is still there")
			}
		}
		return nil
	})
	s.nodesLeft(1)
	s.run(2)
	s.settled()
	if len(bought) != 1 {
		t.Errorf("%d claims were bought for one node", len(bought))
	}
}
