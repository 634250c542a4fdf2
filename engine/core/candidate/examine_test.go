package candidate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// noon is a Wednesday.
var noon = time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)

// sells is a catalogue of the type c4, one of whose offerings is a reservation with a label
// of its provider's own.
func sells(tb testing.TB) *catalog.Catalog {
	tb.Helper()
	size := resources.List{corev1.ResourceCPU: 4000, corev1.ResourceMemory: 8 << 30, corev1.ResourcePods: 110}
	c, errs := catalog.New([]catalog.InstanceType{{Name: "c4", Capacity: size, Allocatable: size, Offerings: []catalog.Offering{
		{Zone: "z1", CapacityType: catalog.OnDemand, Price: 160000},
		{Zone: "z1", CapacityType: catalog.Reserved, ReservationID: "cr-1", ReservationCapacity: 1, Requirements: requirements.NewSet(requirements.In("cloud/reservation", "cr-1"))},
	}}})
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return c
}

// scene is a cluster with one pool, web, and one node of it, a, with one pod, and what is
// known of it.
type scene struct {
	objs  snapshot.Objects
	opts  snapshot.Options
	facts Facts
	pool  *karpv1.NodePool
	node  *corev1.Node
	claim *karpv1.NodeClaim
	pod   *corev1.Pod
}

func newScene(tb testing.TB) *scene {
	s := &scene{pool: &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{}}}, facts: Facts{Now: noon, Leaving: map[string]bool{}}}
	s.opts = snapshot.Options{Now: noon, Catalog: sells(tb), AssumeReady: true}
	s.objs.NodePools = []*karpv1.NodePool{s.pool}
	s.node, s.claim = s.addNode("a", "web")
	s.pod = s.addPod("web-1", "a")
	return s
}

// addNode adds a node of c4 that is up, bought a day ago.
func (s *scene) addNode(name, pool string) (*corev1.Node, *karpv1.NodeClaim) {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	labels := map[string]string{
		corev1.LabelInstanceTypeStable: "c4", corev1.LabelTopologyZone: "z1", karpv1.CapacityTypeLabelKey: "on-demand", karpv1.NodePoolLabelKey: pool,
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	created := metav1.NewTime(noon.Add(-24 * time.Hour))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{}, CreationTimestamp: created}}
	n.Spec.ProviderID = "sim://" + name
	n.Status.Capacity, n.Status.Allocatable = size, size
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + name, Labels: map[string]string{karpv1.NodePoolLabelKey: pool}, Annotations: map[string]string{}, CreationTimestamp: created}}
	c.Spec.ExpireAfter = karpv1.DurationOf(96 * time.Hour)
	c.Status.NodeName, c.Status.ProviderID = name, n.Spec.ProviderID
	c.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionInitialized, Status: metav1.ConditionTrue, LastTransitionTime: created}}
	s.objs.Nodes, s.objs.NodeClaims = append(s.objs.Nodes, n), append(s.objs.NodeClaims, c)
	return n, c
}

// addPod adds a pod of a ReplicaSet that runs on a node.
func (s *scene) addPod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: new(true)}},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(p)
	}
	s.objs.Pods = append(s.objs.Pods, p)
	return p
}

// addBudget adds a PodDisruptionBudget for pods of an app.
func (s *scene) addBudget(name, app string, allowed int32) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 2, DesiredHealthy: 3}
	s.objs.PodDisruptionBudgets = append(s.objs.PodDisruptionBudgets, b)
	return b
}

func (s *scene) condition(kind, reason string) {
	s.claim.Status.Conditions = append(s.claim.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))})
}

func (s *scene) examine() []Candidate {
	s.opts.Leaving = s.facts.Leaving
	s.opts.Now = s.facts.Now
	snap, _ := snapshot.Build(s.objs, s.opts)
	return Examine(snap, s.objs, s.facts)
}

// find returns the candidate of a node.
func (s *scene) find(t *testing.T, node string) *Candidate {
	t.Helper()
	all := s.examine()
	i := slices.IndexFunc(all, func(c Candidate) bool { return c.Node == node })
	if i < 0 {
		t.Fatalf("no candidate %s among %d", node, len(all))
	}
	return &all[i]
}

func owned(kind, apiVersion string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "x", Controller: new(true)}}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }

func codes(list []Reason) string {
	var out []string
	for _, r := range list {
		out = append(out, string(r.Code))
	}
	return strings.Join(out, " ")
}

