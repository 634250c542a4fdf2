package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
)

// podVolumes are the claims of one pod, resolved.
type podVolumes struct {
	// key is equal for pods whose volumes mean the same to a scheduler.
	key string
	// places are, for each volume that is not free to be anywhere, the alternatives.
	places  [][]requirements.Set
	volumes []Volume
}

// claimPlace is a resolved claim.
type claimPlace struct {
	places []requirements.Set // nil: anywhere
	volume Volume             // Driver is empty if nothing is attached
	key    string
	err    string
}

// volumeSource resolves claims; each is resolved once.
type volumeSource struct {
	claims     map[PodKey]*corev1.PersistentVolumeClaim
	volumes    map[string]*corev1.PersistentVolume
	classes    map[string]*storagev1.StorageClass
	defaultSC  string
	resolved   map[PodKey]*claimPlace
	users      map[PodKey]int    // pods, bound or pending, per claim
	boundUsers map[PodKey]string // a bound pod that uses the claim
	free       map[string][]*corev1.PersistentVolume
}

func newVolumeSource(objs *Objects, infos []*podInfo) *volumeSource {
	v := &volumeSource{
		claims: map[PodKey]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}, classes: map[string]*storagev1.StorageClass{},
		resolved: map[PodKey]*claimPlace{}, users: map[PodKey]int{}, boundUsers: map[PodKey]string{}, free: map[string][]*corev1.PersistentVolume{},
	}
	for _, c := range objs.PersistentVolumeClaims {
		v.claims[PodKey{c.Namespace, c.Name}] = c
	}
	for _, p := range objs.PersistentVolumes {
		v.volumes[p.Name] = p
		if p.Spec.ClaimRef == nil && (p.Status.Phase == corev1.VolumeAvailable || p.Status.Phase == "") && p.DeletionTimestamp == nil {
			v.free[p.Spec.StorageClassName] = append(v.free[p.Spec.StorageClassName], p)
		}
	}
	for _, list := range v.free {
		slices.SortFunc(list, func(a, b *corev1.PersistentVolume) int {
			x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
			return cmp.Or(x.Cmp(y), strings.Compare(a.Name, b.Name))
		})
	}
	for _, c := range objs.StorageClasses {
		v.classes[c.Name] = c
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" && (v.defaultSC == "" || c.Name < v.defaultSC) {
			v.defaultSC = c.Name
		}
	}
	for i, p := range objs.Pods {
		if infos[i].terminal || !infos[i].claims {
			continue
		}
		for i := range p.Spec.Volumes {
			if key, ok := claimKey(p, &p.Spec.Volumes[i]); ok {
				v.users[key]++
				if p.Spec.NodeName != "" {
					v.boundUsers[key] = p.Name
				}
			}
		}
	}
	return v
}

// claimKey names the claim behind a pod's volume.
func claimKey(pod *corev1.Pod, vol *corev1.Volume) (PodKey, bool) {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return PodKey{pod.Namespace, vol.PersistentVolumeClaim.ClaimName}, true
	case vol.Ephemeral != nil:
		return PodKey{pod.Namespace, pod.Name + "-" + vol.Name}, true
	}
	return PodKey{}, false
}

// of resolves the claims of pod; nil if it has none. An error text says which claim
// keeps the pod from running anywhere.
func (v *volumeSource) of(pod *corev1.Pod) (vols *podVolumes, claim, problem string) {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		key, ok := claimKey(pod, vol)
		if !ok {
			continue
		}
		r := v.resolve(key, vol)
		if r.err != "" && pod.Spec.NodeName == "" {
			return nil, key.Name, r.err
		}
		if vols == nil {
			vols = &podVolumes{}
		}
		if r.places != nil {
			vols.places = append(vols.places, r.places)
		}
		vols.key += r.key
		if r.volume.Driver == "" && r.volume.Free == nil && !r.volume.Exclusive {
			continue
		}
		if r.volume.Exclusive && pod.Spec.NodeName == "" && v.users[key] > 1 {
			if user := v.boundUsers[key]; user != "" {
				return nil, key.Name, fmt.Sprintf("access mode ReadWriteOncePod: pod %s uses it", user)
			}
		}
		if !slices.ContainsFunc(vols.volumes, func(o Volume) bool { return o.ID == r.volume.ID && o.Driver == r.volume.Driver }) {
			vols.volumes = append(vols.volumes, r.volume)
		}
	}
	return vols, "", ""
}

