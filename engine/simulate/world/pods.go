package world

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/binder"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// owner names what keeps pods.
type owner struct{ kind, namespace, name string }

func (o owner) String() string { return strings.ToLower(o.kind) + " " + o.namespace + "/" + o.name }

// workload is a controller of pods.
type workload struct {
	owner
	// pods are those that it has made, by name, terminating ones left out.
	pods map[string]bool
	// model is the pod that new ones are like; nil until one was seen.
	model *corev1.Pod
	// known makes pods by number; it is nil for what only its pods tell of.
	known  *load.Workload
	serial int
}

// expectation is where a pod is planned.
type expectation struct {
	// node is the name of a node, or of a claim whose node is not there yet.
	node string
	// until is when it is given up; zero while the node is not there.
	until time.Time
}

func keyOf(p *corev1.Pod) snapshot.PodKey {
	return snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}
}

// find is the index at which a pod of that name is or would be.
func (w *World) find(key snapshot.PodKey) (int, bool) {
	return slices.BinarySearchFunc(w.pods, key, func(p *corev1.Pod, want snapshot.PodKey) int {
		return cmp.Or(strings.Compare(p.Namespace, want.Namespace), strings.Compare(p.Name, want.Name))
	})
}

// pod is the pod of a name, or nil.
func (w *World) pod(key snapshot.PodKey) *corev1.Pod {
	if i, ok := w.find(key); ok {
		return w.pods[i]
	}
	return nil
}

func (w *World) insert(p *corev1.Pod) {
	i, ok := w.find(keyOf(p))
	if ok {
		w.pods[i] = p
	} else {
		w.pods = slices.Insert(w.pods, i, p)
	}
	w.changed()
}

// change replaces a pod by a changed copy.
func (w *World) change(p *corev1.Pod, do func(*corev1.Pod)) *corev1.Pod {
	q := *p // specs are shared: nothing but the node's name changes in them
	q.Status = *p.Status.DeepCopy()
	do(&q)
	w.insert(&q)
	return &q
}

// know tells the workload of a pod of it, and kube-scheduler.
func (w *World) know(p *corev1.Pod) {
	if wl := w.workloadOf(p); wl != nil && candidate.Active(p) {
		wl.pods[p.Name] = true
		if wl.model == nil {
			wl.model = p
		}
	}
	if p.Spec.NodeName == "" && candidate.Active(p) {
		w.unbound[keyOf(p)] = true
		w.record.waits(keyOf(p), w.now)
		w.rebind = true
	}
}

// workloadOf is the controller of a pod; nil if nothing makes it again.
func (w *World) workloadOf(p *corev1.Pod) *workload {
	c := metav1.GetControllerOf(p)
	if c == nil || c.Kind == "DaemonSet" || c.Kind == "Node" {
		return nil
	}
	me := owner{c.Kind, p.Namespace, c.Name}
	if top, ok := w.aliases[me]; ok {
		me = top
	}
	wl := w.workloads[me]
	if wl == nil {
		wl = &workload{owner: me, pods: map[string]bool{}}
		w.workloads[me] = wl
	}
	return wl
}

// Know tells the world of workloads, so that those without pods can be scaled. name is the
// workload that a pod was made from; see [load.Result.Workload].
func (w *World) Know(list []load.Workload, name func(snapshot.PodKey) (kind, name string)) {
	for _, p := range w.pods {
		w.alias(p, name)
	}
	for i := range list {
		l := &list[i]
		me := owner{l.Kind, l.Namespace, l.Name}
		wl := w.workloads[me]
		if wl == nil {
			wl = &workload{owner: me, pods: map[string]bool{}}
			w.workloads[me] = wl
		}
		wl.known = l
		if p, _ := l.Pod(1); p != nil {
			w.aliasTo(p, me)
		}
	}
}

// alias makes what made a pod part of the workload that people know.
func (w *World) alias(p *corev1.Pod, name func(snapshot.PodKey) (kind, name string)) {
	kind, top := name(keyOf(p))
	c := metav1.GetControllerOf(p)
	if kind == "" || c == nil || c.Kind == kind && c.Name == top || c.Kind == "DaemonSet" || c.Kind == "Node" {
		return
	}
	w.aliasTo(p, owner{kind, p.Namespace, top})
}

