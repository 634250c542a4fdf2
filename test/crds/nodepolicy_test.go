package crds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

const (
	digest    = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	nodeBase  = "{apiVersion: dovetail.sh/v1alpha1, kind: NodePolicy, metadata: {name: a, uid: u, resourceVersion: '1'}, spec: {hook: score, runtime: rego, source: {inline: x}}}"
	otherCase = "{spec: {source: {inline: null, %s}}}"
)

// TestNodePolicies puts manifests of NodePolicies to an API server that has our CRD. What
// it accepts our own validation accepts too, but for what only that can see.
func TestNodePolicies(t *testing.T) {
	data, err := crds.Read("dovetail.sh", "nodepolicies")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, data)
	from := func(source string) string { return strings.Replace(otherCase, "%s", source, 1) }
	tests := map[string]struct {
		set       string
		status    bool
		wantError string
		// ours is a part of what only our own validation says.
		ours string
	}{
		"the least":                        {set: "{}"},
		"no spec":                          {set: "{spec: null}", wantError: "Required value"},
		"no hook":                          {set: "{spec: {hook: null}}", wantError: "spec.hook: Required"},
		"an unknown hook":                  {set: "{spec: {hook: veto}}", wantError: `Unsupported value: "veto"`},
		"each hook: disrupt":               {set: "{spec: {hook: disrupt, reasons: [Empty, Unblock]}}"},
		"each hook: launch":                {set: "{spec: {hook: launch}}"},
		"each hook: admit":                 {set: "{spec: {hook: admit, failurePolicy: Deny}}"},
		"an unknown runtime":               {set: "{spec: {runtime: lua}}", wantError: "Unsupported value"},
		"an unknown mode":                  {set: "{spec: {mode: Off}}", wantError: "Unsupported value"},
		"mode Shadow":                      {set: "{spec: {mode: Shadow}}"},
		"an unknown failure policy":        {set: "{spec: {failurePolicy: Fail}}", wantError: "Unsupported value"},
		"no source":                        {set: "{spec: {source: null}}", wantError: "spec.source: Required"},
		"an empty source":                  {set: from(""), wantError: "exactly one of"},
		"an empty text":                    {set: "{spec: {source: {inline: ''}}}", wantError: "at least 1 chars"},
		"two sources":                      {set: "{spec: {source: {file: {path: /x}}}}", wantError: "exactly one of"},
		"a file":                           {set: from("file: {path: /policies}")},
		"a file without a path":            {set: from("file: {}"), wantError: "path: Required"},
		"a ConfigMap":                      {set: from("configMapRef: {namespace: a, name: b}")},
		"a ConfigMap without a namespace":  {set: from("configMapRef: {name: b}"), wantError: "namespace: Required"},
		"a ConfigMap with a wrong name":    {set: from("configMapRef: {namespace: a, name: B/c}"), ours: "configMapRef.name"},
		"an artefact":                      {set: from("oci: {ref: 'registry.example:5000/a/b@" + digest + "', pullSecretRef: {namespace: a, name: b}}")},
		"an artefact with tag and digest":  {set: from("oci: {ref: 'registry.example/a/b:v1@" + digest + "'}")},
		"an artefact by tag":               {set: from("oci: {ref: 'registry.example/a/b:v1'}"), wantError: "should match"},
		"an artefact with a short digest":  {set: from("oci: {ref: 'registry.example/a/b@sha256:01'}"), wantError: "should match"},
		"a bundle by digest":               {set: from("http: {url: 'https://example.com/b.tar.gz', digest: '" + digest + "'}")},
		"a bundle by key":                  {set: from("http: {url: 'https://example.com/b.tar.gz', verificationKey: {publicKey: x}}")},
		"a bundle by a key in a Secret":    {set: from("http: {url: 'https://example.com/b', verificationKey: {keyID: a, algorithm: HS256, scope: s, secretRef: {namespace: a, name: b, key: c}}}")},
		"a bundle on trust":                {set: from("http: {url: 'https://example.com/b.tar.gz'}"), wantError: "exactly one of digest and verificationKey"},
		"a bundle by digest and key":       {set: from("http: {url: 'https://example.com/b', digest: '" + digest + "', verificationKey: {publicKey: x}}"), wantError: "exactly one of digest and verificationKey"},
		"a bundle by two keys":             {set: from("http: {url: 'https://example.com/b', verificationKey: {publicKey: x, secretRef: {namespace: a, name: b, key: c}}}"), wantError: "exactly one of publicKey and secretRef"},
		"a bundle by no key":               {set: from("http: {url: 'https://example.com/b', verificationKey: {}}"), wantError: "exactly one of publicKey and secretRef"},
		"a bundle by another digest":       {set: from("http: {url: 'https://example.com/b', digest: 'md5:0'}"), wantError: "should match"},
		"a bundle of another protocol":     {set: from("http: {url: 'ftp://example.com/b', digest: '" + digest + "'}"), wantError: "should match"},
		"an unknown algorithm":             {set: from("http: {url: 'https://example.com/b', verificationKey: {publicKey: x, algorithm: none}}"), wantError: "Unsupported value"},
		"parameters":                       {set: "{spec: {parameters: {a: {b: [1, c]}}}}"},
		"parameters that are a list":       {set: "{spec: {parameters: [1]}}", wantError: "must be of type object"},
		"documents":                        {set: "{spec: {data: {inline: {rates: [1], fee: 2}, configMapRefs: [{namespace: a, name: b, key: c.json}]}}}"},
		"documents of a reserved name":     {set: "{spec: {data: {inline: {dovetail: 1}}}}", ours: "spec.data.inline[dovetail]"},
		"documents of a Wasm policy":       {set: "{spec: {runtime: wasm, data: {inline: {a: 1}}}}", wantError: "data is for runtime 'rego' only"},
		"a selector":                       {set: "{spec: {nodePoolSelector: {matchLabels: {team: a}, matchExpressions: [{key: tier, operator: NotIn, values: [batch]}]}}}"},
		"a selector without an operator":   {set: "{spec: {nodePoolSelector: {matchExpressions: [{key: tier}]}}}", wantError: "operator: Required"},
		"a selector of an unknown kind":    {set: "{spec: {nodePoolSelector: {matchExpressions: [{key: tier, operator: Like}]}}}", ours: "operator"},
		"reasons of a score policy":        {set: "{spec: {reasons: [Empty]}}", wantError: "reasons are for hook 'disrupt' only"},
		"no reasons of a score policy":     {set: "{spec: {reasons: []}}"},
		"an unknown reason":                {set: "{spec: {hook: disrupt, reasons: [Bored]}}", wantError: "Unsupported value"},
		"a reason twice":                   {set: "{spec: {hook: disrupt, reasons: [Empty, Empty]}}", wantError: "Duplicate value"},
		"a timeout":                        {set: "{spec: {timeout: 50ms}}"},
		"a timeout of a second and a half": {set: "{spec: {timeout: 1.5s}}"},
		"a timeout of nothing":             {set: "{spec: {timeout: 0s}}", wantError: "timeout is from 1ms to 10s"},
		"a long timeout":                   {set: "{spec: {timeout: 11s}}", wantError: "timeout is from 1ms to 10s"},
		"a negative timeout":               {set: "{spec: {timeout: -1s}}", wantError: "should match"},
		"a timeout in minutes":             {set: "{spec: {timeout: 1m}}", wantError: "should match"},
		"a timeout without a unit":         {set: "{spec: {timeout: '50'}}", wantError: "should match"},
		"a memory limit":                   {set: "{spec: {memoryLimit: 32Mi}}"},
		"a memory limit in bytes":          {set: "{spec: {memoryLimit: 33554432}}"},
		"a memory limit that is a word":    {set: "{spec: {memoryLimit: much}}", wantError: "should match"},
		"a memory limit of too much":       {set: "{spec: {memoryLimit: 2Gi}}", ours: "spec.memoryLimit"},
		"an order":                         {set: "{spec: {order: -10000}}"},
		"an order that is too high":        {set: "{spec: {order: 10001}}", wantError: "less than or equal to 10000"},
		"an order with a fraction":         {set: "{spec: {order: 1.5}}", wantError: "must be of type integer"},
		"a status": {
			status: true,
			set:    "{status: {observedGeneration: 3, revision: '" + digest + "', sourceDigest: '" + digest + "', lastError: x, lastHour: {evaluations: 1, denials: 0, errors: 0, medianMicros: 1, p99Micros: 1, maxMicros: 1}, conditions: [{type: Ready, status: 'True', reason: LastGoodRevision, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}]}}",
		},
		"a status with a condition twice": {
			status: true, wantError: "Duplicate value",
			set: "{status: {conditions: [{type: Ready, status: 'True', reason: A, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}, {type: Ready, status: 'True', reason: A, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}]}}",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			base := parse(t, nodeBase)
			object := merge(base, parse(t, tt.set))
			put := func() (map[string]any, error) {
				if tt.status {
					return s.updateStatus(t.Context(), base, object)
				}
				return s.create(t.Context(), object)
			}
			stored, err := put()
			if tt.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantError) {
					t.Errorf("error %v, want part %q", err, tt.wantError)
				}
				return
			}
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			text, err := yaml.Marshal(stored)
			if err != nil {
				t.Fatal(err)
			}
			var np v1alpha1.NodePolicy
			if err := yaml.UnmarshalStrict(text, &np); err != nil {
				t.Fatalf("read what is stored: %v", err)
			}
			err = np.RuntimeValidate()
			if (err == nil) != (tt.ours == "") || err != nil && !strings.Contains(err.Error(), tt.ours) {
				t.Errorf("RuntimeValidate() = %v, want part %q", err, tt.ours)
			}
			// Nothing of the object gets lost in the Go types.
			again, err := yaml.Marshal(&np)
			if err != nil {
				t.Fatal(err)
			}
			got, want := parse(t, string(again)), parse(t, string(text))
			got["metadata"], want["metadata"] = nil, nil
			if len(got["status"].(map[string]any)) == 0 {
				delete(got, "status")
			}
			spec := got["spec"].(map[string]any)
			if _, ok := want["spec"].(map[string]any)["order"]; ok && spec["order"] == nil {
				spec["order"] = want["spec"].(map[string]any)["order"]
			}
			if want["spec"].(map[string]any)["memoryLimit"] != nil {
				spec["memoryLimit"] = want["spec"].(map[string]any)["memoryLimit"] // has several forms
			}
			if reasons, ok := want["spec"].(map[string]any)["reasons"].([]any); ok && len(reasons) == 0 {
				delete(want["spec"].(map[string]any), "reasons")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("object through the Go types (-want +got):\n%s", diff)
			}
		})
	}
	stored, err := s.create(t.Context(), parse(t, nodeBase))
	if err != nil {
		t.Fatal(err)
	}
	spec := stored["spec"].(map[string]any)
	if spec["mode"] != "Enforce" || spec["order"] != int64(0) {
		t.Errorf("defaults: mode %v, order %v, want Enforce and 0", spec["mode"], spec["order"])
	}
}

// TestNodePolicies_surface checks what clients see of the kind beside its objects.
func TestNodePolicies_surface(t *testing.T) {
	data, err := crds.Read("dovetail.sh", "nodepolicies")
	if err != nil {
		t.Fatal(err)
	}
	crd := decodeCRD(t, data)
	if crd.Spec.Scope != "Cluster" || len(crd.Spec.Names.ShortNames) != 1 || crd.Spec.Names.ShortNames[0] != "npol" {
		t.Errorf("scope %s, short names %v, want Cluster and npol", crd.Spec.Scope, crd.Spec.Names.ShortNames)
	}
	version := crd.Spec.Versions[0]
	if version.Subresources == nil || version.Subresources.Status == nil {
		t.Error("no status subresource")
	}
	var columns []string
	for _, c := range version.AdditionalPrinterColumns {
		columns = append(columns, c.Name)
	}
	if diff := cmp.Diff([]string{"Hook", "Runtime", "Mode", "Order", "Ready", "Age", "Revision", "Error"}, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}
