package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldManager is who applies objects.
const fieldManager = "dovetail-cluster"

// establishTimeout is how long a new kind may take to be served.
const establishTimeout = time.Minute

// customResourceDefinition is the kind that adds kinds.
var customResourceDefinition = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// ApplyFiles applies the objects of YAML or JSON files, and of the files *.yaml, *.yml
// and *.json below folders, as Apply does.
func (c *Cluster) ApplyFiles(ctx context.Context, paths ...string) error {
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			if ext := filepath.Ext(name); name != path && ext != ".yaml" && ext != ".yml" && ext != ".json" {
				return nil
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			read, err := Decode(content)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			objects = append(objects, read...)
			return nil
		})
		if err != nil {
			return fmt.Errorf("apply: %w", err)
		}
	}
	return Apply(ctx, c.RESTConfig(), objects...)
}

// ApplyText applies the objects of YAML documents, as Apply does.
func (c *Cluster) ApplyText(ctx context.Context, manifests ...string) error {
	var objects []*unstructured.Unstructured
	for _, manifest := range manifests {
		read, err := Decode([]byte(manifest))
		if err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		objects = append(objects, read...)
	}
	return Apply(ctx, c.RESTConfig(), objects...)
}

// Decode reads the objects of YAML or JSON documents. The items of lists are objects of
// their own, and empty documents are left out.
func Decode(content []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if object.GetKind() == "" || object.GetAPIVersion() == "" {
			return nil, fmt.Errorf("document %d: no apiVersion or kind", len(objects)+1)
		}
		if !object.IsList() {
			objects = append(objects, object)
			continue
		}
		err := object.EachListItem(func(item runtime.Object) error {
			objects = append(objects, item.(*unstructured.Unstructured))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
}

// Apply makes or changes objects in the cluster that config names, by server-side apply.
// Namespaces and CustomResourceDefinitions go first, and those are waited for, so that
// the objects may need them. Objects without a namespace are put into default. Every
// object is tried; the error joins those of each.
func Apply(ctx context.Context, config *rest.Config, objects ...*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discover))

	objects = slices.Clone(objects)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return cmp.Compare(stage(a), stage(b)) })
	var errs []error
	for i, object := range objects {
		if i > 0 && stage(object) > stage(objects[i-1]) {
			if err := establish(ctx, client, objects[:i]); err != nil {
				return errors.Join(append(errs, err)...)
			}
			mapper.Reset()
		}
		if err := apply(ctx, client, mapper, object); err != nil {
			errs = append(errs, fmt.Errorf("apply %s %q: %w", object.GetKind(), object.GetName(), err))
		}
	}
	// Whoever applies kinds alone wants to use them next.
	if len(objects) > 0 && stage(objects[len(objects)-1]) == stageKinds {
		if err := establish(ctx, client, objects); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Objects are applied in stages.
const (
	stageKinds = iota
	stageNamespaces
	stageOthers
)

func stage(object *unstructured.Unstructured) int {
	switch object.GroupVersionKind().GroupKind() {
	case customResourceDefinition:
		return stageKinds
	case schema.GroupKind{Kind: "Namespace"}:
		return stageNamespaces
	default:
		return stageOthers
	}
}

func apply(ctx context.Context, client dynamic.Interface, mapper meta.ResettableRESTMapper, object *unstructured.Unstructured) error {
	gvk := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	resource := client.Resource(mapping.Resource)
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		_, err = resource.Apply(ctx, object.GetName(), object, options)
		return err
	}
	namespace := cmp.Or(object.GetNamespace(), metav1.NamespaceDefault)
	if object.GetName() == "" && object.GetGenerateName() != "" {
		_, err = resource.Namespace(namespace).Create(ctx, object, metav1.CreateOptions{FieldManager: fieldManager})
		return err
	}
	_, err = resource.Namespace(namespace).Apply(ctx, object.GetName(), object, options)
	return err
}

// establish waits until the API server serves the kinds that objects define.
func establish(ctx context.Context, client dynamic.Interface, objects []*unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	definitions := client.Resource(schema.GroupVersionResource{
		Group: customResourceDefinition.Group, Version: "v1", Resource: "customresourcedefinitions",
	})
	for _, object := range objects {
		if stage(object) != stageKinds {
			continue
		}
		for {
			got, err := definitions.Get(ctx, object.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				break // it was not applied, which is reported already
			}
			if err == nil && isEstablished(got) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for CustomResourceDefinition %q: %w", object.GetName(), errors.Join(ctx.Err(), err))
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

func isEstablished(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(condition any) bool {
		fields, ok := condition.(map[string]any)
		return ok && fields["type"] == "Established" && fields["status"] == "True"
	})
}
