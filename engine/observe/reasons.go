package observe

// Reasons of events. Those that Karpenter has too mean the same.
const (
	FailedScheduling          = "FailedScheduling"
	Nominated                 = "Nominated"
	NoCompatibleInstanceTypes = "NoCompatibleInstanceTypes"
	InsufficientCapacity      = "InsufficientCapacityError"
	NodeClassNotReady         = "NodeClassNotReady"
	LaunchFailed              = "LaunchFailed"
	UnregisteredTaintMissing  = "UnregisteredTaintMissing"
	FailedConsistencyCheck    = "FailedConsistencyCheck"
	// Finalized is an object that a finalizer was taken off. Conditions that change are
	// told under their type.
	Finalized = "Finalized"
	// NotInitialized is a registered node that has not become ready for pods for long.
	NotInitialized = "NotInitialized"
	// LaunchTimeout, RegistrationTimeout, GarbageCollected and Expired say why a claim
	// was given up.
	LaunchTimeout       = "LaunchTimeout"
	RegistrationTimeout = "RegistrationTimeout"
	GarbageCollected    = "GarbageCollected"
	Expired             = "Expired"

	DisruptionBlocked      = "DisruptionBlocked"
	Unconsolidatable       = "Unconsolidatable"
	DisruptionLaunching    = "DisruptionLaunching"
	DisruptionWaiting      = "DisruptionWaitingReadiness"
	DisruptionTerminating  = "DisruptionTerminating"
	ConsolidationCandidate = "ConsolidationCandidate"
	ConsolidationApproved  = "ConsolidationApproved"
	ConsolidationRejected  = "ConsolidationRejected"
	// DisruptionRolledBack is a command that was taken back, with the cause.
	DisruptionRolledBack = "DisruptionRolledBack"
	// ExpirationUnclear is an annotation about expired nodes that cannot be read;
	// ExpirationHerd are more nodes that expire together than budgets let go.
	ExpirationUnclear         = "ExpirationUnclear"
	ExpirationHerd            = "ExpirationHerd"
	NodeRepairBlocked         = "NodeRepairBlocked"
	RebootObserved            = "RebootObserved"
	RebootFailed              = "RebootFailed"
	Evicted                   = "Evicted"
	Disrupted                 = "Disrupted"
	FailedDraining            = "FailedDraining"
	GracePeriodExpiring       = "TerminationGracePeriodExpiring"
	AwaitingVolumeDetachment  = "AwaitingVolumeDetachment"
	InvalidDoNotDisrupt       = "InvalidDoNotDisruptAnnotation"
	DoNotDisruptUntil         = "DoNotDisruptUntil"
	DoNotDisruptPeriodElapsed = "DoNotDisruptGracePeriodElapsed"
	StaticScaledDown          = "StaticScaledDown"

	// PolicyDenied, PolicyDeferred and PolicyWarning come from NodePolicies; PolicyFailed
	// is about a NodePolicy.
	PolicyDenied   = "PolicyDenied"
	PolicyDeferred = "PolicyDeferred"
	PolicyWarning  = "PolicyWarning"
	PolicyFailed   = "PolicyFailed"
	PolicyReady    = "PolicyReady"
)

// Reasons for which claims are created and disrupted, as metric labels.
const (
	ReasonProvisioned          = "provisioned"
	ReasonExpired              = "expired"
	ReasonUnhealthy            = "unhealthy"
	ReasonGarbageCollected     = "garbage_collected"
	ReasonInsufficientCapacity = "insufficient_capacity"
	ReasonNodeClassNotReady    = "nodeclass_not_ready"
	ReasonRegistrationTimeout  = "registration_timeout"
	ReasonLaunchTimeout        = "launch_timeout"
	ReasonUnderutilized        = "underutilized"
	ReasonEmpty                = "empty"
	ReasonDrifted              = "drifted"
	ReasonScaledDown           = "scaled_down"
)
