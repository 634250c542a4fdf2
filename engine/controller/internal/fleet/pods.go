package fleet

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// stuckAfter is how long a pod may outlive its deletion timestamp before nobody waits for
// it any more.
const stuckAfter = time.Minute

// Terminal reports whether a pod has run to its end.
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Terminating reports whether a pod is being deleted.
func Terminating(p *corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() }

// Active reports whether a pod runs and is meant to go on.
func Active(p *corev1.Pod) bool { return !Terminal(p) && !Terminating(p) }

// Daemon reports whether a DaemonSet made a pod.
func Daemon(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "DaemonSet" && r.Controller != nil && *r.Controller
	})
}

// Mirror pods stand for files on the node, and cannot be evicted.
func IsMirror(p *corev1.Pod) bool {
	if _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return true
	}
	return slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == "Node" && r.APIVersion == "v1" })
}

// Critical reports whether the cluster needs a pod.
func Critical(p *corev1.Pod) bool {
	return p.Spec.PriorityClassName == "system-cluster-critical" || p.Spec.PriorityClassName == "system-node-critical"
}

// Stays reports whether a pod runs until its machine ends: it tolerates the taint of
// disrupted nodes, or is a mirror pod.
func Stays(p *corev1.Pod) bool {
	return IsMirror(p) || snapshot.Tolerates(p.Spec.Tolerations, []corev1.Taint{karpv1.DisruptedTaint()})
}

// Waited reports whether a drain waits for a pod.
func Waited(p *corev1.Pod, now time.Time) bool {
	stuck := Terminating(p) && now.Sub(p.DeletionTimestamp.Time) > stuckAfter
	return !Terminal(p) && !stuck && !Stays(p)
}

// Protection is what a pod's do-not-disrupt annotation says.
type Protection struct {
	// On is true while the pod must not be disrupted.
	On bool
	// Until is when protection ends or ended; zero if it has no end, or none is known.
	Until time.Time
	// Problem says why the annotation is ignored, or is "".
	Problem string
}

// ProtectionOf reads a pod's do-not-disrupt annotation: "true", or how long after its
// start the pod is protected.
func ProtectionOf(p *corev1.Pod, now time.Time) Protection {
	v, ok := p.Annotations[karpv1.DoNotDisruptAnnotationKey]
	switch {
	case !ok:
		return Protection{}
	case v == "true":
		return Protection{On: true}
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return Protection{Problem: fmt.Sprintf("annotation %s: %q is neither \"true\" nor a positive duration", karpv1.DoNotDisruptAnnotationKey, v)}
	}
	if p.Status.StartTime == nil {
		return Protection{On: true}
	}
	until := p.Status.StartTime.Add(d)
	return Protection{On: now.Before(until), Until: until}
}

// GracePeriod is how long a pod may take to end.
func GracePeriod(p *corev1.Pod) time.Duration {
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// Moving counts the pods of a node that come back elsewhere when it goes.
func Moving(pods []*corev1.Pod) int {
	n := 0
	for _, p := range pods {
		if Active(p) && !Daemon(p) && !IsMirror(p) {
			n++
		}
	}
	return n
}
