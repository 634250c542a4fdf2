// Package problem makes random scheduling problems: small clusters in which every kind
// of constraint meets every other.
package problem

import (
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Labels that are nobody's standard.
const (
	rack       = "example.com/rack"
	team       = "example.com/team"
	family     = "node.example.com/family"
	generation = "node.example.com/generation"
	gpu        = corev1.ResourceName("example.com/gpu")
	driver     = "disk.csi.example.com"
)

// Problem is what a plan is made from.
type Problem struct {
	Objects snapshot.Objects
	Options snapshot.Options
	// Types is what every NodePool may buy. Options.Catalog holds the same.
	Types []catalog.InstanceType
}

// feature is a kind of constraint. A problem has some of them.
type feature int

const (
	selectors feature = iota
	nodeAffinity
	preferredAffinity
	taints
	spread
	softSpread
	podAffinity
	podAntiAffinity
	hostPorts
	volumes
	daemons
	extended
	containers
	priorities
	limits
	minValues
	inFlight
	unsettled
	defaultSpread
	racks
	reservations
	features
)

type gen struct {
	*rand.Rand
	on    [features]bool
	c     *Problem
	zones []string
	racks []string
	names []string // namespaces
	apps  []*app
}

// app is a set of pods of one template.
type app struct {
	name, namespace string
	template        corev1.Pod
	replicas        int
	// claims makes each pod's own claim, if the template has a volume named "own".
	own func(pod string) *corev1.PersistentVolumeClaim
}

// epoch is the time of every problem.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Generate makes the problem of a seed. Equal seeds give equal problems.
func Generate(seed uint64) *Problem {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 0x0d07e7a11)), c: &Problem{}}
	for f := range g.on {
		g.on[f] = g.chance(0.4)
	}
	g.c.Options.Now, g.c.Options.AssumeReady = epoch, true
	for i := range 1 + g.IntN(4) {
		g.zones = append(g.zones, fmt.Sprintf("zone-%c", 'a'+i))
	}
	g.racks = []string{"r1", "r2", "r3"}[:1+g.IntN(3)]
	g.addNamespaces()
	g.addTypes()
	g.c.Options.Catalog, _ = catalog.New(g.c.Types) // no type is made that it refuses: TestGenerate
	g.addPools()
	g.addNodes()
	g.addDaemons()
	g.addClasses()
	g.addApps()
	g.addPods()
	if g.on[inFlight] {
		g.addClaims()
	}
	if g.on[defaultSpread] && g.chance(0.5) {
		g.addDefaultSpread()
	}
	return g.c
}

func (g *gen) chance(p float64) bool { return g.Float64() < p }

// has is chance, for a feature that the problem has.
func (g *gen) has(f feature, p float64) bool { return g.chance(p) && g.on[f] }

func pick[T any](g *gen, list ...T) T { return list[g.IntN(len(list))] }

// some picks at least one of list, in order.
func some[T any](g *gen, list []T) []T {
	var out []T
	for len(out) == 0 {
		out = nil
		for _, v := range list {
			if g.chance(0.5) {
				out = append(out, v)
			}
		}
	}
	return out
}

func (g *gen) addNamespaces() {
	g.names = []string{"default", "red", "blue"}[:1+g.IntN(3)]
	for i, n := range g.names {
		g.c.Objects.Namespaces = append(g.c.Objects.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"kind": []string{"plain", "colour", "colour"}[i]}}})
	}
}

