package resources

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// PodRequests is what kube-scheduler counts for pod on its node: the sum of its
// containers and sidecars, or the largest init container with the sidecars started
// before it; pod-level requests in their place; overhead; and always one of
// [corev1.ResourcePods]. For a bound pod under resize, the largest of spec, allocated
// and actual resources counts.
//
// Names that kube-scheduler does not look at are left out. The pod is not changed.
func PodRequests(pod *corev1.Pod) List {
	if l, ok := plainRequests(pod); ok {
		return l
	}
	bound := pod.Spec.NodeName != ""
	requests := podresource.PodRequests(pod, podresource.PodResourcesOptions{
		UseStatusResources: bound,
		InPlacePodLevelResourcesVerticalScalingEnabled: bound,
	})
	out := make(List, len(requests)+1)
	for name, q := range requests {
		if isScheduled(name) {
			out[name] = Amount(name, q)
		}
	}
	out[corev1.ResourcePods] = 1
	return out
}

// PodLimits is what pod may use at most, of the resources that it limits: summed up as
// requests are, and one of [corev1.ResourcePods]. The pod is not changed.
func PodLimits(pod *corev1.Pod) List {
	out := List{}
	for name, q := range podresource.PodLimits(pod, podresource.PodResourcesOptions{}) {
		if isScheduled(name) {
			out[name] = Amount(name, q)
		}
	}
	out[corev1.ResourcePods] = 1
	return out
}

// plainRequests adds up the requests of a pod that needs none of the special rules. It
// gives the same as the general way, faster, or false.
func plainRequests(pod *corev1.Pod) (List, bool) {
	if len(pod.Spec.InitContainers) > 0 || pod.Spec.Resources != nil || pod.Spec.Overhead != nil {
		return nil, false
	}
	if pod.Spec.NodeName != "" {
		for i := range pod.Status.ContainerStatuses {
			if s := &pod.Status.ContainerStatuses[i]; s.Resources != nil || s.AllocatedResources != nil {
				return nil, false
			}
		}
		if pod.Status.Resources != nil || pod.Status.AllocatedResources != nil || podresource.IsPodResizeInfeasible(pod) {
			return nil, false
		}
	}
	out := make(List, 4)
	for i := range pod.Spec.Containers {
		for name, q := range pod.Spec.Containers[i].Resources.Requests {
			if !isScheduled(name) {
				continue
			}
			v, exact := exactAmount(name, &q)
			if !exact { // fractions round up once, after the sum
				return nil, false
			}
			out[name] = min(out[name]+v, MaxAmount)
		}
	}
	out[corev1.ResourcePods] = 1
	return out, true
}

// exactAmount is Amount where q is not negative and needs no rounding.
func exactAmount(name corev1.ResourceName, q *resource.Quantity) (int64, bool) {
	if v, ok := q.AsInt64(); ok && v >= 0 {
		return Amount(name, *q), true
	}
	if name != corev1.ResourceCPU || q.Sign() < 0 || q.CmpInt64(MaxAmount/1000) >= 0 {
		return 0, false
	}
	v := q.MilliValue()
	return v, q.Cmp(*resource.NewMilliQuantity(v, q.Format)) == 0
}

// isScheduled reports whether kube-scheduler counts name on nodes.
func isScheduled(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	s := string(name)
	return strings.Contains(s, "/") && !strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix) ||
		strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix)
}

// DaemonRequests is [PodRequests] of a pod made from a DaemonSet's template, where a
// limit without a request is also the request.
func DaemonRequests(pod *corev1.Pod) List {
	pod = pod.DeepCopy()
	defaultRequests(pod)
	return PodRequests(pod)
}

// ApplyLimitRange returns a copy of pod with the resources that an API server gives it
// at creation: a container's limits are its missing requests, then the defaults of the
// LimitRanges in the pod's namespace apply, in order of their names, then pod-level
// requests follow. A pod that an API server has seen stays as it is, unless the
// LimitRanges are newer. Minimums and maximums are not enforced.
func ApplyLimitRange(pod *corev1.Pod, ranges []*corev1.LimitRange) *corev1.Pod {
	pod = pod.DeepCopy()
	defaultContainers(pod)
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(r *corev1.LimitRange) bool { return r.Namespace != pod.Namespace })
	slices.SortStableFunc(ranges, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	for _, r := range ranges {
		limits, requests := defaultsOf(r)
		for c := range containers(pod) {
			fill(&c.Resources.Limits, limits)
			fill(&c.Resources.Requests, requests)
		}
	}
	defaultPodLevel(pod)
	return pod
}

// containers yields pod's containers, then its init containers.
func containers(pod *corev1.Pod) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [...][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// fill adds the entries of defaults that list lacks.
func fill(list *corev1.ResourceList, defaults corev1.ResourceList) {
	for name, q := range defaults {
		if _, ok := (*list)[name]; !ok {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = q.DeepCopy()
		}
	}
}

// defaultsOf is what r gives containers without limits or requests. A missing default
// limit is the maximum; a missing default request is the default limit, else the
// minimum.
func defaultsOf(r *corev1.LimitRange) (limits, requests corev1.ResourceList) {
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		def, req := maps.Clone(item.Default), maps.Clone(item.DefaultRequest)
		fill(&def, item.Max)
		fill(&req, def)
		fill(&req, item.Min)
		if limits == nil {
			limits, requests = corev1.ResourceList{}, corev1.ResourceList{}
		}
		maps.Copy(limits, def)
		maps.Copy(requests, req)
	}
	return limits, requests
}

func defaultRequests(pod *corev1.Pod) {
	defaultContainers(pod)
	defaultPodLevel(pod)
}

func defaultContainers(pod *corev1.Pod) {
	for c := range containers(pod) {
		fill(&c.Resources.Requests, c.Resources.Limits)
	}
}

// defaultPodLevel completes pod-level resources that are given in part.
func defaultPodLevel(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	hugePages := func(name corev1.ResourceName) bool {
		return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	}
	for name, q := range podresource.AggregateContainerLimits(pod, podresource.PodResourcesOptions{}) {
		if _, requested := r.Requests[name]; hugePages(name) && !requested {
			fill(&r.Limits, corev1.ResourceList{name: q})
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	for name, q := range podresource.AggregateContainerRequests(pod, podresource.PodResourcesOptions{}) {
		if podresource.IsSupportedPodLevelResource(name) && !hugePages(name) {
			fill(&r.Requests, corev1.ResourceList{name: q})
		}
	}
	for name, q := range r.Limits {
		if podresource.IsSupportedPodLevelResource(name) {
			fill(&r.Requests, corev1.ResourceList{name: q})
		}
	}
}
