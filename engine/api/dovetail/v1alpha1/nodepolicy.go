package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Condition types of NodePolicies.
const (
	// ConditionReady is true while the policy answers, be it with an older revision.
	ConditionReady = "Ready"
	// ConditionFetched is true if the source gave its files the last time it was asked.
	ConditionFetched = "Fetched"
	// ConditionCompiled is true if the files fetched last are the ones in force.
	ConditionCompiled = "Compiled"
)

// Reasons of conditions of NodePolicies.
const (
	// ReasonInvalid is a field of the NodePolicy that cannot be used.
	ReasonInvalid = "Invalid"
	// ReasonFetchFailed is a source that gave nothing that can be trusted.
	ReasonFetchFailed = "FetchFailed"
	// ReasonLoadFailed is a policy that the runtime refused.
	ReasonLoadFailed = "LoadFailed"
	// ReasonLastGood is an older revision in force because the newest one is refused.
	ReasonLastGood = "LastGoodRevision"
	// ReasonDisabled is a policy with mode Disabled.
	ReasonDisabled = "Disabled"
	// ReasonSucceeded is the reason of conditions that are true.
	ReasonSucceeded = "Succeeded"
)

// Hook names a question that policies answer.
//
// +kubebuilder:validation:Enum=score;disrupt;launch;admit
type Hook string

// The hooks.
const (
	HookScore   Hook = "score"
	HookDisrupt Hook = "disrupt"
	HookLaunch  Hook = "launch"
	HookAdmit   Hook = "admit"
)

// Runtime is what runs a policy.
//
// +kubebuilder:validation:Enum=rego;wasm
type Runtime string

// The runtimes.
const (
	RuntimeRego Runtime = "rego"
	RuntimeWasm Runtime = "wasm"
)

// Mode says whether a policy has an effect.
//
// +kubebuilder:validation:Enum=Enforce;Shadow;Disabled
type Mode string

// The modes.
const (
	// ModeEnforce lets the policy decide.
	ModeEnforce Mode = "Enforce"
	// ModeShadow asks the policy and records what it would have changed.
	ModeShadow Mode = "Shadow"
	// ModeDisabled leaves the policy out.
	ModeDisabled Mode = "Disabled"
)

// FailurePolicy says what holds when a policy gives no answer.
//
// +kubebuilder:validation:Enum=Ignore;Deny
type FailurePolicy string

// The failure policies.
const (
	FailureIgnore FailurePolicy = "Ignore"
	FailureDeny   FailurePolicy = "Deny"
)

// Reason is why nodes are disrupted.
//
// +kubebuilder:validation:Enum=Empty;Underutilized;Drifted;Expired;Repair;Interruption;Requested;Unblock
type Reason string

// Reasons lists the reasons for which a disrupt policy can be asked.
func Reasons() []Reason {
	return []Reason{"Empty", "Underutilized", "Drifted", "Expired", "Repair", "Interruption", "Requested", "Unblock"}
}

// NodePolicy puts a policy in force: which question it answers, where its files come from,
// whom it concerns, and what holds if it fails.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodepolicies,scope=Cluster,categories=dovetail,shortName=npol
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Hook",type="string",JSONPath=".spec.hook"
// +kubebuilder:printcolumn:name="Runtime",type="string",JSONPath=".spec.runtime"
// +kubebuilder:printcolumn:name="Mode",type="string",JSONPath=".spec.mode"
// +kubebuilder:printcolumn:name="Order",type="integer",JSONPath=".spec.order"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Revision",type="string",JSONPath=".status.revision",priority=1
// +kubebuilder:printcolumn:name="Error",type="string",JSONPath=".status.lastError",priority=1
type NodePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodePolicySpec `json:"spec"`
	// +optional
	Status NodePolicyStatus `json:"status,omitempty"`
}

// NodePolicyList is a list of NodePolicies.
//
// +kubebuilder:object:root=true
type NodePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodePolicy `json:"items"`
}

