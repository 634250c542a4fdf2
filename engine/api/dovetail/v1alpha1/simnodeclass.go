package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the condition Ready of SimNodeClasses, besides ReasonInvalid and
// ReasonSucceeded.
const (
	// ReasonCatalogFailed is a catalogue that cannot be read, or that holds nothing.
	ReasonCatalogFailed = "CatalogFailed"
	// ReasonDeleting is a class that is being deleted.
	ReasonDeleting = "Deleting"
)

// Builtin names a catalogue that the program brings along.
//
// +kubebuilder:validation:Enum=ec2;kwok
type Builtin string

// The built-in catalogues.
const (
	BuiltinEC2  Builtin = "ec2"
	BuiltinKWOK Builtin = "kwok"
)

// SimNodeClass is a simulated cloud: what it sells, how long things take in it, and what
// goes wrong in it and when. Its machines are SimInstances and Nodes that nobody runs.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=simnodeclasses,scope=Cluster,categories=dovetail,shortName=simnc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Types",type="integer",JSONPath=".status.instanceTypes"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",priority=1
type SimNodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SimNodeClassSpec `json:"spec,omitempty"`
	// +optional
	Status SimNodeClassStatus `json:"status,omitempty"`
}

// SimNodeClassList is a list of SimNodeClasses.
//
// +kubebuilder:object:root=true
type SimNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SimNodeClass `json:"items"`
}

// SimNodeClassSpec is a simulated cloud. Empty, it is EC2 with endless capacity whose
// machines are there at once.
type SimNodeClassSpec struct {
	// Catalog is what can be bought. Unset means the built-in one of EC2.
	//
	// +optional
	Catalog SimCatalog `json:"catalog,omitzero"`

	// InstanceTypes limits the catalogue to types with these names, which may hold the
	// wildcards * and ?. Unset or empty keeps all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	InstanceTypes []string `json:"instanceTypes,omitempty"`

	// Zones limits the catalogue to offerings in these zones. Unset or empty keeps all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	Zones []string `json:"zones,omitempty"`

	// Labels that a Node has from its start.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=100
	// +kubebuilder:validation:XValidation:message="labels of domain karpenter.sh are set at registration",rule="self.all(k, !k.startsWith('karpenter.sh/'))"
	Labels map[string]string `json:"labels,omitempty"`

	// Taints that a Node has from its start, besides karpenter.sh/unregistered.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Taints []corev1.Taint `json:"taints,omitempty"`

	// LaunchLatency is the time from a launch until the machine runs.
	//
	// +optional
	LaunchLatency SimLatency `json:"launchLatency,omitzero"`

	// RegistrationLatency is the time from then until its Node appears.
	//
	// +optional
	RegistrationLatency SimLatency `json:"registrationLatency,omitzero"`

	// TerminateLatency is the time from a machine's termination until it is gone, and its
	// Node with it.
	//
	// +optional
	TerminateLatency SimLatency `json:"terminateLatency,omitzero"`

	// UnavailableFor is how long an offering that was out of capacity counts as
	// unavailable.
	//
	// +optional
	// +kubebuilder:default="3m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	UnavailableFor *metav1.Duration `json:"unavailableFor,omitempty"`

	// Capacity limits what can be bought. Where several rules select an offering, all of
	// them hold.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Capacity []SimCapacity `json:"capacity,omitempty"`

	// Prices are changes of prices, applied in order of time.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Prices []SimPrice `json:"prices,omitempty"`

	// Interruptions are machines that the cloud takes back.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Interruptions []SimInterruption `json:"interruptions,omitempty"`

	// Failures are what else goes wrong. Of several rules of one kind that select a
	// machine, the first counts.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Failures []SimFailure `json:"failures,omitempty"`
}

// SimCatalog is where a catalogue comes from.
//
// +kubebuilder:validation:XValidation:message="at most one of builtin and configMapRef",rule="!(has(self.builtin) && has(self.configMapRef))"
type SimCatalog struct {
	// Builtin names a catalogue that the program brings along: the instance types of EC2
	// or those of Karpenter's KWOK provider.
	//
	// +optional
	Builtin Builtin `json:"builtin,omitempty"`

	// ConfigMapRef is a catalogue file in a ConfigMap, in the program's own format or that
	// of Karpenter's KWOK provider. The key may be left out if there is just one; a key
	// that ends in .gz holds a compressed file.
	//
	// +optional
	ConfigMapRef *ConfigMapReference `json:"configMapRef,omitempty"`
}

// SimLatency is how long something takes. A machine always gets the same value of the
// same range: it depends on nothing but the UID of its NodeClaim.
type SimLatency struct {
	// Base is the least time.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	Base metav1.Duration `json:"base,omitzero"`

	// Jitter is what may be added to it.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	Jitter metav1.Duration `json:"jitter,omitzero"`
}

// SimTime is a point in time: in RFC 3339, or as a duration since the SimNodeClass was
// created, such as "10m".
//
// +kubebuilder:validation:MaxLength=40
// +kubebuilder:validation:Pattern=`^(([0-9]+(\.[0-9]+)?(ms|s|m|h))+|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2}))$`
type SimTime string

// SimSelector selects offerings, and the machines bought of them. Empty selects all.
type SimSelector struct {
	// InstanceTypes are names, which may hold the wildcards * and ?. Empty means all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	InstanceTypes []string `json:"instanceTypes,omitempty"`

	// Zones of the offerings. Empty means all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	Zones []string `json:"zones,omitempty"`

	// CapacityTypes of the offerings. Empty means all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=on-demand;spot;reserved
	CapacityTypes []string `json:"capacityTypes,omitempty"`
}

