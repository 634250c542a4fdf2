package webhook_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/webhook"
)

// configMaps are ConfigMaps by name.
type configMaps map[string]*corev1.ConfigMap

func (c configMaps) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if cm := c[namespace+"/"+name]; cm != nil {
		return cm, nil
	}
	return nil, errors.New("not found")
}

func (configMaps) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, errors.New("not found")
}

// policyOf is a policy with a source of another kind.
func policyOf(s v1alpha1.PolicySource, change ...func(*v1alpha1.NodePolicySpec)) *v1alpha1.NodePolicy {
	np := nodePolicy("a", "")
	np.Spec.Source = s
	for _, f := range change {
		f(&np.Spec)
	}
	return np
}

func TestNodePolicy(t *testing.T) {
	const good, bad = `deny contains {"code": "x", "msg": "y"} if false`, "deny contains {"
	data := configMaps{
		"shop/rules":  {Data: map[string]string{"rules.rego": "package dovetail.admit.a\n\nimport rego.v1\n\n" + good + "\n"}},
		"shop/broken": {Data: map[string]string{"rules.rego": "package dovetail.admit.a\n\n" + bad + "\n"}},
	}
	ref := func(name string) v1alpha1.PolicySource {
		return v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: "shop", Name: name}}
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	tests := map[string]struct {
		request request
		world   []func(*world)
		// deny are parts of the message; warn is a part of the one warning.
		deny []string
		warn string
	}{
		"good":                         {request: request{object: nodePolicy("a", good)}},
		"a syntax error":               {request: request{object: nodePolicy("a", "# hint\ndeny contains ]")}, deny: []string{`NodePolicy "a": `, "policy.rego:4:"}},
		"what Rego does not have here": {request: request{object: nodePolicy("a", `deny contains {"code": "x", "msg": http.send({"method": "get", "url": "http://x"}).body}`)}, deny: []string{"http.send"}},
		"another hook's package":       {request: request{object: policyOf(v1alpha1.PolicySource{Inline: new("package dovetail.score.a\n")})}, deny: []string{"package"}},
		"a bad field":                  {request: request{object: policyOf(nodePolicy("a", good).Spec.Source, func(s *v1alpha1.NodePolicySpec) { s.Timeout = &metav1.Duration{Duration: time.Hour} })}, deny: []string{"spec.timeout"}},
		"no source":                    {request: request{object: policyOf(v1alpha1.PolicySource{})}, deny: []string{"spec.source"}},
		"a module that is not base64":  {request: request{object: policyOf(v1alpha1.PolicySource{Inline: new("%%%")}, func(s *v1alpha1.NodePolicySpec) { s.Runtime = v1alpha1.RuntimeWasm })}, deny: []string{"source.inline"}},
		"a ConfigMap":                  {request: request{object: policyOf(ref("rules"))}},
		"a broken ConfigMap":           {request: request{object: policyOf(ref("broken"))}, deny: []string{"rules.rego"}},
		"a ConfigMap that is not there yet": {
			request: request{object: policyOf(ref("later"))}, warn: "takes no force before it is: ConfigMap shop/later: not found",
		},
		"documents that are not there yet": {
			request: request{object: policyOf(nodePolicy("a", good).Spec.Source, func(s *v1alpha1.NodePolicySpec) {
				s.Data = &v1alpha1.PolicyData{ConfigMapRefs: []v1alpha1.ConfigMapReference{{Namespace: "shop", Name: "later"}}}
			})},
			warn: "ConfigMap shop/later: not found",
		},
		"a file of some machine":        {request: request{object: policyOf(v1alpha1.PolicySource{File: &v1alpha1.FileSource{Path: "/nowhere"}})}},
		"an artefact of a registry":     {request: request{object: policyOf(v1alpha1.PolicySource{OCI: &v1alpha1.OCISource{Ref: "registry.example/a/b@" + digest}})}},
		"an artefact without a digest":  {request: request{object: policyOf(v1alpha1.PolicySource{OCI: &v1alpha1.OCISource{Ref: "registry.example/a/b:latest"}})}, deny: []string{"spec.source.oci.ref"}},
		"a bundle of a web server":      {request: request{object: policyOf(v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: "https://x.example/b.tar.gz", Digest: digest}})}},
		"a bundle that nobody verifies": {request: request{object: policyOf(v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: "https://x.example/b.tar.gz"}})}, deny: []string{"spec.source.http"}},
		"broken from good":              {request: request{operation: update, old: nodePolicy("a", good), object: nodePolicy("a", bad)}, deny: []string{"policy.rego"}},
		"a broken one gets a label": {request: request{operation: update, old: nodePolicy("a", bad), object: func() *v1alpha1.NodePolicy {
			np := nodePolicy("a", bad)
			np.Labels = map[string]string{"a": "b"}
			return np
		}()}},
		"a broken one is switched off": {
			request: request{operation: update, old: nodePolicy("a", bad), object: policyOf(nodePolicy("a", bad).Spec.Source, func(s *v1alpha1.NodePolicySpec) { s.Mode = v1alpha1.ModeDisabled })},
			warn:    "does not matter while its mode is Disabled",
		},
		"a broken one in shadow": {
			request: request{object: policyOf(nodePolicy("a", bad).Spec.Source, func(s *v1alpha1.NodePolicySpec) { s.Mode = v1alpha1.ModeShadow })},
			deny:    []string{"policy.rego"},
		},
		"of the controller's namespace": {
			request: request{object: nodePolicy("a", bad), user: authenticationv1.UserInfo{Groups: []string{"system:serviceaccounts:system"}}},
			warn:    "not refused, since it comes from the controller's namespace",
		},
		"going": {request: request{operation: update, old: nodePolicy("a", good), object: func() *v1alpha1.NodePolicy {
			np := nodePolicy("a", bad)
			np.DeletionTimestamp = new(metav1.NewTime(now))
			return np
		}()}},
		"what nobody can read": {request: request{object: `{"spec": {"order": "x"}}`}, warn: "the NodePolicy was not checked"},
		"a compiler that panics": {
			world:   []func(*world){func(w *world) { w.opts.Loader = compiles(func(context.Context) error { panic("ours") }) }},
			request: request{object: nodePolicy("a", good)}, warn: "the policy was not compiled, and takes no force before it is: panic: ours",
		},
		"a compiler that takes long": {
			world: []func(*world){func(w *world) {
				w.opts.CompileTime = 50 * time.Millisecond
				w.opts.Loader = compiles(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			}},
			request: request{object: nodePolicy("a", good)}, warn: "the policy was not compiled within 50ms",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0, func(w *world) { w.opts.Open = source.Opener{Objects: data, Remote: remote}.Open })
			for _, f := range tt.world {
				f(w)
			}
			w.hook = webhook.New(w.opts)
			tt.request.path, tt.request.group, tt.request.resource = webhook.NodePoliciesPath, v1alpha1.Group, "nodepolicies"
			got := w.ask(tt.request)
			if got.Allowed != (len(tt.deny) == 0) {
				t.Errorf("allowed: %t, %+v", got.Allowed, got.Result)
			}
			for _, part := range tt.deny {
				if got.Result == nil || got.Result.Code != 422 || !strings.Contains(got.Result.Message, part) {
					t.Errorf("refused with %+v, want 422 with %q", got.Result, part)
				}
			}
			if text := strings.Join(got.Warnings, "\n"); (text == "") != (tt.warn == "") || !strings.Contains(text, tt.warn) {
				t.Errorf("warnings %q, want %q", got.Warnings, tt.warn)
			}
		})
	}
}

// remote opens sources that must not be fetched.
func remote(v1alpha1.PolicySource) (source.Source, error) { return unfetched{}, nil }

type unfetched struct{}

func (unfetched) Fetch(context.Context) (source.Artifact, error) { panic("a remote source is fetched") }

// compiles is a loader.
type compiles func(context.Context) error

func (f compiles) Load(ctx context.Context, _ *v1alpha1.NodePolicy, _ source.Artifact) (policy.Policy, error) {
	return policy.Policy{}, f(ctx)
}
