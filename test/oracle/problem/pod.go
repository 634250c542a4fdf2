package problem

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

func (g *gen) addApps() {
	total := 1 + g.IntN(40)
	for i := 0; total > 0; i++ {
		a := &app{name: fmt.Sprintf("app-%d", i), namespace: pick(g, g.names...), replicas: min(total, 1+g.IntN(9))}
		total -= a.replicas
		g.apps = append(g.apps, a)
	}
	for _, a := range g.apps {
		g.template(a)
	}
}

func (g *gen) template(a *app) {
	p := &a.template
	p.Namespace = a.namespace
	p.Labels = map[string]string{"app": a.name, "tier": pick(g, "front", "back")}
	spec := &p.Spec
	for i := range 1 + g.IntN(2) {
		spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "example.com/app", Resources: corev1.ResourceRequirements{Requests: g.requests(i == 0)}})
	}
	g.shape(spec)
	if g.has(priorities, 0.5) {
		v := int32(pick(g, -10, 100, 1000))
		spec.Priority = &v
	}
	g.selectNodes(spec)
	g.tolerate(spec)
	if g.has(spread, 0.45) {
		for range 1 + g.IntN(2) {
			spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, g.spreadOver(a, spec, corev1.DoNotSchedule))
		}
	}
	if g.has(softSpread, 0.3) {
		spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, g.spreadOver(a, spec, corev1.ScheduleAnyway))
	}
	g.nearPods(a, spec)
	if g.has(hostPorts, 0.3) {
		port := corev1.ContainerPort{ContainerPort: 8080, HostPort: pick(g, int32(8080), 9090), Protocol: pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP)}
		port.HostIP = pick(g, "", "", "0.0.0.0", "10.0.0.1", "10.0.0.2")
		if g.chance(0.2) { // the API server makes container ports host ports
			spec.HostNetwork, port.HostPort = true, port.ContainerPort
		}
		spec.Containers[0].Ports = []corev1.ContainerPort{port}
	}
	if g.has(volumes, 0.45) {
		g.addVolume(a)
		if g.chance(0.2) {
			g.addVolume(a)
		}
	}
}

// shape adds what makes the sum of a pod's requests less than obvious.
func (g *gen) shape(spec *corev1.PodSpec) {
	if !g.on[containers] {
		return
	}
	always := corev1.ContainerRestartPolicyAlways
	for i := range g.IntN(3) {
		c := corev1.Container{Name: fmt.Sprintf("i%d", i), Image: "example.com/init", Resources: corev1.ResourceRequirements{Requests: g.requests(false)}}
		if g.chance(0.5) {
			c.RestartPolicy = &always
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	if g.chance(0.2) {
		spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: quantity("50m"), corev1.ResourceMemory: quantity("64Mi")}
	}
	if g.chance(0.1) { // the API server makes a container's limits its missing requests
		c := &spec.Containers[0].Resources
		c.Limits = corev1.ResourceList{corev1.ResourceCPU: quantity("2"), corev1.ResourceMemory: quantity("8Gi")}
		for name, q := range c.Limits {
			if have, ok := c.Requests[name]; ok {
				c.Limits[name] = have
			} else {
				c.Requests[name] = q
			}
		}
	}
	if g.chance(0.15) { // at least what the containers ask for together
		spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{}}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			total := quantity(map[corev1.ResourceName]string{corev1.ResourceCPU: pick(g, "0", "1"), corev1.ResourceMemory: pick(g, "0", "512Mi")}[name])
			for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
				total.Add(c.Resources.Requests[name])
			}
			spec.Resources.Requests[name] = total
		}
	}
}

