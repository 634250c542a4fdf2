package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of limits.
const (
	MinTimeout = time.Millisecond
	MaxTimeout = 10 * time.Second
)

var (
	minMemory = resource.MustParse("64Ki")
	// maxMemory is the highest memory limit by runtime.
	maxMemory = map[Runtime]resource.Quantity{RuntimeRego: resource.MustParse("1Gi"), RuntimeWasm: resource.MustParse("64Mi")}

	urlPattern       = regexp.MustCompile(`^https?://[^\s/]+(/\S*)?$`)
	digestPattern    = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
	referencePattern = regexp.MustCompile(`^[A-Za-z0-9.:\[\]-]+/[a-z0-9._/-]+(:[A-Za-z0-9._-]+)?@sha256:[a-f0-9]{64}$`)
)

// RuntimeValidate checks everything about the policy that can be known without its files,
// what an API server checks included. It returns every fault with its field path, joined,
// or nil.
func (p *NodePolicy) RuntimeValidate() error { return p.Validate().ToAggregate() }

// Validate is [NodePolicy.RuntimeValidate] with the faults as a list, in the order of the
// fields.
func (p *NodePolicy) Validate() field.ErrorList {
	s, at := &p.Spec, field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, oneOf(at.Child("hook"), s.Hook, true, HookScore, HookDisrupt, HookLaunch, HookAdmit)...)
	errs = append(errs, oneOf(at.Child("runtime"), s.Runtime, true, RuntimeRego, RuntimeWasm)...)
	errs = append(errs, s.Source.validate(at.Child("source"))...)
	errs = append(errs, object(at.Child("parameters"), s.Parameters)...)
	if s.Data != nil {
		errs = append(errs, s.Data.validate(at.Child("data"), s.Runtime)...)
	}
	if s.NodePoolSelector != nil {
		errs = append(errs, unversioned.ValidateLabelSelector(s.NodePoolSelector, unversioned.LabelSelectorValidationOptions{}, at.Child("nodePoolSelector"))...)
	}
	if len(s.Reasons) > 0 && s.Hook != HookDisrupt {
		errs = append(errs, field.Forbidden(at.Child("reasons"), "reasons are for hook disrupt only"))
	}
	for i, r := range s.Reasons {
		errs = append(errs, oneOf(at.Child("reasons").Index(i), r, true, Reasons()...)...)
		if slices.Contains(s.Reasons[:i], r) {
			errs = append(errs, field.Duplicate(at.Child("reasons").Index(i), r))
		}
	}
	errs = append(errs, oneOf(at.Child("mode"), s.Mode, false, ModeEnforce, ModeShadow, ModeDisabled)...)
	errs = append(errs, oneOf(at.Child("failurePolicy"), s.FailurePolicy, false, FailureIgnore, FailureDeny)...)
	if t := s.Timeout; t != nil && (t.Duration < MinTimeout || t.Duration > MaxTimeout) {
		errs = append(errs, field.Invalid(at.Child("timeout"), t.Duration.String(), fmt.Sprintf("must be from %s to %s", MinTimeout, MaxTimeout)))
	}
	if m := s.MemoryLimit; m != nil {
		most, ok := maxMemory[s.Runtime]
		if m.Cmp(minMemory) < 0 || ok && m.Cmp(most) > 0 {
			errs = append(errs, field.Invalid(at.Child("memoryLimit"), m.String(), fmt.Sprintf("must be from %s to %s", minMemory.String(), most.String())))
		}
	}
	if s.Order < -10000 || s.Order > 10000 {
		errs = append(errs, field.Invalid(at.Child("order"), s.Order, "must be from -10000 to 10000"))
	}
	return errs
}

func (s *PolicySource) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	var set []string
	note := func(name string, present bool) bool {
		if present {
			set = append(set, name)
		}
		return present
	}
	if note("inline", s.Inline != nil) && *s.Inline == "" {
		errs = append(errs, field.Required(at.Child("inline"), "the text of a Rego file, or a Wasm module in base64"))
	}
	if note("configMapRef", s.ConfigMapRef != nil) {
		errs = append(errs, s.ConfigMapRef.validate(at.Child("configMapRef"))...)
	}
	if note("file", s.File != nil) && s.File.Path == "" {
		errs = append(errs, field.Required(at.Child("file", "path"), "a file or folder"))
	}
	if note("oci", s.OCI != nil) {
		at := at.Child("oci")
		if !referencePattern.MatchString(s.OCI.Ref) {
			errs = append(errs, field.Invalid(at.Child("ref"), s.OCI.Ref, "must name an artefact by digest: HOST/REPOSITORY@sha256:DIGEST"))
		}
		if ref := s.OCI.PullSecretRef; ref != nil {
			errs = append(errs, named(at.Child("pullSecretRef"), ref.Namespace, ref.Name)...)
		}
	}
	if note("http", s.HTTP != nil) {
		errs = append(errs, s.HTTP.validate(at.Child("http"))...)
	}
	switch {
	case len(set) == 0:
		errs = append(errs, field.Required(at, "exactly one of inline, configMapRef, file, oci and http"))
	case len(set) > 1:
		errs = append(errs, field.Invalid(at, strings.Join(set, ", "), "exactly one of inline, configMapRef, file, oci and http is required"))
	}
	return errs
}

