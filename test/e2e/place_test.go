package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster/kubelet"
)

func selector(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector[key] = value }
}

func cpu(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(text)
	}
}

func affinity(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
}

func term(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

// labelled checks a label of all nodes.
func labelled(key, want string) func(*scene, map[string]*corev1.Node) {
	return func(s *scene, nodes map[string]*corev1.Node) {
		for _, n := range nodes {
			if got := n.Labels[key]; got != want {
				s.Errorf("node %s has %s=%s, want %s", n.Name, key, got, want)
			}
		}
	}
}

func number(want int) func(*scene, map[string]*corev1.Node) {
	return func(s *scene, nodes map[string]*corev1.Node) {
		if len(nodes) != want {
			s.Errorf("pods run on %d nodes, want %d", len(nodes), want)
		}
	}
}

// TestConstraint has a case for each way in which pods and NodePools say where.
func TestConstraint(t *testing.T) {
	spread := func(key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			}}
		}
	}
	near := func(p *corev1.Pod) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}
	}
	tests := map[string]struct {
		class func(*v1alpha1.SimNodeClassSpec)
		pool  func(*karpv1.NodePool)
		pods  int
		pod   func(*corev1.Pod)
		check func(*scene, map[string]*corev1.Node)
	}{
		"node selector":         {pods: 1, pod: selector(corev1.LabelInstanceTypeStable, "m6a.2xlarge"), check: labelled(corev1.LabelInstanceTypeStable, "m6a.2xlarge")},
		"affinity alternatives": {pods: 1, pod: affinity(term(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "nowhere"), term(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1b")), check: labelled(corev1.LabelTopologyZone, "us-east-1b")},
		"comparison of numbers": {pods: 1, pod: affinity(term("karpenter.k8s.aws/instance-cpu", corev1.NodeSelectorOpGt, "15")), check: func(s *scene, nodes map[string]*corev1.Node) {
			for _, n := range nodes {
				if n.Status.Capacity.Cpu().Value() <= 15 {
					s.Errorf("node %s has %s CPUs, want more than 15", n.Name, n.Status.Capacity.Cpu())
				}
			}
		}},
		"taint and toleration": {
			pool: func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
			},
			pods: 1, pod: func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
			},
			check: number(1),
		},
		"spread over zones": {pods: 3, pod: spread(corev1.LabelTopologyZone), check: func(s *scene, nodes map[string]*corev1.Node) {
			zones := map[string]bool{}
			for _, n := range nodes {
				zones[n.Labels[corev1.LabelTopologyZone]] = true
			}
			if len(zones) != 3 {
				s.Errorf("pods run in zones %v, want three", zones)
			}
		}},
		"spread over nodes": {pods: 3, pod: spread(corev1.LabelHostname), check: number(3)},
		"pod affinity": {pods: 3, pod: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: near(p)}}
		}, check: number(1)},
		"pod anti-affinity": {pods: 3, pod: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: near(p)}}
		}, check: number(3)},
		"host port": {pods: 2, pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		}, check: number(2)},
		"extended resource": {pods: 1, pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		}, check: func(s *scene, nodes map[string]*corev1.Node) {
			for _, n := range nodes {
				if !strings.HasPrefix(n.Labels[corev1.LabelInstanceTypeStable], "g4dn.") {
					s.Errorf("node %s is of type %s, want one with a GPU", n.Name, n.Labels[corev1.LabelInstanceTypeStable])
				}
			}
		}},
		"capacity type": {pool: with(require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot", "on-demand")), pods: 1, pod: selector(karpv1.CapacityTypeLabelKey, "spot"), check: labelled(karpv1.CapacityTypeLabelKey, "spot")},
		"architecture":  {pool: with(require(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64", "arm64")), pods: 1, pod: selector(corev1.LabelArchStable, "arm64"), check: labelled(corev1.LabelArchStable, "arm64")},
		"custom label":  {pool: with(require("example.com/tier", corev1.NodeSelectorOpIn, "gold", "silver")), pods: 1, pod: selector("example.com/tier", "silver"), check: labelled("example.com/tier", "silver")},
		"annotations as large as they may be": {pods: 1, pod: func(p *corev1.Pod) {
			p.Annotations = map[string]string{"example.com/blob": strings.Repeat("x", 250<<10)}
		}, check: number(1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			s.class()
			if tt.pool == nil {
				tt.pool = func(*karpv1.NodePool) {}
			}
			s.pool(tt.pool)
			s.pods(tt.pods, tt.pod)
			_, nodes := s.run(tt.pods)
			tt.check(s, nodes)
			if got := len(s.claimsOf()); got != len(nodes) {
				t.Errorf("%d claims for the %d nodes that pods run on", got, len(nodes))
			}
		})
	}
}

func TestFromZero(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	pool := s.pool()
	s.pods(1)
	s.run(1)
	s.eventually("the claim is ready", func() error {
		for _, c := range s.claimsOf() {
			if c.Conditions().IsTrue(karpv1.ConditionReady) {
				return nil
			}
		}
		return fmt.Errorf("%d claims", len(s.claimsOf()))
	})
	_, nodes := s.run(1)
	claims := s.claimsOf()
	if len(claims) != 1 || len(nodes) != 1 {
		t.Fatalf("%d claims and %d nodes, want one", len(claims), len(nodes))
	}
	c := claims[0]
	if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		for what, ok := range map[string]bool{
			"the node is registered":                n.Labels[karpv1.NodeRegisteredLabelKey] == "true",
			"the node is initialized":               n.Labels[karpv1.NodeInitializedLabelKey] == "true",
			"the node has the pool's label":         n.Labels["case"] == s.name,
			"the node belongs to the claim":         len(n.OwnerReferences) == 1 && n.OwnerReferences[0].UID == c.UID,
			"the node has the finalizer":            has(n.Finalizers, karpv1.TerminationFinalizer),
			"the node takes all pods":               len(n.Spec.Taints) == 0,
			"the claim has the finalizer":           has(c.Finalizers, karpv1.TerminationFinalizer),
			"the claim is ready":                    c.Conditions().IsTrue(karpv1.ConditionReady),
			"the claim belongs to the pool":         len(c.OwnerReferences) == 1 && c.OwnerReferences[0].UID == pool.UID,
			"the claim has the pool's hash":         c.Annotations[karpv1.NodePoolHashAnnotationKey] == pool.Annotations[karpv1.NodePoolHashAnnotationKey] && pool.Annotations[karpv1.NodePoolHashAnnotationKey] != "",
			"the claim says for whom it was bought": strings.Contains(c.Annotations[v1alpha1.BoughtForAnnotation], s.name+"/p"),
			"the machine is the node's":             c.Status.ProviderID == n.Spec.ProviderID && c.Status.NodeName == n.Name,
		} {
			if !ok {
				t.Errorf("not so: %s", what)
			}
		}
	}
	s.eventually("the pool counts its nodes", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if pool.Status.Nodes == nil || *pool.Status.Nodes != 1 || pool.Status.Resources.Cpu().IsZero() {
			return fmt.Errorf("status is %+v", pool.Status)
		}
		return nil
	})
	s.told("Nominated", "NodeClaim "+c.Name)
}

func has(list []string, want string) bool {
	for _, s := range list {
		if s == want {
			return true
		}
	}
	return false
}

func TestVolumeZone(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	storage := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: "ebs.csi.aws.com", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	s.create(storage)
	t.Cleanup(func() { s.delete(storage) })
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: s.name,
		ClaimRef:               &corev1.ObjectReference{Namespace: s.name, Name: "data"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: s.name}},
		NodeAffinity:           &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1c")}}},
	}}
	s.create(pv)
	t.Cleanup(func() { s.delete(pv) })
	s.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &s.name, VolumeName: s.name,
		Resources: corev1.VolumeResourceRequirements{Requests: size},
	}})
	s.pods(1, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	_, nodes := s.run(1)
	labelled(corev1.LabelTopologyZone, "us-east-1c")(s, nodes)
}