func (v *volumeSource) resolve(key PodKey, vol *corev1.Volume) *claimPlace {
	if r, ok := v.resolved[key]; ok {
		return r
	}
	r := v.place(key, vol)
	r.volume.Shared = v.users[key] > 1
	var b strings.Builder
	for _, p := range r.places {
		b.WriteString("(")
		for _, k := range p.Keys() {
			b.WriteString(p[k].String() + ";")
		}
	}
	for _, f := range r.volume.Free {
		b.WriteString("," + f.Name)
	}
	b.WriteString("@" + r.volume.Driver)
	if r.volume.Shared {
		b.WriteString("=" + r.volume.ID) // which volume matters only where pods meet on it
	}
	if r.volume.Exclusive {
		b.WriteString("!")
	}
	r.key = b.String() + "\x00"
	v.resolved[key] = r
	return r
}

func (v *volumeSource) place(key PodKey, vol *corev1.Volume) *claimPlace {
	claim := v.claims[key]
	var spec corev1.PersistentVolumeClaimSpec
	annotations := map[string]string{}
	switch {
	case claim != nil:
		spec, annotations = claim.Spec, claim.Annotations
		if claim.DeletionTimestamp != nil {
			return &claimPlace{err: "is being deleted"}
		}
		if claim.Status.Phase == corev1.ClaimLost {
			return &claimPlace{err: "has lost its volume"}
		}
	case vol.Ephemeral != nil && vol.Ephemeral.VolumeClaimTemplate != nil:
		spec = vol.Ephemeral.VolumeClaimTemplate.Spec
	default:
		return &claimPlace{err: "PersistentVolumeClaim does not exist"}
	}
	exclusive := slices.Contains(spec.AccessModes, corev1.ReadWriteOncePod)
	if spec.VolumeName != "" {
		if annotations["pv.kubernetes.io/bind-completed"] == "" {
			return &claimPlace{err: fmt.Sprintf("is not yet bound to volume %s", spec.VolumeName)}
		}
		pv := v.volumes[spec.VolumeName]
		if pv == nil || pv.DeletionTimestamp != nil {
			return &claimPlace{err: fmt.Sprintf("its volume %s does not exist or is being deleted", spec.VolumeName)}
		}
		r := &claimPlace{}
		r.places, r.err = volumePlaces(pv)
		r.volume = attachment(pv)
		r.volume.Exclusive = exclusive
		return r
	}
	name := v.defaultSC
	if spec.StorageClassName != nil {
		name = *spec.StorageClassName
	}
	class := v.classes[name]
	switch {
	case name == "":
		return &claimPlace{err: "is unbound and names no storage class, and there is no default"}
	case class == nil:
		return &claimPlace{err: fmt.Sprintf("StorageClass %q does not exist", name)}
	case class.VolumeBindingMode == nil || *class.VolumeBindingMode == storagev1.VolumeBindingImmediate:
		return &claimPlace{err: fmt.Sprintf("is unbound, and StorageClass %q binds at once (volumeBindingMode Immediate): it waits for its volume, not for a node", name)}
	}
	r := &claimPlace{volume: Volume{Driver: driverName(class.Provisioner), ID: key.String(), Exclusive: exclusive, Unbound: true}}
	if node, ok := annotations["volume.kubernetes.io/selected-node"]; ok {
		r.places = []requirements.Set{requirements.NewSet(requirements.In(requirements.FieldName, node))}
		return r
	}
	static := class.Provisioner == "kubernetes.io/no-provisioner"
	if static {
		r.volume.Driver = ""
	}
	for i, t := range class.AllowedTopologies {
		set := requirements.Set{}
		for _, e := range t.MatchLabelExpressions {
			req, err := requirements.New(e.Key, corev1.NodeSelectorOpIn, e.Values...)
			if err != nil {
				return &claimPlace{err: fmt.Sprintf("StorageClass %q: allowedTopologies[%d]: %v", name, i, err)}
			}
			set.Add(req)
		}
		r.places = append(r.places, set)
	}
	if !static && r.places == nil {
		return r // made wherever the pod goes
	}
	r.volume.Made = r.places
	v.takeFree(r, name, &spec)
	if len(r.places) == 0 {
		r.err = fmt.Sprintf("no free PersistentVolume of StorageClass %q is large enough", name)
	}
	return r
}