func (g *gen) addTypes() {
	seen := map[string]bool{}
	for range 5 + g.IntN(26) {
		cpu, ratio := pick(g, 1, 2, 2, 4, 4, 8, 8, 16, 32), pick(g, 2, 4, 8)
		arch, gen := pick(g, "amd64", "amd64", "amd64", "arm64"), 1+g.IntN(6)
		gpus := 0
		fam := map[int]string{2: "c", 4: "m", 8: "r"}[ratio]
		if g.has(extended, 0.3) {
			gpus, fam = pick(g, 1, 2, 4, 8), "g"
		}
		name := fmt.Sprintf("%s%d%s-%d-%d", fam, gen, arch[:1], cpu, gpus)
		if seen[name] {
			continue
		}
		seen[name] = true
		pods := int64(pick(g, 110, 58, 29, 17, 8, 4))
		capacity := resources.List{corev1.ResourceCPU: int64(cpu) * 1000, corev1.ResourceMemory: int64(cpu*ratio) << 30, corev1.ResourceEphemeralStorage: 20 << 30, corev1.ResourcePods: pods}
		if gpus > 0 {
			capacity[gpu] = int64(gpus)
		}
		allocatable := capacity.Clone()
		allocatable.SubFrom(resources.List{corev1.ResourceCPU: 80 + int64(cpu)*10, corev1.ResourceMemory: 300<<20 + int64(cpu)<<25, corev1.ResourceEphemeralStorage: 2 << 30})
		os := []string{"linux"}
		if g.chance(0.1) {
			os = []string{"linux", "windows"}
		}
		t := catalog.InstanceType{
			Name: name, Capacity: capacity, Allocatable: allocatable,
			Requirements: requirements.NewSet(
				requirements.In(corev1.LabelInstanceTypeStable, name), requirements.In(corev1.LabelArchStable, arch), requirements.In(corev1.LabelOSStable, os...),
				requirements.In(family, fam), requirements.In(generation, fmt.Sprint(gen)),
			),
		}
		if g.on[volumes] && g.chance(0.8) {
			t.AttachLimits = map[string]int64{driver: int64(pick(g, 1, 2, 3, 8, 25))}
		}
		price := float64(cpu)*(0.02+0.006*float64(ratio)) + 0.7*float64(gpus)
		price *= 0.85 + 0.3*g.Float64()
		for _, z := range g.zones {
			if g.chance(0.15) {
				continue
			}
			t.Offerings = append(t.Offerings, catalog.Offering{Zone: z, CapacityType: catalog.OnDemand, Price: catalog.FromDollars(price), Unavailable: g.chance(0.05)})
			if g.chance(0.6) {
				t.Offerings = append(t.Offerings, catalog.Offering{Zone: z, CapacityType: catalog.Spot, Price: catalog.FromDollars(price * (0.3 + 0.3*g.Float64())), Unavailable: g.chance(0.1)})
			}
			if g.has(reservations, 0.1) {
				t.Offerings = append(t.Offerings, catalog.Offering{Zone: z, CapacityType: catalog.Reserved, Price: catalog.FromDollars(price / 1000), ReservationID: "res-" + name + "-" + z, ReservationCapacity: 1 + g.IntN(2)})
			}
		}
		if len(t.Offerings) == 0 {
			t.Offerings = []catalog.Offering{{Zone: g.zones[0], CapacityType: catalog.OnDemand, Price: catalog.FromDollars(price)}}
		}
		g.c.Types = append(g.c.Types, t)
	}
}