// TestExamine_filters checks which reasons keep a node, for each class of method.
func TestExamine_filters(t *testing.T) {
	// The pod of the node is all that is in the way of emptiness.
	const busy = "NotEmpty"
	tests := map[string]struct {
		change                     func(*scene)
		graceful, eventual, repair string
		consolidation, emptiness   string
		// sameForAll says that eventual and repair are as graceful.
		sameForAll bool
	}{
		"nothing is in the way": {change: func(*scene) {}, emptiness: busy},
		"no NodeClaim": {
			change:   func(s *scene) { s.objs.NodeClaims = nil },
			graceful: "NoNodeClaim", sameForAll: true,
		},
		"no Node": {
			change:   func(s *scene) { s.objs.Nodes, s.claim.Status.NodeName, s.objs.Pods = nil, "", nil },
			graceful: "NodeNotFound", sameForAll: true, consolidation: "InstanceTypeUnknown LabelMissing LabelMissing NodeEmpty",
		},
		"a reboot": {
			change: func(s *scene) {
				s.condition(karpv1.ConditionRebooting, "RebootRequested")
				delete(s.node.Labels, karpv1.NodeInitializedLabelKey)
			},
			graceful: "Rebooting", sameForAll: true, emptiness: busy,
		},
		"a Node that is deleted": {
			change:   func(s *scene) { s.node.DeletionTimestamp = &metav1.Time{Time: noon} },
			graceful: "Deleting", sameForAll: true, emptiness: busy,
		},
		"a claim that is deleted": {
			change:   func(s *scene) { s.claim.DeletionTimestamp = &metav1.Time{Time: noon} },
			graceful: "Deleting", sameForAll: true, emptiness: busy,
		},
		"a machine that ends": {
			change:   func(s *scene) { s.condition(karpv1.ConditionInstanceTerminating, "Terminating") },
			graceful: "Deleting", sameForAll: true, emptiness: busy,
		},
		"a command that is under way": {
			change:   func(s *scene) { s.facts.Leaving["claim-a"] = true },
			graceful: "Deleting", sameForAll: true, emptiness: busy,
		},
		"not registered": {
			change: func(s *scene) {
				delete(s.node.Labels, karpv1.NodeInitializedLabelKey)
				delete(s.node.Labels, karpv1.NodeRegisteredLabelKey)
			},
			graceful: "NotInitialized", sameForAll: true, emptiness: busy,
		},
		"not initialized: repair does not mind": {
			change:   func(s *scene) { delete(s.node.Labels, karpv1.NodeInitializedLabelKey) },
			graceful: "NotInitialized", eventual: "NotInitialized", emptiness: busy,
		},
		"nominated": {
			change:   func(s *scene) { s.facts.Nominated = func(node string) bool { return node == "a" } },
			graceful: "Nominated", sameForAll: true, emptiness: busy,
		},
		"another is nominated": {
			change:    func(s *scene) { s.facts.Nominated = func(node string) bool { return node != "a" } },
			emptiness: busy,
		},
		"do-not-disrupt of the node: repair does not mind": {
			change:   func(s *scene) { s.node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" },
			graceful: "NodeDoNotDisrupt", eventual: "NodeDoNotDisrupt", emptiness: busy,
		},
		"do-not-disrupt of a node is never a duration": {
			change:    func(s *scene) { s.node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "10m" },
			emptiness: busy,
		},
		"do-not-disrupt of the claim counts no more once the Node is registered": {
			change:    func(s *scene) { s.claim.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" },
			emptiness: busy,
		},
		"do-not-disrupt of the claim counts before": {
			change: func(s *scene) {
				s.claim.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
				delete(s.node.Labels, karpv1.NodeInitializedLabelKey)
				delete(s.node.Labels, karpv1.NodeRegisteredLabelKey)
			},
			graceful: "NotInitialized NodeDoNotDisrupt", eventual: "NotInitialized NodeDoNotDisrupt", repair: "NotInitialized", emptiness: busy,
		},
		"no label of a pool": {
			change: func(s *scene) {
				delete(s.node.Labels, karpv1.NodePoolLabelKey)
				delete(s.claim.Labels, karpv1.NodePoolLabelKey)
			},
			graceful: "LabelMissing", sameForAll: true,
		},
		"no such pool": {
			change:   func(s *scene) { s.objs.NodePools = nil },
			graceful: "NodePoolNotFound", sameForAll: true,
		},
		"a pool whose instance types are not known": {
			change:   func(s *scene) { s.opts.Catalog = nil },
			graceful: "NodePoolNotFound", sameForAll: true, emptiness: busy,
		},
		"do-not-disrupt of a pod": {
			change:   func(s *scene) { s.pod.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" },
			graceful: "PodDoNotDisrupt", sameForAll: true, emptiness: busy,
		},
		"do-not-disrupt of a pod, with an end of the drain": {
			change: func(s *scene) {
				s.pod.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
				s.claim.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Hour}
			},
			graceful: "PodDoNotDisrupt", emptiness: busy,
		},
		"do-not-disrupt of pods of a DaemonSet and of files": {
			change: func(s *scene) {
				s.addPod("d", "a", owned("DaemonSet", "apps/v1"), annotated(karpv1.DoNotDisruptAnnotationKey, "true"))
				s.addPod("m", "a", owned("Node", "v1"), annotated(karpv1.DoNotDisruptAnnotationKey, "true"))
			},
			graceful: "PodDoNotDisrupt PodDoNotDisrupt", sameForAll: true, emptiness: busy,
		},
		"do-not-disrupt of pods that end or have ended": {
			change: func(s *scene) {
				s.addPod("e", "a", annotated(karpv1.DoNotDisruptAnnotationKey, "true"), terminating)
				s.addPod("f", "a", annotated(karpv1.DoNotDisruptAnnotationKey, "true"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			},
			emptiness: busy,
		},
		"several PodDisruptionBudgets": {
			change:   func(s *scene) { s.addBudget("x", "web", 1); s.addBudget("y", "web", 1) },
			graceful: "SeveralPodDisruptionBudgets", sameForAll: true, emptiness: busy,
		},
		"a PodDisruptionBudget that allows nothing": {
			change:   func(s *scene) { s.addBudget("x", "web", 0) },
			graceful: "PodDisruptionBudget", sameForAll: true, emptiness: busy,
		},
		"a PodDisruptionBudget that allows nothing, with an end of the drain": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0)
				s.claim.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Hour}
			},
			graceful: "PodDisruptionBudget", emptiness: busy,
		},
		"a PodDisruptionBudget that allows one": {
			change:    func(s *scene) { s.addBudget("x", "web", 1) },
			emptiness: busy,
		},
		"a PodDisruptionBudget of a DaemonSet": {
			change: func(s *scene) {
				s.addBudget("x", "daemon", 0)
				s.addPod("d", "a", owned("DaemonSet", "apps/v1"), func(p *corev1.Pod) { p.Labels["app"] = "daemon" })
			},
			graceful: "PodDisruptionBudget", sameForAll: true, emptiness: busy,
		},
		"PodDisruptionBudgets of pods that are never evicted": {
			change: func(s *scene) {
				s.addBudget("x", "stays", 0)
				stays := func(p *corev1.Pod) { p.Labels["app"] = "stays" }
				s.addPod("m", "a", owned("Node", "v1"), stays)
				s.addPod("t", "a", owned("DaemonSet", "apps/v1"), stays, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
				s.addPod("e", "a", stays, terminating)
			},
			emptiness: busy,
		},
		"a PodDisruptionBudget of another namespace": {
			change:    func(s *scene) { s.addBudget("x", "web", 0).Namespace = "other" },
			emptiness: busy,
		},
		"a PodDisruptionBudget that selects by expression": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0).Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
			},
			graceful: "PodDisruptionBudget", sameForAll: true, emptiness: busy,
		},
		"a PodDisruptionBudget with an empty selector is for all pods": {
			change:   func(s *scene) { s.addBudget("x", "web", 0).Spec.Selector = &metav1.LabelSelector{} },
			graceful: "PodDisruptionBudget", sameForAll: true, emptiness: busy,
		},
		"PodDisruptionBudgets that select nothing": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0).Spec.Selector = nil
				s.addBudget("y", "web", 0).Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}}
				s.addBudget("z", "web", 0).Spec.Selector.MatchLabels["tier"] = "front"
			},
			emptiness: busy,
		},
		"an unready pod of which the budget lets go": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0).Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow)
				s.pod.Status.Conditions[0].Status = corev1.ConditionFalse
			},
			emptiness: busy,
		},
		"a ready pod is not let go": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0).Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow)
			},
			graceful: "PodDisruptionBudget", sameForAll: true, emptiness: busy,
		},
		"an unready pod of which the budget does not let go": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0)
				s.pod.Status.Conditions[0].Status = corev1.ConditionFalse
			},
			graceful: "PodDisruptionBudget", sameForAll: true, emptiness: busy,
		},
		"an unready pod beside enough healthy ones": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0).Status.CurrentHealthy = 3
				s.pod.Status.Conditions[0].Status = corev1.ConditionFalse
			},
			emptiness: busy,
		},
		"a pod that does not run yet": {
			change: func(s *scene) {
				s.addBudget("x", "web", 0)
				s.addBudget("y", "web", 0)
				s.pod.Status.Phase = corev1.PodPending
			},
			emptiness: busy,
		},
		"all causes are named, in order": {
			change: func(s *scene) {
				s.facts.Nominated = func(string) bool { return true }
				s.node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
				s.addBudget("x", "web", 0)
				s.addBudget("y", "db", 1)
				s.addBudget("z", "db", 1)
				s.addPod("db", "a", func(p *corev1.Pod) { p.Labels["app"] = "db" })
				s.addPod("guarded", "a", annotated(karpv1.DoNotDisruptAnnotationKey, "true"))
			},
			graceful: "Nominated NodeDoNotDisrupt PodDoNotDisrupt SeveralPodDisruptionBudgets PodDisruptionBudget",
			eventual: "Nominated NodeDoNotDisrupt PodDoNotDisrupt SeveralPodDisruptionBudgets PodDisruptionBudget",
			repair:   "Nominated PodDoNotDisrupt SeveralPodDisruptionBudgets PodDisruptionBudget", emptiness: busy,
		},
		"a static pool": {
			change:        func(s *scene) { s.pool.Spec.Replicas = new(int64(3)) },
			consolidation: "StaticNodePool", emptiness: "StaticNodePool NotEmpty",
		},
		"a type that is not sold": {
			change:        func(s *scene) { s.node.Labels[corev1.LabelInstanceTypeStable] = "old" },
			consolidation: "InstanceTypeUnknown", emptiness: busy,
		},
		"no label of capacity type and zone": {
			change: func(s *scene) {
				delete(s.node.Labels, karpv1.CapacityTypeLabelKey)
				delete(s.node.Labels, corev1.LabelTopologyZone)
			},
			consolidation: "LabelMissing LabelMissing", emptiness: busy,
		},
		"an empty zone is a zone": {
			change:    func(s *scene) { s.node.Labels[corev1.LabelTopologyZone] = "" },
			emptiness: busy,
		},
		"consolidateAfter: Never": {
			change: func(s *scene) {
				s.pool.Spec.Disruption.ConsolidateAfter = karpv1.NillableDuration{Text: karpv1.Never}
			},
			consolidation: "ConsolidationDisabled", emptiness: "ConsolidationDisabled NotEmpty",
		},
		"WhenEmpty": {
			change: func(s *scene) {
				s.pool.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
			},
			consolidation: "ConsolidateWhenEmpty", emptiness: busy,
		},
		"WhenEmpty of an empty node": {
			change: func(s *scene) {
				s.pool.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
				s.objs.Pods = nil
			},
			consolidation: "NodeEmpty",
		},
		"a pod event within consolidateAfter": {
			change: func(s *scene) {
				s.pool.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(10 * time.Minute)
				s.claim.Status.LastPodEventTime = metav1.NewTime(noon.Add(-10*time.Minute + time.Second))
			},
			consolidation: "NotConsolidatable", emptiness: "NotEmpty NotConsolidatable",
		},
		"a pod event consolidateAfter ago": {
			change: func(s *scene) {
				s.pool.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(10 * time.Minute)
				s.claim.Status.LastPodEventTime = metav1.NewTime(noon.Add(-10 * time.Minute))
			},
			emptiness: busy,
		},
		"no pod event, but initialization within consolidateAfter": {
			change:        func(s *scene) { s.pool.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(25 * time.Hour) },
			consolidation: "NotConsolidatable", emptiness: "NotEmpty NotConsolidatable",
		},
		"a pod event that was before initialization counts nevertheless": {
			change: func(s *scene) {
				s.pool.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(25 * time.Hour)
				s.claim.Status.LastPodEventTime = metav1.NewTime(noon.Add(-26 * time.Hour))
			},
			emptiness: busy,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			test.change(s)
			all := s.examine()
			if len(all) != 1 {
				t.Fatalf("%d candidates, want 1", len(all))
			}
			c := all[0]
			if test.sameForAll {
				test.eventual, test.repair = test.graceful, test.graceful
			}
			for _, list := range []struct {
				name string
				have []Reason
				want string
			}{
				{"Graceful", c.Graceful, test.graceful}, {"Eventual", c.Eventual, test.eventual}, {"Repair", c.Repair, test.repair},
				{"Consolidation", c.Consolidation, test.consolidation}, {"Emptiness", c.Emptiness, test.emptiness},
			} {
				if got := codes(list.have); got != list.want {
					t.Errorf("%s = %q, want %q: %v", list.name, got, list.want, list.have)
				}
				for _, r := range list.have {
					if r.Message == "" {
						t.Errorf("%s: %s has no message", list.name, r.Code)
					}
				}
			}
		})
	}
}

