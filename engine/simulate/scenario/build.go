package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/script"
)

// Start is the time at which scenarios happen, a Wednesday.
var start = time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC)

const (
	poolName      = "default"
	volumeDriver  = "csi.example.com"
	gpuResource   = corev1.ResourceName("nvidia.com/gpu")
	waitingClass  = "wait"
	zoneKey       = corev1.LabelTopologyZone
	appLabel      = "app"
	nodeClassKind = "SimNodeClass"
)

// Problem is one scenario ready to be planned: a file's case, or one of its variants.
type Problem struct {
	// Name is the file's base name, with the variant's after a slash.
	Name     string
	About    string
	Objects  snapshot.Objects
	Snapshot snapshot.Options
	Solve    schedule.Options
	Expect   Expect
	// Shuffles is that of [Options].
	Shuffles int
	// Life is what happens in time; nil if the case is planned once.
	Life *Course
	// PolicyFiles are the policies of the case, with paths that can be opened; Policies is
	// what [Problem.LoadPolicies] made of them.
	PolicyFiles []Policy
	Policies    simulate.Policies
}

// Course is how a case goes on.
type Course struct {
	Loops, Quiet int
	Events       []script.Event
	// MinSaving, SpotTypes and Arrivals are those of [Options].
	MinSaving, SpotTypes int
	Arrivals             bool
}

// LoadPolicies loads the policies of the case, if it has any: a runtime is the caller's to
// choose. Before that, [Judge] refuses the case.
func (p *Problem) LoadPolicies(loadPolicy func(Policy) (policy.Policy, error)) error {
	p.Policies.Enforced = nil
	for _, f := range p.PolicyFiles {
		loaded, err := loadPolicy(f)
		if err != nil {
			return fmt.Errorf("scenario %s: %w", p.Name, err)
		}
		loaded.Order = f.Order
		p.Policies.Enforced = append(p.Policies.Enforced, loaded)
	}
	return nil
}

