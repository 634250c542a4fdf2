package metrics

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/state"
)

// read gives all gauges their values.
func (c *Controller) read(r *observe.Reading) {
	now := c.opts.Now()
	pods, nodes := c.opts.State.Pods(), c.opts.State.Nodes()
	c.readNodes(r, nodes, sumPods(pods), now)
	c.readPods(r, pods, nodes, now)
	c.readPools(r)
	o := c.opts.Objects
	for _, claim := range c.opts.State.Claims() {
		readConditions(r, o.NodeClaim, claim, now)
	}
	for _, np := range c.opts.State.Pools() {
		readConditions(r, o.NodePool, np, now)
	}
	for _, n := range nodes {
		readConditions(r, o.Node, n, now)
	}
}

// sums are what the pods of a node add up to.
type sums struct{ requests, limits, daemonRequests, daemonLimits resources.List }

func sumPods(pods []*corev1.Pod) map[string]*sums {
	out := map[string]*sums{}
	for _, p := range pods {
		if p.Spec.NodeName == "" || fleet.Terminal(p) {
			continue
		}
		s := out[p.Spec.NodeName]
		if s == nil {
			s = &sums{resources.List{}, resources.List{}, resources.List{}, resources.List{}}
			out[p.Spec.NodeName] = s
		}
		requests, limits := resources.PodRequests(p), resources.PodLimits(p)
		s.requests.AddTo(requests)
		s.limits.AddTo(limits)
		if fleet.Daemon(p) {
			s.daemonRequests.AddTo(requests)
			s.daemonLimits.AddTo(limits)
		}
	}
	return out
}

func (c *Controller) readNodes(r *observe.Reading, nodes []*corev1.Node, pods map[string]*sums, now time.Time) {
	o := c.opts.Objects
	have, used := resources.List{}, resources.List{}
	for _, n := range nodes {
		claim := c.opts.State.ClaimOf(n.Name)
		labels := []string{n.Name, string(n.Status.Phase), strconv.FormatBool(claim != nil)}
		for _, key := range o.NodeLabels() {
			labels = append(labels, n.Labels[key])
		}
		r.Set(o.NodeLifetime, now.Sub(n.CreationTimestamp.Time).Seconds(), labels...)
		// Amounts that are negative say nothing, and are left out.
		capacity, _ := resources.FromQuantities(n.Status.Capacity)
		allocatable, _ := resources.FromQuantities(n.Status.Allocatable)
		overhead := capacity.Clone()
		for name := range overhead {
			overhead[name] -= allocatable[name]
		}
		s := pods[n.Name]
		if s == nil {
			s = &sums{}
		}
		for _, g := range []struct {
			gauge observe.LiveGauge
			list  resources.List
		}{
			{o.NodeAllocatable, allocatable}, {o.NodeOverhead, overhead}, {o.NodePodRequests, s.requests}, {o.NodePodLimits, s.limits},
			{o.NodeDaemonRequests, s.daemonRequests}, {o.NodeDaemonLimits, s.daemonLimits},
		} {
			for name, v := range g.list {
				r.Set(g.gauge, amount(name, v), append(labels[:len(labels):len(labels)], observe.Snake(string(name)))...)
			}
		}
		if claim != nil && n.Labels[karpv1.NodeInitializedLabelKey] != "true" {
			promised, _ := resources.FromQuantities(claim.Status.Allocatable)
			for name, v := range promised {
				if allocatable[name] == 0 {
					allocatable[name] = v
				}
			}
		}
		have.AddTo(allocatable)
		used.AddTo(s.requests)
	}
	for name, v := range have {
		if v > 0 {
			r.Set(o.Utilization, 100*float64(used[name])/float64(v), observe.Snake(string(name)))
		}
	}
}

// amount is v in the unit of Kubernetes: CPU is in cores.
func amount(name corev1.ResourceName, v int64) float64 {
	if name == corev1.ResourceCPU {
		return float64(v) / 1000
	}
	return float64(v)
}