// aliasTo makes the controller of a pod part of a workload.
func (w *World) aliasTo(p *corev1.Pod, to owner) {
	c := metav1.GetControllerOf(p)
	if c == nil {
		return
	}
	from := owner{c.Kind, p.Namespace, c.Name}
	if from == to {
		return
	}
	if _, ok := w.aliases[from]; ok {
		return
	}
	old := w.workloads[from]
	w.aliases[from] = to
	if old == nil {
		return
	}
	delete(w.workloads, from)
	wl := w.workloads[to]
	if wl == nil {
		old.owner = to
		w.workloads[to] = old
		return
	}
	for n := range old.pods {
		wl.pods[n] = true
	}
	wl.model = cmp.Or(wl.model, old.model)
}

// AddPod adds a pod that waits for a node.
func (w *World) AddPod(p *corev1.Pod) {
	q := *p
	q.CreationTimestamp = metav1.NewTime(w.now)
	q.Spec.NodeName = ""
	q.Status = corev1.PodStatus{Phase: corev1.PodPending}
	w.insert(&q)
	w.serial++
	w.arrived[q.UID] = int64(w.serial)
	w.know(&q)
}

// again makes the pod that follows one that has gone.
func (w *World) again(wl *workload, p *corev1.Pod) *corev1.Pod {
	q := *p
	q.DeletionTimestamp, q.DeletionGracePeriodSeconds = nil, nil
	if wl.kind != "StatefulSet" {
		q.Name = w.freshName(wl, p)
	}
	w.serial++
	q.UID = types.UID(fmt.Sprintf("%s-%d", q.Name, w.serial))
	w.AddPod(&q)
	return &q
}

// freshName is a name for another pod like p.
func (w *World) freshName(wl *workload, p *corev1.Pod) string {
	base := p.Name
	// A pod that is called as what made it keeps all of its name: job-1 and job-2 are two.
	if i := strings.LastIndex(base, "-"); i > 0 && base != wl.name {
		base = base[:i]
	}
	for {
		wl.serial++
		name := fmt.Sprintf("%s-r%d", base, wl.serial)
		if w.pod(snapshot.PodKey{Namespace: p.Namespace, Name: name}) == nil {
			return name
		}
	}
}

// Scale sets the number of pods of a workload. kind may be short, such as deploy or sts, and
// empty if the name is enough.
func (w *World) Scale(kind, namespace, name string, replicas int) error {
	wl, err := w.lookUp(kind, namespace, name)
	if err != nil {
		return err
	}
	before := len(wl.pods)
	for n := 1; len(wl.pods) < replicas; n++ {
		if n > replicas+len(w.pods)+1 {
			return fmt.Errorf("scale %s: its pods cannot be told from others", wl)
		}
		p, err := w.one(wl, n)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		w.AddPod(p)
	}
	if more := len(wl.pods) - replicas; more > 0 {
		for _, p := range w.leastWanted(wl)[:more] {
			w.end(p, w.now)
		}
	}
	w.say(Entry{Kind: Scaled, Object: wl.String(), Text: fmt.Sprintf("%d → %d pods", before, replicas)})
	return nil
}

// one is another pod of a workload, by number; nil if that one is there.
func (w *World) one(wl *workload, number int) (*corev1.Pod, error) {
	if wl.known != nil {
		p, claims := wl.known.Pod(number)
		if w.pod(keyOf(p)) != nil {
			return nil, nil //nolint:nilnil // there is one already
		}
		for _, c := range claims {
			if !slices.ContainsFunc(w.rest.PersistentVolumeClaims, func(h *corev1.PersistentVolumeClaim) bool { return h.Namespace == c.Namespace && h.Name == c.Name }) {
				w.rest.PersistentVolumeClaims = append(w.rest.PersistentVolumeClaims, c)
			}
		}
		return p, nil
	}
	if wl.model == nil {
		return nil, fmt.Errorf("scale %s: it has no pod that others could be like", wl)
	}
	q := *wl.model
	q.Name = w.freshName(wl, wl.model)
	q.UID = types.UID(wl.namespace + "-" + q.Name)
	q.DeletionTimestamp = nil
	return &q, nil
}

