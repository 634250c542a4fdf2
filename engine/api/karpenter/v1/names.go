package v1

import (
	corev1 "k8s.io/api/core/v1"
)

// Labels on NodeClaims and Nodes.
const (
	// NodePoolLabelKey names the NodePool that owns a NodeClaim or Node. Pods may select on it.
	NodePoolLabelKey = Group + "/nodepool"
	// CapacityTypeLabelKey is how the machine is bought: one of the CapacityType constants.
	CapacityTypeLabelKey = Group + "/capacity-type"
	// NodeRegisteredLabelKey is "true" on a Node to which its NodeClaim's labels and
	// taints have been copied.
	NodeRegisteredLabelKey = Group + "/registered"
	// NodeInitializedLabelKey is "true" on a Node that is ready for all its pods. It is
	// removed while a reboot is watched.
	NodeInitializedLabelKey = Group + "/initialized"
	// NodeDoNotSyncTaintsLabelKey is "true" on a Node that brings its own taints:
	// registration then copies none from the NodeClaim.
	NodeDoNotSyncTaintsLabelKey = Group + "/do-not-sync-taints"
)

// Values of [CapacityTypeLabelKey].
const (
	CapacityTypeOnDemand = "on-demand"
	CapacityTypeSpot     = "spot"
	CapacityTypeReserved = "reserved"
)

// ExcludeBalancersLabelValue is the value of the label
// node.kubernetes.io/exclude-from-external-load-balancers on a Node that is being
// terminated.
const ExcludeBalancersLabelValue = "karpenter"

// Annotations.
const (
	// DoNotDisruptAnnotationKey protects a pod ("true", or a duration since its start) or
	// a Node ("true" alone) from voluntary disruption.
	DoNotDisruptAnnotationKey = Group + "/do-not-disrupt"
	// DoNotRepairAnnotationKey is "true" on a Node that node repair must leave alone.
	DoNotRepairAnnotationKey = Group + "/do-not-repair"
	// NodePoolHashAnnotationKey is the drift hash of the NodePool's template, see
	// [NodePool.Hash].
	NodePoolHashAnnotationKey = Group + "/nodepool-hash"
	// NodePoolHashVersionAnnotationKey is the [NodePoolHashVersion] that made the hash.
	NodePoolHashVersionAnnotationKey = Group + "/nodepool-hash-version"
	// NodeClaimTerminationTimestampAnnotationKey is the RFC 3339 time at which the drain
	// of a NodeClaim ends and its pods are deleted. Its presence switches that on.
	NodeClaimTerminationTimestampAnnotationKey = Group + "/nodeclaim-termination-timestamp"
	// NodeClaimMinValuesRelaxedAnnotationKey is "true" on a NodeClaim that was launched
	// with fewer values than a requirement's minValues asks, else "false".
	NodeClaimMinValuesRelaxedAnnotationKey = Group + "/nodeclaim-min-values-relaxed"
	// RequestedDRADriversAnnotationKey lists the device drivers, sorted and separated by
	// commas, that must publish their pools before the Node is initialized.
	RequestedDRADriversAnnotationKey = Group + "/requested-dra-drivers"
	// RebootPreBootIDAnnotationKey is the boot ID from before a reboot that was, or may
	// have been, asked of the cloud.
	RebootPreBootIDAnnotationKey = Group + "/reboot-pre-boot-id"
	// RebootTerminationGracePeriodAnnotationKey bounds the drain before a reboot: a
	// duration, "0" to skip the drain; absent means without bound.
	RebootTerminationGracePeriodAnnotationKey = Group + "/reboot-termination-grace-period"
	// PriceOverlayAppliedAnnotationKey is "true" on a NodeClaim for which a NodeOverlay
	// changed the price of an instance type.
	PriceOverlayAppliedAnnotationKey = Group + "/price-overlay-applied"
	// CapacityOverlayAppliedAnnotationKey is "true" on a NodeClaim for which a
	// NodeOverlay added capacity to an instance type.
	CapacityOverlayAppliedAnnotationKey = Group + "/capacity-overlay-applied"
	// DisruptionCostAnnotationKey is the cost of evicting a pod, an int32.
	DisruptionCostAnnotationKey = Group + "/disruption-cost"
	// CapacityBufferPodAnnotationKey marks a placeholder pod, which exists in memory only.
	CapacityBufferPodAnnotationKey = Group + "/capacity-buffer-fake-pod"
	// CapacityBufferNameAnnotationKey names the buffer of a placeholder pod.
	CapacityBufferNameAnnotationKey = Group + "/capacity-buffer-name"
	// CapacityBufferNamespaceAnnotationKey is the namespace of a placeholder pod's buffer.
	CapacityBufferNamespaceAnnotationKey = Group + "/capacity-buffer-namespace"
)

// TerminationFinalizer is on every NodeClaim, and on every Node that a NodeClaim made.
const TerminationFinalizer = Group + "/termination"

// Keys of taints.
const (
	UnregisteredTaintKey = Group + "/unregistered"
	DisruptedTaintKey    = Group + "/disrupted"
	RebootingTaintKey    = Group + "/rebooting"
	// ReadinessTaintPrefix starts the keys of taints that node readiness gates put on a
	// Node and take away again.
	ReadinessTaintPrefix = "readiness.k8s.io/"
)

// UnregisteredTaint is on a Node from its first start until registration.
func UnregisteredTaint() corev1.Taint {
	return corev1.Taint{Key: UnregisteredTaintKey, Effect: corev1.TaintEffectNoExecute}
}

// DisruptedTaint keeps new pods off a Node that is being disrupted or terminated.
func DisruptedTaint() corev1.Taint {
	return corev1.Taint{Key: DisruptedTaintKey, Effect: corev1.TaintEffectNoSchedule}
}

// RebootingTaint keeps new pods off a Node that is being rebooted.
func RebootingTaint() corev1.Taint {
	return corev1.Taint{Key: RebootingTaintKey, Effect: corev1.TaintEffectNoSchedule}
}

// Condition types of NodePools, NodeClaims and NodeOverlays.
const (
	// ConditionReady is the sum of the conditions that a kind depends on.
	ConditionReady = "Ready"

	// Of NodePools; NodeOverlays have ValidationSucceeded too.
	ConditionValidationSucceeded     = "ValidationSucceeded"
	ConditionNodeClassReady          = "NodeClassReady"
	ConditionNodeRegistrationHealthy = "NodeRegistrationHealthy"
	// ConditionPolicyAdmitted says whether admit policies accept a NodePool. A denied one
	// buys nothing; its nodes stay. Ready does not depend on it: Karpenter does not know it.
	ConditionPolicyAdmitted = "PolicyAdmitted"
	// ConditionBudgetsValid is False on a NodePool with a disruption budget that cannot be read,
	// for which none of its nodes are disrupted, and True with a message on one with budgets
	// that are seldom meant. Others do not have it; Ready does not depend on it.
	ConditionBudgetsValid = "DisruptionBudgetsValid"

	// Of NodeClaims.
	ConditionLaunched             = "Launched"
	ConditionRegistered           = "Registered"
	ConditionInitialized          = "Initialized"
	ConditionConsolidatable       = "Consolidatable"
	ConditionDrifted              = "Drifted"
	ConditionDisruptionReason     = "DisruptionReason"
	ConditionConsistentStateFound = "ConsistentStateFound"
	ConditionDrained              = "Drained"
	ConditionVolumesDetached      = "VolumesDetached"
	ConditionInstanceTerminating  = "InstanceTerminating"
	ConditionRebooting            = "Rebooting"
)
