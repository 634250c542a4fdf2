package load

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"go.yaml.in/yaml/v3"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
)

// short is a hash of parts for names, in the alphabet Kubernetes uses for them.
func short(parts ...string) string {
	h := fnv.New32a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p)) // a hash's Write does not fail
		_, _ = h.Write([]byte{0})
	}
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	sum := h.Sum32()
	var out [5]byte
	for i := range out {
		out[i] = alphabet[sum%uint32(len(alphabet))]
		sum /= uint32(len(alphabet))
	}
	return string(out[:])
}

// check looks at one object alone, for what the API server would refuse and the
// expansion relies on.
func (l *loader) check(d *decoder, n *yaml.Node, obj metav1.Object) {
	spec := &path{name: "spec"}
	replicas := func(r *int32) {
		if r != nil && *r < 0 {
			d.report(Error, at(n, "spec", "replicas"), &path{parent: spec, name: "replicas"}, "%d: must not be negative", *r)
		}
		if r != nil && *r > maxReplicas {
			d.report(Error, at(n, "spec", "replicas"), &path{parent: spec, name: "replicas"}, "%d: more than %d pods of one workload are not planned", *r, maxReplicas)
		}
	}
	template := func(sel *metav1.LabelSelector, t *corev1.PodTemplateSpec) {
		s, err := metav1.LabelSelectorAsSelector(sel)
		selector := &path{parent: spec, name: "selector"}
		switch {
		case sel == nil:
			d.report(Error, at(n, "spec"), selector, "must be set")
		case err != nil:
			d.report(Error, at(n, "spec", "selector"), selector, "%v", err)
		case s.Empty():
			d.report(Error, at(n, "spec", "selector"), selector, "must not be empty")
		case !s.Matches(labels.Set(t.Labels)):
			d.report(Error, at(n, "spec", "selector"), selector, "does not match the labels of spec.template")
		}
		containers(d, at(n, "spec", "template"), &path{parent: &path{parent: spec, name: "template"}, name: "spec"}, &t.Spec)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		containers(d, n, spec, &o.Spec)
	case *appsv1.Deployment:
		replicas(o.Spec.Replicas)
		template(o.Spec.Selector, &o.Spec.Template)
	case *appsv1.ReplicaSet:
		replicas(o.Spec.Replicas)
		template(o.Spec.Selector, &o.Spec.Template)
	case *appsv1.StatefulSet:
		replicas(o.Spec.Replicas)
		template(o.Spec.Selector, &o.Spec.Template)
	case *appsv1.DaemonSet:
		template(o.Spec.Selector, &o.Spec.Template)
	case *corev1.ReplicationController:
		replicas(o.Spec.Replicas)
		if o.Spec.Template == nil {
			d.report(Error, at(n, "spec"), &path{parent: spec, name: "template"}, "must be set")
		} else {
			containers(d, at(n, "spec", "template"), &path{parent: &path{parent: spec, name: "template"}, name: "spec"}, &o.Spec.Template.Spec)
		}
	case *batchv1.Job:
		replicas(o.Spec.Parallelism)
		replicas(o.Spec.Completions)
		containers(d, at(n, "spec", "template"), &path{parent: &path{parent: spec, name: "template"}, name: "spec"}, &o.Spec.Template.Spec)
	case *batchv1.CronJob:
		replicas(o.Spec.JobTemplate.Spec.Parallelism)
		replicas(o.Spec.JobTemplate.Spec.Completions)
		containers(d, at(n, "spec", "jobTemplate"), &path{parent: spec, name: "jobTemplate.spec.template.spec"}, &o.Spec.JobTemplate.Spec.Template.Spec)
	}
}

// maxReplicas bounds the pods that one workload, and all of them together, become.
const maxReplicas = 500_000

func containers(d *decoder, n *yaml.Node, at *path, spec *corev1.PodSpec) {
	if len(spec.Containers) == 0 {
		d.report(Error, n, &path{parent: at, name: "containers"}, "must have at least one container")
	}
}

// at is the node below n at the given keys, or the deepest one that exists.
func at(n *yaml.Node, keys ...string) *yaml.Node {
	for _, k := range keys {
		v := value(n, k)
		if v == nil {
			return n
		}
		n = v
	}
	return n
}