// leastWanted are the pods of a workload in the order in which they go when there are to be
// fewer: those without a node, then those that cost least to delete, then young ones.
func (w *World) leastWanted(wl *workload) []*corev1.Pod {
	var list []*corev1.Pod
	for name := range wl.pods {
		if p := w.pod(snapshot.PodKey{Namespace: wl.namespace, Name: name}); p != nil {
			list = append(list, p)
		}
	}
	number := func(p *corev1.Pod) string { // the highest number of a set goes first
		if wl.kind != "StatefulSet" {
			return ""
		}
		return fmt.Sprintf("%20s", p.Name[strings.LastIndex(p.Name, "-")+1:])
	}
	bound := func(p *corev1.Pod) int {
		if p.Spec.NodeName == "" {
			return 0
		}
		return 1
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return cmp.Or(strings.Compare(number(b), number(a)), cmp.Compare(bound(a), bound(b)), cmp.Compare(candidate.EvictionCost(a, true), candidate.EvictionCost(b, true)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return list
}

var shortKinds = map[string]string{
	"deploy": "Deployment", "deployment": "Deployment", "deployments": "Deployment", "rs": "ReplicaSet", "replicaset": "ReplicaSet", "replicasets": "ReplicaSet",
	"sts": "StatefulSet", "statefulset": "StatefulSet", "statefulsets": "StatefulSet", "rc": "ReplicationController", "replicationcontroller": "ReplicationController",
	"job": "Job", "jobs": "Job",
}

func (w *World) lookUp(kind, namespace, name string) (*workload, error) {
	full := shortKinds[strings.ToLower(kind)]
	var found []*workload
	for o, wl := range w.workloads {
		if o.namespace == namespace && o.name == name && (full == "" || o.kind == full) {
			found = append(found, wl)
		}
	}
	// A Deployment of which only the ReplicaSet is known is as good.
	if wl := w.workloads[owner{"ReplicaSet", namespace, name}]; len(found) == 0 && full == "Deployment" && wl != nil {
		return wl, nil
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("there is no workload %s", strings.TrimSpace(kind+" "+namespace+"/"+name))
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%s/%s names several workloads: name the kind too", namespace, name)
}

// RemovePod takes a pod away, as when its work is done; so goes the one that has followed it
// if it was evicted meanwhile. Nothing makes it again.
func (w *World) RemovePod(key snapshot.PodKey) {
	for {
		next, ok := w.record.heirs[key]
		if !ok {
			break
		}
		key = next
	}
	if p := w.pod(key); p != nil {
		if wl := w.workloadOf(p); wl != nil {
			delete(wl.pods, p.Name)
			if len(wl.pods) == 0 && wl.kind == "Job" {
				delete(w.workloads, wl.owner)
			}
		}
		w.remove(p)
	}
}

// end lets a pod end, which takes a moment if it runs.
func (w *World) end(p *corev1.Pod, by time.Time) {
	if wl := w.workloadOf(p); wl != nil {
		delete(wl.pods, p.Name)
	}
	if p.Spec.NodeName == "" {
		w.remove(p)
		return
	}
	at := by.Add(w.shutdown(p))
	q := w.change(p, func(q *corev1.Pod) {
		q.DeletionTimestamp = &metav1.Time{Time: at}
		q.DeletionGracePeriodSeconds = new(int64(at.Sub(w.now) / time.Second))
	})
	w.podEvent(q.Spec.NodeName)
	w.stir()
	w.queue.push(at, func() {
		if have := w.pod(keyOf(q)); have != nil && have.UID == q.UID && candidate.Terminating(have) {
			w.remove(have)
		}
	})
}

// shutdown is how long a pod takes to end.
func (w *World) shutdown(p *corev1.Pod) time.Duration {
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		return min(time.Duration(*s)*time.Second, w.opts.Shutdown)
	}
	return w.opts.Shutdown
}

// remove takes a pod out of the world.
func (w *World) remove(p *corev1.Pod) {
	key := keyOf(p)
	i, ok := w.find(key)
	if !ok || w.pods[i].UID != p.UID {
		return
	}
	w.pods = slices.Delete(w.pods, i, i+1)
	delete(w.unbound, key)
	delete(w.expected, key)
	w.record.gone(key, w.now)
	if p.Spec.NodeName != "" {
		w.record.use(p, -1)
	}
	w.changed()
	if p.Spec.NodeName != "" {
		w.rebind = true
		w.stir()
		if !candidate.Terminating(p) {
			w.podEvent(p.Spec.NodeName)
		}
		if n := w.nodes[p.Spec.NodeName]; n != nil && n.DeletionTimestamp != nil {
			w.queue.push(w.now, func() { w.drain(n.Name) })
		}
	}
	// The pod of a set comes back under its name.
	if wl := w.workloadOf(p); wl != nil && candidate.Terminating(p) && w.record.returning[key] {
		delete(w.record.returning, key)
		w.again(wl, p)
	}
}

// evict makes a pod leave its node, and its workload make another. lost is why, for a pod
// whose node is gone; it ends at once.
func (w *World) evict(p *corev1.Pod, lost string) {
	key := keyOf(p)
	wl := w.workloadOf(p)
	w.record.evicted(w, p, lost)
	set := wl != nil && wl.kind == "StatefulSet"
	if set {
		w.record.returning[key] = true
	}
	if lost != "" {
		q := w.change(p, func(q *corev1.Pod) { q.DeletionTimestamp = &metav1.Time{Time: w.now} })
		if wl != nil {
			delete(wl.pods, p.Name)
		}
		w.remove(q)
	} else {
		w.end(p, w.now)
	}
	if wl != nil && !set {
		q := w.again(wl, p)
		w.record.heirs[key] = keyOf(q)
		if w.record.moving {
			w.record.moved[keyOf(q)] = true
		}
	}
}

// bind has kube-scheduler look at the pods that wait.
func (w *World) bind() {
	if len(w.unbound) == 0 {
		return
	}
	snap, _ := w.snapshot()
	waiting := make([]binder.Pod, 0, len(w.unbound))
	for key := range w.unbound {
		p := w.pod(key)
		if p == nil || len(p.Spec.SchedulingGates) > 0 {
			continue
		}
		waiting = append(waiting, binder.Pod{Key: key, Nominated: w.expected[key].node, Since: w.arrived[p.UID]})
	}
	slices.SortFunc(waiting, func(a, b binder.Pod) int {
		return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
	})
	bound := binder.Bind(snap, waiting)
	for _, b := range bound {
		w.bindPod(b)
	}
	for _, p := range waiting {
		if w.unbound[p.Key] && w.expected[p.Key].node == "" {
			w.batch.trigger(w, p.Key)
		}
	}
}

func (w *World) bindPod(b binder.Binding) {
	p := w.pod(b.Pod)
	q := w.change(p, func(q *corev1.Pod) {
		q.Spec.NodeName = b.Node
		q.Status.Phase = corev1.PodRunning
		now := metav1.NewTime(w.now)
		q.Status.StartTime = &now
		q.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		}
	})
	delete(w.unbound, b.Pod)
	delete(w.expected, b.Pod)
	delete(w.batch.left, b.Pod)
	w.record.bound(b.Pod, w.now)
	w.record.use(q, 1)
	w.podEvent(b.Node)
	w.stir()
	w.bindVolumes(q)
}

// bindVolumes gives the claims of a pod that are not bound a volume where the pod is.
func (w *World) bindVolumes(p *corev1.Pod) {
	n := w.nodes[p.Spec.NodeName]
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = p.Name + "-" + v.Name
		default:
			continue
		}
		at := slices.IndexFunc(w.rest.PersistentVolumeClaims, func(c *corev1.PersistentVolumeClaim) bool { return c.Namespace == p.Namespace && c.Name == name })
		if at < 0 || w.rest.PersistentVolumeClaims[at].Spec.VolumeName != "" || n == nil {
			continue
		}
		c := w.rest.PersistentVolumeClaims[at].DeepCopy()
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + c.Namespace + "-" + c.Name}}
		driver := ""
		for _, sc := range w.rest.StorageClasses {
			if c.Spec.StorageClassName != nil && sc.Name == *c.Spec.StorageClassName {
				driver = sc.Provisioner
			}
		}
		pv.Spec.AccessModes = c.Spec.AccessModes
		pv.Spec.Capacity = c.Spec.Resources.Requests
		if c.Spec.StorageClassName != nil {
			pv.Spec.StorageClassName = *c.Spec.StorageClassName
		}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: pv.Name}
		if zone := n.Labels[corev1.LabelTopologyZone]; zone != "" {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}}}}
		}
		pv.Status.Phase = corev1.VolumeBound
		c.Spec.VolumeName, c.Status.Phase = pv.Name, corev1.ClaimBound
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
		w.rest.PersistentVolumeClaims[at] = c
		w.rest.PersistentVolumes = append(w.rest.PersistentVolumes, pv)
		w.changed()
	}
}
