package world

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// Interrupt announces the end of the machines of claims or nodes, by name.
func (w *World) Interrupt(kind v1alpha1.InterruptionKind, names []string) error {
	for i, name := range names {
		claim := w.claimOf(name)
		if claim == "" && w.machines[name] != nil {
			claim = name
		}
		if w.machines[claim] == nil {
			return fmt.Errorf("there is no node %s", name)
		}
		names[i] = claim
	}
	return w.Change(func(c *v1alpha1.SimNodeClass) {
		c.Spec.Interruptions = append(c.Spec.Interruptions, v1alpha1.SimInterruption{
			Claims: names, Kind: kind, At: v1alpha1.SimTime(w.now.UTC().Format(time.RFC3339Nano)),
		})
	})
}

// Change replaces all simulated clouds by changed copies. Rules are part of them that say what
// is to happen later.
func (w *World) Change(do func(*v1alpha1.SimNodeClass)) error {
	for _, name := range w.classes {
		have, err := w.store.NodeClass(w.context(), name)
		if err != nil {
			continue // it was deleted
		}
		next := have.DeepCopy()
		do(next)
		if err := next.RuntimeValidate(); err != nil {
			return fmt.Errorf("SimNodeClass %q: %w", name, err)
		}
		w.setClass(next)
	}
	return nil
}

// Apply adds objects, or replaces those of their names. Pods of a workload whose template has
// changed are replaced, all at once.
func (w *World) Apply(r *load.Result) error {
	for _, c := range r.Classes {
		w.setClass(c)
	}
	for _, np := range r.Objects.NodePools {
		np.SetDefaults()
		w.SetPool(np)
	}
	o := &r.Objects
	w.rest.DaemonSets = replace(w.rest.DaemonSets, o.DaemonSets)
	w.rest.ReplicaSets = replace(w.rest.ReplicaSets, o.ReplicaSets)
	w.rest.StatefulSets = replace(w.rest.StatefulSets, o.StatefulSets)
	w.rest.ReplicationControllers = replace(w.rest.ReplicationControllers, o.ReplicationControllers)
	w.rest.Services = replace(w.rest.Services, o.Services)
	w.rest.Namespaces = replace(w.rest.Namespaces, o.Namespaces)
	w.rest.LimitRanges = replace(w.rest.LimitRanges, o.LimitRanges)
	w.rest.StorageClasses = replace(w.rest.StorageClasses, o.StorageClasses)
	w.rest.PersistentVolumes = replace(w.rest.PersistentVolumes, o.PersistentVolumes)
	w.rest.PersistentVolumeClaims = replace(w.rest.PersistentVolumeClaims, o.PersistentVolumeClaims)
	w.rest.PodDisruptionBudgets = replace(w.rest.PodDisruptionBudgets, o.PodDisruptionBudgets)
	w.rest.NodeOverlays = replace(w.rest.NodeOverlays, o.NodeOverlays)
	w.budgets = -1
	w.marketChanged()
	for i := range r.Workloads {
		if err := w.applyWorkload(&r.Workloads[i]); err != nil {
			return err
		}
	}
	for _, p := range o.Pods {
		if kind, _ := r.Workload(keyOf(p)); kind != "" && slices.ContainsFunc(r.Workloads, func(l load.Workload) bool { return l.Kind == kind }) {
			continue
		}
		if w.pod(keyOf(p)) == nil {
			w.AddPod(p)
		}
	}
	for _, n := range o.Nodes {
		w.nodes[n.Name] = n
		w.rebind = true
	}
	w.changed()
	w.stir()
	return nil
}

func (w *World) applyWorkload(l *load.Workload) error {
	me := owner{l.Kind, l.Namespace, l.Name}
	wl := w.workloads[me]
	if wl == nil {
		wl = &workload{owner: me, pods: map[string]bool{}}
		w.workloads[me] = wl
	}
	fresh, _ := l.Pod(1)
	w.aliasTo(fresh, me)
	if wl.known != nil || wl.model != nil {
		var old *corev1.Pod
		if wl.known != nil {
			old, _ = wl.known.Pod(1)
		} else {
			old = wl.model
		}
		if fmt.Sprint(old.Spec.Containers) != fmt.Sprint(fresh.Spec.Containers) {
			for _, p := range w.leastWanted(wl) {
				w.end(p, w.now)
			}
		}
	}
	wl.known, wl.model = l, fresh
	return w.Scale(l.Kind, l.Namespace, l.Name, l.Replicas)
}

