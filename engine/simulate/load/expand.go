package load

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// expander makes the pods that controllers would make.
type expander struct {
	*loader
	// owned are the active pods of the input by their controller.
	owned map[ref][]*corev1.Pod
	taken map[ref]bool
	// full is true once there are too many pods.
	full bool
}

// expand adds to the objects the pods that the input's workloads lack.
func (l *loader) expand() {
	o := &l.r.Objects
	e := &expander{loader: l, owned: map[ref][]*corev1.Pod{}, taken: map[ref]bool{}}
	for _, p := range o.Pods {
		e.taken[ref{"Pod", p.Namespace, p.Name}] = true
		if c := metav1.GetControllerOf(p); c != nil && active(p) {
			key := ref{c.Kind, p.Namespace, c.Name}
			e.owned[key] = append(e.owned[key], p)
			if via, ok := l.workloadOf(p); ok {
				own := l.r.origins[ref{"Pod", p.Namespace, p.Name}]
				own.via = via
				l.r.origins[ref{"Pod", p.Namespace, p.Name}] = own
			}
		}
	}
	for _, d := range sorted[*appsv1.Deployment](l.byRef) {
		e.deployment(d)
	}
	for _, rs := range sorted[*appsv1.ReplicaSet](l.byRef) {
		if c := metav1.GetControllerOf(rs); c != nil && c.Kind == "Deployment" && l.byRef[ref{"Deployment", rs.Namespace, c.Name}] != nil {
			continue
		}
		e.replicas(ref{"ReplicaSet", rs.Namespace, rs.Name}, "apps/v1", rs, rs.Spec.Replicas, rs.Spec.Template)
	}
	for _, rc := range o.ReplicationControllers {
		e.replicas(ref{"ReplicationController", rc.Namespace, rc.Name}, "v1", rc, rc.Spec.Replicas, *rc.Spec.Template)
	}
	for _, s := range o.StatefulSets {
		e.statefulSet(s)
	}
	for _, j := range sorted[*batchv1.Job](l.byRef) {
		e.job(j)
	}
	for _, c := range sorted[*batchv1.CronJob](l.byRef) {
		e.cronJob(c)
	}
	for _, p := range o.Pods {
		e.ephemeral(p)
	}
}

// workloadOf names the workload people know a pod of the input by.
func (l *loader) workloadOf(p *corev1.Pod) (ref, bool) {
	c := metav1.GetControllerOf(p)
	if c == nil {
		return ref{}, false
	}
	own := ref{c.Kind, p.Namespace, c.Name}
	if rs, ok := l.byRef[own].(*appsv1.ReplicaSet); ok {
		if d := metav1.GetControllerOf(rs); d != nil {
			return ref{d.Kind, p.Namespace, d.Name}, true
		}
	}
	if j, ok := l.byRef[own].(*batchv1.Job); ok {
		if d := metav1.GetControllerOf(j); d != nil {
			return ref{d.Kind, p.Namespace, d.Name}, true
		}
	}
	if hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; c.Kind == "ReplicaSet" && hash != "" && strings.HasSuffix(c.Name, "-"+hash) {
		return ref{"Deployment", p.Namespace, strings.TrimSuffix(c.Name, "-"+hash)}, true
	}
	return own, true
}

func active(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && p.DeletionTimestamp == nil
}

func controller(apiVersion string, r ref, obj metav1.Object) []metav1.OwnerReference {
	id := obj.GetUID()
	if id == "" {
		id = uid(r)
	}
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: r.kind, Name: r.name, UID: id,
		Controller: new(true), BlockOwnerDeletion: new(true)}}
}

func count(replicas *int32) int {
	if replicas == nil {
		return 1
	}
	return int(*replicas)
}

// template is a pod template ready to be copied.
type template struct {
	owner       []metav1.OwnerReference
	via         ref
	labels      map[string]string
	annotations map[string]string
	spec        corev1.PodSpec
	namespace   string
}