func TestCandidate_Blocked(t *testing.T) {
	c := Candidate{
		Graceful: []Reason{{Code: Nominated}}, Eventual: []Reason{{Code: NodeDoNotDisrupt}}, Repair: []Reason{{Code: Rebooting}},
		Consolidation: []Reason{{Code: StaticPool}}, Emptiness: []Reason{{Code: NotEmpty}},
	}
	for reason, want := range map[karpv1.DisruptionReason]string{
		karpv1.DisruptionReasonEmpty: "Nominated NotEmpty", karpv1.DisruptionReasonUnderutilized: "Nominated StaticNodePool",
		karpv1.DisruptionReasonDrifted: "NodeDoNotDisrupt", karpv1.DisruptionReasonUnhealthy: "Rebooting",
	} {
		if got := codes(c.Blocked(reason)); got != want {
			t.Errorf("Blocked(%s) = %q, want %q", reason, got, want)
		}
	}
	if got := codes(c.Graceful); got != "Nominated" {
		t.Errorf("Blocked changed Graceful to %q", got)
	}
}

func TestExamine_reasons(t *testing.T) {
	s := newScene(t)
	s.pod.Annotations[karpv1.DoNotDisruptAnnotationKey] = "45m"
	s.pod.Status.StartTime = &metav1.Time{Time: noon.Add(-15 * time.Minute)}
	s.addPod("unknown-start", "a", annotated(karpv1.DoNotDisruptAnnotationKey, "45m"))
	s.addPod("over", "a", annotated(karpv1.DoNotDisruptAnnotationKey, "15m"), func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: noon.Add(-15 * time.Minute)} })
	s.addPod("db-1", "a", func(p *corev1.Pod) { p.Labels["app"] = "db" })
	s.addPod("db-0", "a", func(p *corev1.Pod) { p.Labels["app"] = "db" })
	s.addPod("cache", "a", func(p *corev1.Pod) { p.Labels["app"] = "cache" })
	s.addBudget("db", "db", 0)
	s.addBudget("cache", "cache", 0).Spec.MaxUnavailable = new(intstr.FromInt32(0))
	s.claim.Status.LastPodEventTime = metav1.NewTime(noon.Add(-time.Minute))
	s.pool.Spec.Disruption.ConsolidateAfter = karpv1.NillableDuration{Duration: new(10 * time.Minute), Text: "10m"}
	c := s.find(t, "a")
	want := []Reason{
		{Code: PodDoNotDisrupt, Object: "pod shop/unknown-start", Message: "it has the annotation karpenter.sh/do-not-disrupt"},
		{Code: PodDoNotDisrupt, Object: "pod shop/web-1", Message: "it has the annotation karpenter.sh/do-not-disrupt", Until: noon.Add(30 * time.Minute)},
		{Code: PodBudget, Object: "poddisruptionbudget shop/cache", Message: "it never allows evicting pod cache"},
		{Code: PodBudget, Object: "poddisruptionbudget shop/db", Message: "it does not allow evicting pod db-0 and 1 more now: 2 pods are healthy, 3 have to be"},
	}
	if diff := cmp.Diff(want, c.Graceful); diff != "" {
		t.Errorf("Graceful (-want +got):\n%s", diff)
	}
	want = []Reason{{
		Code: NotConsolidatable, Message: "a pod came or went at 2025-06-04T11:59:00Z, and consolidateAfter of NodePool web is 10m", Until: noon.Add(9 * time.Minute),
	}}
	if diff := cmp.Diff(want, c.Consolidation); diff != "" {
		t.Errorf("Consolidation (-want +got):\n%s", diff)
	}
}

