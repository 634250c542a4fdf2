package policy

// ScoreInput asks what the offerings of one NodePool really cost.
type ScoreInput struct {
	Meta
	// NodePool the offerings are for.
	NodePool NodePool `json:"nodePool"`
	// Plan is the plan so far, if there is one.
	Plan *Plan `json:"plan,omitempty"`
	// Pods that wait for nodes.
	Pods Pods `json:"pods"`
	// Owners of the pods.
	Owners []Owner `json:"owners,omitempty"`
	// Commitments of the account.
	Commitments []Commitment `json:"commitments"`
	// Totals of the cluster.
	Totals Totals `json:"totals"`
	// History of the cluster.
	History *History `json:"history,omitempty"`
	// Candidates are the offerings; answers name them by index.
	Candidates *Offerings `json:"candidates"`

	chain *chainState // costs and biases left by the policies before; nil before the first
}

// OfferingRow is one offering of one instance type.
type OfferingRow struct {
	// InstanceType is shared by the rows of one type.
	InstanceType *InstanceType `json:"instanceType"`
	// Offering is how it is bought.
	Offering Offering `json:"offering"`
	// DaemonOverhead is what DaemonSets need on a node of this type.
	DaemonOverhead Daemons `json:"daemonOverhead" policy:"dynamic"`
	// Cost in micro-USD per hour as left by the policies before this one.
	Cost int64 `json:"cost" policy:"chain"`
	// Bias in micro-USD per hour as left by the policies before this one.
	Bias int64 `json:"bias" policy:"chain"`
}

// DisruptInput asks whether the nodes of a command may go.
type DisruptInput struct {
	Meta
	// Command is what is to be done.
	Command Command `json:"command"`
	// NodePool of the nodes, if all are of one pool.
	NodePool *NodePool `json:"nodePool,omitempty"`
	// NodePools of the nodes and their replacements, by name.
	NodePools map[string]NodePool `json:"nodePools"`
	// Pods on the nodes, capped.
	Pods []Pod `json:"pods"`
	// PodsTruncated is true if there are more pods than listed.
	PodsTruncated bool `json:"podsTruncated"`
	// PodTotals sums up all pods on the nodes.
	PodTotals Pods `json:"podTotals"`
	// Owners of the pods.
	Owners []Owner `json:"owners"`
	// Commitments of the account.
	Commitments []Commitment `json:"commitments"`
	// Totals of the cluster.
	Totals Totals `json:"totals"`
	// InFlight are disruptions under way.
	InFlight InFlight `json:"inFlight"`
	// History of the cluster.
	History History `json:"history"`
}

// Command is a disruption.
type Command struct {
	// Reason is Empty, Underutilized, Drifted, Expired, Repair, Interruption, Requested or Unblock.
	Reason string `json:"reason"`
	// Decision is delete or replace.
	Decision string `json:"decision"`
	// Candidates are the nodes that would go.
	Candidates []Candidate `json:"candidates"`
	// Replacements are the nodes that would be bought.
	Replacements []Claim `json:"replacements"`
	// Destinations are the running nodes that would take pods.
	Destinations []Destination `json:"destinations"`
	// Savings of the command.
	Savings Savings `json:"savings"`
	// PodsMoved is the number of pods evicted.
	PodsMoved int64 `json:"podsMoved"`
	// BalancedScore is the share of savings over the share of disruption in permille.
	BalancedScore *int64 `json:"balancedScore,omitempty"`
	// SoftViolations are preferences that would be given up.
	SoftViolations []string `json:"softViolations,omitempty"`
	// BlastRadius is the share of the cluster's pods evicted in permille.
	BlastRadius int64 `json:"blastRadius"`
	// EstimatedSeconds until the nodes are gone.
	EstimatedSeconds int64 `json:"estimatedSeconds,omitempty"`
	// SecondsToDeadline is the time until the nodes go anyway; missing if they do not.
	SecondsToDeadline *int64 `json:"secondsToDeadline,omitempty"`
}

// Savings of a command.
type Savings struct {
	// Hourly in micro-USD per hour.
	Hourly int64 `json:"hourly"`
	// Percent of the cost of the nodes, rounded down.
	Percent int64 `json:"percent"`
	// Permille of the cost of the nodes, rounded down.
	Permille int64 `json:"permille"`
	// Monthly in micro-USD per 730 hours.
	Monthly int64 `json:"monthly"`
	// PerPodMoved in micro-USD per hour; missing if no pod moves.
	PerPodMoved *int64 `json:"perPodMoved,omitempty"`
}