// expression is a node selector requirement on some label.
func (g *gen) expression() corev1.NodeSelectorRequirement {
	var values []string
	for _, t := range g.c.Types {
		values = append(values, t.Name)
	}
	var key string
	switch g.IntN(11) {
	case 0, 1:
		key, values = corev1.LabelTopologyZone, g.zones
	case 2:
		key, values = corev1.LabelArchStable, []string{"amd64", "arm64"}
	case 3:
		key, values = family, []string{"c", "m", "r", "g"}
	case 4:
		return corev1.NodeSelectorRequirement{Key: generation, Operator: pick(g, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt), Values: []string{fmt.Sprint(1 + g.IntN(6))}}
	case 5:
		key = corev1.LabelInstanceTypeStable
	case 6:
		key, values = rack, g.racks
	case 7:
		key, values = team, []string{"red", "blue"}
	case 8:
		key, values = karpv1.CapacityTypeLabelKey, []string{catalog.OnDemand, catalog.Spot}
	case 9:
		key, values = karpv1.NodePoolLabelKey, []string{"general", "other", "spare"}
	case 10:
		key, values = "example.com/nowhere", []string{"x", "y"}
	}
	switch g.IntN(8) {
	case 0:
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists}
	case 1:
		if key == rack || key == team || key == "example.com/nowhere" || key == karpv1.NodePoolLabelKey {
			return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}
		}
		fallthrough
	case 2, 3:
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: []string{pick(g, values...)}}
	}
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: some(g, values)}
}

func (g *gen) term() corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for range 1 + g.IntN(2) {
		t.MatchExpressions = append(t.MatchExpressions, g.expression())
	}
	if g.chance(0.04) && len(g.c.Objects.Nodes) > 0 {
		n := pick(g, g.c.Objects.Nodes...).Name
		t.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{n}}}
		if g.chance(0.5) {
			t.MatchExpressions = nil
		}
	}
	if g.chance(0.02) {
		t = corev1.NodeSelectorTerm{} // matches nothing
	}
	return t
}

func (g *gen) nodeSelector() *corev1.NodeSelector {
	s := &corev1.NodeSelector{}
	for range 1 + g.IntN(3) {
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, g.term())
	}
	return s
}

func (g *gen) selectNodes(spec *corev1.PodSpec) {
	if g.has(selectors, 0.35) {
		switch g.IntN(6) {
		case 0:
			spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: pick(g, g.zones...)}
		case 1:
			spec.NodeSelector = map[string]string{corev1.LabelArchStable: pick(g, "amd64", "arm64")}
		case 2:
			spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: pick(g, catalog.OnDemand, catalog.Spot)}
		case 3:
			spec.NodeSelector = map[string]string{team: pick(g, "red", "blue")}
		case 4:
			spec.NodeSelector = map[string]string{rack: pick(g, g.racks...)}
		case 5:
			if len(g.c.Objects.Nodes) > 0 && g.chance(0.4) {
				spec.NodeSelector = map[string]string{corev1.LabelHostname: pick(g, g.c.Objects.Nodes...).Name}
			} else {
				spec.NodeSelector = map[string]string{corev1.LabelOSStable: pick(g, "linux", "linux", "windows")}
			}
		}
	}
	if g.has(nodeAffinity, 0.4) {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: g.nodeSelector()}}
	}
	if g.has(preferredAffinity, 0.3) {
		if spec.Affinity == nil {
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		}
		for range 1 + g.IntN(2) {
			a := spec.Affinity.NodeAffinity
			a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{Weight: int32(1 + g.IntN(100)), Preference: g.term()})
		}
	}
}

func (g *gen) tolerate(spec *corev1.PodSpec) {
	if !g.on[taints] || !g.chance(0.6) {
		return
	}
	switch g.IntN(5) {
	case 0:
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	case 1:
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: pick(g, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)}}
	default:
		for range 1 + g.IntN(3) {
			t := pick(g, poolTaints...)
			o := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpEqual, Value: t.Value, Effect: t.Effect}
			if g.chance(0.4) {
				o.Operator, o.Value = corev1.TolerationOpExists, ""
			}
			if g.chance(0.3) {
				o.Effect = ""
			}
			spec.Tolerations = append(spec.Tolerations, o)
		}
	}
}

// selectPods selects the app's own pods, another's, or both.
func (g *gen) selectPods(a *app) *metav1.LabelSelector {
	switch g.IntN(12) {
	case 0, 1, 2, 3, 4, 5:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": a.name}}
	case 6, 7:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(g, g.apps...).name}}
	case 8, 9:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": pick(g, "front", "back")}}
	case 10:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: pick(g, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpIn), Values: []string{a.name, pick(g, g.apps...).name}}}}
	}
	switch g.IntN(6) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return nil
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "version", Operator: pick(g, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}}
}

