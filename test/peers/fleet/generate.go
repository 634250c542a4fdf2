package fleet

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// Size says how large a fleet is.
type Size struct {
	Nodes int
	// Pods is the number of pods; 0 makes as many as use 40 % of the nodes' CPU.
	Pods int
	// Pools is the number of NodePools. Defaults to 5.
	Pools int
	// Seed draws the rest. Equal sizes give equal fleets.
	Seed int64
}

// use is the share of CPU that pods request if their number is not given.
const use = 0.4

// zones is the number of zones that pools may use.
const zones = 3

var (
	podCPU      = []int64{100, 250, 500, 1000, 1500}
	podMemory   = []int64{100, 256, 512, 1024, 2048, 4096}
	podReplicas = []int{1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12, 20, 40}
	// nodeCPU are the sizes of nodes, and how many of twenty have them.
	nodeCPU = []struct{ cores, of20 int }{{4, 4}, {8, 5}, {16, 7}, {32, 4}}
)

// Generate makes a fleet on the on-demand offerings of the types, with nodes of many
// families and sizes and with pods put on them at random wherever they may run. Of five
// pools one is for any architecture, one for each of two, one for a team alone, whose
// nodes have a taint, and one for a single zone. Pods are of Deployments, about half of
// which have no constraints; the others select an architecture, a zone or a team, spread
// over zones, or keep their pods on different nodes. A few have a PodDisruptionBudget,
// very few one that allows nothing, and some pods must not be disrupted.
//
// It is an error if pods do not fit.
func Generate(size Size, offered []*catalog.InstanceType) (*Fleet, error) {
	size.Pools = cmp.Or(size.Pools, 5)
	r := rand.New(rand.NewSource(size.Seed))
	f := &Fleet{
		Types: work.OnDemand(offered), Nodes: map[string]*corev1.Node{}, Claims: map[string]*karpv1.NodeClaim{},
		Pods: map[types.NamespacedName]*corev1.Pod{}, Start: time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC),
		types: map[string]*catalog.InstanceType{}, apps: map[string]*app{}, state: map[string]*node{},
	}
	names := map[string]bool{}
	for _, it := range f.Types {
		for _, o := range it.Offerings {
			names[o.Zone] = true
		}
	}
	all := sorted(names)
	if len(all) < zones {
		return nil, fmt.Errorf("fleet: the catalogue has %d zones, want %d", len(all), zones)
	}
	all = all[:zones]
	for i := range size.Pools {
		f.Pools = append(f.Pools, pool(i, all))
	}
	f.narrow()
	if err := f.addNodes(size.Nodes, all, r); err != nil {
		return nil, err
	}
	if err := f.addPods(size, all, r); err != nil {
		return nil, err
	}
	return f, nil
}

// narrow leaves out what no pool may buy, which would only cost engines time.
func (f *Fleet) narrow() {
	var kept []*catalog.InstanceType
	for _, it := range f.Types {
		c := *it
		c.Offerings = slices.DeleteFunc(slices.Clone(it.Offerings), func(o catalog.Offering) bool {
			return !slices.ContainsFunc(f.Pools, func(p *karpv1.NodePool) bool {
				w := work.Work{Pool: p}
				return w.Admits(it, &o)
			})
		})
		if len(c.Offerings) > 0 {
			kept = append(kept, &c)
			f.types[c.Name] = &c
		}
	}
	f.Types = kept
}