// NodePolicySpec says what is put in force.
//
// +kubebuilder:validation:XValidation:message="reasons are for hook 'disrupt' only",rule="!has(self.reasons) || self.reasons.size() == 0 || self.hook == 'disrupt'"
// +kubebuilder:validation:XValidation:message="data is for runtime 'rego' only: a Wasm policy takes its documents as parameters",rule="!has(self.data) || self.runtime == 'rego'"
type NodePolicySpec struct {
	// Hook is the question that the policy answers.
	//
	// +required
	Hook Hook `json:"hook"`

	// Runtime runs the policy.
	//
	// +required
	Runtime Runtime `json:"runtime"`

	// Source is where the policy's files come from.
	//
	// +required
	Source PolicySource `json:"source"`

	// Parameters are handed to the policy as input.parameters, and checked against the
	// policy's own schema if it has one.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Parameters *runtime.RawExtension `json:"parameters,omitempty"`

	// Data are the policy's own documents, which a Rego policy reads as data.
	//
	// +optional
	Data *PolicyData `json:"data,omitempty"`

	// NodePoolSelector chooses the NodePools for which the policy is asked, by their
	// labels. Unset or empty chooses all.
	//
	// +optional
	NodePoolSelector *metav1.LabelSelector `json:"nodePoolSelector,omitempty"`

	// Reasons for which a disrupt policy is asked. Unset or empty means all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Reasons []Reason `json:"reasons,omitempty"`

	// Mode says whether the policy has an effect.
	//
	// +optional
	// +kubebuilder:default=Enforce
	Mode Mode `json:"mode,omitempty"`

	// FailurePolicy says what holds when the policy gives no answer. Unset means Ignore,
	// and for hook disrupt Deny where the disruption is voluntary and the nodes are not
	// empty.
	//
	// +optional
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// Timeout is the wall time of one evaluation, at most 10s. Unset means 250ms for
	// score, 100ms for disrupt and launch, 50ms for admit.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s))+$`
	// +kubebuilder:validation:XValidation:message="timeout is from 1ms to 10s",rule="duration(self) >= duration('1ms') && duration(self) <= duration('10s')"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// MemoryLimit bounds the memory of one evaluation: the memory of a Wasm module, at
	// most 64Mi and 16Mi if unset; what the process may allocate meanwhile for Rego, at
	// most 1Gi, and 64Mi for score, 32Mi for disrupt and launch, 16Mi for admit if unset.
	//
	// +optional
	MemoryLimit *resource.Quantity `json:"memoryLimit,omitempty"`

	// Order is the place in the chain of policies of one hook: lower comes first, equal
	// ones go by name.
	//
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=-10000
	// +kubebuilder:validation:Maximum=10000
	Order int32 `json:"order,omitempty"`
}

// PolicySource is where a policy's files come from.
//
// +kubebuilder:validation:XValidation:message="exactly one of inline, configMapRef, file, oci and http is required",rule="[has(self.inline), has(self.configMapRef), has(self.file), has(self.oci), has(self.http)].filter(x, x).size() == 1"
type PolicySource struct {
	// Inline is the text of a Rego file, or a Wasm module in base64.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1400000
	Inline *string `json:"inline,omitempty"`

	// ConfigMapRef names a ConfigMap that has the files.
	//
	// +optional
	ConfigMapRef *ConfigMapReference `json:"configMapRef,omitempty"`

	// File is a file or folder that Dovetail can read.
	//
	// +optional
	File *FileSource `json:"file,omitempty"`

	// OCI is an artefact in an OCI registry.
	//
	// +optional
	OCI *OCISource `json:"oci,omitempty"`

	// HTTP is an OPA bundle, or a single Rego file or Wasm module, on a web server.
	//
	// +optional
	HTTP *HTTPSource `json:"http,omitempty"`
}