func (g *gen) topologyKey() string {
	if g.on[racks] && g.chance(0.3) {
		return rack
	}
	if g.chance(0.06) {
		return pick(g, karpv1.CapacityTypeLabelKey, corev1.LabelArchStable, karpv1.NodePoolLabelKey, corev1.LabelInstanceTypeStable)
	}
	return pick(g, corev1.LabelHostname, corev1.LabelTopologyZone)
}

func (g *gen) spreadOver(a *app, spec *corev1.PodSpec, when corev1.UnsatisfiableConstraintAction) corev1.TopologySpreadConstraint {
	for {
		c := corev1.TopologySpreadConstraint{MaxSkew: int32(1 + g.IntN(3)), TopologyKey: g.topologyKey(), WhenUnsatisfiable: when, LabelSelector: g.selectPods(a)}
		if when == corev1.DoNotSchedule && g.chance(0.15) {
			n := int32(1 + g.IntN(4))
			c.MinDomains = &n
		}
		if g.chance(0.2) {
			v := pick(g, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
			c.NodeTaintsPolicy = &v
		}
		if g.chance(0.2) {
			v := pick(g, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
			c.NodeAffinityPolicy = &v
		}
		if g.chance(0.15) && c.LabelSelector != nil {
			c.MatchLabelKeys = []string{"version"}
		}
		if !slices.ContainsFunc(spec.TopologySpreadConstraints, func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable // one each is allowed
		}) {
			return c
		}
		when = corev1.ScheduleAnyway
		if len(spec.TopologySpreadConstraints) > 3 {
			return corev1.TopologySpreadConstraint{MaxSkew: 5, TopologyKey: "example.com/nowhere", WhenUnsatisfiable: when, LabelSelector: g.selectPods(a)}
		}
	}
}

func (g *gen) podTerm(a *app) corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: g.topologyKey(), LabelSelector: g.selectPods(a)}
	switch g.IntN(8) {
	case 0:
		t.Namespaces = some(g, g.names)
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "colour"}}
	}
	if t.LabelSelector != nil {
		switch g.IntN(10) {
		case 0:
			t.MatchLabelKeys = []string{"version"}
		case 1:
			t.MismatchLabelKeys = []string{"version"}
		}
	}
	return t
}

func (g *gen) nearPods(a *app, spec *corev1.PodSpec) {
	affinity := func() *corev1.Affinity {
		if spec.Affinity == nil {
			spec.Affinity = &corev1.Affinity{}
		}
		return spec.Affinity
	}
	if g.has(podAffinity, 0.35) {
		near := &corev1.PodAffinity{}
		if g.chance(0.7) {
			near.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{g.podTerm(a)}
		}
		if g.chance(0.3) {
			near.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + g.IntN(100)), PodAffinityTerm: g.podTerm(a)}}
		}
		affinity().PodAffinity = near
	}
	if g.has(podAntiAffinity, 0.35) {
		apart := &corev1.PodAntiAffinity{}
		if g.chance(0.7) {
			apart.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{g.podTerm(a)}
		}
		if g.chance(0.3) {
			apart.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + g.IntN(100)), PodAffinityTerm: g.podTerm(a)}}
		}
		affinity().PodAntiAffinity = apart
	}
}

func (g *gen) addClasses() {
	if !g.on[volumes] {
		return
	}
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(name, provisioner string, mode *storagev1.VolumeBindingMode) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: mode}
		g.c.Objects.StorageClasses = append(g.c.Objects.StorageClasses, c)
		return c
	}
	class("anywhere", driver, &wait).Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	class("immediate", driver, &now)
	class("local", "kubernetes.io/no-provisioner", &wait)
	zones := some(g, g.zones)
	c := class("zonal", driver, &wait)
	if g.chance(0.5) {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: zones}}}}
	} else {
		for _, z := range zones {
			c.AllowedTopologies = append(c.AllowedTopologies, corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{z}}}})
		}
	}
	for i := range g.IntN(3) { // volumes to be found before one is made
		g.volume(fmt.Sprintf("spare-%d", i), "zonal", corev1.LabelTopologyZone, pick(g, g.zones...))
	}
	for i, n := range g.c.Objects.Nodes { // local volumes to be found
		if g.chance(0.3) {
			g.volume(fmt.Sprintf("local-%d", i), "local", corev1.LabelHostname, n.Name)
		}
	}
}

