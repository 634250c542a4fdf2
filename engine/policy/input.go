package policy

// Meta says for what and under which terms a policy is asked.
type Meta struct {
	// APIVersion is the version of the input.
	APIVersion string `json:"apiVersion"`
	// Hook is score, disrupt, launch or admit.
	Hook Hook `json:"hook"`
	// Cluster is the cluster asked for.
	Cluster Cluster `json:"cluster"`
	// SnapshotRevision names the state of the cluster the input was made from.
	SnapshotRevision string `json:"snapshotRevision,omitempty"`
	// PlanID names the plan the question belongs to.
	PlanID string `json:"planId,omitempty"`
	// Mode is Enforce or Shadow.
	Mode Mode `json:"mode,omitempty"`
	// Bundle is the policy itself.
	Bundle Bundle `json:"bundle"`
	// DeadlineMs is the wall time of the evaluation in milliseconds.
	DeadlineMs int64 `json:"deadlineMs,omitempty"`
	// Now is the time of the snapshot, the only time there is.
	Now Now `json:"now"`
	// Signals are facts pushed in from outside.
	Signals Signals `json:"signals"`
	// Documents say how old the policy's own documents are; the documents are data.
	Documents map[string]Document `json:"documents,omitempty"`
	// Parameters are spec.parameters of the policy.
	Parameters map[string]any `json:"parameters"`

	round *Round // nil is no round
}

// Cluster describes the cluster.
type Cluster struct {
	// Name of the cluster.
	Name string `json:"name"`
	// Region of the cloud.
	Region string `json:"region"`
	// Labels an administrator gave the cluster.
	Labels map[string]string `json:"labels,omitempty"`
}

// Bundle names a policy.
type Bundle struct {
	// Name of the NodePolicy or file.
	Name string `json:"name"`
	// Revision is the digest of source, data and parameters.
	Revision string `json:"revision"`
}

// Now is a time in UTC. Local times come from data.dovetail.lib.
type Now struct {
	// UTC in RFC 3339, to the second.
	UTC string `json:"utc"`
	// Unix is seconds since 1970.
	Unix int64 `json:"unix"`
	// Weekday is the English name of the day, such as Monday.
	Weekday string `json:"weekday"`
	// Hour of the day.
	Hour int `json:"hour"`
	// Minute of the hour.
	Minute int `json:"minute"`
}

// Signal is a fact pushed in from outside.
type Signal struct {
	// Value is what was pushed.
	Value any `json:"value"`
	// AgeSeconds is the time since it was pushed.
	AgeSeconds int64 `json:"ageSeconds"`
	// Stale is true if it is older than its source promised.
	Stale bool `json:"stale"`
}

// Signals are facts pushed in from outside.
type Signals struct {
	// Freeze stops changes by hand.
	Freeze *Signal `json:"freeze,omitempty"`
	// Incident is true while one is open.
	Incident *Signal `json:"incident,omitempty"`
	// DeployFreeze is true while deployments are frozen.
	DeployFreeze *Signal `json:"deployFreeze,omitempty"`
	// SLOBurn is the burn rate of the error budget in permille.
	SLOBurn *Signal `json:"sloBurn,omitempty"`
	// Carbon is grams of CO2 per kWh, by zone.
	Carbon map[string]Signal `json:"carbon,omitempty"`
	// SpotRisk is the chance of an interruption in permille per hour, by instance type and zone.
	SpotRisk map[string]map[string]Signal `json:"spotRisk,omitempty"`
	// Other are free-form keys.
	Other map[string]Signal `json:"other,omitempty"`
}

// Document says how old a document of the policy is.
type Document struct {
	// Revision is the digest of the document.
	Revision string `json:"revision"`
	// AgeSeconds is the time since it was last confirmed by its source.
	AgeSeconds int64 `json:"ageSeconds"`
	// Stale is true if its source could not be read for longer than allowed.
	Stale bool `json:"stale"`
}