func TestExamine_pods(t *testing.T) {
	lost := func(p *corev1.Pod) { p.OwnerReferences = nil }
	tests := map[string]struct {
		change                        func(*scene)
		pods, leftOut, lost, warnings string
		returning, rounds             int
		notEmpty                      bool
	}{
		"one": {func(*scene) {}, "web-1", "", "", "", 0, 1, true},
		"of DaemonSets, of files, and those that end or have ended, need no other node": {func(s *scene) {
			s.objs.Pods = nil
			s.addPod("d", "a", owned("DaemonSet", "apps/v1"))
			s.addPod("m", "a", owned("Node", "v1"))
			s.addPod("n", "a", annotated(corev1.MirrorPodAnnotationKey, "x"))
			s.addPod("e", "a", terminating)
			s.addPod("f", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		}, "", "", "", "", 0, 1, false},
		"of StatefulSets come back": {func(s *scene) {
			s.objs.Pods = nil
			s.addPod("s", "a", owned("StatefulSet", "apps/v1"), terminating)
		}, "", "", "", "", 1, 1, true},
		"that cost nothing to evict need a node nevertheless": {func(s *scene) {
			s.pod.Annotations[karpv1.DisruptionCostAnnotationKey] = "-2147483648"
		}, "web-1", "", "", "", 0, 1, true},
		"may be left out": {func(s *scene) {
			s.pod.Annotations[v1alpha1.DisposableAnnotation] = "true"
		}, "web-1", "web-1", "", "", 0, 1, false},
		"may be left out beside others": {func(s *scene) {
			s.addPod("debug", "a", lost, annotated(v1alpha1.DisposableAnnotation, "true"))
		}, "debug web-1", "debug", "", "", 0, 1, true},
		"are not left out for another value": {func(s *scene) {
			s.pod.Annotations[v1alpha1.DisposableAnnotation] = "yes"
		}, "web-1", "", "", "", 0, 1, true},
		"without a controller are lost": {func(s *scene) {
			s.addPod("bare", "a", lost)
			s.addPod("owned", "a", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil })
		}, "bare owned web-1", "", "bare owned", "PodWithoutOwner PodWithoutOwner", 0, 1, true},
		"an annotation that says nothing": {func(s *scene) {
			s.pod.Annotations[karpv1.DoNotDisruptAnnotationKey] = "-5m"
		}, "web-1", "", "", "InvalidDoNotDisruptAnnotation", 0, 1, true},
		"five of a budget that allows two": {func(s *scene) {
			s.addBudget("x", "web", 2)
			for i := range 4 {
				s.addPod(fmt.Sprintf("web-%d", i+2), "a")
			}
		}, "web-1 web-2 web-3 web-4 web-5", "", "", "DrainInRounds", 0, 3, true},
		"two of a budget that allows two": {func(s *scene) {
			s.addBudget("x", "web", 2)
			s.addPod("web-2", "a")
		}, "web-1 web-2", "", "", "", 0, 1, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			test.change(s)
			c := s.find(t, "a")
			names := func(keys []snapshot.PodKey) string {
				var out []string
				for _, k := range keys {
					out = append(out, k.Name)
				}
				return strings.Join(out, " ")
			}
			got := []any{names(c.Pods), names(c.LeftOut), names(c.Lost), codes(c.Warnings), c.Returning, c.Rounds, !c.Empty()}
			want := []any{test.pods, test.leftOut, test.lost, test.warnings, test.returning, test.rounds, test.notEmpty}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("pods, left out, lost, warnings, returning, rounds, not empty (-want +got):\n%s", diff)
			}
			if c.Disposable != len(c.LeftOut) {
				t.Errorf("Disposable = %d of %d", c.Disposable, len(c.LeftOut))
			}
			if blocked := strings.Contains(codes(c.Emptiness), string(NotEmpty)); blocked != test.notEmpty {
				t.Errorf("Emptiness = %v, want a reason: %t", c.Emptiness, test.notEmpty)
			}
		})
	}
}