// pool is NodePool number i; every fifth is of one kind.
func pool(i int, zones []string) *karpv1.NodePool {
	in := func(key string, values ...string) karpv1.Requirement {
		return karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	archs := []string{"amd64", "arm64"}
	kind := "any"
	switch i % 5 {
	case 1:
		kind, archs = "amd64", archs[:1]
	case 2:
		kind, archs = "arm64", archs[1:]
	case 3:
		kind = "team"
	case 4:
		kind, zones = "zone", []string{zones[i/5%len(zones)]}
	}
	p := work.NewPool(
		in(work.CategoryLabel, "c", "m", "r"),
		karpv1.Requirement{Key: work.GenerationLabel, Operator: corev1.NodeSelectorOpGt, Values: []string{"4"}},
		in(corev1.LabelArchStable, archs...),
		in(corev1.LabelOSStable, string(corev1.Linux)),
		in(karpv1.CapacityTypeLabelKey, catalog.OnDemand),
		in(corev1.LabelTopologyZone, zones...),
	)
	p.Name = fmt.Sprintf("%s-%02d", kind, i)
	p.UID = types.UID("pool-" + p.Name)
	p.Generation = 1
	if kind == "team" {
		p.Spec.Template.Labels = map[string]string{TeamLabel: p.Name}
		p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: TeamLabel, Value: p.Name, Effect: corev1.TaintEffectNoSchedule}}
	}
	p.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized,
		ConsolidateAfter:    karpv1.DurationOf(0),
		Budgets:             []karpv1.Budget{{Nodes: "100%"}},
	}
	return p
}

func (f *Fleet) addNodes(count int, zones []string, r *rand.Rand) error {
	// What each pool may buy, by the number of cores.
	sizes := make([]map[int][]*catalog.InstanceType, len(f.Pools))
	for i, p := range f.Pools {
		sizes[i] = map[int][]*catalog.InstanceType{}
		w := work.Work{Pool: p}
		for _, it := range f.Types {
			if w.Admits(it, nil) {
				cores := int(it.Capacity[corev1.ResourceCPU] / 1000)
				sizes[i][cores] = append(sizes[i][cores], it)
			}
		}
	}
	for i := range count {
		p := i % len(f.Pools)
		cores, draw := 0, r.Intn(20)
		for _, c := range nodeCPU {
			if cores = c.cores; draw < c.of20 {
				break
			}
			draw -= c.of20
		}
		choice := sizes[p][cores]
		if len(choice) == 0 {
			return fmt.Errorf("fleet: NodePool %s may buy no type of %d cores", f.Pools[p].Name, cores)
		}
		it := choice[r.Intn(len(choice))]
		open := slices.DeleteFunc(slices.Clone(zones), func(z string) bool { _, ok := f.price(it, f.Pools[p], z); return !ok })
		if len(open) == 0 {
			return fmt.Errorf("fleet: NodePool %s may buy %s nowhere", f.Pools[p].Name, it.Name)
		}
		if err := f.Launch(fmt.Sprintf("node-%05d", i), f.Pools[p].Name, it.Name, open[r.Intn(len(open))]); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) addPods(size Size, zones []string, r *rand.Rand) error {
	nodes := make([]*node, 0, len(f.state))
	for _, name := range sorted(f.state) {
		nodes = append(nodes, f.state[name])
	}
	var teams []string
	for _, p := range f.Pools {
		if t := p.Spec.Template.Labels[TeamLabel]; t != "" {
			teams = append(teams, t)
		}
	}
	namespaces := max(2, min(20, size.Nodes/25))
	for i := range namespaces {
		f.Namespaces = append(f.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("space-%02d", i)}})
	}
	cache := map[string]map[string]bool{}
	refused := 0
	for i := 0; ; i++ {
		replicas := podReplicas[r.Intn(len(podReplicas))]
		a := newApp(i, namespaces, zones, teams, r)
		budget := r.Intn(100)
		if a.apart {
			replicas = min(replicas, 1+len(nodes)/8)
		}
		if i%150 == 20 {
			a.fixed, replicas = true, min(replicas, 3)
		}
		if size.Pods > 0 {
			replicas = min(replicas, size.Pods-len(f.Pods))
		}
		f.apps[a.name] = a
		for range replicas {
			n := f.somewhere(a, nodes, a.zoneLimit(nodes, cache), r)
			keep := r.Intn(200) == 0
			if n == nil {
				refused++
				break // it is smaller, then
			}
			f.bind(f.add(a, keep), a, n)
		}
		f.finish(a, budget)
		switch {
		case size.Pods == 0 && f.Use() >= use, size.Pods > 0 && len(f.Pods) >= size.Pods:
			return nil
		case refused > 1000:
			return fmt.Errorf("fleet: %d pods do not fit on %d nodes: there is room for about %d", size.Pods, size.Nodes, len(f.Pods))
		}
	}
}

