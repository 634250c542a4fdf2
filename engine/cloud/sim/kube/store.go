package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

const (
	// attempts is how often an update is tried again that somebody else's crossed.
	attempts = 5
	// lag is the time after which a cache is taken to have seen a creation.
	lag = time.Minute
	// fileAge is how old the content of a catalogue file may be.
	fileAge = 10 * time.Second
)

// objects are the records of machines, classes and catalogue files as objects.
type objects struct {
	standIns []schema.GroupVersionKind
	client   client.Client
	// live reads past the client's cache.
	live client.Reader
	now  func() time.Time

	mu sync.Mutex
	// created are machines that the cache may not have yet.
	created map[string]*v1alpha1.SimInstance
	files   map[v1alpha1.ConfigMapReference]fetched
}

type fetched struct {
	sim.File
	err error
	at  time.Time
}

var (
	_ sim.Store   = (*objects)(nil)
	_ sim.Classes = (*objects)(nil)
)

func newObjects(c client.Client, live client.Reader, now func() time.Time) *objects {
	return &objects{client: c, live: live, now: now, created: map[string]*v1alpha1.SimInstance{}, files: map[v1alpha1.ConfigMapReference]fetched{}}
}

// Create implements [sim.Store].
func (o *objects) Create(ctx context.Context, in *v1alpha1.SimInstance) error {
	in = in.DeepCopy()
	switch err := o.client.Create(ctx, in); {
	case apierrors.IsAlreadyExists(err):
		return sim.ErrExists
	case err != nil:
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.created[in.Name] = in
	return nil
}

// Get implements [sim.Store].
func (o *objects) Get(ctx context.Context, name string) (*v1alpha1.SimInstance, error) {
	in := &v1alpha1.SimInstance{}
	err := o.client.Get(ctx, client.ObjectKey{Name: name}, in)
	if apierrors.IsNotFound(err) {
		return o.getLive(ctx, name)
	}
	return in, err
}

func (o *objects) getLive(ctx context.Context, name string) (*v1alpha1.SimInstance, error) {
	in := &v1alpha1.SimInstance{}
	err := o.live.Get(ctx, client.ObjectKey{Name: name}, in)
	if apierrors.IsNotFound(err) {
		o.mu.Lock()
		delete(o.created, name)
		o.mu.Unlock()
		return nil, sim.ErrNotFound
	}
	return in, err
}

// List implements [sim.Store].
func (o *objects) List(ctx context.Context) ([]*v1alpha1.SimInstance, error) {
	var list v1alpha1.SimInstanceList
	if err := o.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	out := make([]*v1alpha1.SimInstance, len(list.Items), len(list.Items)+8)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range list.Items {
		out[i] = &list.Items[i]
		delete(o.created, out[i].Name)
	}
	for name, in := range o.created {
		if o.now().Sub(in.Spec.LaunchTime.Time) > lag {
			delete(o.created, name) // it was there and is gone again
			continue
		}
		out = append(out, in)
	}
	return out, nil
}

// Update implements [sim.Store].
func (o *objects) Update(ctx context.Context, name string, change func(*v1alpha1.SimInstance) bool) (*v1alpha1.SimInstance, error) {
	in, err := o.Get(ctx, name)
	for try := 1; err == nil; try++ {
		in = in.DeepCopy()
		if !change(in) {
			return in, nil
		}
		switch err = o.client.Status().Update(ctx, in); {
		case err == nil:
			return in, nil
		case apierrors.IsNotFound(err):
			return nil, sim.ErrNotFound
		case !apierrors.IsConflict(err) || try == attempts:
			return nil, err
		}
		in, err = o.getLive(ctx, name)
	}
	return nil, err
}

// Delete implements [sim.Store].
func (o *objects) Delete(ctx context.Context, name string) error {
	in := &v1alpha1.SimInstance{}
	in.Name = name
	err := client.IgnoreNotFound(o.client.Delete(ctx, in))
	if err == nil {
		o.mu.Lock()
		delete(o.created, name)
		o.mu.Unlock()
	}
	return err
}

// NodeClass implements [sim.Classes].
func (o *objects) NodeClass(ctx context.Context, name string) (*v1alpha1.SimNodeClass, error) {
	class := &v1alpha1.SimNodeClass{}
	err := o.client.Get(ctx, client.ObjectKey{Name: name}, class)
	if !apierrors.IsNotFound(err) {
		return class, err
	}
	for _, kind := range o.standIns {
		other := &metav1.PartialObjectMetadata{}
		other.SetGroupVersionKind(kind)
		switch err := o.client.Get(ctx, client.ObjectKey{Name: name}, other); {
		case err == nil:
			return &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: other.UID, ResourceVersion: other.ResourceVersion, CreationTimestamp: other.CreationTimestamp,
			}}, nil
		case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return nil, err
		}
	}
	return nil, sim.ErrNotFound
}

// File implements [sim.Classes]. The file is read again every ten seconds at most; while
// the API server does not answer, the last content holds.
func (o *objects) File(ctx context.Context, ref v1alpha1.ConfigMapReference) (sim.File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, ok := o.files[ref]
	if ok && o.now().Sub(last.at) < fileAge {
		return last.File, last.err
	}
	var cm corev1.ConfigMap
	err := o.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &cm)
	missing := fmt.Sprintf("ConfigMap %s/%s", ref.Namespace, ref.Name)
	next := fetched{at: o.now()}
	switch {
	case apierrors.IsNotFound(err):
		next.err = fmt.Errorf("%s: %w", missing, sim.ErrNotFound)
	case err != nil && ok:
		return last.File, last.err
	case err != nil:
		return sim.File{}, fmt.Errorf("%s: %w", missing, err)
	default:
		next.File, next.err = content(&cm, ref.Key)
		if next.err != nil {
			next.err = fmt.Errorf("%s: %w", missing, next.err)
		}
	}
	o.files[ref] = next
	return next.File, next.err
}

// content is one entry of a ConfigMap: that of key, or the only one.
func content(cm *corev1.ConfigMap, key string) (sim.File, error) {
	if key == "" {
		if len(cm.Data)+len(cm.BinaryData) != 1 {
			return sim.File{}, fmt.Errorf("has %d keys, so one must be named: %w", len(cm.Data)+len(cm.BinaryData), sim.ErrNotFound)
		}
		for k := range cm.Data {
			key = k
		}
		for k := range cm.BinaryData {
			key = k
		}
	}
	f := sim.File{Key: key, Version: string(cm.UID) + "/" + cm.ResourceVersion + "/" + key}
	if text, ok := cm.Data[key]; ok {
		f.Data = []byte(text)
	} else if f.Data, ok = cm.BinaryData[key]; !ok {
		return sim.File{}, fmt.Errorf("key %q: %w", key, sim.ErrNotFound)
	}
	return f, nil
}