// Problems reads the scenario file at path. readCatalog reads the catalogue file it
// names.
func Problems(path string, readCatalog func(path string) (*catalog.Catalog, error)) ([]Problem, error) {
	f, manifests, err := Read(path)
	if err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	make := func(name string, c Case) (Problem, error) {
		p, err := build(path, c, manifests, readCatalog)
		if err != nil {
			return Problem{}, fmt.Errorf("scenario %s: %w", name, err)
		}
		p.Name, p.About = name, f.About
		return p, nil
	}
	first, err := make(base, f.Case)
	if err != nil {
		return nil, err
	}
	out := []Problem{first}
	for _, v := range f.Variants {
		p, err := make(base+"/"+v.Name, over(f.Case, v.Case))
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func build(path string, c Case, manifests []byte, readCatalog func(string) (*catalog.Catalog, error)) (Problem, error) {
	from := "cat-1.yaml"
	change := Catalog{}
	if c.Catalog != nil {
		change = *c.Catalog
		from = cmp.Or(change.From, from)
	}
	cat, err := readCatalog(filepath.Join(filepath.Dir(path), from))
	if err != nil {
		return Problem{}, err
	}
	if cat, err = change.apply(cat); err != nil {
		return Problem{}, err
	}
	r := load.Read([]load.Input{{Name: path, Data: manifests}})
	for _, p := range r.Problems {
		if p.Severity != load.Note {
			return Problem{}, errors.New(p.String())
		}
	}
	b := &builder{cat: cat, objs: r.Objects, pools: map[string]*Pool{}, lives: c.lives()}
	if c.Pools == nil && len(b.objs.NodePools) == 0 {
		c.Pools = []Pool{{Name: poolName}}
	}
	for i := range c.Pools {
		b.pool(&c.Pools[i])
	}
	for i := range c.Volumes {
		b.volume(&c.Volumes[i])
	}
	for i := range c.Nodes {
		b.node(&c.Nodes[i])
	}
	for i := range c.Pods {
		b.pods(&c.Pods[i], "")
	}
	for i := range c.Daemons {
		b.daemon(&c.Daemons[i])
	}
	p := Problem{Objects: b.objs, Snapshot: snapshot.Options{Now: start, Catalog: cat, AssumeReady: true}, Expect: *c.Expect}
	if c.lives() {
		p.Life = &Course{Loops: cmp.Or(c.Loops, DefaultLoops), Quiet: cmp.Or(c.Quiet, DefaultQuiet)}
		if p.Life.Events, err = script.Parse(c.Events, filepath.Dir(path)); err != nil {
			b.errs = append(b.errs, fmt.Errorf("events: %w", err))
		}
		if c.Options != nil {
			p.Life.MinSaving, p.Life.SpotTypes, p.Life.Arrivals = c.Options.MinSaving, c.Options.SpotTypes, c.Options.Arrivals
		}
	}
	for _, f := range c.Policies {
		f.File = filepath.Join(filepath.Dir(path), f.File)
		p.PolicyFiles = append(p.PolicyFiles, f)
	}
	if c.Options != nil {
		p.Shuffles = c.Options.Shuffles
		p.Solve = schedule.Options{Preferences: c.Options.Preferences, MinValues: c.Options.MinValues}
		for _, s := range c.Options.DefaultSpread {
			spread, err := load.ParseSpread(s)
			if err != nil {
				b.errs = append(b.errs, err)
			}
			p.Snapshot.DefaultSpread = append(p.Snapshot.DefaultSpread, spread)
		}
	}
	return p, errors.Join(b.errs...)
}

// apply makes the scenario's catalogue.
func (c *Catalog) apply(base *catalog.Catalog) (*catalog.Catalog, error) {
	var out []catalog.InstanceType
	known := map[string]bool{}
	for _, t := range base.Types() {
		known[t.Name] = true
		if len(c.Types) > 0 && !slices.Contains(c.Types, t.Name) {
			continue
		}
		if len(c.AttachLimits) > 0 {
			t.AttachLimits = c.AttachLimits
		}
		if len(c.Zones) > 0 {
			t.Offerings = inZones(t.Offerings, c.Zones)
		}
		t.Offerings = slices.Clone(t.Offerings)
		for i := range t.Offerings {
			o := &t.Offerings[i]
			for _, ch := range c.Offerings {
				if ch.Type != "" && ch.Type != t.Name || ch.Zone != "" && ch.Zone != o.Zone || ch.CapacityType != "" && ch.CapacityType != o.CapacityType {
					continue
				}
				if ch.Price != nil {
					o.Price = catalog.FromDollars(*ch.Price)
				}
				o.Unavailable = o.Unavailable || ch.Unavailable
			}
		}
		out = append(out, t)
	}
	zones := inZones([]catalog.Offering{{CapacityType: catalog.OnDemand}}, []string{"z1", "z2", "z3"})
	for i := range c.More {
		out = append(out, c.More[i].make(base, zones))
		known[c.More[i].Name] = true
	}
	for _, r := range c.Reservations {
		at := slices.IndexFunc(out, func(t catalog.InstanceType) bool { return t.Name == r.Type })
		if at < 0 {
			return nil, fmt.Errorf("catalog.reservations: the catalogue has no type %q", r.Type)
		}
		out[at].Offerings = append(slices.Clone(out[at].Offerings), catalog.Offering{
			Zone: cmp.Or(r.Zone, "z1"), CapacityType: catalog.Reserved, ReservationID: r.ID, ReservationCapacity: r.Units, Price: catalog.FromDollars(r.Price),
		})
	}
	for _, name := range c.Types {
		if !known[name] {
			return nil, fmt.Errorf("catalog.types: the catalogue has no type %q", name)
		}
	}
	cat, errs := catalog.New(out)
	return cat, errors.Join(errs...)
}

// make makes the type, with the labels of another one where it does not differ.
func (m *MoreType) make(base *catalog.Catalog, zones []catalog.Offering) catalog.InstanceType {
	t := base.Types()[0]
	t.Name = m.Name
	t.Requirements = requirements.Set{}
	t.Requirements.Add(requirements.In(corev1.LabelInstanceTypeStable, m.Name), requirements.In(corev1.LabelArchStable, "amd64"))
	t.Capacity = t.Capacity.Clone()
	t.Capacity[corev1.ResourceCPU] = resources.Amount(corev1.ResourceCPU, m.CPU)
	t.Capacity[corev1.ResourceMemory] = resources.Amount(corev1.ResourceMemory, m.Memory)
	t.Allocatable = t.Capacity.Clone()
	t.Offerings = nil
	for _, o := range zones {
		o.Price = catalog.FromDollars(m.Price)
		t.Offerings = append(t.Offerings, o)
		o.CapacityType, o.Price = catalog.Spot, catalog.FromDollars(m.Price*0.4)
		t.Offerings = append(t.Offerings, o)
	}
	return t
}

// inZones gives each kind of offering once per zone.
func inZones(in []catalog.Offering, zones []string) []catalog.Offering {
	var out []catalog.Offering
	seen := map[string]bool{}
	for _, o := range in {
		if seen[o.CapacityType] {
			continue
		}
		seen[o.CapacityType] = true
		for _, z := range zones {
			o.Zone = z
			out = append(out, o)
		}
	}
	return out
}

type builder struct {
	// lives says that the case happens in time, where nodes have what a life needs.
	lives bool
	cat   *catalog.Catalog
	objs  snapshot.Objects
	pools map[string]*Pool
	errs  []error
}

func (b *builder) fail(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

func in(key string, values ...string) karpv1.Requirement {
	return karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func (b *builder) pool(p *Pool) {
	if p.Name == "" {
		b.fail("pools: name: must be set")
	}
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: types.UID("pool-" + p.Name)}}
	np.Spec.Limits = p.Limits
	if p.Weight != 0 {
		np.Spec.Weight = new(p.Weight)
	}
	t := &np.Spec.Template
	t.Labels = p.Labels
	t.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: nodeClassKind, Name: "default"}
	t.Spec.Taints, t.Spec.StartupTaints = b.taints(p.Taints), b.taints(p.StartupTaints)
	t.Spec.Requirements = append(t.Spec.Requirements, p.Requirements...)
	named := func(key string) bool {
		return slices.ContainsFunc(p.Requirements, func(r karpv1.Requirement) bool { return r.Key == key })
	}
	if len(p.Types) > 0 {
		t.Spec.Requirements = append(t.Spec.Requirements, in(corev1.LabelInstanceTypeStable, p.Types...))
	}
	if len(p.Zones) > 0 {
		t.Spec.Requirements = append(t.Spec.Requirements, in(zoneKey, p.Zones...))
	}
	switch {
	case len(p.CapacityTypes) > 0:
		t.Spec.Requirements = append(t.Spec.Requirements, in(karpv1.CapacityTypeLabelKey, p.CapacityTypes...))
	case !named(karpv1.CapacityTypeLabelKey):
		t.Spec.Requirements = append(t.Spec.Requirements, in(karpv1.CapacityTypeLabelKey, catalog.OnDemand))
	}
	b.disruption(p, np)
	np.SetDefaults()
	b.pools[p.Name] = p
	b.objs.NodePools = append(b.objs.NodePools, np)
}

// disruption sets how nodes of a pool may go.
func (b *builder) disruption(p *Pool, np *karpv1.NodePool) {
	np.Annotations = p.Annotations
	np.Spec.Replicas = p.Replicas
	d := &np.Spec.Disruption
	d.ConsolidationPolicy = p.Consolidation
	d.Budgets = p.Budgets
	if d.Budgets == nil {
		d.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	}
	d.ConsolidateAfter = b.duration("after", cmp.Or(p.After, "0s"))
	np.Spec.Template.Spec.ExpireAfter = b.duration("expireAfter", cmp.Or(p.ExpireAfter, karpv1.Never))
	if p.GracePeriod != "" {
		if g := b.duration("gracePeriod", p.GracePeriod); g.Duration != nil {
			np.Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: *g.Duration}
		}
	}
}