// newApp draws Deployment number i.
func newApp(i, namespaces int, zones, teams []string, r *rand.Rand) *app {
	a := &app{
		name: fmt.Sprintf("app-%04d", i), namespace: fmt.Sprintf("space-%02d", r.Intn(namespaces)), byZone: map[string]int{},
		requests: resources.List{
			corev1.ResourceCPU:    podCPU[r.Intn(len(podCPU))],
			corev1.ResourceMemory: podMemory[r.Intn(len(podMemory))] << 20,
			corev1.ResourcePods:   1,
		},
	}
	arch := []string{"amd64", "arm64"}[r.Intn(2)]
	zone := zones[r.Intn(len(zones))]
	switch draw := r.Intn(100); {
	case draw < 45:
	case draw < 57:
		a.arch = arch
	case draw < 65:
		a.zone = zone
	case draw < 77:
		a.spread = true
	case draw < 80:
		a.spread, a.arch = true, arch
	case draw < 88:
		a.apart = true
	case len(teams) > 0:
		a.team = teams[r.Intn(len(teams))]
	}
	return a
}

// somewhere is a node for a pod, any with the same chance. A few draws find one as a rule.
func (f *Fleet) somewhere(a *app, nodes []*node, limit int, r *rand.Rand) *node {
	for range 30 {
		if n := nodes[r.Intn(len(nodes))]; a.fits(n, limit) {
			return n
		}
	}
	from := r.Intn(len(nodes))
	for i := range nodes {
		if n := nodes[(from+i)%len(nodes)]; a.fits(n, limit) {
			return n
		}
	}
	return nil
}

// finish adds the owner of a Deployment's pods and, for a few Deployments, a budget.
func (f *Fleet) finish(a *app, draw int) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: a.name}}
	replicas := int32(a.next)
	f.ReplicaSets = append(f.ReplicaSets, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name, UID: a.uid()},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector},
	})
	most := intstr.FromInt32(1)
	switch {
	case a.fixed:
		most = intstr.FromInt32(0)
	case draw >= 6 || replicas < 2:
		return
	}
	f.Budgets = append(f.Budgets, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name, UID: types.UID("budget-" + a.name)},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: selector},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: most.IntVal, ExpectedPods: replicas, CurrentHealthy: replicas, DesiredHealthy: replicas - most.IntVal,
		},
	})
}

func (a *app) uid() types.UID { return types.UID("owner-" + a.name) }

func (a *app) pod(name string, number int, created time.Time) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.namespace, Name: name, UID: types.UID(fmt.Sprintf("pod-%07d", number)),
			Labels: map[string]string{AppLabel: a.name}, CreationTimestamp: metav1.NewTime(created),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: a.name, UID: a.uid(), Controller: &yes}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "pause",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(a.requests[corev1.ResourceCPU], resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(a.requests[corev1.ResourceMemory], resource.BinarySI),
			}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			}},
		},
	}
	for key, v := range map[string]string{corev1.LabelArchStable: a.arch, corev1.LabelTopologyZone: a.zone, TeamLabel: a.team} {
		if v != "" {
			if p.Spec.NodeSelector == nil {
				p.Spec.NodeSelector = map[string]string{}
			}
			p.Spec.NodeSelector[key] = v
		}
	}
	if a.team != "" {
		p.Spec.Tolerations = []corev1.Toleration{{Key: TeamLabel, Operator: corev1.TolerationOpEqual, Value: a.team, Effect: corev1.TaintEffectNoSchedule}}
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: a.name}}
	if a.spread {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector,
		}}
	}
	if a.apart {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: selector, TopologyKey: corev1.LabelHostname}},
		}}
	}
	return p
}