// Utilization is the requested share of the allocatable capacity in permille.
type Utilization struct {
	// CPU in permille.
	CPU int64 `json:"cpu"`
	// Memory in permille.
	Memory int64 `json:"memory"`
	// GPU in permille; missing without one.
	GPU *int64 `json:"gpu,omitempty"`
}

// Candidate is a node that would go.
type Candidate struct {
	// Node is the name of the node.
	Node string `json:"node"`
	// Pool is the name of its NodePool.
	Pool string `json:"pool"`
	// Type is the name of its instance type.
	Type string `json:"type"`
	// InstanceType is missing if the type is not in the catalogue any more.
	InstanceType *InstanceType `json:"instanceType,omitempty"`
	// Offering is missing if it is not in the catalogue any more.
	Offering *Offering `json:"offering,omitempty"`
	// Zone of the node.
	Zone string `json:"zone"`
	// CapacityType of the node.
	CapacityType string `json:"capacityType"`
	// HourlyCost in micro-USD per hour.
	HourlyCost int64 `json:"hourlyCost"`
	// Labels of the node.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the node.
	Annotations map[string]string `json:"annotations,omitempty"`
	// AgeSeconds since the NodeClaim was created.
	AgeSeconds int64 `json:"ageSeconds"`
	// SecondsSinceLastPodEvent is missing if there was none.
	SecondsSinceLastPodEvent *int64 `json:"secondsSinceLastPodEvent,omitempty"`
	// SecondsSinceEmpty is missing if the node is not empty.
	SecondsSinceEmpty *int64 `json:"secondsSinceEmpty,omitempty"`
	// Utilization by requests.
	Utilization Utilization `json:"utilization"`
	// Fallback is true if the node was not the first choice when it was bought.
	Fallback bool `json:"fallback"`
	// Drift says what has changed.
	Drift *Drift `json:"drift,omitempty"`
	// BlockedSeconds is how long the node has wanted to go.
	BlockedSeconds int64 `json:"blockedSeconds"`
	// Blockers say what keeps it.
	Blockers []string `json:"blockers"`
	// Conditions of the NodeClaim that are true, sorted.
	Conditions []string `json:"conditions"`
	// DaemonOverhead is what DaemonSets need on the node.
	DaemonOverhead *Daemons `json:"daemonOverhead,omitempty"`
}

// Drift says what has changed.
type Drift struct {
	// Field that differs.
	Field string `json:"field"`
	// Old value.
	Old string `json:"old,omitempty"`
	// New value.
	New string `json:"new,omitempty"`
	// SinceSeconds is how long.
	SinceSeconds int64 `json:"sinceSeconds"`
}

// Destination is a running node that would take pods.
type Destination struct {
	// Node is the name of the node.
	Node string `json:"node"`
	// Pool is the name of its NodePool.
	Pool string `json:"pool"`
	// SecondsSinceLastPodEvent is missing if there was none.
	SecondsSinceLastPodEvent *int64 `json:"secondsSinceLastPodEvent,omitempty"`
	// UtilizationBefore the move.
	UtilizationBefore Utilization `json:"utilizationBefore"`
	// UtilizationAfter the move.
	UtilizationAfter Utilization `json:"utilizationAfter"`
	// InFlight is true if the node is not initialised yet.
	InFlight bool `json:"inFlight"`
}

// LaunchInput asks whether planned nodes may be bought.
type LaunchInput struct {
	Meta
	// Claims are the nodes; answers name them by name.
	Claims []Claim `json:"claims"`
	// Plan is the plan as a whole.
	Plan Plan `json:"plan"`
	// Pods that the nodes are for.
	Pods Pods `json:"pods"`
	// Owners of the pods.
	Owners []Owner `json:"owners,omitempty"`
	// NodePool of the claims, if all are of one pool.
	NodePool *NodePool `json:"nodePool,omitempty"`
	// NodePools of the claims, by name.
	NodePools map[string]NodePool `json:"nodePools"`
	// Commitments of the account.
	Commitments []Commitment `json:"commitments"`
	// Totals of the cluster, without the plan.
	Totals Totals `json:"totals"`
	// InFlight are disruptions under way.
	InFlight *InFlight `json:"inFlight,omitempty"`
	// History of the cluster.
	History History `json:"history"`
}

// Attempt says that this is plan number n for the same pods, from 1.
func (in *LaunchInput) Attempt(n int64) {
	in.Plan.Attempt = n
	for i := range in.Claims {
		in.Claims[i].Attempt = n
	}
}

