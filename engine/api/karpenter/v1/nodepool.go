package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodePool is a template of nodes with the policy for launching and disrupting them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodepools,scope=Cluster,categories=karpenter
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.nodes
// +kubebuilder:printcolumn:name="NodeClass",type="string",JSONPath=".spec.template.spec.nodeClassRef.name"
// +kubebuilder:printcolumn:name="Nodes",type="string",JSONPath=".status.nodes"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Weight",type="integer",JSONPath=".spec.weight",priority=1
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".status.resources.cpu",priority=1
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".status.resources.memory",priority=1
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodePoolSpec `json:"spec"`
	// +optional
	Status NodePoolStatus `json:"status,omitempty"`
}

// NodePoolList is a list of NodePools.
//
// +kubebuilder:object:root=true
type NodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodePool `json:"items"`
}

// NodePoolSpec is what the user wants.
//
// +kubebuilder:validation:XValidation:message="cannot switch a NodePool between static (replicas set) and dynamic (replicas unset)",rule="has(self.replicas) == has(oldSelf.replicas)"
// +kubebuilder:validation:XValidation:message="a static NodePool supports only limits.nodes",rule="!has(self.replicas) || (!has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in self.limits))"
// +kubebuilder:validation:XValidation:message="a static NodePool does not support weight",rule="!has(self.replicas) || !has(self.weight)"
type NodePoolSpec struct {
	// Template is what every NodeClaim of this NodePool starts from.
	//
	// +required
	Template NodeClaimTemplate `json:"template"`

	// Disruption says when and how many nodes may be disrupted.
	//
	// +optional
	// +kubebuilder:default:={"consolidateAfter": "0s"}
	Disruption Disruption `json:"disruption"`

	// Limits are the most resources that the nodes of this NodePool may have together;
	// the resource "nodes" counts the nodes. Unset is without limit. A static NodePool
	// may only limit "nodes".
	//
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`

	// Weight is the NodePool's rank: NodePools of a higher weight are used first. Unset
	// counts as 0. A static NodePool has none.
	//
	// +optional
	// +kubebuilder:validation:Minimum:=1
	// +kubebuilder:validation:Maximum:=100
	Weight *int32 `json:"weight,omitempty"`

	// Replicas makes the NodePool static: it keeps this many nodes whatever the pods
	// need, and is not consolidated. This field is alpha.
	//
	// +optional
	// +kubebuilder:validation:Minimum:=0
	Replicas *int64 `json:"replicas,omitempty"`
}

// Static reports whether the NodePool keeps a fixed number of nodes.
func (p *NodePool) Static() bool { return p.Spec.Replicas != nil }

// Disruption is the policy for replacing and removing running nodes.
type Disruption struct {
	// ConsolidateAfter is how long no pod may have come or gone before a node is looked
	// at for consolidation. Never switches consolidation off.
	//
	// +optional
	// +kubebuilder:default:="0s"
	ConsolidateAfter NillableDuration `json:"consolidateAfter,omitempty"`

	// ConsolidationPolicy says which nodes consolidation may touch.
	//
	// +optional
	// +kubebuilder:default:="WhenEmptyOrUnderutilized"
	ConsolidationPolicy ConsolidationPolicy `json:"consolidationPolicy,omitempty"`

	// Budgets bound how many nodes are disrupted at the same time. The most restrictive
	// budget that is active counts. Unset is one budget of 10 %, an empty list is no bound.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default:={{"nodes": "10%"}}
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:XValidation:message="'schedule' must be set with 'duration'",rule="self.all(x, has(x.schedule) == has(x.duration))"
	Budgets []Budget `json:"budgets,omitzero"`
}

// ConsolidationPolicy says which nodes consolidation may touch.
//
// +kubebuilder:validation:Enum=WhenEmpty;WhenEmptyOrUnderutilized;Balanced
type ConsolidationPolicy string

// The consolidation policies.
const (
	// ConsolidationPolicyWhenEmpty removes nodes without pods other than DaemonSets'.
	ConsolidationPolicyWhenEmpty ConsolidationPolicy = "WhenEmpty"
	// ConsolidationPolicyWhenEmptyOrUnderutilized also replaces nodes whose pods fit
	// elsewhere for less.
	ConsolidationPolicyWhenEmptyOrUnderutilized ConsolidationPolicy = "WhenEmptyOrUnderutilized"
	// ConsolidationPolicyBalanced also weighs the saving against the pods it moves.
	ConsolidationPolicyBalanced ConsolidationPolicy = "Balanced"
)

// DisruptionReason is why a node is disrupted.
//
// +kubebuilder:validation:Enum=Underutilized;Empty;Drifted;Unhealthy
type DisruptionReason string

// The disruption reasons.
const (
	DisruptionReasonUnderutilized DisruptionReason = "Underutilized"
	DisruptionReasonEmpty         DisruptionReason = "Empty"
	DisruptionReasonDrifted       DisruptionReason = "Drifted"
	DisruptionReasonUnhealthy     DisruptionReason = "Unhealthy"
)

// Budget bounds how many nodes of a NodePool are disrupted at the same time.
type Budget struct {
	// Reasons are the disruptions that the budget applies to. Unset applies to all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Reasons []DisruptionReason `json:"reasons,omitempty"`

	// Nodes is the bound: a number, or a share of the NodePool's nodes in percent.
	//
	// +required
	// +kubebuilder:default:="10%"
	// +kubebuilder:validation:Pattern=`^((100|[0-9]{1,2})%|[0-9]+)$`
	Nodes string `json:"nodes"`

	// Schedule is when the budget becomes active: five cron fields, or one of @annually,
	// @yearly, @monthly, @weekly, @daily, @midnight and @hourly, in UTC. Unset is always
	// active.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$`
	Schedule *string `json:"schedule,omitempty"`

	// Duration is how long the budget stays active after each hit of Schedule, in hours
	// and minutes. Schedule and Duration are set together.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$`
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// NodePoolStatus is what was observed.
type NodePoolStatus struct {
	// Resources is the capacity of the NodePool's nodes together, those being deleted
	// left out.
	//
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`

	// Nodes is the number of nodes that Resources counts.
	//
	// +optional
	// +kubebuilder:default:=0
	Nodes *int64 `json:"nodes,omitempty"`

	// NodeClassObservedGeneration is the generation of the NodeClass that the condition
	// NodeRegistrationHealthy is about.
	//
	// +optional
	NodeClassObservedGeneration int64 `json:"nodeClassObservedGeneration,omitempty"`

	// Conditions say whether the NodePool is usable, and why not.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