func (s *HTTPSource) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !urlPattern.MatchString(s.URL) {
		errs = append(errs, field.Invalid(at.Child("url"), s.URL, "must be an http or https URL"))
	}
	k := s.VerificationKey
	if (s.Digest == "") == (k == nil) {
		errs = append(errs, field.Invalid(at, s.URL, "exactly one of digest and verificationKey is required"))
	}
	if s.Digest != "" && !digestPattern.MatchString(s.Digest) {
		errs = append(errs, field.Invalid(at.Child("digest"), s.Digest, "must be sha256: and 64 hexadecimal digits"))
	}
	if k == nil {
		return errs
	}
	at = at.Child("verificationKey")
	errs = append(errs, oneOf(at.Child("algorithm"), k.Algorithm, false, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "HS256", "HS384", "HS512")...)
	if (k.PublicKey == "") == (k.SecretRef == nil) {
		errs = append(errs, field.Invalid(at, k.KeyID, "exactly one of publicKey and secretRef is required"))
	}
	if strings.HasPrefix(k.Algorithm, "HS") && k.PublicKey != "" {
		errs = append(errs, field.Forbidden(at.Child("publicKey"), "the secret of an HS algorithm belongs into a Secret"))
	}
	if ref := k.SecretRef; ref != nil {
		errs = append(errs, named(at.Child("secretRef"), ref.Namespace, ref.Name)...)
		if ref.Key == "" {
			errs = append(errs, field.Required(at.Child("secretRef", "key"), ""))
		}
	}
	return errs
}

func (r *ConfigMapReference) validate(at *field.Path) field.ErrorList {
	errs := named(at, r.Namespace, r.Name)
	if r.Key != "" {
		for _, msg := range validation.IsConfigMapKey(r.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), r.Key, msg))
		}
	}
	return errs
}

func (d *PolicyData) validate(at *field.Path, rt Runtime) field.ErrorList {
	var errs field.ErrorList
	if rt == RuntimeWasm {
		errs = append(errs, field.Forbidden(at, "data is for runtime rego only: a Wasm policy takes its documents as parameters"))
	}
	errs = append(errs, object(at.Child("inline"), d.Inline)...)
	if documents, err := decode(d.Inline); err == nil {
		if _, ok := documents["dovetail"]; ok {
			errs = append(errs, field.Forbidden(at.Child("inline").Key("dovetail"), "the name is reserved"))
		}
	}
	for i := range d.ConfigMapRefs {
		errs = append(errs, d.ConfigMapRefs[i].validate(at.Child("configMapRefs").Index(i))...)
		if key := d.ConfigMapRefs[i].Key; key != "" && !slices.Contains([]string{".json", ".yaml", ".yml"}, path.Ext(strings.TrimSuffix(key, ".gz"))) {
			errs = append(errs, field.Invalid(at.Child("configMapRefs").Index(i).Child("key"), key, "must end in .json, .yaml or .yml"))
		}
	}
	return errs
}

// named checks the name of an object in a namespace.
func named(at *field.Path, namespace, name string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(namespace) {
		errs = append(errs, field.Invalid(at.Child("namespace"), namespace, msg))
	}
	for _, msg := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(at.Child("name"), name, msg))
	}
	return errs
}

func oneOf[T ~string](at *field.Path, v T, required bool, allowed ...T) field.ErrorList {
	switch {
	case slices.Contains(allowed, v), v == "" && !required:
		return nil
	case v == "":
		return field.ErrorList{field.Required(at, "")}
	}
	return field.ErrorList{field.NotSupported(at, v, allowed)}
}

// object checks that free JSON is an object.
func object(at *field.Path, raw *runtime.RawExtension) field.ErrorList {
	if _, err := decode(raw); err != nil {
		return field.ErrorList{field.Invalid(at, string(raw.Raw), "must be a JSON object: "+err.Error())}
	}
	return nil
}

// decode reads free JSON, with exact numbers. Nil and null are an empty map.
func decode(raw *runtime.RawExtension) (map[string]any, error) {
	out := map[string]any{}
	if raw == nil || len(raw.Raw) == 0 {
		return out, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw.Raw))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("text after the value")
	}
	if out == nil {
		out = map[string]any{}
	}
	return out, nil
}

// DecodeParameters returns spec.parameters; numbers are [json.Number]. Unset is an empty
// map. The error is that of malformed JSON, or JSON that is no object.
func (s *NodePolicySpec) DecodeParameters() (map[string]any, error) { return decode(s.Parameters) }

// DecodeInline returns the inline documents by name; numbers are [json.Number]. A nil d has
// none.
func (d *PolicyData) DecodeInline() (map[string]any, error) {
	if d == nil {
		return map[string]any{}, nil
	}
	return decode(d.Inline)
}