func TestDaemonSet(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class(func(c *v1alpha1.SimNodeClassSpec) { c.InstanceTypes = []string{"c6a.large", "c6a.xlarge"} })
	s.pool()
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "agent"}}
	p := s.podTemplate("", cpu("500m"))
	p.Labels = map[string]string{"app": "agent"}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: p.Labels}
	d.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
	s.create(d)
	t.Cleanup(func() { s.delete(d) })
	// With the agent, 1.8 CPUs are more than a c6a.large has.
	s.pod("p", cpu("1800m"))
	_, nodes := s.run(2)
	labelled(corev1.LabelInstanceTypeStable, "c6a.xlarge")(s, nodes)
	number(1)(s, nodes)
}

func TestMinValues(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(with(karpv1.Requirement{Key: "karpenter.k8s.aws/instance-family", Operator: corev1.NodeSelectorOpExists, MinValues: new(3)}))
	s.pods(1)
	s.run(1)
	families := map[string]bool{}
	for _, r := range s.claimsOf()[0].Spec.Requirements {
		if r.Key == corev1.LabelInstanceTypeStable {
			for _, v := range r.Values {
				family, _, _ := strings.Cut(v, ".")
				families[family] = true
			}
		}
	}
	if len(families) < 3 {
		t.Errorf("the claim allows families %v, want at least three", families)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(func(p *karpv1.NodePool) {
		p.Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	})
	s.pods(8)
	s.told("FailedScheduling", "limit of cpu is 4")
	s.stays("the pool keeps within its limit", 4*time.Second, func() error {
		var sum int64
		for _, c := range s.claimsOf() {
			sum += c.Status.Capacity.Cpu().Value()
		}
		if sum > 4 {
			return fmt.Errorf("nodes have %d CPUs", sum)
		}
		return nil
	})
	if len(s.claimsOf()) == 0 {
		t.Error("nothing was bought within the limit")
	}
}

func TestWeight(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(func(p *karpv1.NodePool) { p.Spec.Weight = new(int32(1)) })
	heavy := s.name + "-heavy"
	s.pool(with(require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "r6a.4xlarge")), func(p *karpv1.NodePool) {
		p.Name = heavy
		p.Spec.Weight = new(int32(100))
	})
	s.eventually("both pools are ready", func() error {
		for _, name := range []string{s.name, heavy} {
			var p karpv1.NodePool
			if err := s.client.Get(s.ctx, client.ObjectKey{Name: name}, &p); err != nil {
				return err
			}
			if !p.Conditions().IsTrue(karpv1.ConditionReady) {
				return fmt.Errorf("%s is not", name)
			}
		}
		return nil
	})
	s.pods(1)
	_, nodes := s.run(1)
	labelled(karpv1.NodePoolLabelKey, heavy)(s, nodes)
}

