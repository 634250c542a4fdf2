// Package order says what is asked of a cloud for a planned node: which NodeClaim it becomes.
// A cluster and a simulation of it ask for the same.
package order

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Of the offerings that would hold a node's pods, a claim allows those that cost at most
// dearest times what is planned, and in any case those of the flexible cheapest instance
// types: a launch that finds no capacity goes on to the next, while a node at any price
// would be worse than another plan.
const (
	dearest  = 2
	flexible = 15
)

// Claim is the NodeClaim of that name for a planned node: the pool's template, narrowed to
// the offerings that it may become. pod returns the objects of pods; nil for unknown ones.
func Claim(pool *karpv1.NodePool, name string, n *schedule.NewNode, allowed requirements.Set, offers []schedule.Offer, pod func(snapshot.PodKey) *corev1.Pod) *karpv1.NodeClaim {
	offers = worthwhile(offers, n.Planned, allowed)
	c := pool.NewClaim()
	c.Name = name
	c.GenerateName = ""
	// Nothing is launched for a claim without it: a claim that has it saves a write.
	c.Finalizers = []string{karpv1.TerminationFinalizer}
	if n.MinValuesRelaxed {
		c.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey] = "true"
	} else {
		c.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey] = "false"
	}
	preferred := make([]cloud.Offering, len(offers))
	for i, o := range offers {
		preferred[i] = cloud.Offering{InstanceType: o.InstanceType, Zone: o.Zone, CapacityType: o.CapacityType, ReservationID: o.ReservationID}
	}
	c.Annotations[cloud.PreferredAnnotation] = cloud.FormatPreferred(preferred)
	c.Annotations[v1alpha1.BoughtForAnnotation] = workloads(n.Pods, pod)
	c.Annotations[v1alpha1.PlannedCostAnnotation] = strconv.FormatFloat(n.Planned.Cost.Dollars(), 'f', -1, 64)

	reqs := allowed.Clone()
	delete(reqs, corev1.LabelHostname)
	narrow := func(key string, value func(schedule.Offer) string) {
		values := map[string]bool{}
		for _, o := range offers {
			values[value(o)] = true
		}
		if len(values) == 0 || values[""] {
			return
		}
		least := reqs.Get(key).MinValues()
		r := requirements.In(key, slices.Sorted(maps.Keys(values))...)
		if least > 0 {
			r = r.WithMinValues(least)
		}
		reqs[key] = r
	}
	narrow(corev1.LabelInstanceTypeStable, func(o schedule.Offer) string { return o.InstanceType })
	narrow(karpv1.CapacityTypeLabelKey, func(o schedule.Offer) string { return o.CapacityType })
	narrow(corev1.LabelTopologyZone, func(o schedule.Offer) string { return o.Zone })
	reqs[karpv1.NodePoolLabelKey] = requirements.In(karpv1.NodePoolLabelKey, pool.Name)
	c.Spec.Requirements = nil
	for _, e := range reqs.Entries() {
		c.Spec.Requirements = append(c.Spec.Requirements, karpv1.Requirement{Key: e.Key, Operator: e.Operator, Values: e.Values, MinValues: e.MinValues})
	}
	for key, r := range reqs {
		if v, ok := r.IsSingle(); ok && !requirements.WellKnown(key) && karpv1.DefaultLabelRules().Refusal(key) == "" {
			c.Labels[key] = v
		}
	}
	need := n.Requests.Clone()
	need.AddTo(n.Daemons)
	c.Spec.Resources.Requests = need.Quantities()
	return c
}

// worthwhile are the offers that a launch may fall back to.
func worthwhile(offers []schedule.Offer, planned schedule.Offer, allowed requirements.Set) []schedule.Offer {
	for _, key := range allowed.Keys() {
		if allowed[key].MinValues() > 0 {
			return offers // whatever minValues asks to choose from
		}
	}
	types := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(offers), func(o schedule.Offer) bool {
		if o.Cost > dearest*planned.Cost && len(types) >= flexible && !types[o.InstanceType] {
			return true
		}
		types[o.InstanceType] = true
		return false
	})
}

// workloads sums up pods by the object that made them: "default/web 8, default/report 2".
func workloads(pods []snapshot.PodKey, pod func(snapshot.PodKey) *corev1.Pod) string {
	counts := map[string]int{}
	for _, k := range pods {
		counts[workload(k, pod(k))]++
	}
	names := make([]string, 0, len(counts))
	for n := range counts {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b)) })
	const shown = 10
	parts := make([]string, 0, shown+1)
	for i, n := range names {
		if i == shown {
			parts = append(parts, fmt.Sprintf("%d more workloads", len(names)-shown))
			break
		}
		parts = append(parts, fmt.Sprintf("%s %d", n, counts[n]))
	}
	return strings.Join(parts, ", ")
}

// workload is the name of a pod's owner. That of a ReplicaSet is the Deployment's, which
// is the name without the hash of the pod's template.
func workload(k snapshot.PodKey, p *corev1.Pod) string {
	if p == nil {
		return k.String()
	}
	for _, o := range p.OwnerReferences {
		if o.Controller == nil || !*o.Controller {
			continue
		}
		name := o.Name
		if hash := p.Labels["pod-template-hash"]; o.Kind == "ReplicaSet" && hash != "" {
			name = strings.TrimSuffix(name, "-"+hash)
		}
		return k.Namespace + "/" + name
	}
	return k.String()
}