// InstanceType is a kind of machine.
type InstanceType struct {
	// Name such as m7i.2xlarge.
	Name string `json:"name"`
	// Family such as m7i.
	Family string `json:"family"`
	// Generation is the number in the family, 7 for m7i; 0 if there is none.
	Generation int `json:"generation"`
	// Size such as 2xlarge.
	Size string `json:"size"`
	// Arch is amd64 or arm64.
	Arch string `json:"arch"`
	// OS lists the operating systems.
	OS []string `json:"os"`
	// Manufacturer of the CPU.
	Manufacturer string `json:"manufacturer"`
	// CPU in millicores.
	CPU int64 `json:"cpu"`
	// Memory in MiB.
	Memory int64 `json:"memory"`
	// Pods is the number of pods a node takes.
	Pods int64 `json:"pods"`
	// GPU is missing if there is none.
	GPU *GPU `json:"gpu,omitempty"`
	// LocalDisk is the size of local disks in MiB.
	LocalDisk int64 `json:"localDisk"`
	// Network bandwidth in Mbit/s.
	Network int64 `json:"network"`
	// Burstable machines have CPU credits.
	Burstable bool `json:"burstable"`
	// BareMetal machines have no hypervisor.
	BareMetal bool `json:"bareMetal"`
	// AttachLimits is the number of volumes by CSI driver.
	AttachLimits map[string]int64 `json:"attachLimits,omitempty"`
	// Labels a node of this type carries for certain.
	Labels map[string]string `json:"labels,omitempty"`
}

// GPU are the accelerators of a machine.
type GPU struct {
	// Name of the model.
	Name string `json:"name"`
	// Count of devices.
	Count int64 `json:"count"`
	// Memory of one device in MiB.
	Memory int64 `json:"memory"`
}

// Offering is one way to buy an instance type. Fields tagged dynamic may change without a
// new revision of the catalogue.
type Offering struct {
	// Zone is the availability zone.
	Zone string `json:"zone"`
	// CapacityType is on-demand, spot or reserved.
	CapacityType string `json:"capacityType"`
	// Available offerings can be bought now.
	Available bool `json:"available" policy:"dynamic"`
	// ListPrice in micro-USD per hour, after NodeOverlays.
	ListPrice int64 `json:"listPrice"`
	// OnDemandPrice of the same type in micro-USD per hour; missing if it is not sold.
	OnDemandPrice *int64 `json:"onDemandPrice,omitempty"`
	// SpotPrice of the same type and zone in micro-USD per hour; missing if it is not sold.
	SpotPrice *int64 `json:"spotPrice,omitempty"`
	// PriceAgeSeconds is the age of the price.
	PriceAgeSeconds int64 `json:"priceAgeSeconds" policy:"dynamic"`
	// PriceSource says where the price is from.
	PriceSource string `json:"priceSource,omitempty"`
	// OverlayChain names the NodeOverlays that changed the price.
	OverlayChain []string `json:"overlayChain,omitempty"`
	// Reservation is that of a reserved offering.
	Reservation *Reservation `json:"reservation,omitempty" policy:"dynamic"`
	// QuotaRemaining is what the account may still buy, in vCPUs.
	QuotaRemaining *int64 `json:"quotaRemaining,omitempty" policy:"dynamic"`
	// ZoneFreeIPs is the number of free addresses in the zone's subnets.
	ZoneFreeIPs *int64 `json:"zoneFreeIPs,omitempty" policy:"dynamic"`
	// ICEHistory counts capacity errors.
	ICEHistory ICEHistory `json:"iceHistory" policy:"dynamic"`
	// InterruptionRate in permille per hour, if known.
	InterruptionRate *int64 `json:"interruptionRate,omitempty" policy:"dynamic"`
}

// Reservation is reserved capacity.
type Reservation struct {
	// ID of the reservation.
	ID string `json:"id"`
	// Remaining units.
	Remaining int64 `json:"remaining"`
}

// ICEHistory counts insufficient-capacity errors of an offering.
type ICEHistory struct {
	// LastHour counts those of the last hour.
	LastHour int64 `json:"1h"`
	// LastDay counts those of the last 24 hours.
	LastDay int64 `json:"24h"`
}

// Commitment is capacity that is paid for whether it is used or not.
type Commitment struct {
	// ID of the commitment.
	ID string `json:"id"`
	// Kind is reserved-instance, savings-plan, capacity-reservation or capacity-block.
	Kind string `json:"kind"`
	// Matches says which offerings the commitment pays for.
	Matches Matches `json:"matches"`
	// UnitsTotal is the number of nodes.
	UnitsTotal int64 `json:"unitsTotal"`
	// UnitsUsed is the number of running nodes that hold a unit.
	UnitsUsed int64 `json:"unitsUsed"`
	// PerHourLimit in micro-USD per hour, for savings plans.
	PerHourLimit *int64 `json:"perHourLimit,omitempty"`
	// PerHourUsed in micro-USD per hour.
	PerHourUsed *int64 `json:"perHourUsed,omitempty"`
	// Expires is a time in RFC 3339.
	Expires string `json:"expires,omitempty"`
}

