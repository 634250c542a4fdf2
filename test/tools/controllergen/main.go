// Command controllergen adds to generated CustomResourceDefinitions the rules that no
// marker can express, because they belong to fields of types of Kubernetes itself:
//
//   - the key, value and effect of taints,
//   - the values of the labels of a template,
//   - the reason and message of a NodeClaim's conditions, which may be absent.
//
// It rewrites the files named as its arguments, and leaves alone those of other groups
// than karpenter.sh.
package main

import (
	"fmt"
	"os"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const (
	qualifiedName = `^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	labelValue    = `^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
	openReason    = `^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$`
)

func main() {
	for _, path := range os.Args[1:] {
		if err := amend(path); err != nil {
			fmt.Fprintf(os.Stderr, "amend %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func amend(path string) error {
	in, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(in, &crd); err != nil {
		return err
	}
	if crd.Spec.Group != "karpenter.sh" {
		return nil
	}
	for i := range crd.Spec.Versions {
		if schema := crd.Spec.Versions[i].Schema; schema != nil {
			walk(crd.Spec.Names.Kind, schema.OpenAPIV3Schema)
		}
	}
	// An object without the fields that only the API server sets.
	var tree map[string]any
	out, err := yaml.Marshal(crd)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(out, &tree); err != nil {
		return err
	}
	delete(tree, "status")
	if metadata, ok := tree["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	if out, err = yaml.Marshal(tree); err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte("---\n"), out...), 0o644)
}

// walk amends the schemas of the properties below s.
func walk(kind string, s *apiextensionsv1.JSONSchemaProps) {
	for name, property := range s.Properties {
		switch name {
		case "taints", "startupTaints":
			taint(property.Items)
		case "labels":
			if values := property.AdditionalProperties; values != nil && values.Schema != nil {
				limit := int64(63)
				values.Schema.MaxLength, values.Schema.Pattern = &limit, labelValue
			}
		case "conditions":
			if kind == "NodeClaim" && property.Items != nil {
				condition(property.Items.Schema)
			}
		}
		walk(kind, &property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(kind, s.Items.Schema)
	}
}

func taint(items *apiextensionsv1.JSONSchemaPropsOrArray) {
	if items == nil || items.Schema == nil {
		return
	}
	properties := items.Schema.Properties
	key, value, effect := properties["key"], properties["value"], properties["effect"]
	least := int64(1)
	key.MinLength, key.Pattern = &least, qualifiedName
	value.Pattern = qualifiedName
	effect.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"NoSchedule"`)}, {Raw: []byte(`"PreferNoSchedule"`)}, {Raw: []byte(`"NoExecute"`)}}
	properties["key"], properties["value"], properties["effect"] = key, value, effect
}

func condition(s *apiextensionsv1.JSONSchemaProps) {
	s.Required = slices.DeleteFunc(s.Required, func(name string) bool { return name == "reason" || name == "message" })
	reason := s.Properties["reason"]
	reason.MinLength, reason.Pattern = nil, openReason
	s.Properties["reason"] = reason
}