func TestExamine_cost(t *testing.T) {
	priority := func(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = new(n) } }
	cost := func(v string) func(*corev1.Pod) { return annotated(karpv1.DisruptionCostAnnotationKey, v) }
	tests := map[string]struct {
		pod          func(*corev1.Pod)
		deletionCost bool
		want         float64 // of a node with only this pod
	}{
		"a pod":                                {func(*corev1.Pod) {}, false, 2},
		"its priority":                         {priority(1 << 25), false, 3},
		"its annotation":                       {cost("134217728"), false, 3},
		"not more than 10":                     {priority(2_000_000_000), false, 11},
		"never less than nothing":              {priority(-2_000_000_000), false, 1},
		"not a number":                         {cost("much"), false, 2},
		"more than an int32":                   {cost("2147483648"), false, 2},
		"the annotation of Kubernetes is off":  {annotated(corev1.PodDeletionCost, "134217728"), false, 2},
		"and on":                               {annotated(corev1.PodDeletionCost, "134217728"), true, 3},
		"that of Karpenter first":              {func(p *corev1.Pod) { cost("0")(p); annotated(corev1.PodDeletionCost, "134217728")(p) }, true, 2},
		"even if it is not a number":           {func(p *corev1.Pod) { cost("x")(p); annotated(corev1.PodDeletionCost, "134217728")(p) }, true, 2},
		"a DaemonSet's pod costs nothing":      {owned("DaemonSet", "apps/v1"), false, 1},
		"nor one that ends":                    {terminating, false, 1},
		"but one that ends and comes back":     {func(p *corev1.Pod) { owned("StatefulSet", "apps/v1")(p); terminating(p) }, false, 2},
		"one that may be killed costs nothing": {annotated(v1alpha1.DisposableAnnotation, "true"), false, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.facts.DeletionCost = test.deletionCost
			test.pod(s.pod)
			if got := s.find(t, "a").Cost; got != test.want {
				t.Errorf("Cost = %v, want %v", got, test.want)
			}
		})
	}
}