// Matches selects offerings; an empty list selects all.
type Matches struct {
	// InstanceTypes by name.
	InstanceTypes []string `json:"instanceTypes"`
	// Families by name.
	Families []string `json:"families"`
	// Zones by name.
	Zones []string `json:"zones"`
	// CapacityTypes by name.
	CapacityTypes []string `json:"capacityTypes"`
}

// Plan describes the plan as a whole.
type Plan struct {
	// Nodes is the number of nodes to buy.
	Nodes int64 `json:"nodes"`
	// AddedHourlyCost in micro-USD per hour.
	AddedHourlyCost int64 `json:"addedHourlyCost"`
	Purchase
}

// Purchase describes planned capacity.
type Purchase struct {
	// RequestedCPU of the pods in millicores.
	RequestedCPU int64 `json:"requestedCpu"`
	// RequestedMemory of the pods in MiB.
	RequestedMemory int64 `json:"requestedMemory"`
	// WasteRatio is the unrequested share of the allocatable capacity in permille, of CPU or
	// memory, whichever is less.
	WasteRatio int64 `json:"wasteRatio"`
	// Attempt counts plans for the same pods, from 1.
	Attempt int64 `json:"attempt"`
	// FallbackFrom is the first choice that could not be had.
	FallbackFrom *Fallback `json:"fallbackFrom,omitempty"`
	// MinPrice of the types in micro-USD per hour.
	MinPrice int64 `json:"minPrice"`
	// MaxPrice of the types in micro-USD per hour.
	MaxPrice int64 `json:"maxPrice"`
	// Types that may be launched, cheapest first.
	Types []PricedType `json:"types"`
	// TypesCount is the number of distinct types.
	TypesCount int64 `json:"typesCount"`
}

// Fallback is a choice that could not be had.
type Fallback struct {
	// Pool is the NodePool.
	Pool string `json:"pool,omitempty"`
	// CapacityType such as spot.
	CapacityType string `json:"capacityType,omitempty"`
	// Reason says why not.
	Reason string `json:"reason,omitempty"`
}

// PricedType is an instance type with its cheapest price.
type PricedType struct {
	// Name of the type.
	Name string `json:"name"`
	// Price in micro-USD per hour.
	Price int64 `json:"price"`
}

// Requests are resources.
type Requests struct {
	// CPU in millicores.
	CPU int64 `json:"cpu"`
	// Memory in MiB.
	Memory int64 `json:"memory"`
	// GPU devices.
	GPU int64 `json:"gpu"`
}

// Pods describe a set of pods by sums.
type Pods struct {
	// Count of pods.
	Count int64 `json:"count"`
	// SumRequests of all pods.
	SumRequests Requests `json:"sumRequests"`
	// Namespaces of the pods, sorted.
	Namespaces []string `json:"namespaces"`
	// NamespaceLabels by namespace.
	NamespaceLabels map[string]map[string]string `json:"namespaceLabels,omitempty"`
	// Teams of the pods, sorted.
	Teams []string `json:"teams"`
	// Priorities of the pods, distinct and sorted.
	Priorities []int64 `json:"priorities"`
	// MaxPendingSeconds is the age of the pod that waits longest.
	MaxPendingSeconds int64 `json:"maxPendingSeconds"`
	// Labels are values of allow-listed label keys, distinct and sorted.
	Labels map[string][]string `json:"labels,omitempty"`
	// Annotations are values of allow-listed annotation keys, distinct and sorted.
	Annotations map[string][]string `json:"annotations,omitempty"`
}

