package v1alpha1

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const (
	someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	someRef    = "registry.example/team/policy@" + someDigest
)

func TestNodePolicy_RuntimeValidate(t *testing.T) {
	tests := map[string]struct {
		spec string
		want []string
	}{
		"the least":                       {spec: "{hook: score, runtime: rego, source: {inline: x}}"},
		"everything":                      {spec: "{hook: disrupt, runtime: rego, source: {oci: {ref: " + someRef + ", pullSecretRef: {namespace: a, name: b}}}, parameters: {a: 1}, data: {inline: {b: [1]}, configMapRefs: [{namespace: a, name: b, key: c.json}]}, nodePoolSelector: {matchLabels: {team: a}}, reasons: [Drifted, Expired], mode: Shadow, failurePolicy: Deny, timeout: 20ms, memoryLimit: 1Mi, order: -3}"},
		"nothing":                         {spec: "{}", want: []string{"spec.hook: Required", "spec.runtime: Required", "spec.source: Required"}},
		"unknown words":                   {spec: "{hook: veto, runtime: lua, source: {inline: x}, mode: Audit, failurePolicy: Fail}", want: []string{`spec.hook: Unsupported value: "veto"`, "spec.runtime: Unsupported", "spec.mode: Unsupported", "spec.failurePolicy: Unsupported"}},
		"two sources":                     {spec: "{hook: score, runtime: rego, source: {inline: x, file: {path: /x}}}", want: []string{`spec.source: Invalid value: "inline, file"`}},
		"empty sources":                   {spec: "{hook: score, runtime: rego, source: {inline: '', file: {path: ''}}}", want: []string{"spec.source.inline: Required", "spec.source.file.path: Required", "spec.source: Invalid"}},
		"a ConfigMap":                     {spec: "{hook: score, runtime: wasm, source: {configMapRef: {namespace: a, name: b, key: c.wasm.gz}}}"},
		"a ConfigMap without a name":      {spec: "{hook: score, runtime: wasm, source: {configMapRef: {namespace: A, key: c/d}}}", want: []string{"spec.source.configMapRef.namespace: Invalid", "spec.source.configMapRef.name: Invalid", "spec.source.configMapRef.key: Invalid"}},
		"an artefact by tag":              {spec: "{hook: score, runtime: wasm, source: {oci: {ref: 'registry.example/policy:v1', pullSecretRef: {namespace: a, name: ''}}}}", want: []string{"spec.source.oci.ref: Invalid", "spec.source.oci.pullSecretRef.name: Invalid"}},
		"an artefact with a short digest": {spec: "{hook: score, runtime: wasm, source: {oci: {ref: 'registry.example/policy@sha256:0123'}}}", want: []string{"spec.source.oci.ref: Invalid"}},
		"a bundle by digest":              {spec: "{hook: score, runtime: rego, source: {http: {url: 'http://example.com/b', digest: '" + someDigest + "'}}}"},
		"a bundle by key":                 {spec: "{hook: score, runtime: rego, source: {http: {url: 'https://example.com/b', verificationKey: {publicKey: x, algorithm: ES256}}}}"},
		"a bundle on trust":               {spec: "{hook: score, runtime: rego, source: {http: {url: 'https://example.com/b'}}}", want: []string{"spec.source.http: Invalid"}},
		"a bundle by digest and key":      {spec: "{hook: score, runtime: rego, source: {http: {url: 'https://example.com/b', digest: '" + someDigest + "', verificationKey: {publicKey: x}}}}", want: []string{"spec.source.http: Invalid"}},
		"a bundle in a file":              {spec: "{hook: score, runtime: rego, source: {http: {url: 'file:///b', digest: 'md5:1'}}}", want: []string{"spec.source.http.url: Invalid", "spec.source.http.digest: Invalid"}},
		"a key that is none":              {spec: "{hook: score, runtime: rego, source: {http: {url: 'https://example.com/b', verificationKey: {algorithm: none}}}}", want: []string{"spec.source.http.verificationKey.algorithm: Unsupported", "spec.source.http.verificationKey: Invalid"}},
		"a shared secret in the open":     {spec: "{hook: score, runtime: rego, source: {http: {url: 'https://example.com/b', verificationKey: {algorithm: HS256, publicKey: x}}}}", want: []string{"spec.source.http.verificationKey.publicKey: Forbidden"}},
		"a key in a nameless Secret":      {spec: "{hook: score, runtime: rego, source: {http: {url: 'https://example.com/b', verificationKey: {secretRef: {namespace: a}}}}}", want: []string{"secretRef.name: Invalid", "secretRef.key: Required"}},
		"parameters that are a list":      {spec: "{hook: score, runtime: rego, source: {inline: x}, parameters: [1]}", want: []string{"spec.parameters: Invalid"}},
		"documents of a Wasm policy":      {spec: "{hook: score, runtime: wasm, source: {inline: x}, data: {inline: {a: 1}}}", want: []string{"spec.data: Forbidden"}},
		"documents of a reserved name":    {spec: "{hook: score, runtime: rego, source: {inline: x}, data: {inline: {dovetail: 1}, configMapRefs: [{namespace: a, name: b, key: c.txt}]}}", want: []string{"spec.data.inline[dovetail]: Forbidden", "spec.data.configMapRefs[0].key: Invalid"}},
		"a selector that is none":         {spec: "{hook: score, runtime: rego, source: {inline: x}, nodePoolSelector: {matchExpressions: [{key: a, operator: Like}]}}", want: []string{"spec.nodePoolSelector.matchExpressions[0].operator: Invalid"}},
		"reasons of a score policy":       {spec: "{hook: score, runtime: rego, source: {inline: x}, reasons: [Empty]}", want: []string{"spec.reasons: Forbidden"}},
		"reasons that are none":           {spec: "{hook: disrupt, runtime: rego, source: {inline: x}, reasons: [Empty, Bored, Empty]}", want: []string{"spec.reasons[1]: Unsupported", "spec.reasons[2]: Duplicate"}},
		"limits that are too small":       {spec: "{hook: score, runtime: rego, source: {inline: x}, timeout: 1us, memoryLimit: 1Ki, order: -10001}", want: []string{"spec.timeout: Invalid", "spec.memoryLimit: Invalid", "spec.order: Invalid"}},
		"limits that are too large":       {spec: "{hook: score, runtime: wasm, source: {inline: x}, timeout: 11s, memoryLimit: 65Mi, order: 10001}", want: []string{"spec.timeout: Invalid", "spec.memoryLimit: Invalid", "spec.order: Invalid"}},
		"memory that only Rego can have":  {spec: "{hook: score, runtime: rego, source: {inline: x}, memoryLimit: 65Mi}"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var p NodePolicy
			if err := yaml.UnmarshalStrict([]byte("spec: "+tt.spec), &p); err != nil {
				t.Fatal(err)
			}
			errs := p.Validate()
			if len(errs) != len(tt.want) {
				t.Errorf("Validate() = %v, want %d faults", errs, len(tt.want))
			}
			for _, want := range tt.want {
				if err := p.RuntimeValidate(); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("RuntimeValidate() = %v, want part %q", err, want)
				}
			}
		})
	}
}

func TestNodePolicySpec_DecodeParameters(t *testing.T) {
	for raw, want := range map[string]map[string]any{
		"":                            {},
		"null":                        {},
		`{"a": 12345678901234567890}`: {"a": json.Number("12345678901234567890")},
	} {
		s := NodePolicySpec{Parameters: &runtime.RawExtension{Raw: []byte(raw)}}
		got, err := s.DecodeParameters()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("parameters of %q (-want +got):\n%s", raw, diff)
		}
	}
	for _, raw := range []string{"1", "{} {}", "{"} {
		s := NodePolicySpec{Parameters: &runtime.RawExtension{Raw: []byte(raw)}}
		if got, err := s.DecodeParameters(); err == nil {
			t.Errorf("parameters of %q are %v, want an error", raw, got)
		}
	}
}

func TestReasons(t *testing.T) {
	reasons := Reasons()
	slices.Sort(reasons)
	if len(slices.Compact(reasons)) != 8 {
		t.Errorf("Reasons() = %v, want 8 different ones", reasons)
	}
}

func TestAddToScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"NodePolicy", "NodePolicyList"} {
		if _, err := scheme.New(GroupVersion.WithKind(kind)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
