package v1alpha1

// BoughtForAnnotation on a NodeClaim says for which workloads the node was bought, with
// the number of their pods, most first.
const BoughtForAnnotation = Group + "/bought-for"

// PlannedCostAnnotation on a NodeClaim is what the plan counted for the node, after
// scoring policies, in US dollars per hour.
const PlannedCostAnnotation = Group + "/planned-cost"