func TestExamine_facts(t *testing.T) {
	s := newScene(t)
	s.node.Labels[karpv1.CapacityTypeLabelKey] = "reserved"
	s.node.Labels["cloud/reservation"] = "cr-1"
	s.condition(karpv1.ConditionDrifted, "RequirementsDrifted")
	s.addNode("b", "web")
	s.objs.NodeClaims[1].Spec.ExpireAfter = karpv1.NillableDuration{Text: karpv1.Never}
	s.addNode("c", "web")
	s.objs.NodeClaims[2].Spec.ExpireAfter = karpv1.NillableDuration{} // 720h, as the API server says
	s.addNode("d", "web")
	s.objs.NodeClaims[3].Spec.ExpireAfter = karpv1.DurationOf(time.Hour)
	// The claim of e has no Node, f is nobody's, g goes with its pods.
	_, claim := s.addNode("e", "web")
	s.objs.Nodes = slices.Delete(s.objs.Nodes, 4, 5)
	claim.Status.NodeName, claim.Status.ProviderID = "", ""
	f, _ := s.addNode("f", "")
	s.objs.NodeClaims = slices.Delete(s.objs.NodeClaims, 5, 6)
	clear(f.Labels)
	g, _ := s.addNode("g", "web")
	g.DeletionTimestamp = &metav1.Time{Time: noon}
	s.addPod("web-g", "g")
	slices.Reverse(s.objs.Nodes)
	slices.Reverse(s.objs.Pods)

	all := s.examine()
	var names []string
	byName := map[string]*Candidate{}
	for i := range all {
		names = append(names, all[i].Node)
		byName[all[i].Node] = &all[i]
	}
	if want := []string{"a", "b", "c", "claim-e", "d", "f", "g"}; !slices.Equal(names, want) {
		t.Fatalf("candidates %v, want %v", names, want)
	}
	a := byName["a"]
	got := []any{a.Claim, a.Pool, a.InstanceType, a.Zone, a.CapacityType, a.ReservationID, a.Drifted, a.DriftedSince, a.Lifetime}
	want := []any{"claim-a", "web", "c4", "z1", "reserved", "cr-1", "RequirementsDrifted", noon.Add(-time.Hour), 0.75}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a (-want +got):\n%s", diff)
	}
	for name, want := range map[string]float64{"b": 1, "c": 29.0 / 30, "d": 0, "f": 1} {
		if got := byName[name].Lifetime; got != want {
			t.Errorf("Lifetime of %s = %v, want %v", name, got, want)
		}
	}
	if f := byName["f"]; f.Claim != "" || f.Pool != "" || !f.Destination {
		t.Errorf("an unmanaged node: %+v", f)
	}
	if g := byName["g"]; len(g.Pods) != 1 || g.Pods[0].Name != "web-g" || g.Empty() {
		t.Errorf("a node that goes: %+v", g)
	}
}