func (e *expander) template(t corev1.PodTemplateSpec, owner []metav1.OwnerReference, via ref, extra map[string]string) *template {
	spec := t.Spec
	e.defaults(&spec, via.namespace, via)
	lbls := maps.Clone(t.Labels)
	if lbls == nil {
		lbls = map[string]string{}
	}
	maps.Copy(lbls, extra)
	return &template{owner: owner, via: via, labels: lbls, annotations: t.Annotations, spec: spec, namespace: via.namespace}
}

// pod adds one pod to the objects. Its parts are shared with the template and must not
// be changed.
func (e *expander) pod(name string, t *template) {
	if len(e.r.Objects.Pods) >= maxReplicas {
		if !e.full {
			e.about(t.via, Error, "", fmt.Sprintf("the input has more than %d pods: the pods that this and further workloads lack are left out", maxReplicas))
		}
		e.full = true
		return
	}
	for e.taken[ref{"Pod", t.namespace, name}] {
		name += "-" + short(t.via.kind, t.via.name, name)
	}
	key := ref{"Pod", t.namespace, name}
	e.taken[key] = true
	from := e.r.origins[t.via]
	from.via = t.via
	e.r.origins[key] = from
	e.r.Objects.Pods = append(e.r.Objects.Pods, t.pod(name))
}

func (t *template) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.namespace, UID: uid(ref{"Pod", t.namespace, name}), Labels: t.labels, Annotations: t.annotations, OwnerReferences: t.owner},
		Spec:       t.spec,
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// fresh calls add with the names of the first n ordinals, from 1, that are free.
func (e *expander) fresh(n int, namespace string, name func(i int) string, add func(name string)) {
	for i := 1; n > 0 && !e.full; i++ {
		if e.taken[ref{"Pod", namespace, name(i)}] {
			continue
		}
		add(name(i))
		n--
	}
}

// hashOf is a stable hash of a pod template, for names and pod-template-hash.
func hashOf(t corev1.PodTemplateSpec) string {
	raw, err := json.Marshal(t)
	if err != nil { // API types always marshal
		return "00000"
	}
	return short(string(raw)) + short(string(raw), "2")
}

func (e *expander) deployment(d *appsv1.Deployment) {
	me := ref{"Deployment", d.Namespace, d.Name}
	sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil { // checked when it was read
		return
	}
	have := 0
	var newest *appsv1.ReplicaSet
	mine := map[string]bool{}
	for _, rs := range e.r.Objects.ReplicaSets {
		if c := metav1.GetControllerOf(rs); rs.Namespace != d.Namespace || c == nil || c.Kind != "Deployment" || c.Name != d.Name {
			continue
		}
		mine[rs.Name] = true
		have += len(e.owned[ref{"ReplicaSet", rs.Namespace, rs.Name}])
		if newest == nil || revision(rs) > revision(newest) {
			newest = rs
		}
	}
	// Pods whose ReplicaSet is not in the input are recognised by its name.
	for key, pods := range e.owned {
		if key.kind != "ReplicaSet" || key.namespace != d.Namespace || mine[key.name] {
			continue
		}
		hash := pods[0].Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if hash != "" && key.name == d.Name+"-"+hash && sel.Matches(labels.Set(pods[0].Labels)) {
			have += len(pods)
		}
	}
	missing := count(d.Spec.Replicas) - have
	hash := hashOf(d.Spec.Template)
	if newest == nil {
		lbls := maps.Clone(d.Spec.Template.Labels)
		lbls[appsv1.DefaultDeploymentUniqueLabelKey] = hash
		selector := d.Spec.Selector.DeepCopy()
		if selector.MatchLabels == nil {
			selector.MatchLabels = map[string]string{}
		}
		selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
		newest = &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: d.Name + "-" + hash, Namespace: d.Namespace, Labels: lbls,
				UID: uid(ref{"ReplicaSet", d.Namespace, d.Name + "-" + hash}), OwnerReferences: controller("apps/v1", me, d)},
			Spec: appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: selector, Template: d.Spec.Template},
		}
		if missing > 0 {
			e.r.Objects.ReplicaSets = append(e.r.Objects.ReplicaSets, newest)
		}
	} else if h := newest.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; h != "" {
		hash = h
	}
	t := e.template(d.Spec.Template, controller("apps/v1", ref{"ReplicaSet", d.Namespace, newest.Name}, newest), me,
		map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: hash})
	e.workload(me, count(d.Spec.Replicas), func(i int) (string, *template, []*corev1.PersistentVolumeClaim) {
		return fmt.Sprintf("%s-%d", newest.Name, i), t, nil
	})
	e.fresh(missing, d.Namespace, func(i int) string { return fmt.Sprintf("%s-%d", newest.Name, i) }, func(name string) { e.pod(name, t) })
}