func TestStartupTaint(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool(func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.StartupTaints = []corev1.Taint{{Key: "example.com/agent", Effect: corev1.TaintEffectNoSchedule}}
	})
	s.pods(1)
	s.eventually("the claim waits for the startup taint", func() error {
		for _, c := range s.claimsOf() {
			if cond := c.Conditions().Get(karpv1.ConditionInitialized); c.Conditions().IsTrue(karpv1.ConditionRegistered) && cond != nil && cond.Reason == "StartupTaintsExist" {
				return nil
			}
		}
		return fmt.Errorf("claims are %d", len(s.claimsOf()))
	})
	var node corev1.Node
	node.Name = s.claimsOf()[0].Status.NodeName
	update(s, &node, func(n *corev1.Node) { n.Spec.Taints = nil })
	s.run(1)
	s.eventually("it is then initialized", func() error {
		if c := s.claimsOf(); !c[0].Conditions().IsTrue(karpv1.ConditionInitialized) {
			return fmt.Errorf("not yet")
		}
		return nil
	})
}

func TestSchedulingGate(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	p := s.pod("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}} })
	s.stays("a gated pod gets no node", 3*time.Second, func() error {
		if n := len(s.claimsOf()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	update(s, p, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
	s.run(1)
}

func TestPreemptionIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class(func(c *v1alpha1.SimNodeClassSpec) { c.InstanceTypes = []string{"c6a.large"} })
	s.pool()
	priority := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Value: 1000}
	s.create(priority)
	t.Cleanup(func() { s.delete(priority) })
	s.pod("low", cpu("1200m"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{kubelet.PodStopSeconds: "6"}
		p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	})
	s.run(1)
	s.pod("high", cpu("1200m"), func(p *corev1.Pod) { p.Spec.PriorityClassName = s.name })
	s.eventually("the pod of higher priority runs", func() error {
		var p corev1.Pod
		if err := s.client.Get(s.ctx, client.ObjectKey{Namespace: s.name, Name: "high"}, &p); err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
	if n := len(s.claimsOf()); n != 1 {
		t.Errorf("%d claims, want none for a pod that waits for the end of another", n)
	}
}

func TestJob(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.class()
	s.pool()
	p := s.podTemplate("")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "job"}}
	j.Spec.Parallelism, j.Spec.Completions = new(int32(2)), new(int32(6))
	j.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
	s.create(j)
	s.eventually("the job completes", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(j), j); err != nil {
			return err
		}
		if j.Status.Succeeded != 6 {
			return fmt.Errorf("%d of 6", j.Status.Succeeded)
		}
		return nil
	})
	if n := len(s.claimsOf()); n > 2 {
		t.Errorf("%d claims, want at most as many as pods run at once", n)
	}
}

func TestImpossiblePods(t *testing.T) {
	tests := map[string]struct {
		pod  func(*corev1.Pod)
		says string
	}{
		"larger than any machine":  {cpu("1000"), "cpu: wants 1k"},
		"an unknown label":         {selector("example.com/nothing", "x"), "label example.com/nothing"},
		"a taint is not tolerated": {func(*corev1.Pod) {}, "taint dedicated=x:NoSchedule is not tolerated"},
		"a volume that is missing": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"}}}}
		}, "none"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			s.class()
			s.pool(func(p *karpv1.NodePool) {
				if name == "a taint is not tolerated" {
					p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
				}
			})
			s.pod("bad", tt.pod)
			s.told("FailedScheduling", tt.says)
			if n := len(s.claimsOf()); n != 0 {
				t.Errorf("%d claims for a pod that no node can help", n)
			}
		})
	}
}
