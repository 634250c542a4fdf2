package load

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

func pk(p *corev1.Pod) snapshot.PodKey { return snapshot.PodKey{Namespace: p.Namespace, Name: p.Name} }