// duration reads a duration, or Never.
func (b *builder) duration(what, text string) karpv1.NillableDuration {
	if text == karpv1.Never {
		return karpv1.NillableDuration{Text: text}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		b.fail("%s %q: must be a duration such as 5m, or Never", what, text)
	}
	return karpv1.NillableDuration{Duration: &d, Text: text}
}

// taints reads "key=value:Effect" and "key:Effect".
func (b *builder) taints(in []string) []corev1.Taint {
	var out []corev1.Taint
	for _, s := range in {
		kv, effect, ok := strings.Cut(s, ":")
		key, value, _ := strings.Cut(kv, "=")
		if !ok || key == "" {
			b.fail("taint %q: write key=value:Effect or key:Effect", s)
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out
}

func (b *builder) volume(v *Volume) {
	for _, name := range numbered(v.Name, v.Count) {
		key := "PersistentVolumeClaim/" + name
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
				ClaimRef:               &corev1.ObjectReference{Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(key)},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: cmp.Or(v.Driver, volumeDriver), VolumeHandle: name}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		}
		if v.Zone != "" {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zoneKey, Operator: corev1.NodeSelectorOpIn, Values: []string{v.Zone}}}}}}}
		}
		b.objs.PersistentVolumes = append(b.objs.PersistentVolumes, pv)
		b.objs.PersistentVolumeClaims = append(b.objs.PersistentVolumeClaims, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, UID: types.UID(key),
				Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: pv.Name, StorageClassName: new(waitingClass), AccessModes: pv.Spec.AccessModes},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		})
	}
	if !slices.ContainsFunc(b.objs.StorageClasses, func(s *storagev1.StorageClass) bool { return s.Name == waitingClass }) {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		b.objs.StorageClasses = append(b.objs.StorageClasses, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: waitingClass}, Provisioner: volumeDriver, VolumeBindingMode: &mode})
	}
}

