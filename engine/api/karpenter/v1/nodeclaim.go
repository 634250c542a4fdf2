package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeClaim asks for one machine, and records it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodeclaims,scope=Cluster,categories=karpenter
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Type",type="string",JSONPath=".metadata.labels.node\\.kubernetes\\.io/instance-type"
// +kubebuilder:printcolumn:name="Capacity",type="string",JSONPath=".metadata.labels.karpenter\\.sh/capacity-type"
// +kubebuilder:printcolumn:name="Zone",type="string",JSONPath=".metadata.labels.topology\\.kubernetes\\.io/zone"
// +kubebuilder:printcolumn:name="Node",type="string",JSONPath=".status.nodeName"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="ImageID",type="string",JSONPath=".status.imageID",priority=1
// +kubebuilder:printcolumn:name="ID",type="string",JSONPath=".status.providerID",priority=1
// +kubebuilder:printcolumn:name="NodePool",type="string",JSONPath=".metadata.labels.karpenter\\.sh/nodepool",priority=1
// +kubebuilder:printcolumn:name="NodeClass",type="string",JSONPath=".spec.nodeClassRef.name",priority=1
// +kubebuilder:printcolumn:name="Drifted",type="string",JSONPath=".status.conditions[?(@.type==\"Drifted\")].status",priority=1
type NodeClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:message="spec is immutable",rule="self == oldSelf"
	Spec NodeClaimSpec `json:"spec"`
	// +optional
	Status NodeClaimStatus `json:"status,omitempty"`
}

// NodeClaimList is a list of NodeClaims.
//
// +kubebuilder:object:root=true
type NodeClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeClaim `json:"items"`
}

// NodeClaimSpec is the machine that is asked for. It never changes.
type NodeClaimSpec struct {
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
	// +kubebuilder:validation:XValidation:message="requirements with operator 'In' must have a value defined",rule="self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)"
	// +kubebuilder:validation:XValidation:message="requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value",rule="self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)"
	// +kubebuilder:validation:XValidation:message="requirements with 'minValues' must have at least that many values specified in the 'values' field",rule="self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)"
	Requirements []Requirement `json:"requirements"`

	// Resources that the machine must hold.
	//
	// +optional
	Resources ResourceRequirements `json:"resources,omitempty"`

	// NodeClassRef is the cloud-specific configuration.
	//
	// +required
	NodeClassRef *NodeClassReference `json:"nodeClassRef"`

	// TerminationGracePeriod bounds the drain of the Node, counted from the deletion of
	// the NodeClaim. When it runs out, the remaining pods are deleted whatever their
	// PodDisruptionBudgets or annotations say; each is deleted early enough for its own
	// grace period. Unset waits without bound.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	TerminationGracePeriod *metav1.Duration `json:"terminationGracePeriod,omitempty"`

	// ExpireAfter is the age at which the Node is replaced, or Never.
	//
	// +optional
	// +kubebuilder:default:="720h"
	ExpireAfter NillableDuration `json:"expireAfter,omitempty"`
}

// ResourceRequirements are the resources a machine must hold.
type ResourceRequirements struct {
	// Requests of the pods planned for the Node, and of its DaemonSets.
	//
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
}

// NodeClaimStatus is the machine that was found.
type NodeClaimStatus struct {
	// NodeName is the name of the Node.
	//
	// +optional
	NodeName string `json:"nodeName,omitempty"`

	// ProviderID is the cloud's name of the machine, as in the Node's spec.
	//
	// +optional
	ProviderID string `json:"providerID,omitempty"`

	// ImageID is the image that the machine was started from.
	//
	// +optional
	ImageID string `json:"imageID,omitempty"`

	// Capacity is the cloud's estimate of the Node's resources.
	//
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// Allocatable is the cloud's estimate of what is left for pods.
	//
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	// Conditions say how far the machine is, and what is wrong with it. Their reason may
	// be empty, since older objects have none.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// LastPodEventTime is when a pod last came to the Node or left it; a pod leaves when
	// it ends or starts to terminate.
	//
	// +optional
	LastPodEventTime metav1.Time `json:"lastPodEventTime,omitzero"`
}
