package fleet

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// stuckAfter is how long a pod may outlive its deletion timestamp before nobody waits for
// it any more.
const stuckAfter = time.Minute

// Terminal reports whether a pod has run to its end.
func Terminal(p *corev1.Pod) bool { return candidate.Terminal(p) }

// Terminating reports whether a pod is being deleted.
func Terminating(p *corev1.Pod) bool { return candidate.Terminating(p) }

// Active reports whether a pod runs and is meant to go on.
func Active(p *corev1.Pod) bool { return candidate.Active(p) }

// Daemon reports whether a DaemonSet made a pod.
func Daemon(p *corev1.Pod) bool { return candidate.Daemon(p) }

// IsMirror reports whether a pod stands for a file on the node, and cannot be evicted.
func IsMirror(p *corev1.Pod) bool { return candidate.Mirror(p) }

// Critical reports whether the cluster needs a pod.
func Critical(p *corev1.Pod) bool {
	return p.Spec.PriorityClassName == "system-cluster-critical" || p.Spec.PriorityClassName == "system-node-critical"
}

// Stays reports whether a pod runs until its machine ends.
func Stays(p *corev1.Pod) bool { return candidate.Stays(p) }

// Waited reports whether a drain waits for a pod.
func Waited(p *corev1.Pod, now time.Time) bool {
	stuck := Terminating(p) && now.Sub(p.DeletionTimestamp.Time) > stuckAfter
	return !Terminal(p) && !stuck && !Stays(p)
}

// Protection is what a pod's do-not-disrupt annotation says.
type Protection = snapshot.Protection

// ProtectionOf reads a pod's do-not-disrupt annotation.
func ProtectionOf(p *corev1.Pod, now time.Time) Protection { return snapshot.ProtectionOf(p, now) }

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