func numbered(name string, count int) []string {
	if count == 0 {
		return []string{name}
	}
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", name, i+1)
	}
	return out
}

func (b *builder) node(n *Node) {
	if n.Count > 0 {
		for i := range n.Count {
			one := *n
			one.Name, one.Count = fmt.Sprintf("%s-%d", n.Name, i+1), 0
			one.Pods = slices.Clone(n.Pods)
			for j := range one.Pods {
				p := &one.Pods[j]
				p.App = cmp.Or(p.App, p.Name)
				p.Name = fmt.Sprintf("%s-%d", p.Name, i+1)
			}
			b.node(&one)
		}
		return
	}
	if b.lives {
		n.Zone = cmp.Or(n.Zone, "z1")
	}
	it, ok := b.cat.ByName(n.Type)
	if !ok {
		b.fail("node %q: the catalogue has no type %q", n.Name, n.Type)
		return
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID("node-" + n.Name), Labels: map[string]string{}, Annotations: n.Annotations, CreationTimestamp: metav1.NewTime(start.Add(-b.ago("age", cmp.Or(n.Age, "24h"))))}}
	for key, r := range it.Requirements {
		if v, ok := r.IsSingle(); ok {
			node.Labels[key] = v
		}
	}
	node.Labels[corev1.LabelHostname] = n.Name
	if n.Zone != "" {
		node.Labels[zoneKey] = n.Zone
	}
	node.Spec.ProviderID = "sim:///" + n.Name
	node.Spec.Taints = b.taints(n.Taints)
	if n.Pool != "" {
		p := b.pools[n.Pool]
		if p == nil {
			b.fail("node %q: there is no pool %q", n.Name, n.Pool)
			return
		}
		maps.Copy(node.Labels, p.Labels)
		node.Labels[karpv1.CapacityTypeLabelKey] = cmp.Or(n.CapacityType, catalog.OnDemand)
		node.Labels[karpv1.NodePoolLabelKey] = n.Pool
		node.Labels[karpv1.NodeRegisteredLabelKey], node.Labels[karpv1.NodeInitializedLabelKey] = "true", "true"
		ref := karpv1.NodeClassReference{Group: "dovetail.sh", Kind: nodeClassKind, Name: "default"}
		node.Labels[ref.LabelKey()] = "default"
		node.Spec.Taints = append(node.Spec.Taints, b.taints(p.Taints)...)
	}
	maps.Copy(node.Labels, n.Labels)
	node.Status.Capacity = it.Capacity.Quantities()
	node.Status.Allocatable = it.Allocatable.Quantities()
	maps.Copy(node.Status.Allocatable, n.Allocatable)
	b.objs.Nodes = append(b.objs.Nodes, node)
	if n.Reservation != "" {
		node.Labels[karpv1.CapacityTypeLabelKey], node.Labels[catalog.ReservationIDLabel] = catalog.Reserved, n.Reservation
	}
	if n.NotReady {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}}
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	}
	if n.Pool != "" {
		b.claimOf(node, n)
	}
	if len(it.AttachLimits) > 0 {
		b.csiNode(n.Name, it.AttachLimits)
	}
	for i := range n.Pods {
		b.pods(&n.Pods[i], n.Name)
	}
}