// poolTaints are what NodePools and nodes may be tainted with.
var poolTaints = []corev1.Taint{
	{Key: "dedicated", Value: "red", Effect: corev1.TaintEffectNoSchedule},
	{Key: "dedicated", Value: "blue", Effect: corev1.TaintEffectNoExecute},
	{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule},
	{Key: "gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule},
}

var startupTaint = corev1.Taint{Key: "example.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute}

func in(key string, values ...string) karpv1.Requirement {
	return karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func (g *gen) addPools() {
	class := &karpv1.NodeClassReference{Group: "sim.dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	for i := range 1 + g.IntN(3) {
		p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: []string{"general", "other", "spare"}[i], UID: types.UID(fmt.Sprintf("pool-%d", i))}}
		t := &p.Spec.Template
		t.Spec.NodeClassRef = class
		add := func(r karpv1.Requirement) { t.Spec.Requirements = append(t.Spec.Requirements, r) }
		if g.chance(0.3) {
			add(in(karpv1.CapacityTypeLabelKey, some(g, []string{catalog.OnDemand, catalog.Spot, catalog.Reserved})...))
		}
		if g.chance(0.25) {
			add(in(corev1.LabelTopologyZone, some(g, g.zones)...))
		}
		if g.chance(0.2) {
			add(karpv1.Requirement{Key: corev1.LabelArchStable, Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{"amd64"}})
		}
		if g.chance(0.2) {
			add(karpv1.Requirement{Key: generation, Operator: pick(g, corev1.NodeSelectorOpGt, requirements.Gte), Values: []string{fmt.Sprint(1 + g.IntN(3))}})
		}
		if g.chance(0.15) {
			add(karpv1.Requirement{Key: family, Operator: corev1.NodeSelectorOpNotIn, Values: []string{pick(g, "c", "m", "r")}})
		}
		if g.chance(0.7) {
			add(in(corev1.LabelOSStable, "linux"))
		}
		if g.on[racks] && g.chance(0.8) {
			if g.chance(0.5) {
				t.Labels = map[string]string{rack: pick(g, g.racks...)}
			} else {
				add(in(rack, some(g, g.racks)...))
			}
		}
		if g.chance(0.5) {
			if t.Labels == nil {
				t.Labels = map[string]string{}
			}
			t.Labels[team] = pick(g, "red", "blue")
		} else if g.has(unsettled, 0.5) {
			add(karpv1.Requirement{Key: team, Operator: corev1.NodeSelectorOpExists})
		}
		if g.has(minValues, 0.5) {
			n := 2 + g.IntN(3)
			add(karpv1.Requirement{Key: pick(g, corev1.LabelInstanceTypeStable, corev1.LabelInstanceTypeStable, generation), Operator: corev1.NodeSelectorOpExists, MinValues: &n})
		}
		if g.has(taints, 0.5) {
			t.Spec.Taints = []corev1.Taint{pick(g, poolTaints...)}
		}
		if g.has(taints, 0.3) {
			t.Spec.StartupTaints = []corev1.Taint{startupTaint}
		}
		if g.has(limits, 0.6) {
			p.Spec.Limits = corev1.ResourceList{}
			if g.chance(0.6) {
				p.Spec.Limits[corev1.ResourceCPU] = *resource.NewQuantity(int64(2+g.IntN(60)), resource.DecimalSI)
			}
			if g.chance(0.4) {
				p.Spec.Limits["nodes"] = *resource.NewQuantity(int64(g.IntN(6)), resource.DecimalSI)
			}
			if g.chance(0.2) {
				p.Spec.Limits[corev1.ResourceMemory] = *resource.NewQuantity(int64(4+g.IntN(200))<<30, resource.BinarySI)
			}
			if g.chance(0.2) {
				p.Spec.Limits[gpu] = *resource.NewQuantity(int64(g.IntN(5)), resource.DecimalSI)
			}
		}
		if g.chance(0.4) {
			w := int32(1 + g.IntN(3)*10)
			p.Spec.Weight = &w
		}
		p.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.NewTime(epoch)}}
		if g.chance(0.04) {
			p.Status.Conditions[0].Status = metav1.ConditionFalse
		}
		g.c.Objects.NodePools = append(g.c.Objects.NodePools, p)
	}
}

