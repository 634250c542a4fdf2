package main

import (
	_ "embed"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/policies"
)

// ec2NodeClass is a CustomResourceDefinition that takes any EC2NodeClass, so that
// manifests for AWS run on the simulated cloud as they stand.
//
//go:embed ec2nodeclass.yaml
var ec2NodeClass string

// definitions are the kinds that the controller reads and writes.
func definitions() ([]string, error) {
	out := []string{ec2NodeClass}
	files := crds.FS()
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		out = append(out, string(text))
	}
	return out, nil
}

// policyNamespace holds the ConfigMaps of policies.
const policyNamespace = "kube-system"

// defaultPolicies are the policies that are safe everywhere, each with a ConfigMap that
// has its files.
func defaultPolicies() ([]string, error) {
	var out []string
	for _, p := range policies.Defaults() {
		hook, name, _ := strings.Cut(p, "/")
		object := "default-" + strings.ReplaceAll(name, "_", "-")
		files, err := policies.Source(p)
		if err != nil {
			return nil, err
		}
		for _, o := range []any{
			&corev1.ConfigMap{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{Name: "policy-" + object, Namespace: policyNamespace},
				Data:       files,
			},
			&v1alpha1.NodePolicy{
				TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodePolicy"},
				ObjectMeta: metav1.ObjectMeta{Name: object},
				Spec: v1alpha1.NodePolicySpec{
					Hook: v1alpha1.Hook(hook), Runtime: v1alpha1.RuntimeRego,
					Source: v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: policyNamespace, Name: "policy-" + object}},
				},
			},
		} {
			text, err := yaml.Marshal(o)
			if err != nil {
				return nil, err
			}
			out = append(out, string(text))
		}
	}
	return out, nil
}