// SimWindow is a span of time.
type SimWindow struct {
	// From is its beginning. Unset means always.
	//
	// +optional
	From SimTime `json:"from,omitempty"`

	// Until is its end, which is no longer part of it. Unset means forever.
	//
	// +optional
	Until SimTime `json:"until,omitempty"`
}

// SimCapacity limits the number of machines of some offerings for a time.
type SimCapacity struct {
	SimSelector `json:",inline"`
	SimWindow   `json:",inline"`

	// Available is how many machines of the selected offerings there may be at once, all
	// together. Those that are there already stay, and count. 0 means that nothing can be
	// bought.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Available int32 `json:"available"`

	// Known takes what cannot be bought out of the catalogue. By default a launch finds
	// out, as in a cloud.
	//
	// +optional
	Known bool `json:"known,omitempty"`
}

// SimPrice changes the price of some offerings.
//
// +kubebuilder:validation:XValidation:message="exactly one of price and percent",rule="has(self.price) != has(self.percent)"
type SimPrice struct {
	SimSelector `json:",inline"`

	// At is when it changes. Unset means that it was never otherwise.
	//
	// +optional
	At SimTime `json:"at,omitempty"`

	// Price is the new price in US dollars per hour.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]+)?$`
	Price string `json:"price,omitempty"`

	// Percent is the new price in percent of the one before.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Percent *int32 `json:"percent,omitempty"`
}

// InterruptionKind is what a cloud announces.
//
// +kubebuilder:validation:Enum=SpotInterruption;RebalanceRecommendation;ScheduledChange;InstanceStopping;InstanceTerminating
type InterruptionKind string

// The kinds of interruption.
const (
	SpotInterruption        InterruptionKind = "SpotInterruption"
	RebalanceRecommendation InterruptionKind = "RebalanceRecommendation"
	ScheduledChange         InterruptionKind = "ScheduledChange"
	InstanceStopping        InterruptionKind = "InstanceStopping"
	InstanceTerminating     InterruptionKind = "InstanceTerminating"
)

// SimInterruption announces the end of machines, and brings it. A machine gets each kind
// once. With neither at nor after it comes as soon as there is such a machine.
//
// +kubebuilder:validation:XValidation:message="at most one of at and after",rule="!(has(self.at) && has(self.after))"
type SimInterruption struct {
	SimSelector `json:",inline"`

	// Claims are names of NodeClaims, which are those of their Nodes too. Empty means all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	Claims []string `json:"claims,omitempty"`

	// Percent of the selected machines that it hits. Which ones depends on the UID of
	// their NodeClaims alone.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`

	// At is when it hits the machines that there are then.
	//
	// +optional
	At SimTime `json:"at,omitempty"`

	// After is the age at which it hits a machine.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	After *metav1.Duration `json:"after,omitempty"`

	// Kind is what is announced. A RebalanceRecommendation is not followed by an end.
	//
	// +optional
	// +kubebuilder:default=SpotInterruption
	Kind InterruptionKind `json:"kind,omitempty"`

	// Warning is the time from the announcement until the machine ends. Unset means 2m for
	// a SpotInterruption, 1h for a ScheduledChange, and none for the others.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	Warning *metav1.Duration `json:"warning,omitempty"`
}

// FailureKind is what goes wrong.
//
// +kubebuilder:validation:Enum=LaunchError;NeverRegisters;WrongProviderID;LateNotFound
type FailureKind string

// The kinds of failure.
const (
	// FailureLaunch is a launch that fails with an error of its own.
	FailureLaunch FailureKind = "LaunchError"
	// FailureNeverRegisters is a machine whose Node never appears.
	FailureNeverRegisters FailureKind = "NeverRegisters"
	// FailureWrongProviderID is a Node with another provider ID than its machine's.
	FailureWrongProviderID FailureKind = "WrongProviderID"
	// FailureLateNotFound is a machine that the cloud still lists when it is gone.
	FailureLateNotFound FailureKind = "LateNotFound"
)

// SimFailure makes something go wrong for machines that are launched in a span of time.
//
// +kubebuilder:validation:XValidation:message="for is required for kind LateNotFound, and for it alone",rule="has(self.for) == (self.kind == 'LateNotFound')"
// +kubebuilder:validation:XValidation:message="reason and message are for kind LaunchError",rule="!has(self.reason) && !has(self.message) || self.kind == 'LaunchError'"
type SimFailure struct {
	SimSelector `json:",inline"`
	SimWindow   `json:",inline"`

	// Percent of the selected launches that it hits. Which ones depends on the UID of
	// their NodeClaims alone.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`

	// Kind is what goes wrong.
	//
	// +required
	Kind FailureKind `json:"kind"`

	// Reason of a LaunchError, a word in CamelCase. Unset means SimulatedFailure.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	Reason string `json:"reason,omitempty"`

	// Message of a LaunchError.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// For is how long a machine that is gone is still listed.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	For *metav1.Duration `json:"for,omitempty"`
}

// SimNodeClassStatus is whether the class can be used.
type SimNodeClassStatus struct {
	// InstanceTypes is the number of instance types in the catalogue.
	//
	// +optional
	InstanceTypes int32 `json:"instanceTypes,omitempty"`

	// Offerings is the number of their offerings.
	//
	// +optional
	Offerings int32 `json:"offerings,omitempty"`

	// Conditions hold Ready, which says why if the class cannot be used.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