func (g *gen) addNodes() {
	for i := range g.IntN(13) {
		t := &g.c.Types[g.IntN(len(g.c.Types))]
		name := fmt.Sprintf("node-%02d", i)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(epoch), Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelArchStable: pick(g, t.Requirements.Get(corev1.LabelArchStable).Values()...), corev1.LabelOSStable: "linux",
		}}}
		if !g.chance(0.05) {
			n.Labels[corev1.LabelTopologyZone] = pick(g, g.zones...)
		}
		if g.on[racks] && g.chance(0.85) {
			n.Labels[rack] = pick(g, g.racks...)
		}
		if g.chance(0.4) {
			n.Labels[team] = pick(g, "red", "blue")
		}
		n.Status.Capacity, n.Status.Allocatable = t.Capacity.Quantities(), t.Allocatable.Quantities()
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if g.has(taints, 0.3) {
			n.Spec.Taints = []corev1.Taint{pick(g, poolTaints...)}
		}
		if g.chance(0.07) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		}
		if g.chance(0.7) { // managed
			pool := pick(g, g.c.Objects.NodePools...)
			for _, key := range []string{family, generation, corev1.LabelInstanceTypeStable} {
				n.Labels[key] = t.Requirements.Get(key).Values()[0]
			}
			n.Labels[karpv1.NodePoolLabelKey], n.Labels[karpv1.CapacityTypeLabelKey] = pool.Name, pick(g, catalog.OnDemand, catalog.Spot)
			n.Labels[karpv1.NodeRegisteredLabelKey] = "true"
			n.Spec.ProviderID = "sim:///" + name
			c := g.claim(name+"-claim", pool, t, n.Labels)
			c.Status.NodeName, c.Status.ProviderID = name, n.Spec.ProviderID
			c.Spec.Taints = n.Spec.Taints
			if g.chance(0.85) {
				n.Labels[karpv1.NodeInitializedLabelKey] = "true"
			} else {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
				if len(c.Spec.StartupTaints) > 0 {
					n.Spec.Taints = append(n.Spec.Taints, c.Spec.StartupTaints...)
				}
			}
			if g.chance(0.04) {
				at := metav1.NewTime(epoch)
				c.DeletionTimestamp, c.Finalizers = &at, []string{"karpenter.sh/termination"}
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule})
			}
			g.c.Objects.NodeClaims = append(g.c.Objects.NodeClaims, c)
		}
		g.c.Objects.Nodes = append(g.c.Objects.Nodes, n)
		if t.AttachLimits != nil && g.chance(0.8) {
			count := int32(t.AttachLimits[driver])
			g.c.Objects.CSINodes = append(g.c.Objects.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: driver, NodeID: name, TopologyKeys: []string{corev1.LabelTopologyZone}, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
			}}}})
		}
	}
}

// claim is the NodeClaim of a node of type t with these labels.
func (g *gen) claim(name string, pool *karpv1.NodePool, t *catalog.InstanceType, labels map[string]string) *karpv1.NodeClaim {
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(epoch), Labels: map[string]string{}}}
	for k, v := range labels {
		if k != corev1.LabelHostname && k != karpv1.NodeRegisteredLabelKey {
			c.Labels[k] = v
		}
	}
	c.Spec.NodeClassRef = pool.Spec.Template.Spec.NodeClassRef
	c.Spec.Taints, c.Spec.StartupTaints = pool.Spec.Template.Spec.Taints, pool.Spec.Template.Spec.StartupTaints
	c.Spec.Requirements = []karpv1.Requirement{in(corev1.LabelInstanceTypeStable, t.Name)}
	c.Status.Capacity, c.Status.Allocatable = t.Capacity.Quantities(), t.Allocatable.Quantities()
	c.Status.ProviderID = "sim:///" + name
	c.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionLaunched, Status: metav1.ConditionTrue, Reason: "Launched", LastTransitionTime: metav1.NewTime(epoch)}}
	return c
}