// ConfigMapReference names a ConfigMap, or one of its keys.
type ConfigMapReference struct {
	// Namespace of the ConfigMap.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the ConfigMap.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key chooses one key. Unset means all. A key that ends in .gz is decompressed.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// FileSource is a file or folder. Changes take force within a second.
type FileSource struct {
	// Path of the file, or of the folder with all its files below.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
}

// OCISource is an artefact in an OCI registry.
type OCISource struct {
	// Ref names the artefact by digest: HOST/REPOSITORY@sha256:DIGEST.
	//
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9.:\[\]-]+/[a-z0-9._/-]+(:[A-Za-z0-9._-]+)?@sha256:[a-f0-9]{64}$`
	Ref string `json:"ref"`

	// PullSecretRef names a Secret of type kubernetes.io/dockerconfigjson.
	//
	// +optional
	PullSecretRef *SecretReference `json:"pullSecretRef,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// Namespace of the Secret.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the Secret.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// HTTPSource is a file on a web server, authenticated by its digest or signature.
//
// +kubebuilder:validation:XValidation:message="exactly one of digest and verificationKey is required",rule="has(self.digest) != has(self.verificationKey)"
type HTTPSource struct {
	// URL of the file.
	//
	// +required
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^\s/]+(/\S*)?$`
	URL string `json:"url"`

	// Digest of the file as it is served.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^sha256:[a-f0-9]{64}$`
	Digest string `json:"digest,omitempty"`

	// VerificationKey checks the signature of an OPA bundle (.signatures.json).
	//
	// +optional
	VerificationKey *VerificationKey `json:"verificationKey,omitempty"`
}

// VerificationKey checks signatures of OPA bundles.
//
// +kubebuilder:validation:XValidation:message="exactly one of publicKey and secretRef is required",rule="has(self.publicKey) != has(self.secretRef)"
type VerificationKey struct {
	// KeyID is the name of the key that signatures give. Unset means default.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	KeyID string `json:"keyID,omitempty"`

	// Algorithm of the signature.
	//
	// +optional
	// +kubebuilder:default=RS256
	// +kubebuilder:validation:Enum=RS256;RS384;RS512;PS256;PS384;PS512;ES256;ES384;ES512;HS256;HS384;HS512
	Algorithm string `json:"algorithm,omitempty"`

	// Scope that a signature must have. Unset means none.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Scope string `json:"scope,omitempty"`

	// PublicKey in PEM.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	PublicKey string `json:"publicKey,omitempty"`

	// SecretRef names a key of a Secret that has the key: in PEM, or the secret of the HS
	// algorithms.
	//
	// +optional
	SecretRef *SecretKeyReference `json:"secretRef,omitempty"`
}

// SecretKeyReference names a key of a Secret.
type SecretKeyReference struct {
	SecretReference `json:",inline"`
	// Key of the Secret's data.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// PolicyData are documents of a policy. A document of a ConfigMap replaces one of the same
// name that comes with the policy's files, and an inline one replaces both.
type PolicyData struct {
	// Inline has a document under each name. The name dovetail is reserved.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Inline *runtime.RawExtension `json:"inline,omitempty"`

	// ConfigMapRefs name ConfigMaps whose keys NAME.json and NAME.yaml are documents. Later
	// ones replace earlier ones.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ConfigMapRefs []ConfigMapReference `json:"configMapRefs,omitempty"`
}

// NodePolicyStatus is what was observed.
type NodePolicyStatus struct {
	// Conditions are Ready, Fetched and Compiled.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration is the generation that the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Revision in force: the digest of everything that answers depend on besides the
	// input. Decision records carry it. Empty means that none is in force.
	//
	// +optional
	Revision string `json:"revision,omitempty"`

	// SourceDigest is the digest of the files in force.
	//
	// +optional
	SourceDigest string `json:"sourceDigest,omitempty"`

	// LastError is why the newest revision is not in force, or empty.
	//
	// +optional
	LastError string `json:"lastError,omitempty"`

	// LastHour counts the evaluations of the last hour.
	//
	// +optional
	LastHour *PolicyActivity `json:"lastHour,omitempty"`
}

// PolicyActivity counts evaluations.
type PolicyActivity struct {
	// Evaluations is how often the policy was asked.
	Evaluations int64 `json:"evaluations"`
	// Denials is how often it denied or deferred something.
	Denials int64 `json:"denials"`
	// Errors is how often it gave no answer.
	Errors int64 `json:"errors"`
	// MedianMicros is the time that half of the evaluations took at most, in microseconds
	// and rounded up by at most a quarter.
	MedianMicros int64 `json:"medianMicros"`
	// P99Micros is the time that 99 of 100 evaluations took at most, likewise.
	P99Micros int64 `json:"p99Micros"`
	// MaxMicros is the time of the slowest evaluation.
	MaxMicros int64 `json:"maxMicros"`
}
