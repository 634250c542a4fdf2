package load

import (
	corev1 "k8s.io/api/core/v1"
)

// Workload is an object of the input whose number of pods can be changed: a Deployment, a
// ReplicaSet without one, a ReplicationController or a StatefulSet.
type Workload struct {
	Kind, Namespace, Name string
	Replicas              int
	made                  func(number int) (name string, t *template, claims []*corev1.PersistentVolumeClaim)
}

// Pod makes its pod of a number, from 1, with the claims that come with it. What is below
// the pod's metadata is shared and must not be changed.
func (w *Workload) Pod(number int) (*corev1.Pod, []*corev1.PersistentVolumeClaim) {
	name, t, claims := w.made(number)
	return t.pod(name), claims
}

func (e *expander) workload(me ref, replicas int, made func(int) (string, *template, []*corev1.PersistentVolumeClaim)) {
	e.r.Workloads = append(e.r.Workloads, Workload{Kind: me.kind, Namespace: me.namespace, Name: me.name, Replicas: replicas, made: made})
}
