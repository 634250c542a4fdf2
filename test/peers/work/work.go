// Package work makes the pods, catalogues and NodePools that engines are compared on,
// and judges what an engine made of them.
package work

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// Labels of the AWS provider that NodePools of the works require.
const (
	CategoryLabel   = "karpenter.k8s.aws/instance-category"
	GenerationLabel = "karpenter.k8s.aws/instance-generation"
)

// PoolName is the name of every work's only NodePool.
const PoolName = "default"

// Work is one comparison: what both engines are given.
type Work struct {
	Name string
	// Pods are pending.
	Pods []*corev1.Pod
	// Nodes exist already; NodeClaims own them, and Bound pods run on them.
	Nodes      []*corev1.Node
	NodeClaims []*karpv1.NodeClaim
	Bound      []*corev1.Pod
	Types      []*catalog.InstanceType
	Pool       *karpv1.NodePool
}

// Diverse is the mix of Karpenter's own benchmark, on a catalogue that stands for that
// benchmark's (see package karpenter), with its NodePool, whose limits are never met.
func Diverse(n int, seed int64, types []*catalog.InstanceType) *Work {
	pool := NewPool()
	pool.Spec.Limits = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("10000000"),
		corev1.ResourceMemory: resource.MustParse("10000000Gi"),
	}
	return &Work{Name: "diverse", Pods: DiversePods(n, seed), Types: types, Pool: pool}
}

// Uniform is n uniform pods on the current amd64 types for general purposes.
func Uniform(n int, seed uint32, types []*catalog.InstanceType) *Work {
	return &Work{Name: "uniform", Pods: UniformPods(n, seed), Types: OnDemand(types), Pool: NewPool(current("c", "m", "r")...)}
}

// Catalogue is n uniform pods on everything there is, of any architecture.
func Catalogue(n int, seed uint32, types []*catalog.InstanceType) *Work {
	return &Work{Name: "catalogue", Pods: UniformPods(n, seed), Types: OnDemand(types), Pool: NewPool()}
}

// Openb is the pods of a trace (see [TracePods]) on the current amd64 types for
// general purposes and with GPUs.
func Openb(trace io.Reader, n int, types []*catalog.InstanceType) (*Work, error) {
	pods, err := TracePods(trace, n)
	if err != nil {
		return nil, err
	}
	return &Work{Name: "openb", Pods: pods, Types: OnDemand(types), Pool: NewPool(current("c", "m", "r", "g", "p")...)}, nil
}

func current(categories ...string) []karpv1.Requirement {
	return []karpv1.Requirement{
		{Key: CategoryLabel, Operator: corev1.NodeSelectorOpIn, Values: categories},
		{Key: GenerationLabel, Operator: corev1.NodeSelectorOpGt, Values: []string{"2"}},
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
		{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{catalog.OnDemand}},
	}
}

// NewPool is a NodePool named [PoolName] that is ready and has these requirements.
func NewPool(reqs ...karpv1.Requirement) *karpv1.NodePool {
	p := &karpv1.NodePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodePool"},
		ObjectMeta: metav1.ObjectMeta{Name: PoolName, UID: "11111111-0000-4000-8000-000000000000"},
	}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	p.Spec.Template.Spec.Requirements = append([]karpv1.Requirement{}, reqs...)
	for _, c := range []string{karpv1.ConditionValidationSucceeded, karpv1.ConditionNodeClassReady, karpv1.ConditionReady} {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: c})
	}
	return p
}

// OnDemand keeps the on-demand offerings that can be bought, and the types that have
// one.
func OnDemand(types []*catalog.InstanceType) []*catalog.InstanceType {
	var out []*catalog.InstanceType
	for _, it := range types {
		c := *it
		c.Offerings = slices.DeleteFunc(slices.Clone(it.Offerings), func(o catalog.Offering) bool {
			return o.Unavailable || o.CapacityType != catalog.OnDemand
		})
		if len(c.Offerings) > 0 {
			out = append(out, &c)
		}
	}
	return out
}