// Claim is a node to buy.
type Claim struct {
	// Name of the claim in the plan.
	Name string `json:"name"`
	// Pool is the name of its NodePool.
	Pool string `json:"pool"`
	// InstanceType that is planned.
	InstanceType *InstanceType `json:"instanceType"`
	// Offering that is planned.
	Offering Offering `json:"offering"`
	// HourlyCost of the planned offering in micro-USD per hour.
	HourlyCost int64 `json:"hourlyCost"`
	// Commitment that pays for the node; empty if none does.
	Commitment string `json:"commitment,omitempty"`
	Purchase
	// Pods planned for the node.
	Pods Pods `json:"pods"`
	// Labels of the node.
	Labels map[string]string `json:"labels,omitempty"`
	// DaemonOverhead is what DaemonSets need on the node.
	DaemonOverhead Daemons `json:"daemonOverhead"`
}

// AdmitInput asks whether a NodePool is acceptable.
type AdmitInput struct {
	Meta
	// Operation is CREATE or UPDATE.
	Operation string `json:"operation"`
	// Object is the NodePool as JSON.
	Object map[string]any `json:"object"`
	// OldObject is the NodePool before an update.
	OldObject map[string]any `json:"oldObject,omitempty"`
	// User who asks; empty in the controller and in lint.
	User User `json:"user"`
	// DryRun requests are not stored.
	DryRun bool `json:"dryRun"`
	// NodePool is what the engine reads in the object.
	NodePool NodePool `json:"nodePool"`
	// Resolved is what the pool may buy.
	Resolved Resolved `json:"resolved"`
	// Impact of the change on running nodes.
	Impact Impact `json:"impact"`
	// Siblings are the other NodePools.
	Siblings []Sibling `json:"siblings"`
	// BudgetWeek says when disruption budgets are open.
	BudgetWeek BudgetWeek `json:"budgetWeek"`
	// Totals of the cluster.
	Totals Totals `json:"totals"`
}

// User who asks for a change.
type User struct {
	// Name of the user.
	Name string `json:"name"`
	// Groups of the user.
	Groups []string `json:"groups"`
}

// Resolved is what a NodePool may buy.
type Resolved struct {
	// Types by name.
	Types []InstanceType `json:"types"`
	// TypesCount is the number of types.
	TypesCount int64 `json:"typesCount"`
	// PriceMin in micro-USD per hour.
	PriceMin int64 `json:"priceMin"`
	// PriceMax in micro-USD per hour.
	PriceMax int64 `json:"priceMax"`
	// Zones, sorted.
	Zones []string `json:"zones"`
	// CapacityTypes, sorted.
	CapacityTypes []string `json:"capacityTypes"`
}

// Impact of a change of a NodePool. What could not be found out in time is missing.
type Impact struct {
	// Nodes the pool has now.
	Nodes int64 `json:"nodes"`
	// NodesDrifted by the change; missing if that is not known.
	NodesDrifted *int64 `json:"nodesDrifted,omitempty"`
	// NodesOrphaned are nodes of a kind that the changed pool would not buy again; missing if
	// that is not known.
	NodesOrphaned *int64 `json:"nodesOrphaned,omitempty"`
	// HourlyCostDelta in micro-USD per hour, once the drifted nodes are replaced; missing if
	// that is not known.
	HourlyCostDelta *int64 `json:"hourlyCostDelta,omitempty"`
	// PodsUnschedulable after the change; missing if that is not known.
	PodsUnschedulable *int64 `json:"podsUnschedulable,omitempty"`
}

// NoImpact is that of a NodePool which stays as it is.
func NoImpact() Impact {
	return Impact{NodesDrifted: new(int64), NodesOrphaned: new(int64), HourlyCostDelta: new(int64), PodsUnschedulable: new(int64)}
}

// Sibling is another NodePool.
type Sibling struct {
	// Name of the pool.
	Name string `json:"name"`
	// Weight of the pool.
	Weight int64 `json:"weight"`
	// Overlap is true if a pod can be meant for both pools.
	Overlap bool `json:"overlap"`
}

// BudgetWeek says when the disruption budgets of a NodePool are open.
type BudgetWeek struct {
	// Errors are budgets that cannot be read.
	Errors []string `json:"errors"`
	// OpenMinutes of the week by reason; 10080 is always.
	OpenMinutes map[string]int64 `json:"openMinutes"`
	// UnlimitedMinutes of the week by reason: times without any limit.
	UnlimitedMinutes map[string]int64 `json:"unlimitedMinutes"`
}