// TestExamine_destination is scenario S-12: a busy node takes pods, unless its pool says that
// it must not.
func TestExamine_destination(t *testing.T) {
	tests := map[string]struct {
		protect string
		after   karpv1.NillableDuration
		ago     time.Duration
		want    bool
	}{
		"by default":           {"", karpv1.DurationOf(10 * time.Minute), time.Minute, true},
		"protected":            {"true", karpv1.DurationOf(10 * time.Minute), time.Minute, false},
		"another value":        {"yes", karpv1.DurationOf(10 * time.Minute), time.Minute, true},
		"protected, but quiet": {"true", karpv1.DurationOf(10 * time.Minute), 10 * time.Minute, true},
		"never consolidated":   {"true", karpv1.NillableDuration{Text: karpv1.Never}, time.Minute, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.pool.Annotations[v1alpha1.ProtectDestinationsAnnotation] = test.protect
			s.pool.Spec.Disruption.ConsolidateAfter = test.after
			s.claim.Status.LastPodEventTime = metav1.NewTime(noon.Add(-test.ago))
			if got := s.find(t, "a").Destination; got != test.want {
				t.Errorf("Destination = %t, want %t", got, test.want)
			}
		})
	}
}

// TestExamine_quietTogether is scenario S-18: many nodes that get empty in the same second
// all wait for consolidateAfter, and then all may go.
func TestExamine_quietTogether(t *testing.T) {
	s := newScene(t)
	s.objs.Nodes, s.objs.NodeClaims, s.objs.Pods = nil, nil, nil
	s.pool.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(5 * time.Minute)
	for i := range 25 {
		_, claim := s.addNode(fmt.Sprintf("n-%02d", i), "web")
		claim.Status.LastPodEventTime = metav1.NewTime(noon)
	}
	may := func(after time.Duration) int {
		s.facts.Now = noon.Add(after)
		n := 0
		for _, c := range s.examine() {
			if len(c.Blocked(karpv1.DisruptionReasonEmpty)) == 0 {
				n++
			}
		}
		return n
	}
	for after, want := range map[time.Duration]int{0: 0, time.Minute: 0, 5*time.Minute - time.Nanosecond: 0, 5 * time.Minute: 25, time.Hour: 25} {
		if got := may(after); got != want {
			t.Errorf("%d nodes may go %s after the last pod event, want %d", got, after, want)
		}
	}
}