// addClaims adds launched claims whose node is not there yet.
func (g *gen) addClaims() {
	for i := range 1 + g.IntN(2) {
		pool, t := pick(g, g.c.Objects.NodePools...), &g.c.Types[g.IntN(len(g.c.Types))]
		labels := map[string]string{
			karpv1.NodePoolLabelKey: pool.Name, karpv1.CapacityTypeLabelKey: catalog.OnDemand, corev1.LabelTopologyZone: pick(g, g.zones...), corev1.LabelInstanceTypeStable: t.Name,
			corev1.LabelArchStable: t.Requirements.Get(corev1.LabelArchStable).Values()[0], corev1.LabelOSStable: "linux", family: t.Requirements.Get(family).Values()[0], generation: t.Requirements.Get(generation).Values()[0],
		}
		for k, v := range pool.Spec.Template.Labels {
			labels[k] = v
		}
		c := g.claim(fmt.Sprintf("flight-%d", i), pool, t, labels)
		if g.chance(0.2) { // not launched: of one of two types, its requests are what is certain
			other := &g.c.Types[g.IntN(len(g.c.Types))]
			c.Spec.Requirements = []karpv1.Requirement{in(corev1.LabelInstanceTypeStable, t.Name, other.Name), in(corev1.LabelTopologyZone, labels[corev1.LabelTopologyZone])}
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantity("500m"), corev1.ResourceMemory: quantity("512Mi"), corev1.ResourcePods: quantity("2")}
			c.Labels = map[string]string{karpv1.NodePoolLabelKey: pool.Name}
			for k, v := range pool.Spec.Template.Labels {
				c.Labels[k] = v
			}
			c.Status = karpv1.NodeClaimStatus{}
		}
		g.c.Objects.NodeClaims = append(g.c.Objects.NodeClaims, c)
	}
}

func (g *gen) addDaemons() {
	if !g.on[daemons] {
		return
	}
	for i := range 1 + g.IntN(3) {
		name, namespace := fmt.Sprintf("agent-%d", i), "kube-system"
		if g.chance(0.1) { // where selectors of other pods look
			namespace = g.names[0]
		}
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
		ds.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"agent": name}}
		ds.Spec.Template.Labels = map[string]string{"agent": name, "tier": pick(g, "none", "none", "none", "none", "front")}
		spec := &ds.Spec.Template.Spec
		spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: g.requests(false)}}}
		if g.chance(0.15) { // templates are not defaulted: limits will be requests
			spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: spec.Containers[0].Resources.Requests}
		}
		switch g.IntN(4) {
		case 0:
			spec.NodeSelector = map[string]string{corev1.LabelArchStable: pick(g, "amd64", "arm64")}
		case 1:
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: g.nodeSelector()}}
		}
		if g.chance(0.5) {
			spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}
		if g.has(hostPorts, 0.3) {
			spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8080, Protocol: corev1.ProtocolTCP}}
		}
		g.c.Objects.DaemonSets = append(g.c.Objects.DaemonSets, ds)
	}
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// requests are those of one container.
func (g *gen) requests(gpus bool) corev1.ResourceList {
	r := corev1.ResourceList{}
	if !g.chance(0.12) {
		r[corev1.ResourceCPU] = quantity(pick(g, "10m", "100m", "250m", "500m", "700m", "1", "1500m", "2", "4"))
	}
	if !g.chance(0.12) {
		r[corev1.ResourceMemory] = quantity(pick(g, "32Mi", "128Mi", "256Mi", "512Mi", "1Gi", "2Gi", "3000M", "6Gi"))
	}
	if g.chance(0.08) {
		r[corev1.ResourceEphemeralStorage] = quantity(pick(g, "1Gi", "5Gi", "10Gi"))
	}
	if gpus && g.has(extended, 0.25) {
		r[gpu] = quantity(pick(g, "1", "1", "2", "4"))
	}
	return r
}

func (g *gen) addDefaultSpread() {
	g.c.Options.DefaultSpread = []corev1.TopologySpreadConstraint{{
		MaxSkew: int32(1 + g.IntN(3)), TopologyKey: pick(g, corev1.LabelTopologyZone, corev1.LabelHostname),
		WhenUnsatisfiable: pick(g, corev1.DoNotSchedule, corev1.ScheduleAnyway),
	}}
	for _, a := range g.apps {
		if g.chance(0.5) {
			g.c.Objects.Services = append(g.c.Objects.Services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": a.name}}})
		}
	}
}
