package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SimPhase is how far a simulated machine is.
//
// +kubebuilder:validation:Enum=Pending;Running;Terminating
type SimPhase string

// The phases. An empty one is Pending.
const (
	SimPending     SimPhase = "Pending"
	SimRunning     SimPhase = "Running"
	SimTerminating SimPhase = "Terminating"
)

// SimInstance is a machine of the simulated cloud, as that cloud's own records have it.
// Deleting it ends the machine at once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=siminstances,scope=Cluster,categories=dovetail,shortName=simi
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Claim",type="string",JSONPath=".spec.claim.name"
// +kubebuilder:printcolumn:name="Type",type="string",JSONPath=".spec.instanceType"
// +kubebuilder:printcolumn:name="Zone",type="string",JSONPath=".spec.zone"
// +kubebuilder:printcolumn:name="Capacity",type="string",JSONPath=".spec.capacityType"
// +kubebuilder:printcolumn:name="Price",type="string",JSONPath=".spec.price"
// +kubebuilder:printcolumn:name="Phase",type="string",JSONPath=".status.phase"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="NodePool",type="string",JSONPath=".spec.nodePool",priority=1
// +kubebuilder:printcolumn:name="ID",type="string",JSONPath=".spec.providerID",priority=1
type SimInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:message="spec is immutable",rule="self == oldSelf"
	Spec SimInstanceSpec `json:"spec"`
	// +optional
	Status SimInstanceStatus `json:"status,omitempty"`
}

// SimInstanceList is a list of SimInstances.
//
// +kubebuilder:object:root=true
type SimInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SimInstance `json:"items"`
}

// SimClaim is the NodeClaim that a machine was launched for.
type SimClaim struct {
	// +required
	Name string `json:"name"`
	// +required
	UID string `json:"uid"`
}

// SimInstanceSpec is what was bought, and how it will behave. It never changes.
type SimInstanceSpec struct {
	// Claim is the NodeClaim that the machine was launched for. Its name is that of the
	// Node.
	//
	// +required
	Claim SimClaim `json:"claim"`

	// NodePool of the claim; empty if it has none.
	//
	// +optional
	NodePool string `json:"nodePool,omitempty"`

	// NodeClass is the name of the SimNodeClass.
	//
	// +required
	NodeClass string `json:"nodeClass"`

	// NodeClassHash is a digest of what the class gives to Nodes, for drift.
	//
	// +optional
	NodeClassHash string `json:"nodeClassHash,omitempty"`

	// +required
	InstanceType string `json:"instanceType"`

	// +optional
	Zone string `json:"zone,omitempty"`

	// +required
	CapacityType string `json:"capacityType"`

	// ReservationID is the reservation that the machine takes a unit of.
	//
	// +optional
	ReservationID string `json:"reservationID,omitempty"`

	// Price in US dollars per hour at launch.
	//
	// +optional
	Price string `json:"price,omitempty"`

	// ProviderID is the machine's name in the simulated cloud.
	//
	// +required
	ProviderID string `json:"providerID"`

	// NodeProviderID is what the Node has instead, if the cloud is to lie.
	//
	// +optional
	NodeProviderID string `json:"nodeProviderID,omitempty"`

	// Labels of the machine.
	//
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// NodeLabels are labels that the Node has from its start, besides those that every
	// kubelet sets.
	//
	// +optional
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`

	// Taints that the Node has from its start.
	//
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`

	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	// LaunchTime is when the machine was bought.
	//
	// +required
	LaunchTime metav1.MicroTime `json:"launchTime"`

	// LaunchLatency is the time from LaunchTime until the machine runs.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	LaunchLatency metav1.Duration `json:"launchLatency,omitzero"`

	// RegistrationLatency is the time from then until the Node appears.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	RegistrationLatency metav1.Duration `json:"registrationLatency,omitzero"`

	// NeverRegisters is true if the Node never appears.
	//
	// +optional
	NeverRegisters bool `json:"neverRegisters,omitempty"`

	// TerminateLatency is the time from termination until the machine and its Node are
	// gone.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	TerminateLatency metav1.Duration `json:"terminateLatency,omitzero"`

	// ForgetLatency is the time from then until the cloud no longer lists the machine.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	ForgetLatency metav1.Duration `json:"forgetLatency,omitzero"`
}

// SimInstanceStatus is what has happened to a machine so far.
type SimInstanceStatus struct {
	// Phase is how far the machine is.
	//
	// +optional
	Phase SimPhase `json:"phase,omitempty"`

	// NodeName is the name of the Node that was made for the machine.
	//
	// +optional
	NodeName string `json:"nodeName,omitempty"`

	// RunningTime is when the machine started to run.
	//
	// +optional
	RunningTime *metav1.MicroTime `json:"runningTime,omitempty"`

	// NodeTime is when the Node was made.
	//
	// +optional
	NodeTime *metav1.MicroTime `json:"nodeTime,omitempty"`

	// TerminatingTime is when the machine's termination began.
	//
	// +optional
	TerminatingTime *metav1.MicroTime `json:"terminatingTime,omitempty"`

	// EndTime is when the machine, and its Node with it, was gone, if the cloud still lists
	// it.
	//
	// +optional
	EndTime *metav1.MicroTime `json:"endTime,omitempty"`

	// Interruptions that were announced.
	//
	// +optional
	// +listType=map
	// +listMapKey=kind
	Interruptions []SimNotice `json:"interruptions,omitempty"`
}

// SimNotice is an interruption that was announced.
type SimNotice struct {
	// Kind is what was announced.
	//
	// +required
	Kind InterruptionKind `json:"kind"`

	// Time of the announcement.
	//
	// +required
	Time metav1.MicroTime `json:"time"`

	// End is when the machine ends; unset if it does not.
	//
	// +optional
	End *metav1.MicroTime `json:"end,omitempty"`
}
