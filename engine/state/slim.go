package state

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// maxAnnotation is the size up to which annotations of pods and nodes are kept.
const maxAnnotation = 4096

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Slim takes out of an object of a cache what no controller reads: who wrote which field
// and, of pods, nodes and workloads, most of what only kubelets and owners need. It is a
// transform function of informers: the object is theirs, and it is changed.
//
// Pods keep what schedulers, evictions and policies look at. So a slim object must never
// be written back as a whole; patches are safe.
func Slim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil //nolint:nilerr // markers of deletions that were missed have no metadata
	}
	m.SetManagedFields(nil)
	if a := m.GetAnnotations(); a != nil {
		delete(a, lastApplied)
	}
	switch o := o.(type) {
	case *corev1.Pod:
		slimPod(o)
	case *corev1.Node:
		dropLarge(o.Annotations)
		o.Status.Images, o.Status.VolumesInUse, o.Status.DaemonEndpoints = nil, nil, corev1.NodeDaemonEndpoints{}
		for i := range o.Status.Conditions {
			o.Status.Conditions[i].LastHeartbeatTime.Reset()
		}
	case *corev1.Namespace:
		dropLarge(o.Annotations)
	case *appsv1.ReplicaSet:
		o.Annotations = nil
		slimTemplate(&o.Spec.Template)
	case *appsv1.StatefulSet:
		o.Annotations = nil
		slimTemplate(&o.Spec.Template)
		o.Spec.VolumeClaimTemplates = nil
	case *appsv1.DaemonSet:
		o.Annotations = nil
		slimSpec(&o.Spec.Template.Spec)
	case *corev1.ReplicationController:
		o.Annotations = nil
		if o.Spec.Template != nil {
			slimTemplate(o.Spec.Template)
		}
	case *corev1.Service:
		o.Annotations = nil
		o.Spec = corev1.ServiceSpec{Selector: o.Spec.Selector}
		o.Status = corev1.ServiceStatus{}
	case *storagev1.CSINode:
		o.Annotations = nil
	}
	return o, nil
}

func dropLarge(annotations map[string]string) {
	for k, v := range annotations {
		if len(v) > maxAnnotation {
			delete(annotations, k)
		}
	}
}

// slimTemplate keeps the labels of a template alone.
func slimTemplate(t *corev1.PodTemplateSpec) {
	t.Annotations, t.Spec = nil, corev1.PodSpec{}
}

func slimPod(p *corev1.Pod) {
	dropLarge(p.Annotations)
	slimSpec(&p.Spec)
	s := &p.Status
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type != corev1.PodScheduled && c.Type != corev1.PodReady && c.Type != corev1.DisruptionTarget
	})
	for i := range s.Conditions {
		// The scheduler's account of every node is long, and of no use here.
		s.Conditions[i].Message = ""
		s.Conditions[i].LastProbeTime.Reset()
	}
	s.PodIPs, s.HostIPs, s.Message, s.InitContainerStatuses, s.EphemeralContainerStatuses, s.ResourceClaimStatuses = nil, nil, "", nil, nil, nil
	kept := s.ContainerStatuses[:0]
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if len(c.AllocatedResources) > 0 || c.Resources != nil {
			kept = append(kept, corev1.ContainerStatus{Name: c.Name, AllocatedResources: c.AllocatedResources, Resources: c.Resources})
		}
	}
	s.ContainerStatuses = slices.Clone(kept)
}

func slimSpec(s *corev1.PodSpec) {
	for _, list := range [...][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			c := &list[i]
			list[i] = corev1.Container{Name: c.Name, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		}
	}
	s.EphemeralContainers, s.SecurityContext, s.ImagePullSecrets, s.DNSConfig, s.HostAliases = nil, nil, nil, nil, nil
	s.ServiceAccountName, s.DeprecatedServiceAccount, s.AutomountServiceAccountToken, s.EnableServiceLinks = "", "", nil, nil
	s.Volumes = slices.Clone(slices.DeleteFunc(s.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim == nil && v.Ephemeral == nil && v.EmptyDir == nil && v.HostPath == nil
	}))
}