// Pod is one pod.
type Pod struct {
	// Namespace of the pod.
	Namespace string `json:"namespace"`
	// Name of the pod.
	Name string `json:"name"`
	// Node the pod runs on.
	Node string `json:"node"`
	// OwnerKind is the kind of its controller.
	OwnerKind string `json:"ownerKind,omitempty"`
	// OwnerName is the name of its controller.
	OwnerName string `json:"ownerName,omitempty"`
	// OwnerUID is the UID of its controller.
	OwnerUID string `json:"ownerUid,omitempty"`
	// AgeSeconds since the pod was created.
	AgeSeconds int64 `json:"ageSeconds"`
	// Labels of the pod.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the pod.
	Annotations map[string]string `json:"annotations,omitempty"`
	// NamespaceLabels of the pod's namespace.
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
	// NamespaceAnnotations of the pod's namespace.
	NamespaceAnnotations map[string]string `json:"namespaceAnnotations,omitempty"`
	// Priority of the pod.
	Priority int64 `json:"priority"`
	// DeletionCost of the pod.
	DeletionCost int64 `json:"deletionCost"`
	// HasLocalData is true if the pod would lose data.
	HasLocalData bool `json:"hasLocalData"`
	// EvictionsLast24h of pods of the same owner.
	EvictionsLast24h int64 `json:"evictionsLast24h"`
	// PDB that covers the pod.
	PDB *PDB `json:"pdb,omitempty"`
	// Disposable pods may be killed at any time.
	Disposable bool `json:"disposable"`
	// RequestedCPU in millicores.
	RequestedCPU int64 `json:"requestedCpu"`
	// RequestedMemory in MiB.
	RequestedMemory int64 `json:"requestedMemory"`
}

// PDB is a pod disruption budget.
type PDB struct {
	// Name of the budget.
	Name string `json:"name"`
	// Allowed disruptions now.
	Allowed int64 `json:"allowed"`
}

// Owner is a controller of pods.
type Owner struct {
	// Kind of the controller.
	Kind string `json:"kind"`
	// Namespace of the controller.
	Namespace string `json:"namespace"`
	// Name of the controller.
	Name string `json:"name"`
	// Replicas wanted.
	Replicas int64 `json:"replicas"`
	// Ready pods.
	Ready int64 `json:"ready"`
	// OnThisNode is the number of ready pods on the nodes of the command.
	OnThisNode int64 `json:"onThisNode"`
	// ReadyElsewhere is the number of ready pods on other nodes.
	ReadyElsewhere int64 `json:"readyElsewhere"`
	// RolloutInProgress is true while a new version is rolled out.
	RolloutInProgress bool `json:"rolloutInProgress"`
	// HPAScaling is true while an autoscaler changes the number of replicas.
	HPAScaling bool `json:"hpaScaling"`
	// SurgeDrain is true if the pods are started elsewhere before they are stopped here.
	SurgeDrain bool `json:"surgeDrain"`
	// ByCapacityType counts pods.
	ByCapacityType map[string]int64 `json:"byCapacityType,omitempty"`
	// ByZone counts pods.
	ByZone map[string]int64 `json:"byZone,omitempty"`
}

// Daemons are what DaemonSets need on a node.
type Daemons struct {
	// CPU in millicores.
	CPU int64 `json:"cpu"`
	// Memory in MiB.
	Memory int64 `json:"memory"`
	// Pods on the node.
	Pods int64 `json:"pods"`
	// Names of the DaemonSets, sorted.
	Names []string `json:"names"`
}

// Amounts are limits or sums of resources; a missing field is no limit.
type Amounts struct {
	// CPU in millicores.
	CPU *int64 `json:"cpu,omitempty"`
	// Memory in MiB.
	Memory *int64 `json:"memory,omitempty"`
	// Nodes is a number of nodes.
	Nodes *int64 `json:"nodes,omitempty"`
	// GPU devices.
	GPU *int64 `json:"gpu,omitempty"`
}

// Budget is a disruption budget of a NodePool.
type Budget struct {
	// Nodes is a number or a percentage.
	Nodes string `json:"nodes"`
	// Reasons the budget is for; empty means all.
	Reasons []string `json:"reasons"`
	// Schedule is a cron expression in UTC.
	Schedule string `json:"schedule,omitempty"`
	// Duration in seconds.
	DurationSeconds int64 `json:"durationSeconds,omitempty"`
}

// Disruption are the disruption settings of a NodePool.
type Disruption struct {
	// ConsolidationPolicy is WhenEmpty, WhenEmptyOrUnderutilized or Balanced.
	ConsolidationPolicy string `json:"consolidationPolicy,omitempty"`
	// ConsolidateAfterSeconds is missing for Never.
	ConsolidateAfterSeconds *int64 `json:"consolidateAfterSeconds,omitempty"`
	// ExpireAfterSeconds is missing for Never.
	ExpireAfterSeconds *int64 `json:"expireAfterSeconds,omitempty"`
}