// takeFree adds the existing volumes of a class that a claim may take, and their places.
func (v *volumeSource) takeFree(r *claimPlace, class string, spec *corev1.PersistentVolumeClaimSpec) {
	want := spec.Resources.Requests[corev1.ResourceStorage]
	for _, pv := range v.free[class] {
		have := pv.Spec.Capacity[corev1.ResourceStorage]
		if have.Cmp(want) < 0 || !containsAll(pv.Spec.AccessModes, spec.AccessModes) {
			continue
		}
		places, problem := volumePlaces(pv)
		if problem != "" {
			continue
		}
		if places == nil {
			places = []requirements.Set{{}}
		}
		r.places = append(slices.Clip(r.places), places...)
		r.volume.Free = append(r.volume.Free, FreeVolume{Name: pv.Name, Places: places})
	}
}

// volumePlaces are the nodes that reach pv, as alternatives; nil means all. A zone label
// on the volume holds for nodes with zone or region labels only.
func volumePlaces(pv *corev1.PersistentVolume) ([]requirements.Set, string) {
	var zones []requirements.Set
	labelled := requirements.Set{}
	for key, value := range pv.Labels {
		switch requirements.NormalizeKey(key) {
		case corev1.LabelTopologyZone, corev1.LabelTopologyRegion:
			labelled.Add(requirements.In(key, strings.Split(value, "__")...))
		}
	}
	if len(labelled) > 0 {
		zones = []requirements.Set{labelled, requirements.NewSet(requirements.DoesNotExist(corev1.LabelTopologyZone), requirements.DoesNotExist(corev1.LabelTopologyRegion))}
	}
	a := pv.Spec.NodeAffinity
	if a == nil || a.Required == nil {
		return zones, ""
	}
	var places []requirements.Set
	for i, t := range a.Required.NodeSelectorTerms {
		set, err := requirements.FromNodeSelectorTerm(t)
		if errors.Is(err, requirements.ErrEmptyTerm) {
			continue
		}
		if err != nil {
			return nil, fmt.Sprintf("volume %s: nodeAffinity.required[%d]: %v", pv.Name, i, err)
		}
		places = append(places, set)
	}
	if len(places) == 0 {
		return nil, fmt.Sprintf("volume %s: nodeAffinity matches no node", pv.Name)
	}
	if zones != nil {
		if places = cross(places, [][]requirements.Set{zones}); len(places) == 0 {
			return nil, fmt.Sprintf("volume %s: nodeAffinity and labels contradict each other", pv.Name)
		}
	}
	return places, ""
}

// attachment says how pv counts towards a driver's attach limit.
func attachment(pv *corev1.PersistentVolume) Volume {
	s := &pv.Spec.PersistentVolumeSource
	switch {
	case s.CSI != nil:
		return Volume{Driver: s.CSI.Driver, ID: s.CSI.VolumeHandle}
	case s.AWSElasticBlockStore != nil:
		return Volume{Driver: "ebs.csi.aws.com", ID: s.AWSElasticBlockStore.VolumeID}
	case s.GCEPersistentDisk != nil:
		return Volume{Driver: "pd.csi.storage.gke.io", ID: s.GCEPersistentDisk.PDName}
	case s.AzureDisk != nil:
		return Volume{Driver: "disk.csi.azure.com", ID: s.AzureDisk.DataDiskURI}
	case s.Cinder != nil:
		return Volume{Driver: "cinder.csi.openstack.org", ID: s.Cinder.VolumeID}
	case s.VsphereVolume != nil:
		return Volume{Driver: "csi.vsphere.vmware.com", ID: s.VsphereVolume.VolumePath}
	}
	return Volume{}
}

// driverName is the CSI driver that took over from an in-tree provisioner.
func driverName(provisioner string) string {
	switch provisioner {
	case "kubernetes.io/aws-ebs":
		return "ebs.csi.aws.com"
	case "kubernetes.io/gce-pd":
		return "pd.csi.storage.gke.io"
	case "kubernetes.io/azure-disk":
		return "disk.csi.azure.com"
	case "kubernetes.io/azure-file":
		return "file.csi.azure.com"
	case "kubernetes.io/cinder":
		return "cinder.csi.openstack.org"
	case "kubernetes.io/vsphere-volume":
		return "csi.vsphere.vmware.com"
	}
	return provisioner
}

func containsAll[T comparable](have, want []T) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}
