package metrics

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// handle calls f with an object before and after each change; nil is one that was not or
// is no longer there.
func handle[T metav1.Object](f func(before, after T)) toolscache.ResourceEventHandler {
	var none T
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if o, ok := o.(T); ok {
				f(none, o)
			}
		},
		UpdateFunc: func(before, after any) {
			b, ok1 := before.(T)
			a, ok2 := after.(T)
			switch {
			case !ok1 || !ok2:
			case a.GetUID() != b.GetUID(): // the deletion between them was missed
				f(b, none)
				f(none, a)
			default:
				f(b, a)
			}
		},
		DeleteFunc: func(o any) {
			if late, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = late.Obj
			}
			if o, ok := o.(T); ok {
				f(o, none)
			}
		},
	}
}

// waiting is a pod that has not run yet.
type waiting struct{ bound bool }

func (c *Controller) pods() toolscache.ResourceEventHandler {
	return handle(func(before, after *corev1.Pod) {
		if after == nil {
			c.mu.Lock()
			delete(c.waiting, before.UID)
			c.mu.Unlock()
			return
		}
		c.seePod(after)
	})
}

// seePod measures the first time that a pod is bound, and that it is ready. Pods that were
// when measuring began have been measured before.
func (c *Controller) seePod(p *corev1.Pod) {
	m := c.opts.Metrics
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[p.UID]
	scheduled, ready := podCondition(p, corev1.PodScheduled), podCondition(p, corev1.PodReady)
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		// A pod that has ended is not ready, since a time that says nothing about its start.
		delete(c.waiting, p.UID)
		return
	case w == nil && p.Status.Phase != corev1.PodPending:
		return
	case w == nil:
		w = &waiting{bound: scheduled != nil && scheduled.LastTransitionTime.Time.Before(c.started.Truncate(time.Second))}
		c.waiting[p.UID] = w
	}
	placed := c.opts.State.WaitOf(snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}).Placed
	since := func(at metav1.Time, start time.Time) float64 { return max(at.Sub(start).Seconds(), 0) }
	if scheduled != nil && !w.bound {
		w.bound = true
		m.PodsBound.WithLabelValues(dynamic(p)).Observe(since(scheduled.LastTransitionTime, p.CreationTimestamp.Time))
		if !placed.IsZero() {
			m.PodsProvisioningBound.WithLabelValues(dynamic(p)).Observe(since(scheduled.LastTransitionTime, placed))
		}
	}
	if ready != nil {
		delete(c.waiting, p.UID)
		m.PodsStartup.Observe(since(ready.LastTransitionTime, p.CreationTimestamp.Time))
		if !placed.IsZero() {
			m.PodsProvisioningStart.Observe(since(ready.LastTransitionTime, placed))
		}
	}
}

// condition is one of an object of any kind.
type condition struct {
	kind, status, reason, message string
	since                         time.Time
}

// conditionsOf are the conditions of an object.
func conditionsOf(o metav1.Object) []condition {
	var out []condition
	list := func(conditions []metav1.Condition) {
		for _, c := range conditions {
			out = append(out, condition{c.Type, string(c.Status), c.Reason, c.Message, c.LastTransitionTime.Time})
		}
	}
	switch o := o.(type) {
	case *karpv1.NodeClaim:
		list(o.Status.Conditions)
	case *karpv1.NodePool:
		list(o.Status.Conditions)
	case *corev1.Node:
		for _, c := range o.Status.Conditions {
			out = append(out, condition{string(c.Type), string(c.Status), c.Reason, c.Message, c.LastTransitionTime.Time})
		}
	}
	return out
}

// form is a form of the metrics of a kind, with the last labels of an object.
type form struct {
	*observe.Conditions
	labels []string
}

// forms are those that an object has metrics in.
func forms(m *observe.Conditions, o metav1.Object) []form {
	labels := make([]string, len(m.Labels))
	for i, key := range m.Labels {
		labels[i] = o.GetLabels()[key]
	}
	out := []form{{m, labels}}
	if m.Old != nil {
		out = append(out, form{m.Old, []string{m.Group, m.Kind}})
	}
	return out
}

// conditions measures the changes of conditions of a kind, and the ends of its objects.
func (c *Controller) conditions(m *observe.Conditions, tell bool) toolscache.ResourceEventHandler {
	return handle(func(before, after observe.Object) { c.seeConditions(m, tell, before, after) })
}

// nodePools measures the conditions of NodePools, and forgets what others have measured of
// those that are gone: who measures in passes may make none without them.
func (c *Controller) nodePools() toolscache.ResourceEventHandler {
	return handle(func(before, after observe.Object) {
		if after == nil {
			of := map[string]string{"nodepool": before.GetName()}
			c.opts.Metrics.AllowedDisruptions.DeletePartialMatch(of)
			c.opts.Metrics.BudgetConsumers.DeletePartialMatch(of)
		}
		c.seeConditions(c.opts.Objects.NodePool, true, before, after)
	})
}

func (c *Controller) seeConditions(m *observe.Conditions, tell bool, before, after observe.Object) {
	if after == nil {
		if at := before.GetDeletionTimestamp(); at != nil {
			for _, f := range forms(m, before) {
				f.Termination.WithLabelValues(f.labels...).Observe(max(c.opts.Now().Sub(at.Time).Seconds(), 0))
			}
		}
		if tell {
			c.finalized(before, before.GetFinalizers())
		}
		return
	}
	var old []condition
	if before != nil {
		old = conditionsOf(before)
		if tell {
			c.finalized(after, slices.DeleteFunc(slices.Clone(before.GetFinalizers()), func(f string) bool { return slices.Contains(after.GetFinalizers(), f) }))
		}
	}
	for _, now := range conditionsOf(after) {
		i := slices.IndexFunc(old, func(was condition) bool { return was.kind == now.kind })
		switch {
		case i >= 0 && old[i].status == now.status:
			continue
		case before == nil && now.since.Before(c.since()):
			continue // it was so before anybody measured
		}
		for _, f := range forms(m, after) {
			f.Transitions.WithLabelValues(append([]string{now.kind, now.status, now.reason}, f.labels...)...).Inc()
			if i >= 0 {
				f.Transition.WithLabelValues(append([]string{now.kind, old[i].status, now.status}, f.labels...)...).Observe(max(now.since.Sub(old[i].since).Seconds(), 0))
			}
		}
		if i >= 0 && tell {
			message := fmt.Sprintf("Status condition transitioned, Type: %s, Status: %s -> %s, Reason: %s", now.kind, old[i].status, now.status, cmp.Or(now.reason, "none"))
			if now.message != "" {
				message += ", Message: " + now.message
			}
			c.opts.Events.Publish(observe.Event{About: after, Reason: now.kind, Message: message})
		}
	}
}

// since is when measuring began, in the resolution of times in objects.
func (c *Controller) since() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started.Truncate(time.Second)
}

func (c *Controller) finalized(o observe.Object, finalizers []string) {
	for _, f := range finalizers {
		c.opts.Events.Publish(observe.Event{About: o, Reason: observe.Finalized, Message: "Finalized " + f})
	}
}