// TestExamine_handMade checks a snapshot of which some objects are missing.
func TestExamine_handMade(t *testing.T) {
	snap := &snapshot.Snapshot{
		Now: noon, Pods: []snapshot.Pod{{Key: snapshot.PodKey{Namespace: "shop", Name: "x"}}, {Key: snapshot.PodKey{Namespace: "shop", Name: "y"}, Daemon: true}},
		Nodes: []*snapshot.Node{{Name: "a", Claim: "claim-a", Pool: "web", Pods: []int32{0, 1}}},
	}
	got := Examine(snap, snapshot.Objects{}, Facts{Now: noon})
	want := []Reason{{Code: NoClaim, Message: "NodeClaim claim-a is not there"}}
	if len(got) != 1 || len(got[0].Pods) != 1 || got[0].Cost != 2 || got[0].Claim != "claim-a" || got[0].Pool != "web" {
		t.Fatalf("Examine() = %+v", got)
	}
	if diff := cmp.Diff(want, got[0].Graceful); diff != "" {
		t.Errorf("Graceful (-want +got):\n%s", diff)
	}
}

// bigScene is a cluster of nodes with ten pods each and a budget for every fifty pods.
func bigScene(tb testing.TB, nodes int) *scene {
	s := newScene(tb)
	s.objs.Nodes, s.objs.NodeClaims, s.objs.Pods = nil, nil, nil
	for i := range nodes {
		name := fmt.Sprintf("n-%05d", i)
		s.addNode(name, "web")
		for j := range 10 {
			app := (i*10 + j) % (nodes / 5)
			s.addPod(fmt.Sprintf("%s-%d", name, j), name, func(p *corev1.Pod) {
				p.Namespace = fmt.Sprintf("ns-%d", app%20)
				p.Labels = map[string]string{"app": fmt.Sprintf("app-%04d", app), "pod-template-hash": "abc", "team": "x"}
			})
		}
	}
	for i := range nodes / 5 {
		s.addBudget(fmt.Sprintf("pdb-%04d", i), fmt.Sprintf("app-%04d", i), 1).Namespace = fmt.Sprintf("ns-%d", i%20)
	}
	slices.SortFunc(s.objs.Pods, comparePods)
	return s
}

func BenchmarkExamine(b *testing.B) {
	s := bigScene(b, 2000)
	snap, problems := snapshot.Build(s.objs, s.opts)
	if len(problems) > 0 {
		b.Fatal(problems[0])
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := Examine(snap, s.objs, s.facts); len(got) != 2000 || len(got[7].Pods) != 10 {
			b.Fatal(len(got))
		}
	}
}