// volume adds a PersistentVolume that nodes with the label can reach.
func (g *gen) volume(name, class, key, value string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(10<<30, resource.BinarySI)}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}}}},
	}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
	if class == "local" {
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/mnt/" + name}
	} else {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "vol-" + name}
	}
	g.c.Objects.PersistentVolumes = append(g.c.Objects.PersistentVolumes, pv)
	return pv
}

// bound makes claim hold pv.
func bound(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	c.Spec.VolumeName, c.Status.Phase = pv.Name, corev1.ClaimBound
	c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	pv.Status.Phase = corev1.VolumeBound
}

func (g *gen) addVolume(a *app) {
	suffix := "" // of the second volume
	if len(a.template.Spec.Volumes) > 0 || a.own != nil {
		suffix = "-more"
	}
	claim := func(name, class string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		name += suffix
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name, UID: types.UID(a.namespace + "/" + name)}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity("5Gi")}},
		}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
		g.c.Objects.PersistentVolumeClaims = append(g.c.Objects.PersistentVolumeClaims, c)
		return c
	}
	shared := func(name string) {
		a.template.Spec.Volumes = append(a.template.Spec.Volumes, corev1.Volume{Name: "shared" + suffix, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	class := pick(g, "anywhere", "zonal")
	switch g.IntN(12) {
	case 0, 1: // one bound claim for all
		c := claim(a.name, class, corev1.ReadWriteMany)
		pv := g.volume("pv-"+c.Name, class, corev1.LabelTopologyZone, pick(g, g.zones...))
		if g.chance(0.3) { // as labels, not affinity
			pv.Labels = map[string]string{corev1.LabelTopologyZone: pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]}
			pv.Spec.NodeAffinity = nil
		}
		bound(c, pv)
		shared(c.Name)
	case 2: // one unbound claim for all
		shared(claim(a.name, class, corev1.ReadWriteOnce).Name)
	case 3, 4, 5: // a bound claim each
		if a.own != nil {
			break
		}
		a.own = func(pod string) *corev1.PersistentVolumeClaim {
			c := claim(pod, class, corev1.ReadWriteOnce)
			bound(c, g.volume("pv-"+c.Name, class, corev1.LabelTopologyZone, pick(g, g.zones...)))
			return c
		}
	case 6, 7: // an unbound claim each
		if a.own != nil {
			break
		}
		a.own = func(pod string) *corev1.PersistentVolumeClaim {
			c := claim(pod, class, corev1.ReadWriteOnce)
			if g.chance(0.2) {
				c.Spec.StorageClassName = nil // the default
			}
			return c
		}
	case 8: // used by one pod at a time
		shared(claim(a.name, class, corev1.ReadWriteOncePod).Name)
	case 9: // local
		if a.own == nil && g.chance(0.5) || len(g.c.Objects.Nodes) == 0 {
			a.own = func(pod string) *corev1.PersistentVolumeClaim { return claim(pod, "local", corev1.ReadWriteOnce) }
			break
		}
		c := claim(a.name, "local", corev1.ReadWriteOnce)
		bound(c, g.volume("pv-"+c.Name, "local", corev1.LabelHostname, pick(g, g.c.Objects.Nodes...).Name))
		shared(c.Name)
	case 10: // generic ephemeral
		a.template.Spec.Volumes = append(a.template.Spec.Volumes, corev1.Volume{Name: "scratch" + suffix, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}}},
		}}}})
	case 11: // hopeless
		if g.chance(0.5) {
			shared(claim(a.name, "immediate", corev1.ReadWriteOnce).Name)
		} else {
			shared("missing")
		}
	}
}