// WithHalfFullNodes adds count nodes, half of whose CPU pods already use. The nodes
// have 8 to 64 CPUs, belong to the pool, and take every zone in turn.
func (w *Work) WithHalfFullNodes(count int) error {
	var sizes []*catalog.InstanceType
	for _, it := range w.Types {
		if cpu := it.Capacity[corev1.ResourceCPU] / 1000; cpu == 8 || cpu == 16 || cpu == 32 || cpu == 64 {
			sizes = append(sizes, it)
		}
	}
	if len(sizes) == 0 {
		return fmt.Errorf("work %s: existing nodes: the catalogue has no type of 8, 16, 32 or 64 CPUs", w.Name)
	}
	zones := map[string]bool{}
	for _, it := range sizes {
		for _, o := range it.Offerings {
			zones[o.Zone] = true
		}
	}
	names := slices.Sorted(maps.Keys(zones))
	for i := range count {
		it, zone := sizes[i%len(sizes)], names[i/len(sizes)%len(names)]
		name := fmt.Sprintf("node-%05d", i)
		labels := map[string]string{
			corev1.LabelHostname:                              name,
			corev1.LabelTopologyZone:                          zone,
			corev1.LabelInstanceTypeStable:                    it.Name,
			corev1.LabelOSStable:                              string(corev1.Linux),
			karpv1.CapacityTypeLabelKey:                       catalog.OnDemand,
			karpv1.NodePoolLabelKey:                           PoolName,
			karpv1.NodeRegisteredLabelKey:                     "true",
			karpv1.NodeInitializedLabelKey:                    "true",
			w.Pool.Spec.Template.Spec.NodeClassRef.LabelKey(): w.Pool.Spec.Template.Spec.NodeClassRef.Name,
		}
		for key, r := range it.Requirements {
			if v, ok := r.IsSingle(); ok {
				labels[key] = v
			}
		}
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + name, Labels: labels}}
		claim.Spec.NodeClassRef = w.Pool.Spec.Template.Spec.NodeClassRef
		claim.Status.NodeName, claim.Status.ProviderID = name, "sim:///"+name
		claim.Status.Capacity, claim.Status.Allocatable = it.Capacity.Quantities(), it.Allocatable.Quantities()
		w.NodeClaims = append(w.NodeClaims, claim)
		w.Nodes = append(w.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.NodeSpec{ProviderID: claim.Status.ProviderID},
			Status: corev1.NodeStatus{
				Capacity: it.Capacity.Quantities(), Allocatable: it.Allocatable.Quantities(),
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
		// One pod per four CPUs, each using two of them.
		var m maker
		for range it.Capacity[corev1.ResourceCPU] / 4000 {
			m.add(map[string]string{"app": "running"}, requests(2000, 2048))
		}
		for j, p := range m.pods {
			p.Name = fmt.Sprintf("running-%05d-%02d", i, j)
			p.UID = ""
			p.Spec.NodeName = name
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning}
			w.Bound = append(w.Bound, p)
		}
	}
	return nil
}

// Admits reports whether the pool's requirements leave the type, and the offering if
// it is not nil. It reads requirements on its own, so that a bound does not depend on
// the code of an engine.
func (w *Work) Admits(it *catalog.InstanceType, o *catalog.Offering) bool {
	for _, r := range w.Pool.Spec.Template.Spec.Requirements {
		var have []string
		switch r.Key {
		case karpv1.CapacityTypeLabelKey:
			if o != nil {
				have = []string{o.CapacityType}
			}
		case corev1.LabelTopologyZone:
			if o != nil {
				have = []string{o.Zone}
			}
		case corev1.LabelInstanceTypeStable:
			have = []string{it.Name}
		default:
			if req, ok := it.Requirements[r.Key]; ok {
				have = req.Values()
			}
		}
		if have == nil {
			continue // the type leaves this label open
		}
		if !slices.ContainsFunc(have, func(v string) bool {
			switch r.Operator {
			case corev1.NodeSelectorOpIn:
				return slices.Contains(r.Values, v)
			case corev1.NodeSelectorOpNotIn:
				return !slices.Contains(r.Values, v)
			case corev1.NodeSelectorOpGt:
				return number(v) > number(r.Values[0])
			case corev1.NodeSelectorOpLt:
				return number(v) < number(r.Values[0])
			}
			return true
		}) {
			return false
		}
	}
	return true
}

func number(s string) int {
	n := 0
	if _, err := fmt.Sscan(strings.TrimSpace(s), &n); err != nil {
		return -1
	}
	return n
}

// Admitted is the number of types that the pool may buy.
func (w *Work) Admitted() int {
	n := 0
	for _, it := range w.Types {
		if _, ok := w.cheapest(it); ok {
			n++
		}
	}
	return n
}

// cheapest is the lowest price at which the pool may buy the type.
func (w *Work) cheapest(it *catalog.InstanceType) (catalog.Price, bool) {
	price, ok := catalog.Price(0), false
	for i := range it.Offerings {
		if o := &it.Offerings[i]; !o.Unavailable && w.Admits(it, o) && (!ok || o.Price < price) {
			price, ok = o.Price, true
		}
	}
	return price, ok
}
