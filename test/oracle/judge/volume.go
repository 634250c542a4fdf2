package judge

import (
	"fmt"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
)

const noProvisioner = "kubernetes.io/no-provisioner"

// claimName is the claim behind a pod's volume, if it has one.
func claimName(pod *corev1.Pod, v *corev1.Volume) (string, bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, true
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v), true
	}
	return "", false
}

// bindVolumes does what happens to the unbound claims of a pod once it is on node: the
// smallest volume that fits is bound, or one is provisioned where the node can reach it.
func (s *scheduler) bindVolumes(pod *corev1.Pod, node *corev1.Node) error {
	var unbound []*corev1.PersistentVolumeClaim
	for i := range pod.Spec.Volumes {
		name, ok := claimName(pod, &pod.Spec.Volumes[i])
		if !ok {
			continue
		}
		obj, found, err := s.claims.GetByKey(pod.Namespace + "/" + name)
		if err != nil || !found {
			return fmt.Errorf("claim %s/%s: not found (%v)", pod.Namespace, name, err)
		}
		if c := obj.(*corev1.PersistentVolumeClaim); c.Spec.VolumeName == "" {
			unbound = append(unbound, c)
		}
	}
	sort.SliceStable(unbound, func(i, j int) bool {
		a, b := unbound[i].Spec.Resources.Requests[corev1.ResourceStorage], unbound[j].Spec.Resources.Requests[corev1.ResourceStorage]
		return a.Cmp(b) < 0
	})
	for _, c := range unbound {
		class := volume.GetPersistentVolumeClaimClass(c)
		var free []*corev1.PersistentVolume
		for _, o := range s.volumes.List() {
			if pv := o.(*corev1.PersistentVolume); pv.Spec.StorageClassName == class {
				free = append(free, pv)
			}
		}
		slices.SortFunc(free, func(a, b *corev1.PersistentVolume) int {
			if a.Name < b.Name {
				return -1
			}
			return 1
		})
		pv, err := volume.FindMatchingVolume(c, free, node, nil, true, true)
		if err != nil {
			return fmt.Errorf("claim %s: %w", key(c), err)
		}
		if pv == nil {
			if pv, err = s.provision(c, node); err != nil {
				return err
			}
		}
		pv, c = pv.DeepCopy(), c.DeepCopy()
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
		pv.Status.Phase, c.Status.Phase = corev1.VolumeBound, corev1.ClaimBound
		c.Spec.VolumeName = pv.Name
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
		if err := s.volumes.Update(pv); err != nil {
			return err
		}
		if err := s.claims.Update(c); err != nil {
			return err
		}
	}
	return nil
}

// provision makes the volume that a driver would: reachable from the nodes that share
// the selected node's values of the driver's topology keys, its zone if none are known.
func (s *scheduler) provision(c *corev1.PersistentVolumeClaim, node *corev1.Node) (*corev1.PersistentVolume, error) {
	name := volume.GetPersistentVolumeClaimClass(c)
	obj, found, err := s.classes.GetByKey(name)
	if err != nil || !found {
		return nil, fmt.Errorf("claim %s: storage class %q not found (%v)", key(c), name, err)
	}
	class := obj.(*storagev1.StorageClass)
	keys, known := []string{corev1.LabelTopologyZone}, false
	for _, o := range s.csiNodes.List() {
		n := o.(*storagev1.CSINode)
		for _, d := range n.Spec.Drivers {
			if d.Name == class.Provisioner && (n.Name == node.Name || !known) {
				keys, known = d.TopologyKeys, true
			}
		}
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + c.Namespace + "-" + c.Name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]}, AccessModes: c.Spec.AccessModes, StorageClassName: name,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: "handle-" + c.Namespace + "-" + c.Name}},
		},
	}
	var at []corev1.NodeSelectorRequirement
	for _, k := range keys {
		if v, ok := node.Labels[k]; ok {
			at = append(at, corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{v}})
		}
	}
	if len(at) > 0 {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: at}}}}
	}
	return pv, nil
}
