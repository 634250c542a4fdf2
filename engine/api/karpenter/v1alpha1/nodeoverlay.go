package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of NodeOverlays.
const (
	// ConditionReady is true while the overlay is in force.
	ConditionReady = "Ready"
	// ConditionValidationSucceeded is false with one of the Reason constants.
	ConditionValidationSucceeded = "ValidationSucceeded"
)

// Reasons for [ConditionValidationSucceeded] being false.
const (
	// ReasonRuntimeValidation is a field the controller cannot use.
	ReasonRuntimeValidation = "RuntimeValidation"
	// ReasonConflict is another overlay of the same weight that sets the same thing.
	ReasonConflict = "Conflict"
)

// NodeOverlay corrects the price, or adds to the capacity, of the instance types and
// offerings that it matches.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodeoverlays,scope=Cluster,categories=karpenter,shortName=overlays
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Weight",type="integer",JSONPath=".spec.weight",priority=1
type NodeOverlay struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodeOverlaySpec `json:"spec"`
	// +optional
	Status NodeOverlayStatus `json:"status,omitempty"`
}

// NodeOverlayList is a list of NodeOverlays.
//
// +kubebuilder:object:root=true
type NodeOverlayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeOverlay `json:"items"`
}

// Requirement limits one label of the offerings that an overlay matches.
type Requirement struct {
	// Key is the label.
	//
	// +required
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	// +kubebuilder:validation:XValidation:message="label domain \"karpenter.sh\" is restricted",rule="self in ['karpenter.sh/capacity-type', 'karpenter.sh/nodepool'] || !self.find('^([^/]+)').endsWith('karpenter.sh')"
	// +kubebuilder:validation:XValidation:message="label \"kubernetes.io/hostname\" is restricted",rule="self != 'kubernetes.io/hostname'"
	Key string `json:"key"`

	// Operator relates the label's value to Values: In and NotIn take one or more,
	// Exists and DoesNotExist none, and Gt, Lt, Gte and Lte one integer of at least zero.
	//
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt;Gte;Lte
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`

	// Values are the operator's operands.
	//
	// +optional
	// +listType=atomic
	Values []string `json:"values,omitempty"`
}

// NodeOverlaySpec says what is matched and what is corrected.
//
// +kubebuilder:validation:XValidation:message="cannot set both 'price' and 'priceAdjustment'",rule="!has(self.price) || !has(self.priceAdjustment)"
type NodeOverlaySpec struct {
	// Requirements all must hold for an offering to be matched. They may use labels of
	// instance types and offerings, the label karpenter.sh/nodepool, and the labels of
	// NodePool templates.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:message="requirements with operator 'NotIn' must have a value defined",rule="self.all(x, x.operator == 'NotIn' ? x.values.size() != 0 : true)"
	// +kubebuilder:validation:XValidation:message="requirements with operator 'In' must have a value defined",rule="self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)"
	// +kubebuilder:validation:XValidation:message="requirements operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single positive integer value",rule="self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)"
	Requirements []Requirement `json:"requirements,omitempty"`

	// PriceAdjustment is added to the price: an amount with a sign in US dollars per
	// hour ("+0.5"), or a percentage with a sign ("-15%").
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$`
	PriceAdjustment *string `json:"priceAdjustment,omitempty"`

	// Price replaces the price, in US dollars per hour.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^\d+(\.\d+)?$`
	Price *string `json:"price,omitempty"`

	// Capacity adds extended resources. CPU, memory, ephemeral storage and pods cannot
	// be changed.
	//
	// +optional
	// +kubebuilder:validation:XValidation:message="cpu, memory, ephemeral-storage and pods cannot be changed",rule="self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))"
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// Weight decides between overlays that match the same offering: the highest wins, and
	// between equal ones the name that sorts last. Unset counts as 0.
	//
	// +optional
	// +kubebuilder:validation:Minimum:=1
	// +kubebuilder:validation:Maximum:=10000
	Weight *int32 `json:"weight,omitempty"`
}

// NodeOverlayStatus is what was observed.
type NodeOverlayStatus struct {
	// Conditions say whether the overlay is in force, and why not.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
