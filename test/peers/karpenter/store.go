package karpenter

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// store is a client of objects in memory that reads as the cache of controller-runtime
// does: through the same kind of index, copying what it returns unless told not to. The
// fake client of controller-runtime would do as well, but converts every object to JSON
// and back, so most of the time measured would be its own. What is written is there to
// read at once; versions are not compared. Anything that the controllers do not use is
// an error.
type store struct {
	client.Client // nil: calls of other methods are a mistake here

	mu    sync.Mutex // writes
	kinds map[schema.GroupVersionKind]cache.Indexer
	made  int
}

func newStore() *store {
	s := &store{kinds: map[schema.GroupVersionKind]cache.Indexer{}}
	for _, o := range []client.Object{
		&corev1.Pod{}, &corev1.Node{}, &corev1.Namespace{}, &appsv1.DaemonSet{}, &policyv1.PodDisruptionBudget{},
		&storagev1.CSINode{}, &karpenterv1.NodeClaim{}, &karpenterv1.NodePool{},
	} {
		index := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		switch o.(type) {
		case *corev1.Pod:
			index["spec.nodeName"] = func(o any) ([]string, error) { return []string{o.(*corev1.Pod).Spec.NodeName}, nil }
		case *karpenterv1.NodeClaim:
			index["status.providerID"] = func(o any) ([]string, error) {
				return []string{o.(*karpenterv1.NodeClaim).Status.ProviderID}, nil
			}
		}
		gvk, err := apiutil.GVKForObject(o, scheme.Scheme)
		if err != nil {
			panic(err) // the list above is of types with a kind
		}
		s.kinds[gvk] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, index)
	}
	return s
}

func (s *store) of(o runtime.Object) (cache.Indexer, schema.GroupVersionKind, error) {
	gvk, err := apiutil.GVKForObject(o, scheme.Scheme)
	if err != nil {
		return nil, gvk, err
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	if s.kinds[gvk] == nil {
		return nil, gvk, fmt.Errorf("store: kind %s is not held", gvk)
	}
	return s.kinds[gvk], gvk, nil
}

func (s *store) Get(_ context.Context, key client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	index, gvk, err := s.of(out)
	if err != nil {
		return err
	}
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + key.Name
	}
	have, ok, err := index.GetByKey(name)
	if err != nil {
		return err
	}
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, key.Name)
	}
	var options client.GetOptions
	options.ApplyOptions(opts)
	if options.UnsafeDisableDeepCopy == nil || !*options.UnsafeDisableDeepCopy {
		have = have.(runtime.Object).DeepCopyObject()
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(have).Elem())
	return nil
}

func (s *store) List(_ context.Context, out client.ObjectList, opts ...client.ListOption) error {
	index, _, err := s.of(out)
	if err != nil {
		return err
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	var objs []any
	switch {
	case options.FieldSelector != nil:
		reqs := options.FieldSelector.Requirements()
		if len(reqs) != 1 || options.Namespace != "" {
			return fmt.Errorf("store: list by %s: only one field, in all namespaces, is supported", options.FieldSelector)
		}
		objs, err = index.ByIndex(reqs[0].Field, reqs[0].Value)
	case options.Namespace != "":
		objs, err = index.ByIndex(cache.NamespaceIndex, options.Namespace)
	default:
		objs = index.List()
	}
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	found := make([]runtime.Object, 0, len(objs))
	for _, o := range objs {
		o := o.(client.Object)
		if options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(o.GetLabels())) {
			continue
		}
		if options.UnsafeDisableDeepCopy == nil || !*options.UnsafeDisableDeepCopy {
			o = o.DeepCopyObject().(client.Object)
		}
		found = append(found, o)
	}
	return meta.SetList(out, found)
}

func (s *store) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	if o.GetName() == "" {
		o.SetName(fmt.Sprintf("%s%05d", o.GetGenerateName(), s.made))
	}
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("made-%d", s.made)))
	}
	return s.put(o)
}

// Patch keeps o, which callers have changed already; what it was before does not matter.
func (s *store) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(o)
}

func (s *store) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, _, err := s.of(o)
	if err != nil {
		return err
	}
	return index.Delete(o)
}

// put keeps a copy of o, whether or not it is there already.
func (s *store) put(o client.Object) error {
	index, _, err := s.of(o)
	if err != nil {
		return err
	}
	return index.Update(o.DeepCopyObject())
}

func (s *store) Status() client.SubResourceWriter { return status{store: s} }

// status writes the whole object, which is the same for callers that change nothing else.
type status struct {
	client.SubResourceWriter
	store *store
}

func (s status) Patch(ctx context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.store.Patch(ctx, o, p)
}