// claimOf adds the NodeClaim behind a node.
func (b *builder) claimOf(node *corev1.Node, n *Node) {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: types.UID("claim-" + node.Name), Labels: node.Labels, CreationTimestamp: node.CreationTimestamp}}
	claim.Spec.Taints = node.Spec.Taints
	claim.Status.ProviderID, claim.Status.NodeName = node.Spec.ProviderID, node.Name
	claim.Status.Capacity, claim.Status.Allocatable = node.Status.Capacity, node.Status.Allocatable
	b.objs.NodeClaims = append(b.objs.NodeClaims, claim)
	if !b.lives {
		return
	}
	for _, np := range b.objs.NodePools {
		if np.Name == n.Pool {
			claim.Spec.ExpireAfter, claim.Spec.TerminationGracePeriod = np.Spec.Template.Spec.ExpireAfter, np.Spec.Template.Spec.TerminationGracePeriod
		}
	}
	claim.Annotations = n.Annotations
	set := claim.Conditions().At(node.CreationTimestamp.Time)
	set.SetTrue(karpv1.ConditionLaunched)
	set.SetTrue(karpv1.ConditionRegistered)
	set.SetTrue(karpv1.ConditionInitialized)
	if n.Event != "" {
		claim.Status.LastPodEventTime = metav1.NewTime(start.Add(-b.ago("event", n.Event)))
	}
	if n.Drifted != "" {
		set.SetTrueBecause(karpv1.ConditionDrifted, n.Drifted, "")
	}
	if n.Deleting {
		at := metav1.NewTime(start.Add(-time.Minute))
		claim.DeletionTimestamp, node.DeletionTimestamp = &at, &at
	}
}

// ago reads how long ago something was.
func (b *builder) ago(what, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		b.fail("%s %q: must be a duration such as 5m", what, text)
	}
	return d
}

func (b *builder) csiNode(name string, limits map[string]int64) {
	c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, driver := range slices.Sorted(maps.Keys(limits)) {
		c.Spec.Drivers = append(c.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: name,
			Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(limits[driver]))}})
	}
	b.objs.CSINodes = append(b.objs.CSINodes, c)
}

// pods adds the pods of a short form: bound to node, or pending if that is empty.
func (b *builder) pods(p *Pod, node string) {
	if p.Name == "" {
		b.fail("pods: name: must be set")
		return
	}
	namespace := cmp.Or(p.Namespace, metav1.NamespaceDefault)
	app := cmp.Or(p.App, p.Name)
	if p.Daemon == "" && !p.Alone {
		b.replicaSet(namespace, app)
	}
	for i, name := range numbered(p.Name, p.Count) {
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: b.meta(p, namespace, name, "ReplicaSet", app),
			Spec:       b.spec(p, i+1),
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		}
		pod.Annotations = annotationsOf(p)
		switch {
		case p.Alone:
			pod.OwnerReferences = nil
		case p.Daemon != "":
			pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "DaemonSet", p.Daemon
		}
		if node != "" {
			pod.Spec.NodeName = node
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		}
		b.objs.Pods = append(b.objs.Pods, pod)
	}
}

func (b *builder) meta(p *Pod, namespace, name, ownerKind, owner string) metav1.ObjectMeta {
	labels := map[string]string{appLabel: cmp.Or(p.App, p.Name)}
	maps.Copy(labels, p.Labels)
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, Labels: labels, UID: types.UID("pod-" + namespace + "-" + name),
		CreationTimestamp: metav1.NewTime(start.Add(-time.Hour)),
		OwnerReferences:   []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: ownerKind, Name: owner, UID: types.UID(ownerKind + owner), Controller: new(true)}},
	}
}