func sorted[T metav1.Object](m map[ref]metav1.Object) []T {
	var out []T
	for _, o := range m {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out
}

// settle turns what was read into the result's objects.
func (l *loader) settle() {
	o := &l.r.Objects
	for _, pc := range sorted[*schedulingv1.PriorityClass](l.byRef) {
		l.priority[pc.Name] = pc
	}
	for _, rc := range sorted[*nodev1.RuntimeClass](l.byRef) {
		l.runtime[rc.Name] = rc
	}
	o.Pods = sorted[*corev1.Pod](l.byRef)
	o.Nodes = sorted[*corev1.Node](l.byRef)
	o.NodePools = sorted[*karpv1.NodePool](l.byRef)
	o.NodeClaims = sorted[*karpv1.NodeClaim](l.byRef)
	o.NodeOverlays = sorted[*karpv1alpha1.NodeOverlay](l.byRef)
	o.DaemonSets = sorted[*appsv1.DaemonSet](l.byRef)
	o.ReplicaSets = sorted[*appsv1.ReplicaSet](l.byRef)
	o.StatefulSets = sorted[*appsv1.StatefulSet](l.byRef)
	o.ReplicationControllers = sorted[*corev1.ReplicationController](l.byRef)
	o.Services = sorted[*corev1.Service](l.byRef)
	o.Namespaces = sorted[*corev1.Namespace](l.byRef)
	o.LimitRanges = sorted[*corev1.LimitRange](l.byRef)
	o.PersistentVolumes = sorted[*corev1.PersistentVolume](l.byRef)
	o.PersistentVolumeClaims = sorted[*corev1.PersistentVolumeClaim](l.byRef)
	o.StorageClasses = sorted[*storagev1.StorageClass](l.byRef)
	o.CSINodes = sorted[*storagev1.CSINode](l.byRef)
	l.r.Classes = sorted[*v1alpha1.SimNodeClass](l.byRef)
	l.r.Autoscalers = sorted[*autoscalingv2.HorizontalPodAutoscaler](l.byRef)
	o.PodDisruptionBudgets = sorted[*policyv1.PodDisruptionBudget](l.byRef)

	for _, n := range o.Nodes {
		if len(n.Status.Allocatable) == 0 {
			n.Status.Allocatable = n.Status.Capacity
		}
	}
	for _, p := range o.Pods {
		// A pod with a UID comes out of an API server, which has given it its defaults.
		if me := (ref{"Pod", p.Namespace, p.Name}); p.UID == "" {
			p.UID = uid(me)
			l.defaults(&p.Spec, p.Namespace, me)
		} else if p.Spec.Priority == nil {
			l.priorityDefaults(&p.Spec, me)
		}
	}
	for _, ds := range o.DaemonSets {
		l.defaults(&ds.Spec.Template.Spec, ds.Namespace, ref{"DaemonSet", ds.Namespace, ds.Name})
	}
	l.expand()
	l.claims()
	l.namespaces()
}

// namespaces adds the namespaces that objects live in and that the input lacks, with
// the label the API server gives every namespace.
func (l *loader) namespaces() {
	o := &l.r.Objects
	missing := map[string]bool{}
	for _, p := range o.Pods {
		missing[p.Namespace] = true
	}
	for _, ds := range o.DaemonSets {
		missing[ds.Namespace] = true
	}
	for _, ns := range o.Namespaces {
		delete(missing, ns.Name)
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[corev1.LabelMetadataName] = ns.Name
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		o.Namespaces = append(o.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
}

// claims settles the storage classes of claims: the default class for those that name
// none, and an assumed class for inputs that bring no StorageClass at all.
func (l *loader) claims() {
	o := &l.r.Objects
	const defaultClass = "storageclass.kubernetes.io/is-default-class"
	byDefault := ""
	var newest metav1.Time
	for _, sc := range o.StorageClasses {
		if sc.Annotations[defaultClass] != "true" && sc.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if byDefault == "" || newest.Before(&sc.CreationTimestamp) {
			byDefault, newest = sc.Name, sc.CreationTimestamp
		}
	}
	assumed := map[string]int{}
	for _, c := range o.PersistentVolumeClaims {
		if c.Spec.VolumeName != "" || c.Status.Phase == corev1.ClaimBound {
			continue
		}
		if c.Spec.StorageClassName == nil && byDefault != "" {
			c.Spec.StorageClassName = &byDefault
		}
		if len(o.StorageClasses) > 0 || c.Spec.StorageClassName != nil && *c.Spec.StorageClassName == "" {
			continue
		}
		name := "default"
		if c.Spec.StorageClassName != nil {
			name = *c.Spec.StorageClassName
		}
		c.Spec.StorageClassName = &name
		assumed[name]++
	}
	for _, name := range slices.Sorted(maps.Keys(assumed)) {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		o.StorageClasses = append(o.StorageClasses, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "assumed", VolumeBindingMode: &mode})
		l.r.Problems = append(l.r.Problems, Problem{Severity: Note, Kind: "StorageClass", Name: name, Message: fmt.Sprintf(
			"the input has no StorageClass; %s of this class are assumed to get a volume in any zone, once the pod has a node",
			plural(assumed[name], "claim"))})
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
