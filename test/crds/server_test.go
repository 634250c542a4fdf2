package crds

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
)

// plurals are the kinds that both projects define.
var plurals = []string{"nodepools", "nodeclaims", "nodeoverlays"}

// ourCRD and theirCRD read the definition of a kind from the product and from
// Karpenter's module.
func ourCRD(t testing.TB, plural string) []byte {
	t.Helper()
	data, err := crds.Read("karpenter.sh", plural)
	if err != nil {
		t.Fatalf("our CRD of %s: %v", plural, err)
	}
	return data
}

func theirCRD(t testing.TB, plural string) []byte {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter").Output()
	if err != nil {
		t.Fatalf("find Karpenter's module: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "pkg", "apis", "crds", "karpenter.sh_"+plural+".yaml"))
	if err != nil {
		t.Fatalf("Karpenter's CRD of %s: %v", plural, err)
	}
	return data
}

func decodeCRD(t testing.TB, data []byte) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		t.Fatalf("decode CRD: %v", err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	return &crd
}

// server is the part of an API server that judges the objects of one kind.
type server struct {
	structural *schema.Structural
	object     strategy
	status     interface {
		ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList
	}
}

type strategy interface {
	Validate(context.Context, runtime.Object) field.ErrorList
	ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList
}

func newServer(t testing.TB, data []byte) *server {
	t.Helper()
	crd := decodeCRD(t, data)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &internal, nil); err != nil {
		t.Fatalf("convert CRD: %v", err)
	}
	internal.Status.StoredVersions = []string{internal.Spec.Versions[0].Name}
	// This also bounds what the rules may cost.
	if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), &internal); len(errs) > 0 {
		t.Fatalf("an API server refuses the CRD %s: %v", crd.Name, errs.ToAggregate())
	}

	version := internal.Spec.Versions[0]
	props := version.Schema
	if props == nil {
		props = internal.Spec.Validation
	}
	structural, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatalf("structural schema of %s: %v", crd.Name, err)
	}
	validator, _, err := validation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatalf("validator of %s: %v", crd.Name, err)
	}
	statusProps := props.OpenAPIV3Schema.Properties["status"]
	statusValidator, _, err := validation.NewSchemaValidator(&statusProps)
	if err != nil {
		t.Fatalf("status validator of %s: %v", crd.Name, err)
	}
	subresources := version.Subresources
	if subresources == nil {
		subresources = internal.Spec.Subresources
	}
	kind := runtimeschema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
	s := customresource.NewStrategy(nil, false, kind, validator, statusValidator, structural, subresources.Status, subresources.Scale, nil)
	return &server{structural: structural, object: s, status: customresource.NewStatusStrategy(s)}
}

// admit prunes and defaults an object as a server does on its way in, and returns it.
func (s *server) admit(object map[string]any) *unstructured.Unstructured {
	object = runtime.DeepCopyJSON(object)
	pruning.PruneWithOptions(object, s.structural, true, schema.UnknownFieldPathOptions{})
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	defaulting.Default(object, s.structural)
	return &unstructured.Unstructured{Object: object}
}

// create returns what is stored, and why it is refused.
func (s *server) create(ctx context.Context, object map[string]any) (map[string]any, error) {
	admitted := s.admit(object)
	return admitted.Object, s.object.Validate(ctx, admitted).ToAggregate()
}

// update returns what is stored, and why replacing old by object is refused.
func (s *server) update(ctx context.Context, old, object map[string]any) (map[string]any, error) {
	admitted := s.admit(object)
	return admitted.Object, s.object.ValidateUpdate(ctx, admitted, s.admit(old)).ToAggregate()
}

// updateStatus is update through the status subresource.
func (s *server) updateStatus(ctx context.Context, old, object map[string]any) (map[string]any, error) {
	admitted := s.admit(object)
	return admitted.Object, s.status.ValidateUpdate(ctx, admitted, s.admit(old)).ToAggregate()
}