// NodePool is a NodePool with what it uses.
type NodePool struct {
	// Name of the pool.
	Name string `json:"name"`
	// Labels of the NodePool object.
	Labels map[string]string `json:"labels"`
	// Annotations of the NodePool object.
	Annotations map[string]string `json:"annotations"`
	// Weight of the pool.
	Weight int64 `json:"weight"`
	// Limits of the pool.
	Limits Amounts `json:"limits"`
	// Usage of the pool.
	Usage Amounts `json:"usage"`
	// Remaining is Limits minus Usage.
	Remaining Amounts `json:"remaining"`
	// HourlyCost of the pool's nodes in micro-USD per hour.
	HourlyCost int64 `json:"hourlyCost"`
	// Nodes is the number of nodes.
	Nodes int64 `json:"nodes"`
	// UnregisteredClaims is the number of NodeClaims without a node.
	UnregisteredClaims int64 `json:"unregisteredClaims"`
	// Budgets are the disruption budgets.
	Budgets []Budget `json:"budgets"`
	// Disruption are the disruption settings.
	Disruption Disruption `json:"disruption"`
}

// Totals are sums over the whole cluster.
type Totals struct {
	// Nodes is the number of nodes.
	Nodes int64 `json:"nodes"`
	// CPU in millicores.
	CPU int64 `json:"cpu"`
	// Memory in MiB.
	Memory int64 `json:"memory"`
	// HourlyCost in micro-USD per hour.
	HourlyCost int64 `json:"hourlyCost"`
	// NodesByZone counts nodes.
	NodesByZone map[string]int64 `json:"nodesByZone"`
	// NodesByCapacityType counts nodes.
	NodesByCapacityType map[string]int64 `json:"nodesByCapacityType"`
	// ByLabel sums by allow-listed label key and value.
	ByLabel map[string]map[string]LabelTotals `json:"byLabel"`
}

// LabelTotals are sums over the nodes with one label value.
type LabelTotals struct {
	// Nodes is the number of nodes.
	Nodes int64 `json:"nodes"`
	// CPU in millicores.
	CPU int64 `json:"cpu"`
	// HourlyCost in micro-USD per hour.
	HourlyCost int64 `json:"hourlyCost"`
}

// InFlight counts disruptions that have begun and not ended.
type InFlight struct {
	// Commands running.
	Commands int64 `json:"commands"`
	// Nodes concerned.
	Nodes int64 `json:"nodes"`
	// ByPool counts nodes.
	ByPool map[string]int64 `json:"byPool"`
	// ByZone counts nodes.
	ByZone map[string]int64 `json:"byZone"`
	// ByTeam counts nodes.
	ByTeam map[string]int64 `json:"byTeam"`
}

// History is what happened lately.
type History struct {
	// Disruptions counts disrupted nodes.
	Disruptions Disruptions `json:"disruptions"`
	// SecondsSinceLastDisruption by pool; a pool without one is missing.
	SecondsSinceLastDisruption map[string]int64 `json:"secondsSinceLastDisruption"`
	// SecondsSinceLastDisruptionInCluster is missing if there was none.
	SecondsSinceLastDisruptionInCluster *int64 `json:"secondsSinceLastDisruptionInCluster,omitempty"`
	// Launches counts launched nodes of the last hour.
	Launches int64 `json:"launches"`
	// LaunchFailures30m counts failed launches of the last 30 minutes.
	LaunchFailures30m int64 `json:"launchFailures30m"`
	// LaunchFailures90m counts failed launches of the last 90 minutes.
	LaunchFailures90m int64 `json:"launchFailures90m"`
	// LastMoveOfThisNode is seconds since the node's pods were last moved, by node.
	LastMoveOfThisNode map[string]int64 `json:"lastMoveOfThisNode,omitempty"`
	// SavingsRealised24h in micro-USD per hour.
	SavingsRealised24h int64 `json:"savingsRealised24h"`
}

// Disruptions counts disrupted nodes in the last hour and day.
type Disruptions struct {
	// Cluster counts all.
	Cluster Counts `json:"cluster"`
	// ByPool counts by NodePool.
	ByPool map[string]Counts `json:"byPool"`
	// ByTeam counts by team.
	ByTeam map[string]Counts `json:"byTeam"`
	// ByNamespace counts evicted pods by namespace.
	ByNamespace map[string]Counts `json:"byNamespace"`
}

// Counts are numbers of the last hour and day.
type Counts struct {
	// LastHour counts the last hour.
	LastHour int64 `json:"1h"`
	// LastDay counts the last 24 hours.
	LastDay int64 `json:"24h"`
}