func annotationsOf(p *Pod) map[string]string {
	out := maps.Clone(p.Annotations)
	set := func(key string) {
		if out == nil {
			out = map[string]string{}
		}
		out[key] = "true"
	}
	if p.DoNotDisrupt {
		set(karpv1.DoNotDisruptAnnotationKey)
	}
	if p.Disposable {
		set(v1alpha1.DisposableAnnotation)
	}
	return out
}

func (b *builder) replicaSet(namespace, app string) {
	if slices.ContainsFunc(b.objs.ReplicaSets, func(r *appsv1.ReplicaSet) bool { return r.Namespace == namespace && r.Name == app }) {
		return
	}
	b.objs.ReplicaSets = append(b.objs.ReplicaSets, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: namespace, UID: types.UID("ReplicaSet" + app)},
		Spec:       appsv1.ReplicaSetSpec{Selector: sameApp(app)},
	})
}

func sameApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: app}}
}

func (b *builder) daemon(p *Pod) {
	namespace := cmp.Or(p.Namespace, metav1.NamespaceDefault)
	b.objs.DaemonSets = append(b.objs.DaemonSets, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace, UID: types.UID("DaemonSet" + p.Name)},
		Spec: appsv1.DaemonSetSpec{Selector: sameApp(p.Name), Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{appLabel: p.Name}}, Spec: b.spec(p, 1)}},
	})
}

func topologyKey(short string) string {
	switch short {
	case "zone":
		return zoneKey
	case "hostname":
		return corev1.LabelHostname
	}
	return short
}

func (b *builder) spec(p *Pod, number int) corev1.PodSpec {
	requests := corev1.ResourceList{}
	maps.Copy(requests, p.Requests)
	if p.CPU != nil {
		requests[corev1.ResourceCPU] = *p.CPU
	}
	if p.Memory != nil {
		requests[corev1.ResourceMemory] = *p.Memory
	}
	if p.GPU > 0 {
		requests[gpuResource] = *resource.NewQuantity(p.GPU, resource.DecimalSI)
	}
	main := corev1.Container{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests}}
	for _, port := range p.HostPorts {
		main.Ports = append(main.Ports, corev1.ContainerPort{ContainerPort: port, HostPort: port, Protocol: corev1.ProtocolTCP})
	}
	spec := corev1.PodSpec{Containers: []corev1.Container{main}, NodeSelector: p.Selector, Priority: p.Priority}
	for _, key := range p.Tolerates {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	app := cmp.Or(p.App, p.Name)
	for _, s := range p.Spread {
		c := corev1.TopologySpreadConstraint{
			TopologyKey: topologyKey(s.Key), MaxSkew: cmp.Or(s.Skew, 1), MinDomains: s.MinDomains, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: sameApp(app), NodeAffinityPolicy: s.NodeAffinityPolicy, NodeTaintsPolicy: s.NodeTaintsPolicy, MatchLabelKeys: s.MatchLabelKeys,
		}
		if s.Soft {
			c.WhenUnsatisfiable = corev1.ScheduleAnyway
		}
		spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, c)
	}
	spec.Affinity = affinity(p, app)
	for _, c := range p.Claims {
		name := strings.ReplaceAll(c, "%d", strconv.Itoa(number))
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	return spec
}

func affinity(p *Pod, app string) *corev1.Affinity {
	var a corev1.Affinity
	if len(p.Require) > 0 || len(p.Prefer) > 0 {
		a.NodeAffinity = &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: p.Prefer}
		if len(p.Require) > 0 {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: p.Require}
		}
	}
	term := func(key, app string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: topologyKey(key), LabelSelector: sameApp(app)}
	}
	if len(p.Apart)+len(p.ApartIfPossible) > 0 {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		for _, key := range p.Apart {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term(key, app))
		}
		for _, key := range p.ApartIfPossible {
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: term(key, app)})
		}
	}
	if len(p.Near)+len(p.NearIfPossible) > 0 {
		a.PodAffinity = &corev1.PodAffinity{}
		for _, key := range p.Near {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term(key, cmp.Or(p.NearApp, app)))
		}
		for _, key := range p.NearIfPossible {
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: term(key, cmp.Or(p.NearApp, app))})
		}
	}
	if a == (corev1.Affinity{}) {
		return nil
	}
	return &a
}