func (c *Controller) readPods(r *observe.Reading, pods []*corev1.Pod, nodes []*corev1.Node, now time.Time) {
	o := c.opts.Objects
	named := make(map[string]*corev1.Node, len(nodes))
	for _, n := range nodes {
		named[n.Name] = n
	}
	c.mu.Lock()
	unstarted := maps.Clone(c.waiting)
	c.mu.Unlock()
	for _, p := range pods {
		n := named[p.Spec.NodeName]
		if n == nil {
			n = &corev1.Node{}
		}
		owner := ""
		if len(p.OwnerReferences) > 0 {
			ref := &p.OwnerReferences[0]
			owner = fmt.Sprintf("/apis/%s/namespaces/%s/%ss/%s", ref.APIVersion, p.Namespace, strings.ToLower(ref.Kind), ref.Name)
		}
		ready := podCondition(p, corev1.PodReady)
		r.Set(o.PodState, 1, p.Name, p.Namespace, owner, p.Spec.NodeName, strconv.FormatBool(p.Spec.NodeName != ""),
			n.Labels[karpv1.NodePoolLabelKey], n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelArchStable], n.Labels[karpv1.CapacityTypeLabelKey],
			n.Labels[corev1.LabelInstanceTypeStable], string(p.Status.Phase), strconv.FormatBool(ready != nil), strconv.FormatBool(n.Labels[karpv1.NodePoolLabelKey] != ""))

		pending, scheduled := p.Status.Phase == corev1.PodPending, podCondition(p, corev1.PodScheduled) != nil
		if !pending && unstarted[p.UID] == nil {
			continue
		}
		age := now.Sub(p.CreationTimestamp.Time).Seconds()
		wait := c.opts.State.WaitOf(snapshot.PodKey{Namespace: p.Namespace, Name: p.Name})
		r.Set(o.PodUnstarted, age, p.Name, p.Namespace)
		if !wait.Placed.IsZero() {
			r.Set(o.PodProvisioningUnstarted, now.Sub(wait.Placed).Seconds(), p.Name, p.Namespace)
		}
		if pending && !scheduled {
			r.Set(o.PodUnbound, age, p.Name, p.Namespace, dynamic(p))
			if !wait.Placed.IsZero() {
				r.Set(o.PodProvisioningUnbound, now.Sub(wait.Placed).Seconds(), p.Name, p.Namespace, dynamic(p))
			}
			if !wait.Wanted.IsZero() && wait.Decided.IsZero() && p.Spec.NodeName == "" {
				r.Set(o.PodProvisioningUndecided, now.Sub(wait.Wanted).Seconds(), p.Name, p.Namespace)
			}
		}
	}
}

// dynamic says whether a pod asks for devices of resource claims, as a label.
func dynamic(p *corev1.Pod) string { return strconv.FormatBool(len(p.Spec.ResourceClaims) > 0) }

// podCondition is a condition of a pod that is True, or nil.
func podCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func (c *Controller) readPools(r *observe.Reading) {
	o := c.opts.Objects
	costs := map[string]float64{}
	if prices := c.prices.Load(); prices != nil {
		for _, claim := range c.opts.State.Claims() {
			if price, ok := cost(*prices, claim); ok {
				costs[claim.Labels[karpv1.NodePoolLabelKey]] += price.Dollars()
			}
		}
	}
	for _, np := range c.opts.State.Pools() {
		ref := np.Spec.Template.Spec.NodeClassRef
		if ref == nil || !state.Provides(c.opts.Provider, ref) {
			continue
		}
		if c.prices.Load() != nil {
			r.Set(o.PoolCost, costs[np.Name], np.Name)
		}
		used, nodes := c.opts.State.PoolUsage(np.Name)
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
			used[name] += 0 // of these people ask also where there is none
		}
		used["nodes"] = int64(nodes)
		for name, v := range used {
			r.Set(o.PoolUsage, amount(name, v), observe.Snake(string(name)), np.Name)
		}
		for name, q := range np.Spec.Limits {
			r.Set(o.PoolLimit, q.AsApproximateFloat64(), observe.Snake(string(name)), np.Name)
		}
	}
}

// readConditions gives the gauges of an object's conditions their values.
func readConditions(r *observe.Reading, m *observe.Conditions, o metav1.Object, now time.Time) {
	for _, f := range forms(m, o) {
		set := func(g observe.LiveGauge, v float64, labels ...string) {
			r.Set(g, v, append(append([]string{o.GetNamespace(), o.GetName()}, labels...), f.labels...)...)
		}
		for _, cond := range conditionsOf(o) {
			set(f.Count, 1, cond.kind, cond.status, cond.reason)
			set(f.Seconds, now.Sub(cond.since).Seconds(), cond.kind, cond.status, cond.reason)
		}
		if at := o.GetDeletionTimestamp(); at != nil {
			set(f.Terminating, now.Sub(at.Time).Seconds())
		}
	}
}
