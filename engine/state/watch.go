package state

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
)

// watchedKind is a kind that snapshots hold.
type watchedKind struct {
	name string
	new  func() client.Object
}

// watchedKinds are those of all snapshots; NodeOverlays come on top.
func watchedKinds(overlays bool) []watchedKind {
	kinds := []watchedKind{
		{"NodePool", func() client.Object { return &karpv1.NodePool{} }},
		{"NodeClaim", func() client.Object { return &karpv1.NodeClaim{} }},
		{"Node", func() client.Object { return &corev1.Node{} }},
		{"Pod", func() client.Object { return &corev1.Pod{} }},
		{"DaemonSet", func() client.Object { return &appsv1.DaemonSet{} }},
		{"ReplicaSet", func() client.Object { return &appsv1.ReplicaSet{} }},
		{"StatefulSet", func() client.Object { return &appsv1.StatefulSet{} }},
		{"ReplicationController", func() client.Object { return &corev1.ReplicationController{} }},
		{"Service", func() client.Object { return &corev1.Service{} }},
		{"Namespace", func() client.Object { return &corev1.Namespace{} }},
		{"LimitRange", func() client.Object { return &corev1.LimitRange{} }},
		{"PersistentVolume", func() client.Object { return &corev1.PersistentVolume{} }},
		{"PersistentVolumeClaim", func() client.Object { return &corev1.PersistentVolumeClaim{} }},
		{"StorageClass", func() client.Object { return &storagev1.StorageClass{} }},
		{"CSINode", func() client.Object { return &storagev1.CSINode{} }},
		{"PodDisruptionBudget", func() client.Object { return &policyv1.PodDisruptionBudget{} }},
	}
	if overlays {
		kinds = append(kinds, watchedKind{"NodeOverlay", func() client.Object { return &karpv1alpha1.NodeOverlay{} }})
	}
	return kinds
}

// unseenFor is how long an object that a controller told of may stay unseen by the
// watches before it is looked up: it may have been deleted before they saw it.
const unseenFor = 15 * time.Second

// deadFor is how long it is remembered that an object is gone.
const deadFor = 10 * time.Minute

// Watch follows all objects that snapshots hold, through the informers of source, which
// may have started or not. It returns at once; the cluster is synced once everything that
// exists has been seen. The error names the kind that cannot be watched.
//
// What Watch starts ends with ctx.
func (c *Cluster) Watch(ctx context.Context, source cache.Cache) error {
	type registration struct {
		kind string
		done func() bool
	}
	var all []registration
	handler := c.handlers()
	for _, k := range watchedKinds(c.opts.NodeOverlays) {
		informer, err := source.GetInformer(ctx, k.new(), cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %s: %w", k.name, err)
		}
		r, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch %s: %w", k.name, err)
		}
		all = append(all, registration{k.name, r.HasSynced})
	}
	c.mu.Lock()
	c.unsynced = func() string {
		var missing []string
		for _, r := range all {
			if !r.done() {
				missing = append(missing, r.kind)
			}
		}
		if missing == nil {
			return ""
		}
		return "not all objects have been seen of: " + strings.Join(missing, ", ")
	}
	c.mu.Unlock()
	go c.keep(ctx, source)
	return nil
}

func (c *Cluster) handlers() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, _ bool) { c.see(o) },
		UpdateFunc: func(_, o any) { c.see(o) },
		DeleteFunc: func(o any) {
			if late, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = late.Obj
			}
			if o, ok := o.(client.Object); ok {
				c.Remove(o)
			}
		},
	}
}

func (c *Cluster) see(o any) {
	if o, ok := o.(client.Object); ok {
		c.update(o, true)
	}
}

// keep does what is due, and tells once the cluster is synced.
func (c *Cluster) keep(ctx context.Context, source client.Reader) {
	synced := false
	interval := 20 * time.Millisecond
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
		if !synced {
			if synced = c.Synced(); !synced {
				continue
			}
			interval = time.Second
			c.mu.Lock()
			c.tell("synced", c.wants())
			// Nothing changes without cause any more: no revision is looked at before.
			c.unsynced = func() string { return "" }
			c.unlock()
		}
		c.Expire()
		if n%5 == 0 {
			c.lookUp(ctx, source)
			c.sweep()
		}
	}
}

// lookUp drops objects that were told of, never seen, and do not exist.
func (c *Cluster) lookUp(ctx context.Context, source client.Reader) {
	now := c.opts.Now()
	var doubtful []client.Object
	c.mu.Lock()
	doubtful = append(doubtful, unseen(c.podTable, now)...)
	doubtful = append(doubtful, unseen(c.nodeTable, now)...)
	doubtful = append(doubtful, unseen(c.claimTable, now)...)
	doubtful = append(doubtful, unseen(c.poolTable, now)...)
	c.mu.Unlock()
	for _, o := range doubtful {
		found := o.DeepCopyObject().(client.Object)
		if err := source.Get(ctx, client.ObjectKeyFromObject(o), found); apierrors.IsNotFound(err) || err == nil && found.GetUID() != o.GetUID() {
			c.Remove(o)
		}
	}
}

func unseen[T client.Object](t *table[T], now time.Time) []client.Object {
	var out []client.Object
	for k, since := range t.unseen {
		if now.Sub(since) > unseenFor {
			out = append(out, t.by[k])
		}
	}
	slices.SortFunc(out, func(a, b client.Object) int { return compareKeys(keyOf(a), keyOf(b)) })
	return out
}

// sweep forgets what cannot matter any more.
func (c *Cluster) sweep() {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range []interface{ sweep(time.Time) }{
		c.podTable, c.nodeTable, c.claimTable, c.poolTable, c.overlays, c.daemonSets, c.replicaSets, c.statefulSets, c.controllers,
		c.services, c.namespaces, c.limitRanges, c.volumes, c.volumeClaims, c.classes, c.csiNodes, c.budgets,
	} {
		t.sweep(now.Add(-deadFor))
	}
	for name, until := range c.nominated {
		if !now.Before(until) {
			delete(c.nominated, name)
		}
	}
}
