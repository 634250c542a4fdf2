package snapshot

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

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
