package load

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

func uid(r ref) types.UID { return types.UID(r.kind + "/" + r.namespace + "/" + r.name) }

// systemPriorities exist in every cluster.
var systemPriorities = map[string]int32{
	"system-cluster-critical": 2_000_000_000,
	"system-node-critical":    2_000_001_000,
}

// defaults fills in what the API server's defaults and its standard admission plugins
// give a pod where a scheduler looks: requests from limits and LimitRanges, host ports,
// protocols, priority, runtime class, tolerations of unready nodes.
func (l *loader) defaults(spec *corev1.PodSpec, namespace string, owner ref) {
	*spec = resources.ApplyLimitRange(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: *spec}, l.r.Objects.LimitRanges).Spec
	for _, list := range [...][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			portDefaults(list[i].Ports, spec.HostNetwork)
		}
	}
	l.priorityDefaults(spec, owner)
	l.runtimeDefaults(spec, owner)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerate(spec, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
	}
}

func portDefaults(ports []corev1.ContainerPort, hostNetwork bool) {
	for i := range ports {
		p := &ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if hostNetwork && p.HostPort == 0 {
			p.HostPort = p.ContainerPort
		}
	}
}

func (l *loader) priorityDefaults(spec *corev1.PodSpec, owner ref) {
	if spec.Priority != nil {
		return
	}
	if spec.PriorityClassName == "" {
		var best *schedulingv1.PriorityClass
		for _, name := range slices.Sorted(maps.Keys(l.priority)) {
			// With several defaults the API server takes the lowest.
			if pc := l.priority[name]; pc.GlobalDefault && (best == nil || pc.Value < best.Value) {
				best = pc
			}
		}
		if best != nil {
			spec.PriorityClassName = best.Name
			spec.Priority = new(best.Value)
		}
		return
	}
	if pc, ok := l.priority[spec.PriorityClassName]; ok {
		spec.Priority = new(pc.Value)
		return
	}
	if v, ok := systemPriorities[spec.PriorityClassName]; ok {
		spec.Priority = new(v)
		return
	}
	l.about(owner, Warning, "spec.priorityClassName", fmt.Sprintf("PriorityClass %q is not in the input; priority 0 is assumed", spec.PriorityClassName))
}

func (l *loader) runtimeDefaults(spec *corev1.PodSpec, owner ref) {
	if spec.RuntimeClassName == nil || *spec.RuntimeClassName == "" {
		return
	}
	rc, ok := l.runtime[*spec.RuntimeClassName]
	if !ok {
		if spec.Overhead == nil {
			l.about(owner, Warning, "spec.runtimeClassName", fmt.Sprintf("RuntimeClass %q is not in the input; no overhead is assumed", *spec.RuntimeClassName))
		}
		return
	}
	if rc.Overhead != nil && spec.Overhead == nil {
		spec.Overhead = rc.Overhead.PodFixed
	}
	if rc.Scheduling == nil {
		return
	}
	for k, v := range rc.Scheduling.NodeSelector {
		if spec.NodeSelector == nil {
			spec.NodeSelector = map[string]string{}
		}
		spec.NodeSelector[k] = v
	}
	for _, t := range rc.Scheduling.Tolerations {
		tolerate(spec, t)
	}
}

// tolerate adds t unless the pod has a toleration of that key and effect.
func tolerate(spec *corev1.PodSpec, t corev1.Toleration) {
	if !slices.ContainsFunc(spec.Tolerations, func(have corev1.Toleration) bool {
		return (have.Key == t.Key || have.Key == "") && (have.Effect == t.Effect || have.Effect == "")
	}) {
		spec.Tolerations = append(spec.Tolerations, t)
	}
}

// about reports a problem of an object at the place it was read from.
func (l *loader) about(r ref, s Severity, field, message string) {
	o := l.r.origins[r]
	l.r.Problems = append(l.r.Problems, Problem{Severity: s, File: o.file, Line: o.line,
		Kind: r.kind, Namespace: r.namespace, Name: r.name, Field: field, Message: message})
}