func revision(rs *appsv1.ReplicaSet) int {
	n, err := strconv.Atoi(rs.Annotations["deployment.kubernetes.io/revision"])
	if err != nil {
		return 0
	}
	return n
}

func (e *expander) replicas(me ref, apiVersion string, owner metav1.Object, replicas *int32, t corev1.PodTemplateSpec) {
	missing := count(replicas) - len(e.owned[me])
	tpl := e.template(t, controller(apiVersion, me, owner), me, nil)
	e.workload(me, count(replicas), func(i int) (string, *template, []*corev1.PersistentVolumeClaim) {
		return fmt.Sprintf("%s-%d", me.name, i), tpl, nil
	})
	e.fresh(missing, me.namespace, func(i int) string { return fmt.Sprintf("%s-%d", me.name, i) }, func(name string) { e.pod(name, tpl) })
}

func (e *expander) statefulSet(s *appsv1.StatefulSet) {
	me := ref{"StatefulSet", s.Namespace, s.Name}
	first := 0
	if s.Spec.Ordinals != nil {
		first = int(s.Spec.Ordinals.Start)
	}
	have := map[string]bool{}
	for _, p := range e.owned[me] {
		have[p.Name] = true
	}
	t := e.template(s.Spec.Template, controller("apps/v1", me, s), me, nil)
	made := func(i int) (string, *template, []*corev1.PersistentVolumeClaim) {
		name := fmt.Sprintf("%s-%d", s.Name, i)
		own := *t
		own.labels = maps.Clone(t.labels)
		own.labels[appsv1.StatefulSetPodNameLabel] = name
		own.labels[appsv1.PodIndexLabel] = strconv.Itoa(i)
		own.spec.Volumes = slices.DeleteFunc(slices.Clone(t.spec.Volumes), func(v corev1.Volume) bool {
			return slices.ContainsFunc(s.Spec.VolumeClaimTemplates, func(c corev1.PersistentVolumeClaim) bool { return c.Name == v.Name })
		})
		var claims []*corev1.PersistentVolumeClaim
		for _, c := range s.Spec.VolumeClaimTemplates {
			claim := c.Name + "-" + name
			own.spec.Volumes = append(own.spec.Volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
			claims = append(claims, newClaim(claim, s.Namespace, c.Labels, c.Spec, nil))
		}
		return name, &own, claims
	}
	e.workload(me, count(s.Spec.Replicas), func(i int) (string, *template, []*corev1.PersistentVolumeClaim) { return made(first + i - 1) })
	for i := first; i < first+count(s.Spec.Replicas) && !e.full; i++ {
		name, own, claims := made(i)
		if have[name] {
			continue
		}
		for _, c := range claims {
			e.claim(c, me)
		}
		e.pod(name, own)
	}
}

// newClaim is a claim as it is before it is bound.
func newClaim(name, namespace string, lbls map[string]string, spec corev1.PersistentVolumeClaimSpec, owner []metav1.OwnerReference) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: lbls, UID: uid(ref{"PersistentVolumeClaim", namespace, name}), OwnerReferences: owner},
		Spec:       *spec.DeepCopy(),
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

