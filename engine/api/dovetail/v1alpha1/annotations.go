package v1alpha1

// BoughtForAnnotation on a NodeClaim says for which workloads the node was bought, with
// the number of their pods, most first.
const BoughtForAnnotation = Group + "/bought-for"

// PlannedCostAnnotation on a NodeClaim is what the plan counted for the node, after
// scoring policies, in US dollars per hour.
const PlannedCostAnnotation = Group + "/planned-cost"

// ReplacesAnnotation on a NodeClaim names the command that it was bought for, and the claims
// that go once all its replacements are ready. It is taken away when they are gone.
const ReplacesAnnotation = Group + "/replaces"

// DriftStrategyAnnotation on a static NodePool says what happens to a drifted node for which
// limits.nodes leaves no room to replace it first: [DriftDeleteFirst], or it stays.
const DriftStrategyAnnotation = Group + "/drift-strategy"

// DriftDeleteFirst deletes one drifted node at a time and lets its successor follow.
const DriftDeleteFirst = "DeleteFirst"

// Annotations of NodePools about nodes that have reached spec.template.spec.expireAfter.
const (
	// ExpirationAnnotation is [ExpirationGraceful], or nodes are deleted at that age
	// whatever budgets say, as Karpenter does.
	ExpirationAnnotation = Group + "/expiration"
	// ExpirationWindowAnnotation is when expired nodes may be replaced: five cron fields in
	// UTC, or in another zone after "CRON_TZ=Europe/Berlin ", then a slash and how long the
	// window stays open, such as "0 2 * * sun/4h". Without it they may at any time.
	ExpirationWindowAnnotation = Group + "/expiration-window"
	// ExpirationDeadlineAnnotation is how long after that age a node is deleted whatever
	// budgets and window say, such as "72h". Without it that never happens.
	ExpirationDeadlineAnnotation = Group + "/expiration-deadline"
)

// ExpirationGraceful replaces expired nodes as drifted ones: within budgets, with their
// successors ready first.
const ExpirationGraceful = "Graceful"

// DisposableAnnotation is "true" on a pod that may be killed at any time: it never keeps
// the node that it is on, and no room is looked for elsewhere.
const DisposableAnnotation = "policy." + Group + "/disposable"

// ProtectDestinationsAnnotation is "true" on a NodePool whose nodes take no pods of
// consolidation until their consolidateAfter has passed.
const ProtectDestinationsAnnotation = Group + "/protect-destinations"
