package crds

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// bases are the smallest valid objects of each kind. A manifest is a base with a merge
// patch on it.
var bases = map[string]string{
	"nodepools": `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default, uid: u, resourceVersion: "1"}
spec:
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
`,
	"nodeclaims": `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: default-x7k2p, uid: u, resourceVersion: "1"}
spec:
  requirements: []
  nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
`,
	"nodeoverlays": `
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: default, uid: u, resourceVersion: "1"}
spec:
  requirements: []
`,
}

// manifest is a create, an update if old or oldStatus is set, or an update of the status
// alone if status is set.
type manifest struct {
	kind string
	// set is a merge patch in YAML on the base, or on old.
	set string
	// old is a merge patch on the base that makes the stored object; "{}" is the base.
	old string
	// status says that set goes through the status subresource.
	status bool
	// wantError is a part of our reason to refuse the manifest, or empty.
	wantError string
}

// TestManifests puts manifests to API servers that have our CRDs and Karpenter's. Both
// accept the same ones, and store the same.
func TestManifests(t *testing.T) {
	ours, theirs := map[string]*server{}, map[string]*server{}
	for _, plural := range plurals {
		ours[plural], theirs[plural] = newServer(t, ourCRD(t, plural)), newServer(t, theirCRD(t, plural))
	}
	cases := manifests()
	accepted, refused := 0, 0
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			base := parse(t, bases[m.kind])
			old := merge(base, parse(t, m.old))
			object := merge(old, parse(t, m.set))
			put := func(s *server) (map[string]any, error) {
				switch {
				case m.status:
					return s.updateStatus(t.Context(), old, object)
				case m.old != "":
					return s.update(t.Context(), old, object)
				default:
					return s.create(t.Context(), object)
				}
			}
			got, ourErr := put(ours[m.kind])
			want, theirErr := put(theirs[m.kind])
			if (ourErr == nil) != (theirErr == nil) {
				t.Fatalf("our CRD says %v, Karpenter's says %v", ourErr, theirErr)
			}
			if ourErr != nil {
				refused++
				if m.wantError == "" || !strings.Contains(ourErr.Error(), m.wantError) {
					t.Errorf("error %q, want part %q", ourErr, m.wantError)
				}
				return
			}
			accepted++
			if m.wantError != "" {
				t.Errorf("accepted, want error with part %q", m.wantError)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("stored object (-Karpenter's +ours):\n%s", diff)
			}
		})
	}
	if len(cases) < 120 || accepted < 30 || refused < 60 {
		t.Errorf("%d manifests, %d accepted and %d refused by both: too few to prove anything", len(cases), accepted, refused)
	}
}

// TestSurface compares what clients see of a kind beside its objects.
func TestSurface(t *testing.T) {
	for _, plural := range plurals {
		t.Run(plural, func(t *testing.T) {
			got, want := decodeCRD(t, ourCRD(t, plural)), decodeCRD(t, theirCRD(t, plural))
			if diff := cmp.Diff(want.Spec.Names, got.Spec.Names); diff != "" {
				t.Errorf("names (-Karpenter's +ours):\n%s", diff)
			}
			if got.Name != want.Name || got.Spec.Group != want.Spec.Group || got.Spec.Scope != want.Spec.Scope {
				t.Errorf("%s %s %s, want %s %s %s", got.Name, got.Spec.Group, got.Spec.Scope, want.Name, want.Spec.Group, want.Spec.Scope)
			}
			if diff := cmp.Diff(want.Spec.Versions, got.Spec.Versions, cmpopts.IgnoreFields(apiextensionsv1.CustomResourceDefinitionVersion{}, "Schema")); diff != "" {
				t.Errorf("versions, printer columns and subresources (-Karpenter's +ours):\n%s", diff)
			}
			if diff := cmp.Diff(shape(want), shape(got)); diff != "" {
				t.Errorf("fields, types and defaults (-Karpenter's +ours):\n%s", diff)
			}
		})
	}
}

// shape lists every field of a kind with its type, default and kind of list or map.
func shape(crd *apiextensionsv1.CustomResourceDefinition) map[string]string {
	fields := map[string]string{}
	var walk func(path string, s *apiextensionsv1.JSONSchemaProps)
	walk = func(path string, s *apiextensionsv1.JSONSchemaProps) {
		line := s.Type + " " + s.Format
		if s.Default != nil {
			line += " default " + string(s.Default.Raw)
		}
		if s.XListType != nil {
			line += fmt.Sprint(" list ", *s.XListType, " ", s.XListMapKeys)
		}
		if s.XMapType != nil {
			line += " map " + *s.XMapType
		}
		line += fmt.Sprint(" required ", s.Required)
		fields[path] = line
		for name, property := range s.Properties {
			walk(path+"."+name, &property)
		}
		if s.Items != nil {
			walk(path+"[]", s.Items.Schema)
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			walk(path+"{}", s.AdditionalProperties.Schema)
		}
	}
	walk("", crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	return fields
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("parse %s: %v", text, err)
	}
	// Integers become int64, as an API server has them.
	object, err := decodeObject(data)
	if err != nil {
		t.Fatalf("parse %s: %v", text, err)
	}
	return object
}

func decodeObject(data []byte) (map[string]any, error) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, err
	}
	numbers(object)
	return object, nil
}

// numbers turns every json.Number of a value into an int64 or float64.
func numbers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key := range value {
			value[key] = numbers(value[key])
		}
	case []any:
		for i := range value {
			value[i] = numbers(value[i])
		}
	case json.Number:
		if n, err := value.Int64(); err == nil {
			return n
		}
		if f, err := value.Float64(); err == nil {
			return f
		}
	}
	return value
}

// merge applies a JSON merge patch: a null removes a member.
func merge(base, patch map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range patch {
		member, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(out, key)
		case isMap:
			old, _ := out[key].(map[string]any)
			out[key] = merge(old, member)
		default:
			out[key] = value
		}
	}
	return out
}