// claim adds a PersistentVolumeClaim unless the input has it.
func (e *expander) claim(c *corev1.PersistentVolumeClaim, via ref) {
	key := ref{"PersistentVolumeClaim", c.Namespace, c.Name}
	if e.byRef[key] != nil || e.taken[key] {
		return
	}
	e.taken[key] = true
	from := e.r.origins[via]
	from.via = via
	e.r.origins[key] = from
	e.r.Objects.PersistentVolumeClaims = append(e.r.Objects.PersistentVolumeClaims, c)
}

// ephemeral adds the claims of a pod's generic ephemeral volumes.
func (e *expander) ephemeral(p *corev1.Pod) {
	if !active(p) {
		return
	}
	for _, v := range p.Spec.Volumes {
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		tpl := v.Ephemeral.VolumeClaimTemplate
		me := ref{"Pod", p.Namespace, p.Name}
		e.claim(newClaim(p.Name+"-"+v.Name, p.Namespace, tpl.Labels, tpl.Spec, controller("v1", me, p)), me)
	}
}

func (e *expander) job(j *batchv1.Job) {
	if c := metav1.GetControllerOf(j); c != nil && c.Kind == "CronJob" {
		e.run(j, ref{"CronJob", j.Namespace, c.Name})
		return
	}
	e.run(j, ref{"Job", j.Namespace, j.Name})
}

// finished reports whether a Job makes no pod any more.
func finished(j *batchv1.Job) bool {
	return j.Spec.Suspend != nil && *j.Spec.Suspend || slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// run adds the pods that one Job wants at once.
func (e *expander) run(j *batchv1.Job, via ref) {
	if finished(j) {
		return
	}
	me := ref{"Job", j.Namespace, j.Name}
	want := count(j.Spec.Parallelism)
	if j.Spec.Completions != nil {
		want = min(want, int(*j.Spec.Completions)-int(j.Status.Succeeded))
	}
	have := e.owned[me]
	if want -= len(have); want <= 0 {
		return
	}
	if _, ok := e.r.origins[via]; !ok {
		via = me
	}
	lbls := map[string]string{batchv1.JobNameLabel: j.Name, "job-name": j.Name}
	t := e.template(j.Spec.Template, controller("batch/v1", me, j), via, lbls)
	if j.Spec.CompletionMode == nil || *j.Spec.CompletionMode != batchv1.IndexedCompletion {
		e.fresh(want, j.Namespace, func(i int) string { return fmt.Sprintf("%s-%d", j.Name, i) }, func(name string) { e.pod(name, t) })
		return
	}
	running := map[string]bool{}
	for _, p := range have {
		running[p.Labels[batchv1.JobCompletionIndexAnnotation]] = true
	}
	for i := int(j.Status.Succeeded); want > 0 && !e.full; i++ {
		index := strconv.Itoa(i)
		if running[index] {
			continue
		}
		own := *t
		own.labels = maps.Clone(t.labels)
		own.labels[batchv1.JobCompletionIndexAnnotation] = index
		e.pod(j.Name+"-"+index, &own)
		want--
	}
}

// cronJob adds the pods of one run, as if it was due, unless a run is in the input.
func (e *expander) cronJob(c *batchv1.CronJob) {
	me := ref{"CronJob", c.Namespace, c.Name}
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		return
	}
	for _, j := range sorted[*batchv1.Job](e.byRef) {
		if o := metav1.GetControllerOf(j); j.Namespace == c.Namespace && o != nil && o.Kind == "CronJob" && o.Name == c.Name && !finished(j) {
			return
		}
	}
	j := &batchv1.Job{ObjectMeta: *c.Spec.JobTemplate.ObjectMeta.DeepCopy(), Spec: *c.Spec.JobTemplate.Spec.DeepCopy()}
	j.Name, j.Namespace, j.UID = c.Name+"-next", c.Namespace, uid(ref{"Job", c.Namespace, c.Name + "-next"})
	j.OwnerReferences = controller("batch/v1", me, c)
	e.run(j, me)
	e.about(me, Note, "", "counts as one run at this moment")
}