// replace is have with the objects of more, which replace those of their names.
func replace[T metav1.Object](have, more []T) []T {
	if len(more) == 0 {
		return have
	}
	out := slices.Clone(have)
	for _, o := range more {
		i := slices.IndexFunc(out, func(h T) bool { return h.GetNamespace() == o.GetNamespace() && h.GetName() == o.GetName() })
		if i < 0 {
			out = append(out, o)
		} else {
			out[i] = o
		}
	}
	return out
}

// Deletable are the kinds that [World.Delete] knows, in lower case.
func Deletable() []string {
	return []string{"pod", "node", "nodeclaim", "nodepool", "deployment", "deploy", "statefulset", "sts", "replicaset", "rs", "poddisruptionbudget", "pdb"}
}

// Delete deletes an object. Pods of workloads come back; those of deleted workloads do not; the
// nodes of a deleted NodePool go.
func (w *World) Delete(kind, namespace, name string) error {
	switch kind {
	case "pod":
		p := w.pod(snapshot.PodKey{Namespace: namespace, Name: name})
		if p == nil {
			return fmt.Errorf("there is no pod %s/%s", namespace, name)
		}
		w.say(Entry{Kind: Scripted, Object: namespace + "/" + name, Text: "pod deleted"})
		wl := w.workloadOf(p)
		if wl != nil && wl.kind == "StatefulSet" {
			w.record.returning[keyOf(p)] = true
		}
		w.end(p, w.now)
		if wl != nil && wl.kind != "StatefulSet" && wl.kind != "Job" {
			w.again(wl, p)
		}
	case "node", "nodeclaim":
		claim := w.claimOf(name)
		if claim == "" {
			if w.nodes[name] == nil {
				return fmt.Errorf("there is no node %s", name)
			}
			w.removeNode(name)
			return nil
		}
		w.say(Entry{Kind: Scripted, Object: name, Text: "node deleted"})
		w.disrupter.lost(w, claim)
		w.deleteClaim(claim, CauseRemoved, "it was deleted by hand")
	case "nodepool":
		i := slices.IndexFunc(w.rest.NodePools, func(np *karpv1.NodePool) bool { return np.Name == name })
		if i < 0 {
			return fmt.Errorf("there is no NodePool %s", name)
		}
		w.DrainPool(name)
		w.rest.NodePools = slices.Delete(slices.Clone(w.rest.NodePools), i, i+1)
		w.marketChanged()
	case "poddisruptionbudget", "pdb":
		w.rest.PodDisruptionBudgets = slices.DeleteFunc(slices.Clone(w.rest.PodDisruptionBudgets), func(b *policyv1.PodDisruptionBudget) bool {
			return b.Namespace == namespace && b.Name == name
		})
		w.changed()
		w.stir()
	default:
		wl, err := w.lookUp(kind, namespace, name)
		if err != nil {
			return err
		}
		if err := w.Scale(kind, namespace, name, 0); err != nil {
			return err
		}
		delete(w.workloads, wl.owner)
	}
	return nil
}

// removeNode takes away a node that nobody manages.
func (w *World) removeNode(name string) {
	delete(w.nodes, name)
	w.unexpect(name)
	for _, p := range w.on(name) {
		if candidate.Daemon(p) || candidate.Mirror(p) || candidate.Terminating(p) {
			w.remove(p)
		} else {
			w.evict(p, "its node was deleted")
		}
	}
	w.say(Entry{Kind: Gone, Object: name})
	w.changed()
	w.stir()
	w.rebind = true
}

// DrainPool deletes the nodes of a NodePool, all at once, and returns how many there were.
func (w *World) DrainPool(pool string) int {
	n := 0
	for _, name := range w.claimNames() {
		if c := w.claims[name]; c != nil && c.Labels[karpv1.NodePoolLabelKey] == pool && c.DeletionTimestamp == nil {
			n++
			w.disrupter.lost(w, name)
			w.deleteClaim(name, CauseRemoved, "NodePool "+pool+" is drained")
		}
	}
	return n
}

func (w *World) claimNames() []string {
	out := make([]string, 0, len(w.claims))
	for name := range w.claims {
		out = append(out, name)
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
