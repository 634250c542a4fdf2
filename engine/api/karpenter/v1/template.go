package v1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Requirement limits one label of a node, and may ask for a choice of values.
type Requirement struct {
	// Key is the label.
	//
	// +required
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	// +kubebuilder:validation:XValidation:message="label domain \"karpenter.sh\" is restricted",rule="self in ['karpenter.sh/capacity-type', 'karpenter.sh/nodepool'] || !self.find('^([^/]+)').endsWith('karpenter.sh')"
	// +kubebuilder:validation:XValidation:message="label \"kubernetes.io/hostname\" is restricted",rule="self != 'kubernetes.io/hostname'"
	Key string `json:"key"`

	// Operator relates the label's value to Values: In and NotIn take any number, Exists
	// and DoesNotExist none, and Gt, Lt, Gte and Lte one integer of at least zero.
	//
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt;Gte;Lte
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`

	// Values are the operator's operands.
	//
	// +optional
	// +listType=atomic
	Values []string `json:"values,omitempty"`

	// MinValues is the least number of values of this label that the instance types of
	// a NodeClaim must span, so that a launch can still choose. This field is alpha.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	MinValues *int `json:"minValues,omitempty"`
}

// NodeClassReference names the cloud-specific part of a node's configuration.
type NodeClassReference struct {
	// Kind of the object, such as "EC2NodeClass".
	//
	// +required
	// +kubebuilder:validation:XValidation:message="kind may not be empty",rule="self != ''"
	Kind string `json:"kind"`

	// Name of the object.
	//
	// +required
	// +kubebuilder:validation:XValidation:message="name may not be empty",rule="self != ''"
	Name string `json:"name"`

	// Group is the API group of the object, without a version.
	//
	// +required
	// +kubebuilder:validation:Pattern=`^[^/]*$`
	// +kubebuilder:validation:XValidation:message="group may not be empty",rule="self != ''"
	Group string `json:"group"`
}

// LabelKey is the label that names the NodeClass on NodeClaims and Nodes: the group,
// a slash, and the kind in lower case.
func (r *NodeClassReference) LabelKey() string {
	return r.Group + "/" + strings.ToLower(r.Kind)
}

// ObjectMeta are the parts of metadata that a template hands on to its NodeClaims.
type ObjectMeta struct {
	// Labels of the NodeClaim and its Node.
	//
	// +optional
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=100
	// +kubebuilder:validation:XValidation:message="label domain \"karpenter.sh\" is restricted",rule="self.all(x, x in ['karpenter.sh/capacity-type', 'karpenter.sh/nodepool'] || !x.find('^([^/]+)').endsWith('karpenter.sh'))"
	// +kubebuilder:validation:XValidation:message="label \"karpenter.sh/nodepool\" is restricted",rule="self.all(x, x != 'karpenter.sh/nodepool')"
	// +kubebuilder:validation:XValidation:message="label \"kubernetes.io/hostname\" is restricted",rule="self.all(x, x != 'kubernetes.io/hostname')"
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations of the NodeClaim and its Node.
	//
	// +optional
	// +mapType=granular
	Annotations map[string]string `json:"annotations,omitempty"`
}

// NodeClaimTemplate is what every NodeClaim of a NodePool starts from. The scheduler
// only ever narrows it.
type NodeClaimTemplate struct {
	// Metadata of the NodeClaim.
	//
	// +optional
	ObjectMeta `json:"metadata,omitempty"`

	// Spec of the NodeClaim.
	//
	// +required
	Spec NodeClaimTemplateSpec `json:"spec"`
}

// NodeClaimTemplateSpec is a [NodeClaimSpec] without resource requests: those follow
// from the pods.
type NodeClaimTemplateSpec struct {
	// Taints of the Node.
	//
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`

	// StartupTaints are on the Node when it starts and are taken away soon by something
	// else, such as a DaemonSet. Pods need not tolerate them to get a node.
	//
	// +optional
	// +listType=atomic
	StartupTaints []corev1.Taint `json:"startupTaints,omitempty"`

	// Requirements limit the instance types, zones and other labels of the Node.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:XValidation:message="label \"karpenter.sh/nodepool\" is restricted",rule="self.key != 'karpenter.sh/nodepool'"
	// +kubebuilder:validation:XValidation:message="requirements with operator 'In' must have a value defined",rule="self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)"
	// +kubebuilder:validation:XValidation:message="requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value",rule="self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)"
	// +kubebuilder:validation:XValidation:message="requirements with 'minValues' must have at least that many values specified in the 'values' field",rule="self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)"
	Requirements []Requirement `json:"requirements"`

	// NodeClassRef is the cloud-specific configuration. Its group and kind never change.
	//
	// +required
	// +kubebuilder:validation:XValidation:message="nodeClassRef.group is immutable",rule="self.group == oldSelf.group"
	// +kubebuilder:validation:XValidation:message="nodeClassRef.kind is immutable",rule="self.kind == oldSelf.kind"
	NodeClassRef *NodeClassReference `json:"nodeClassRef"`

	// TerminationGracePeriod bounds the drain of a Node, counted from the deletion of
	// its NodeClaim. When it runs out, the remaining pods are deleted whatever their
	// PodDisruptionBudgets or annotations say; each is deleted early enough for its own
	// grace period. Unset waits without bound.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	TerminationGracePeriod *metav1.Duration `json:"terminationGracePeriod,omitempty"`

	// ExpireAfter is the age at which a Node is replaced, or Never.
	//
	// +optional
	// +kubebuilder:default:="720h"
	ExpireAfter NillableDuration `json:"expireAfter,omitempty"`
}