// addPods makes the apps' pods. Some are bound, wherever there is room and at times
// where there is not, since clusters change after their pods were bound.
func (g *gen) addPods() {
	yes := true
	free := map[string]corev1.ResourceList{}
	for _, n := range g.c.Objects.Nodes {
		free[n.Name] = n.Status.Allocatable.DeepCopy()
		for _, ds := range g.c.Objects.DaemonSets {
			if !g.chance(0.75) {
				continue
			}
			p := &corev1.Pod{ObjectMeta: *ds.Spec.Template.ObjectMeta.DeepCopy(), Spec: *ds.Spec.Template.Spec.DeepCopy()}
			p.Namespace, p.Name = ds.Namespace, ds.Name+"-"+n.Name
			p.UID = types.UID(p.Namespace + "/" + p.Name)
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: ds.Name, UID: ds.UID, Controller: &yes}}
			if r := &p.Spec.Containers[0].Resources; r.Requests == nil { // as the API server does
				r.Requests = r.Limits.DeepCopy()
			}
			p.Spec.NodeName, p.Status.Phase = n.Name, corev1.PodRunning
			g.take(free[n.Name], p, true)
			g.c.Objects.Pods = append(g.c.Objects.Pods, p)
		}
	}
	for _, a := range g.apps {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name, UID: types.UID("rs-" + a.name)}}
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": a.name}}
		g.c.Objects.ReplicaSets = append(g.c.Objects.ReplicaSets, rs)
		settled := 0.0
		if g.chance(0.5) {
			settled = 0.6
		}
		for i := range a.replicas {
			p := a.template.DeepCopy()
			p.Name = fmt.Sprintf("%s-%d", a.name, i)
			p.UID = types.UID(p.Namespace + "/" + p.Name)
			p.CreationTimestamp = metav1.NewTime(epoch)
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID, Controller: &yes}}
			if g.chance(0.7) {
				p.Labels["version"] = pick(g, "v1", "v2")
			}
			if a.own != nil {
				c := a.own(p.Name)
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
			}
			p.Status.Phase = corev1.PodPending
			if len(g.c.Objects.Nodes) > 0 && g.chance(settled) {
				n := pick(g, g.c.Objects.Nodes...)
				if g.take(free[n.Name], p, g.chance(0.03)) && g.settle(p, n) {
					p.Spec.NodeName, p.Status.Phase = n.Name, corev1.PodRunning
					if g.chance(0.04) {
						at := metav1.NewTime(epoch)
						p.DeletionTimestamp = &at
					} else if g.chance(0.03) {
						p.Status.Phase = corev1.PodSucceeded
					}
				}
			} else if g.chance(0.015) {
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
			} else {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			}
			g.c.Objects.Pods = append(g.c.Objects.Pods, p)
		}
	}
}

// settle binds the claims of a pod that runs on n. It reports whether that can be.
func (g *gen) settle(p *corev1.Pod, n *corev1.Node) bool {
	zone := n.Labels[corev1.LabelTopologyZone]
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			return false
		}
		i := slices.IndexFunc(g.c.Objects.PersistentVolumeClaims, func(c *corev1.PersistentVolumeClaim) bool {
			return c.Namespace == p.Namespace && c.Name == v.PersistentVolumeClaim.ClaimName
		})
		if i < 0 || zone == "" {
			return false
		}
		c := g.c.Objects.PersistentVolumeClaims[i]
		class := "anywhere"
		if c.Spec.StorageClassName != nil {
			class = *c.Spec.StorageClassName
		}
		switch {
		case class == "local" || class == "immediate":
			return false
		case c.Spec.VolumeName == "":
			bound(c, g.volume("pv-"+c.Namespace+"-"+c.Name, class, corev1.LabelTopologyZone, zone))
		case c.Spec.AccessModes[0] == corev1.ReadWriteOncePod:
			return false // the first pod has it
		}
	}
	return true
}

// take subtracts a pod's containers from what a node has left, if they fit or force is
// true.
func (g *gen) take(free corev1.ResourceList, p *corev1.Pod, force bool) bool {
	need := corev1.ResourceList{corev1.ResourcePods: quantity("1")}
	for _, c := range p.Spec.Containers {
		for name, q := range c.Resources.Requests {
			have := need[name]
			have.Add(q)
			need[name] = have
		}
	}
	for name, q := range need {
		if have := free[name]; q.Cmp(have) > 0 && !force {
			return false
		}
	}
	for name, q := range need {
		have := free[name]
		have.Sub(q)
		free[name] = have
	}
	return true
}
